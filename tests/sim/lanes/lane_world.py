"""A lane sink, its publishers and a commit chain under seeded storms.

Real are the chain, what marks mean at a start (lane_marks), the publisher of lanes and the rule of marks; the
sink is a dict. Attempts at a lane lose their answers, never come, or come late: after others, after a crash,
after the sink went back to an older copy.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import CommitRecord, Extent, StagedFile
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result, continues
from holdfast.errors import SinkFailed, SinkWentBack, Unavailable
from holdfast.runtime.epoch.lane_marks import LaneQuestion, LaneStanding, standing
from holdfast.testing import ManualClock
from tests.unit.checkpoint.kept import MemoryStorage

STEPS, RUNS_MAX, PARTS = 60, 200, (0, 1, 2, 16, 17)


class Crash(Exception):
    """The driver is gone."""


class Violation(AssertionError):
    """The sink shows what it must not."""


@dataclass
class Habits:
    """What the sink and its publishers do; a control takes one of these away."""

    rule: Callable[[LaneMark | None, LaneRows], int | Outcome] = continues
    standing: Callable[[LaneQuestion], LaneStanding] = lambda asked: standing(asked, lambda: None)
    records_lanes: bool = True
    checks_when_it_writes: bool = True
    before: Callable[[LaneMark], LaneMark] = lambda mark: mark


@dataclass
class Sink:
    """Marks by lane, and the rows that are shown: (epoch, lane, number)."""

    marks: dict[int, LaneMark] = field(default_factory=dict)
    shown: list[tuple[int, int, int]] = field(default_factory=list)

    def apply(self, rows: LaneRows, start: int, end: int) -> None:
        self.shown += [(rows.epoch, rows.lane, number) for number in range(start, end)]
        self.marks[rows.lane] = LaneMark(rows.epoch, end, rows.input)


class LaneWorld:
    """One seed. `happened` counts what it got to."""

    def __init__(self, seed: int, habits: Habits) -> None:
        self.random, self.habits = random.Random(seed), habits
        self.happened: Counter[str] = Counter()
        clock = ManualClock()
        self.checkpoint = open_checkpoint(MemoryStorage(), "job", 4, clock, identity="id", retain=4)
        self.view, self.sink, self.copies = CheckpointView(), Sink(), [Sink()]
        self.late: list[tuple[LaneRows, int | Outcome]] = []
        self.calm = False
        self.chunked = self.random.random() < 0.5

    # What a writer is to the publisher: the sink's end of a connection.

    def open(self, term: int) -> LaneWorld:
        return self

    def begin(self, through: int) -> None:
        for lane in range(LANES):
            self.sink.marks.setdefault(lane, LaneMark(through))

    def marks(self) -> Mapping[int, LaneMark]:
        return dict(self.sink.marks)

    def close(self) -> None:
        return

    def write(self, rows: LaneRows) -> Result:
        fate = 1.0 if self.calm else self.random.random()
        decided = self.habits.rule(self.sink.marks.get(rows.lane), rows)
        if fate < 0.06:
            self.late.append((rows, decided))
            return Result(Outcome.UNAVAILABLE, reason="it comes later")
        if fate < 0.10:
            return Result(Outcome.BUSY, reason="a twin")
        if fate < 0.14:
            self.happened["crash"] += 1
            raise Crash
        if isinstance(decided, Outcome):
            return Result(decided, self.sink.marks.get(rows.lane))
        end = rows.rows
        if self.chunked and fate < 0.4:
            end = self.random.randrange(decided, rows.rows)
            self.happened["half of a lane"] += 1
        self.sink.apply(rows, decided, end)
        if end < rows.rows or fate < 0.2:
            self.happened["lost answer"] += 1
            return Result(Outcome.UNAVAILABLE, reason="no answer")
        return Result(Outcome.WRITTEN, rows.end)

    def wake(self) -> None:
        """A writer that was given up goes on."""
        if self.late:
            rows, decided = self.late.pop(self.random.randrange(len(self.late)))
            if self.habits.checks_when_it_writes:
                decided = self.habits.rule(self.sink.marks.get(rows.lane), rows)
            self.happened["late twin"] += 1
            if not isinstance(decided, Outcome):
                self.sink.apply(rows, decided, rows.rows)

    # The job.

    def commit(self, publisher: LanePublisher, through: int) -> None:
        epoch = self.view.last_epoch + 1
        parts = self.random.sample(PARTS, self.random.randrange(len(PARTS)))
        self._append(
            CommitRecord(
                term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=1,
                parallelism=1, fingerprint="f", positions={}, published_through={"out": through},
                lanes_through=self._lanes(publisher),
                staged=tuple(_staged(epoch, part, self.random.randrange(1, 5)) for part in sorted(parts)),
            )
        )  # fmt: skip

    def tell(self, publisher: LanePublisher, through: int) -> None:
        lanes = self._lanes(publisher)
        self._append(
            news(self.view, term=1, run="r", published_through={"out": through}, lanes_through=lanes)
        )

    def _lanes(self, publisher: LanePublisher) -> dict[str, dict[str, tuple[int, int]]]:
        shown = publisher.shown or {}
        known = {str(lane): (mark.epoch, mark.rows) for lane, mark in shown.items() if mark.rows}
        return {"out": known} if self.habits.records_lanes else {}

    def _append(self, record: CommitRecord) -> None:
        done = self.checkpoint.chain.commit(self.view, record)
        assert isinstance(done, Committed)
        self.view = done.view

    def run(self) -> None:
        """A whole life: runs that crash, until the storm is over; then one that ends. SinkWentBack: what the
        sink has lost is no longer staged."""
        committed: dict[tuple[int, int], int] = {}
        for _ in range(RUNS_MAX):
            with suppress(Crash, Unavailable, SinkFailed):
                self._lead(committed)
                break
        else:
            raise Violation(f"{RUNS_MAX} runs, and none came to its end")
        self._lead(committed)
        wanted = Counter(
            (epoch, lane, number) for (epoch, lane), rows in committed.items() for number in range(rows)
        )
        shown = Counter(self.sink.shown)
        if shown != wanted:
            raise Violation(f"doubled {sorted(shown - wanted)[:3]}, lost {sorted(wanted - shown)[:3]}")
        for lane in range(LANES):
            order = [(epoch, number) for epoch, its, number in self.sink.shown if its == lane]
            if order != sorted(order):
                raise Violation(f"lane {lane} is out of order: {order}")

    def _lead(self, committed: dict[tuple[int, int], int]) -> None:
        publisher = LanePublisher(self, clock=ManualClock())
        asked = LaneQuestion("out", self.marks(), self.view, self.checkpoint.chain)
        stood = self.habits.standing(asked)
        publisher.shown = {lane: self.habits.before(mark) for lane, mark in stood.shown.items()}
        self.begin(stood.begins)
        if stood.again:
            self.happened["shown again"] += 1
        for epoch in sorted({file.epoch for file in stood.again}):
            publisher.publish(epoch, _parts(stood.again, epoch))
        through = stood.through
        while not self.calm or through < self.view.last_epoch:
            through = self._step(publisher, through, committed)
            self.calm = self.calm or self.happened["step"] >= STEPS
        # A clean end is committed: what a sink loses by then, or later, is found by the next start.
        self.tell(publisher, through)

    def _step(self, publisher: LanePublisher, through: int, committed: dict[tuple[int, int], int]) -> int:
        self.happened["step"] += 1
        chance = self.random.random()
        if not self.calm and chance < 0.35:
            self.commit(publisher, through)
            for file in self.view.staged:
                lane, epoch = file.part % LANES, self.view.last_epoch
                if file.epoch == epoch:
                    committed[epoch, lane] = committed.get((epoch, lane), 0) + file.rows
        elif not self.calm and chance < 0.45:
            self.wake()
        elif not self.calm and chance < 0.55:
            self.tell(publisher, through)
        elif not self.calm and chance < 0.65:
            self.copies.append(deepcopy(self.sink))
        elif not self.calm and chance < 0.68:
            self.happened["went back"] += 1
            self.sink = deepcopy(self.random.choice(self.copies[-2:]))
        elif through < self.view.last_epoch:
            publisher.publish(through + 1, _parts(self.view.staged, through + 1))
            if publisher.shown is not None:
                publisher.shown = {lane: self.habits.before(mark) for lane, mark in publisher.shown.items()}
            return through + 1
        return through


def _staged(epoch: int, part: int, rows: int) -> StagedFile:
    extent = Extent(object=f"{epoch}-{part}", offset=0, length=0, checksum="")
    return StagedFile(
        stream="s", epoch=epoch, part=part, extent=extent, rows=rows, sinks=("out",), input=f"i{epoch}"
    )


def _parts(files: Sequence[StagedFile], epoch: int) -> list[StagedPart]:
    return [
        StagedPart(file.part, file.rows, lambda: pa.table({}), file.input)
        for file in files
        if file.epoch == epoch
    ]


def simulate(seed: int, habits: Habits | None = None) -> Counter[str]:
    """Live one seed; gives what happened. Violation: a promise is broken."""
    world = LaneWorld(seed, habits or Habits())
    try:
        world.run()
    except SinkWentBack:
        world.happened["refused"] += 1
    return world.happened
