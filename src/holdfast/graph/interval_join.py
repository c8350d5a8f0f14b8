"""A join of two keyed streams by time: what is declared, what it gives out, what it keeps.

A left row l and a right row r of the same key are a pair if r's time less l's lies within the bounds, both
included. Rows are kept until no partner can come any more that is not late.
Never here: running it (see tasks.operators.interval_join).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN, side_schemas_of
from holdfast.state.encoding.layout import TIME_AND_NUMBER, StateField, StateKind
from holdfast.state.encoding.types import type_ddl

HOWS = ("inner", "left", "right", "full")
LEFT_ROWS, RIGHT_ROWS = "left_rows", "right_rows"
"""The states that hold the rows which may still find a partner."""
MATCHED = "__hf_matched"
"""The field of a kept row that says whether it has had a partner; null where the join does not ask."""
RIGHT_SUFFIX = "_right"


@dataclass(frozen=True)
class IntervalJoin:
    """What `interval_join` was given. `right_key` is left out of the output: the key is there once."""

    on: tuple[str, str]
    within: tuple[str, str]
    how: str
    right_key: tuple[str, ...]

    @property
    def bounds_us(self) -> tuple[int, int]:
        """How much later than a left row its partners are, in µs: from, to."""
        lower, upper = map(_signed_us, self.within)
        return lower, upper

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether left rows, and right ones, are given out if they have no partner."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    def kept_columns(self, rows: pa.Schema, key: Sequence[str]) -> tuple[list[str], list[str]]:
        """The columns of either side that are not key columns."""
        left, right = side_schemas_of(rows)
        return (
            [name for name in left.names if name not in key],
            [name for name in right.names if name not in self.right_key],
        )

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        """All columns of the left rows, then those of the right ones but their key."""
        left, right = side_schemas_of(rows)
        columns = [pa.field(column.name, column.type) for column in left]
        for name in self.kept_columns(rows, key)[1]:
            free = name if name not in left.names else name + RIGHT_SUFFIX
            columns.append(pa.field(free, right.field(name).type))
        names = [column.name for column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DefinitionError(
                f"its output would have the column {twice[0]!r} twice; rename one in a transform(...)"
            )
        return pa.schema(columns)

    def late_schema(self, rows: pa.Schema) -> pa.Schema:
        """Rows that came too late: of which side, the row, and the watermark that it was behind."""
        left = side_schemas_of(rows)[0]
        return pa.schema(
            [
                ("side", pa.string()),
                ("left", rows.field(LEFT_COLUMN).type),
                ("right", rows.field(RIGHT_COLUMN).type),
                ("watermark", left.field(self.on[0]).type),
            ]
        )

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> tuple[StateField, ...]:
        """The rows of either side, by time and number."""
        fields = []
        kept = zip(side_schemas_of(rows), self.kept_columns(rows, key), strict=True)
        for id, (name, (side, columns)) in enumerate(zip((LEFT_ROWS, RIGHT_ROWS), kept, strict=True), 1):
            row = [pa.field(column, side.field(column).type) for column in columns]
            value = pa.struct([*row, pa.field(MATCHED, pa.bool_())])
            fields.append(StateField(id, name, StateKind.TIMED, pa.map_(TIME_AND_NUMBER, value)))
        return tuple(fields)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """What is wrong with what was given, and what to do."""
        if self.how not in HOWS:
            yield f"how={self.how!r} is not known", f"use one of {', '.join(map(repr, HOWS))}"
        if not _is_pair(self.on):
            yield f"on={self.on!r} does not name a column of each side", "give 'ts' or ('ts', 'at')"
        if not _is_pair(self.within):
            yield (
                f"within={self.within!r} is not two bounds, and a join without them would keep every row",
                "give how much later the right row may be: ('-5m', '10m')",
            )
            return
        try:
            lower, upper = self.bounds_us
        except DefinitionError as error:
            problem, _, remedy = str(error).rpartition("; ")
            yield f"within: {problem}", remedy
            return
        if lower > upper:
            yield f"within={self.within!r} ends before it begins", "give the smaller bound first"

    def time_mistakes(self, left: pa.Schema, right: pa.Schema) -> Iterator[tuple[str, str]]:
        """What is wrong with the columns of time, and what to do."""
        types = []
        for side, schema, column in zip(("left", "right"), (left, right), self.on, strict=True):
            if column not in schema.names:
                names = ", ".join(schema.names)
                yield f"the {side} stream has no column {column!r}; there are {names}", "name one of these"
            elif not pa.types.is_timestamp(type := schema.field(column).type):
                yield (
                    f"column {column!r} of the {side} stream is {type_ddl(type)}, not timestamp",
                    "make one with transform(...), such as timestamp_millis(column)",
                )
            else:
                types.append(type_ddl(type))
        if len(set(types)) > 1:
            yield f"the times are {types[0]} and {types[1]}", "cast one of them in a transform(...)"


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, str) for each in given)


def _signed_us(text: str) -> int:
    """A duration, which may be negative, in µs."""
    negative = text.strip().startswith("-")
    size = duration_ms(text.strip().removeprefix("-")) * 1_000
    return -size if negative else size
