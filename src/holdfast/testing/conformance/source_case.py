"""A source under test, and what another run would have of it.

*Another run* is here a source made once more, given what was stored of the earlier one as JSON: what another
process would have, but for the memory of this one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from holdfast.connectors.contract import Json, Slice, Source, SourceReader
from holdfast.testing.conformance.promises import NotAsked, hold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_700_000_000_000
SLICES_MAX = 1_000
"""More than this, and the source is taken for one without end."""

Rows = Counter[str]


@dataclass(frozen=True)
class SourceCase:
    """A source under test."""

    make: Callable[[], Source]
    spark: SparkSession | None
    count: Callable[[Slice], int] | None
    max_rows: Literal["exact", "approximate"]
    endless: bool
    vanish: Callable[[], object] | None
    limit: int = 1
    """The `max_rows` that cuts its input into several slices."""

    def reader(self, slices: Sequence[Slice] = ()) -> SourceReader:
        """A reader of another run, after these slices."""
        return self.make().reader(notes_after(slices))

    def plan(self, reader: SourceReader, max_rows: int | None, after: Json = None) -> list[Slice]:
        """All slices from a position on."""
        slices: list[Slice] = []
        while (planned := reader.next(after, max_rows, NOW_MS)) is not None:
            slices.append(planned)
            after = planned.end
            hold(
                len(slices) <= SLICES_MAX,
                f"{SLICES_MAX} slices with max_rows={max_rows} and no end of them, the newest {planned}",
            )
        return slices

    def slices(self) -> list[Slice]:
        """Its input in several slices."""
        return self.plan(self.reader(), self.limit)

    def rows_in(self, slice: Slice) -> int:
        """How many rows a slice has, as far as that can be known."""
        if slice.rows is not None:
            return slice.rows
        if self.count is not None:
            return self.count(slice)
        if self.spark is None:
            raise NotAsked("its slices do not say how many rows they have; give spark= or rows_in=")
        return self.frame_rows(self.reader(), slice).total()

    def rows_of(self, slices: Sequence[Slice]) -> int:
        return sum(map(self.rows_in, slices))

    def frame_rows(self, reader: SourceReader, slice: Slice) -> Rows:
        """The rows of a slice."""
        if self.spark is None:
            raise NotAsked("no Spark session was given; give spark=")
        return Counter(map(repr, reader.frame(self.spark, slice).collect()))

    def needs_replay(self) -> None:
        if not self.make().replayable:
            raise NotAsked("it says replayable = False")


def stored(value: Json) -> Json:
    """What comes back of a value from a plan or a commit."""
    return json.loads(json.dumps(value))


def stored_slice(slice: Slice) -> Slice:
    return replace(
        slice,
        start=stored(slice.start),
        end=stored(slice.end),
        detail=stored(slice.detail),
        notes=tuple(stored(list(slice.notes))),
    )


def notes_after(slices: Sequence[Slice]) -> list[Json]:
    """The notes that a reader is given after these slices."""
    notes: list[Json] = []
    for slice in slices:
        notes = [*([] if slice.replaces_notes else notes), *stored(list(slice.notes))]
    return notes
