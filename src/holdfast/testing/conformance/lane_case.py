"""A lane sink under test: one place of its own for each promise, written as tasks write it.

*A twin* is here another connection with the same rows: Spark runs tasks twice, and lets them wake up late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lane_publisher import AGAIN
from holdfast.connectors.lanes import (
    LANES,
    LaneMark,
    LaneRows,
    LaneSink,
    LaneWriter,
    OpenLanes,
    Outcome,
    Result,
)
from holdfast.testing.conformance.promises import NotAsked, Seen

JOB, UID, TERM = "job", "out", 1
TRIES_MAX = 40
PAUSE_SECONDS = 0.05

Disturbed = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class LaneCase:
    """A sink under test, at a place where nothing was shown before."""

    make: Callable[[str], LaneSink]
    read_rows: Callable[[str], Iterable[Sequence[object]]]
    sample: pa.Table
    disturbed: Disturbed | None
    refused: pa.Table | None
    place: str

    @property
    def sink(self) -> LaneSink:
        return self.make(self.place)

    def writer(self, uid: str = UID, job: str = JOB) -> LaneWriter:
        writer = self.sink.lane_writer(job, uid)
        if writer is None:
            raise NotAsked("as it is set up it is written on the driver")
        return writer

    def open(self, uid: str = UID, job: str = JOB) -> closing[OpenLanes]:
        """A connection, to be closed by `with`."""
        return closing(self.writer(uid, job).open(TERM))

    def begun(self, through: int = 0) -> LaneCase:
        """The same, with its marks made."""
        with self.open() as lanes:
            lanes.begin(through)
        return self

    def marks(self, uid: str = UID) -> Mapping[int, LaneMark]:
        with self.open(uid) as lanes:
            return dict(lanes.marks())

    def rows(
        self,
        epoch: int,
        *numbers: int,
        lane: int = 0,
        before: LaneMark | None = None,
        input: str = "",
        hook: Callable[[], object] = lambda: None,
        fails_at: int | None = None,
    ) -> LaneRows:
        """Rows of the sample by their numbers, one part each. `hook` is called when the first is loaded;
        the part at `fails_at` cannot be."""

        def load(index: int, number: int) -> pa.Table:
            if index == 0:
                hook()
            if index == fails_at:
                raise OSError("storage is away")
            return self.sample.slice(number, 1)

        parts = tuple(
            StagedPart(lane + LANES * index, 1, partial(load, index, number), input)
            for index, number in enumerate(numbers)
        )
        return LaneRows(lane, epoch, before or LaneMark(0), len(numbers), TERM, input, parts)

    def write(self, rows: LaneRows) -> Result:
        """Write by a connection of its own, as the driver has it tried again."""
        for _ in range(TRIES_MAX):
            with self.open() as lanes:
                result = lanes.write(rows)
            if result.outcome not in AGAIN:
                return result
            SystemClock().sleep(PAUSE_SECONDS)
        return result

    def written(self, rows: LaneRows) -> None:
        """Raise Seen unless the rows are written."""
        expect(self.write(rows), Outcome.WRITTEN, f"epoch {rows.epoch}, lane {rows.lane}, was written")

    def expect(self, what: str, *numbers: int) -> None:
        """Raise Seen unless just these rows of the sample are shown, each once."""
        wanted = Counter(repr(tuple(self.sample.slice(n, 1).to_pylist()[0].values())) for n in numbers)
        shown = Counter(repr(tuple(row)) for row in self.read_rows(self.place))
        if shown != wanted:
            raise Seen(f"{what}: shown {_listed(shown)}, to be shown {_listed(wanted)}")

    def expect_mark(self, what: str, mark: LaneMark, lane: int = 0) -> None:
        found = self.marks().get(lane)
        if found is None or (found, found.input) != (mark, mark.input):
            raise Seen(f"{what}: the mark of lane {lane} is {found}, and should be {mark}")


def expect(result: Result, wanted: Outcome, what: str) -> None:
    if result.outcome is not wanted:
        raise Seen(f"{what}: the result is {result}, and should be {wanted.name}")


def _listed(rows: Counter[str]) -> str:
    return ", ".join(sorted(rows.elements())) or "nothing"
