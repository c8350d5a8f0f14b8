"""Whatever receivers, a reader, crashes, trims and storage do to one another: what was acknowledged to its
sender is in the log and is read, everybody reads the log in one order, and nothing is read more often than it
was given to a receiver.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.log.received import ReceivedLog, unpacked
from holdfast.checkpoint.store import names
from holdfast.connectors.contract import LogBatch, Slice
from holdfast.connectors.receiving import next_slice
from holdfast.errors import ObjectMissing, RetryableError, StorageError, UnknownOutcome
from holdfast.storage.contract import Entry, Put
from tests.unit.checkpoint.kept import MemoryStorage

SOURCE, RECEIVERS, COMMITS_KEPT = "queue", 2, 2


class Crash(Exception):
    """The process is gone, between two of its steps."""


@dataclass
class Receiver:
    """A process that takes messages from the sender. Messages that it has not acknowledged when it fails are
    the sender's again."""

    log: ReceivedLog
    busy: bool = False


@dataclass
class World:
    """A sender that numbers its messages, receivers, and a reader that may go back to its newest commits."""

    pick: Callable[[Sequence[Any]], Any]
    """Chooses one of these."""
    acknowledges_early: bool = False
    kind: type[ReceivedLog] = ReceivedLog
    depth: int = 0
    well: bool = False
    made: int = 0
    queue: list[int] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    given: Counter[int] = field(default_factory=Counter)
    """Message -> how often it was given to a receiver."""
    late: list[tuple[str, bytes]] = field(default_factory=list)
    seen: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Batch -> its writer and turn, as the first who read it found it."""

    def __post_init__(self) -> None:
        self.storage = Disturbed(self)
        self.receivers = [Receiver(self.new_log()) for _ in range(RECEIVERS)]
        self.reader, self.reading = self.new_log(), False
        self.commits: list[tuple[Any, tuple[int, ...]]] = [(None, ())]
        """Positions, each with the messages that were read up to there."""
        self.writers = RECEIVERS + 1

    def new_log(self) -> ReceivedLog:
        self.writers = getattr(self, "writers", 0) + 1
        storage: Any = self.storage
        return self.kind(storage, SOURCE, f"w{self.writers}")

    def receive(self) -> None:
        free = [receiver for receiver in self.receivers if not receiver.busy]
        if not free:
            return
        receiver = self.pick(free)
        if not self.queue:
            self.made += 2
            self.queue += [self.made - 1, self.made]
        taken, self.queue = self.queue[:2], self.queue[2:]
        self.given.update(taken)
        receiver.busy = True
        try:
            if self.acknowledges_early:
                self.acknowledged.update(taken)
            receiver.log.append(pa.record_batch({"n": taken}))
            if self.pick(range(6)) == 0:
                raise Crash
            self.acknowledged.update(taken)
        except (RetryableError, Crash) as failure:
            self.queue += [message for message in taken if message not in self.acknowledged]
            if isinstance(failure, Crash):
                receiver.log = self.new_log()
        finally:
            receiver.busy = False

    def read(self) -> None:
        """Plan a slice, read it and commit; a crash in between leaves nothing of it."""
        if self.reading:
            return
        self.reading = True
        try:
            position, messages = self.commits[-1]
            self.reader.look()
            slice = self.planned(position, self.pick([1, 3, None]))
            if slice is None:
                return
            read = [self.batch(number) for number in slice.detail]
            if not self.well and self.pick(range(5)) == 0:
                self.reader = self.new_log()
                return
            new = tuple(n for rows in read for n in rows.column(0).to_pylist())
            self.commits = [*self.commits, (slice.end, (*messages, *new))][-COMMITS_KEPT:]
        finally:
            self.reading = False

    def planned(self, position: Any, most: int | None) -> Slice | None:
        batches: list[LogBatch] = list(self.reader.after(position["batch"] if position else 0))
        for batch in batches:
            turn = batch.writer, batch.turn
            assert self.seen.setdefault(batch.number, turn) == turn, f"{batch.number} has changed"
        return next_slice(position, batches, most)

    def batch(self, number: int) -> pa.RecordBatch:
        return unpacked(self.storage.objects[names.log_batch(SOURCE, number)], number)[1]

    def trim(self) -> None:
        """What no kept commit could read again."""
        oldest = self.commits[0][0]
        if oldest is not None and not self.reading:
            self.reading = True
            try:
                self.reader.trim(oldest["batch"])
            finally:
                self.reading = False

    def go_back(self) -> None:
        if not self.reading:
            self.commits = self.commits[: self.pick(range(1, len(self.commits) + 1))]
            self.reader = self.new_log()

    def land(self) -> None:
        """What was on its way to storage arrives, or does not."""
        for name, data in self.late:
            self.storage.objects.setdefault(name, data)
        self.late.clear()

    def act(self) -> None:
        moves = [self.receive, self.receive, self.receive, self.read, self.read, self.trim, self.land]
        with suppress(RetryableError):
            self.pick([*moves, self.go_back])()

    def check(self) -> None:
        """Once all is well: a new reader comes to the end of the log."""
        self.well = True
        self.land()
        self.reader = self.new_log()
        before = -1
        while len(self.commits[-1][1]) > before:
            before = len(self.commits[-1][1])
            self.read()
        read = Counter(self.commits[-1][1])
        assert not self.acknowledged - set(read), "acknowledged, and nobody reads it"
        often = {n: count for n, count in read.items() if count > self.given[n]}
        assert not often, f"read more often than it was given to a receiver: {often}"


class Disturbed(MemoryStorage):
    """Storage whose calls fail, stay unanswered or arrive late, and before each of which others may act."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def put_new(self, name: str, data: bytes) -> Put:
        trouble = self._trouble(["failed", "lost", "late", "unanswered"])
        if trouble in ("lost", "late", "unanswered"):
            if trouble == "late":
                self._world.late.append((name, data))
            if trouble == "unanswered":
                super().put_new(name, data)
            raise UnknownOutcome("no answer")
        return super().put_new(name, data)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._trouble(["failed"])
        return super().get(name, offset, length)

    def list(self, prefix: str) -> list[Entry]:
        self._trouble(["failed"])
        return list(super().list(prefix))

    def _trouble(self, kinds: list[str]) -> str:
        world = self._world
        if world.well:
            return ""
        if world.depth < 2 and world.pick(range(7)) == 0:
            # Whoever makes this call sleeps here, and others go on, perhaps far beyond.
            world.depth += 1
            for _ in range(world.pick([1, 3, 6])):
                for move in (world.receive, world.read, world.trim):
                    with suppress(RetryableError):
                        move()
            world.depth -= 1
        trouble: str = world.pick(["", "", "", "", "", *kinds])
        if trouble == "failed":
            raise StorageError("not now")
        return trouble


def live(pick: Callable[[Sequence[Any]], Any], **broken: Any) -> None:
    world = World(pick, **broken)
    for _ in range(pick(range(5, 31))):
        world.act()
    world.check()


HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=100, deadline=None, suppress_health_check=HEALTH)
@given(st.data())
def test_what_was_acknowledged_is_read_in_one_order_and_not_too_often(draw: st.DataObject) -> None:
    live(lambda choices: draw.draw(st.sampled_from(choices)))


class Overtaken(ReceivedLog):
    """Does not look at the floor after it has appended."""

    def _read_floor(self) -> int:
        return 0


@pytest.mark.parametrize(
    "broken", [{"acknowledges_early": True}, {"kind": Overtaken}], ids=["early", "floor-not-looked-at"]
)
def test_what_is_acknowledged_and_never_read_is_found_out(broken: dict[str, Any]) -> None:
    def violation(seed: int) -> str:
        try:
            live(random.Random(seed).choice, **broken)
        except (AssertionError, ObjectMissing) as found:
            return str(found)
        return ""

    assert any("acknowledged, and nobody reads it" in violation(seed) for seed in range(200))
