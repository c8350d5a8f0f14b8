"""A join of two keyed streams by time: what is declared, and what it keeps.

A left row l and a right row r of the same key are a pair if r's time less l's lies within the bounds, both
included. Rows are kept until no partner can come any more that is not late.
Never here: running it (see tasks.operators.interval_join).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError
from holdfast.graph.time_joins import TimeJoin, is_pair

LEFT_ROWS, RIGHT_ROWS = "left_rows", "right_rows"
"""The states that hold the rows which may still find a partner."""
MATCHED = "__hf_matched"
"""The field of a kept row that says whether it has had a partner; null where the join does not ask."""


@dataclass(frozen=True)
class IntervalJoin(TimeJoin):
    """What `interval_join` was given."""

    on: tuple[str, str]
    within: tuple[str, str]
    how: str
    right_key: tuple[str, ...]

    states: ClassVar[tuple[str, str]] = (LEFT_ROWS, RIGHT_ROWS)
    row_flags: ClassVar[tuple[pa.Field, ...]] = (pa.field(MATCHED, pa.bool_()),)

    @property
    def bounds_us(self) -> tuple[int, int]:
        """How much later than a left row its partners are, in µs: from, to."""
        lower, upper = map(_signed_us, self.within)
        return lower, upper

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """What is wrong with what was given, and what to do."""
        yield from super().mistakes()
        if not is_pair(self.within):
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


def _signed_us(text: str) -> int:
    """A duration, which may be negative, in µs."""
    negative = text.strip().startswith("-")
    size = duration_ms(text.strip().removeprefix("-")) * 1_000
    return -size if negative else size
