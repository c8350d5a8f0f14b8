"""What a part of a simulated job reads, and where it shows its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.connectors.contract import Mark, Slice, StagedPart
from holdfast.errors import StorageError, UnknownOutcome
from holdfast.runtime.parts.channel_source import ChannelReader, Position
from tests.sim.parts.contents import Content
from tests.sim.parts.job_world import JobWorld, PartWorld


class WatchedReader(ChannelReader):
    """A channel, with a checker of what is said of its end."""

    def __init__(self, job: JobWorld, channel: str, part: str) -> None:
        nothing: Any = None
        super().__init__(channel, part, f"sim://{part}", nothing)
        self.job, self.uid, self.before = job, channel, part

    def exhausted(self, after: Any) -> bool:
        began = self.job.scheduler.steps
        ended = super().exhausted(after)
        if ended:
            self.job.parts[self.before].told_ended(self.uid, Position.of(after), began)
        return ended


class RowSource:
    """Numbers, as many as there are."""

    def __init__(self, world: PartWorld) -> None:
        self.world = world

    def reader(self, notes: Sequence[Any]) -> RowSource:
        return self

    def next(self, after: int | None, max_rows: int | None, now_ms: int) -> Slice | None:
        last = min((after or 0) + self.world.chance.randint(1, 3), self.world.available)
        return Slice(after, last) if last > (after or 0) else None

    def exhausted(self, position: int | None) -> bool:
        return (position or 0) >= self.world.available


class PartSink:
    """Shows epochs, and remembers which."""

    exactly_once = True

    def __init__(self, world: PartWorld) -> None:
        self.world = world

    def publisher(self, job: str, uid: str) -> PartSink:
        return self

    def mark(self) -> Mark:
        self.world.scheduler.step()
        return self.world.mark

    def begin(self, through: int) -> None:
        """There is always a trace of this sink."""

    def published_through(self) -> int:
        return self.mark().epoch

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        world = self.world
        content: Content = parts[0].load()
        given = tuple(sorted((uid, rows) for uid, rows in content.read.items()))
        world.scheduler.step()
        world.check_first(epoch, [part.load.args[1].object for part in parts])  # type: ignore[attr-defined]
        if world.chance.random() >= world.fault_chance:
            world.show(epoch, given, parts[0].input)
        elif world.chance.random() < 0.5:
            raise StorageError("injected: the sink took nothing")
        else:
            if world.chance.random() < 0.5:
                world.show(epoch, given, parts[0].input)
            raise UnknownOutcome("injected: the sink did not answer")

    def close(self) -> None:
        """Nothing is held."""
