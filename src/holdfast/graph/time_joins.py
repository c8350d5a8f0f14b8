"""What joins of two keyed streams by time have in common: sides, columns, late rows, what is kept.

Rows of either side are kept by time, each once, until no partner can come any more that is not late.
Never here: which rows are pairs (see interval_join and window_join).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.event_time import timestamp_remedy
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN, side_schemas_of
from holdfast.state.encoding.layout import TIME_AND_NUMBER, StateField, StateKind
from holdfast.state.encoding.types import type_ddl

HOWS = ("inner", "left", "right", "full")
RIGHT_SUFFIX = "_right"
SPARK_HOWS = {"outer": "full", "fullouter": "full", "leftouter": "left", "rightouter": "right"}
"""What Spark calls the same, without underscores."""


class TimeJoin:
    """A join by time. `on`: the columns of time; `right_key` is left out of the output: the key is there
    once."""

    on: tuple[str, str]
    how: str
    right_key: tuple[str, ...]

    states: ClassVar[tuple[str, str]]
    """The states that hold the rows of either side."""
    row_flags: ClassVar[tuple[pa.Field, ...]] = ()
    """What is kept of a row besides its columns."""

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether left rows, and right ones, are given out if they have no partner."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def kept_of(self) -> dict[str, dict[str, str]]:
        """What else the rows of a state depend on, by state: see state.files.evolution."""
        return {}

    def kept_columns(self, rows: pa.Schema, key: Sequence[str]) -> tuple[list[str], list[str]]:
        """The columns of either side that are not key columns."""
        left, right = side_schemas_of(rows)
        return (
            [name for name in left.names if name not in key],
            [name for name in right.names if name not in self.right_key],
        )

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        """The columns that lead, then those of the right side but its key; DefinitionError: one is there
        twice."""
        columns = self.leading_columns(rows, key)
        taken = {column.name for column in columns}
        right = side_schemas_of(rows)[1]
        for name in self.kept_columns(rows, key)[1]:
            free = name if name not in taken else name + RIGHT_SUFFIX
            columns.append(pa.field(free, right.field(name).type))
        names = [column.name for column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DefinitionError(
                f"its output would have the column {twice[0]!r} twice; rename one in a transform(...)"
            )
        return pa.schema(columns)

    def leading_columns(self, rows: pa.Schema, key: Sequence[str]) -> list[pa.Field]:
        """The columns of the output before those of the right side: those of the left rows."""
        return [pa.field(column.name, column.type) for column in side_schemas_of(rows)[0]]

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
        for id, (name, (side, columns)) in enumerate(zip(self.states, kept, strict=True), 1):
            row = [pa.field(column, side.field(column).type) for column in columns]
            value = pa.struct([*row, *self.row_flags])
            fields.append(StateField(id, name, StateKind.TIMED, pa.map_(TIME_AND_NUMBER, value)))
        return tuple(fields)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """What is wrong with what was given, and what to do."""
        if self.how not in HOWS:
            yield f"how={self.how!r} is not known", how_remedy(self.how, HOWS)
        if not is_pair(self.on):
            yield f"on={self.on!r} does not name a column of each side", "give 'ts' or ('ts', 'at')"

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
                    timestamp_remedy(type),
                )
            else:
                types.append(type_ddl(type))
        if len(set(types)) > 1:
            yield f"the times are {types[0]} and {types[1]}", "cast one of them in a transform(...)"


def how_remedy(given: object, known: Sequence[str]) -> str:
    """What to do about a `how` that is not known; names of Spark's are told which one is meant."""
    meant = SPARK_HOWS.get(str(given).replace("_", "").lower())
    if meant in known:
        return f"say how={meant!r}"
    return f"use one of {', '.join(map(repr, known))}"


def is_pair(given: Any) -> bool:
    """Whether two texts were given."""
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, str) for each in given)
