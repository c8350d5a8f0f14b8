"""Both ends of a channel: the chains, retention, outlets and readers are real, the epochs are played."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.checkpoint import Checkpoint, open_checkpoint, read_job
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.plans import Plans, PlanWritten
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.terms import claim, newest_term, record_ending
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    CommitRecord,
    EndedRecord,
    Extent,
    Json,
    PlannedSlice,
    PlannedWatermark,
    PlanRecord,
    SentFile,
)
from holdfast.connectors.channel import ChannelSink
from holdfast.connectors.contract import Slice
from holdfast.connectors.memory import MemorySource
from holdfast.graph.job_graph import ChannelNode, DoorNode, OutletNode, Part, Place, SourceNode
from holdfast.graph.protection import Rollback
from holdfast.ids import CommitNumber, EpochId
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.recorded_plans import replayed_through
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.parts import channel_source, outlets
from holdfast.runtime.parts.channel_source import ChannelReader, Position
from holdfast.runtime.parts.damaged_epochs import EpochDamaged, EpochsAsked, damaged_epoch
from holdfast.runtime.parts.epochs_again import Asking, answer
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.recovery import Recovery
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from holdfast.testing.clocks import ManualClock

CHANNEL = "clicks-in"
COLUMNS = pa.schema([("user", pa.string())])
Files = Sequence[bytes]
"""The files of one epoch; each has as many rows as bytes."""


def outlet(reader: str, *, limit_bytes: int = 1 << 30, limit_epochs: int = 1_000) -> OutletNode:
    """The end of the channel in the part before. `reader`: the place of the part after."""
    here = Place(__file__, 1)
    source = SourceNode(uid="clicks", source=MemorySource([], schema="user string"), place=here)
    scoring = Part(name="scoring", protection=Rollback(), place=here)
    channel = ChannelNode(
        uid=CHANNEL, parent=source, part=scoring, limit_bytes=limit_bytes, limit_epochs=limit_epochs,
        place=here,
    )  # fmt: skip
    return OutletNode(uid=CHANNEL, parent=source, reader=reader, channel=channel, place=here)


def door(keep_epochs: int) -> DoorNode:
    """The end of a channel whose readers are not known."""
    here = Place(__file__, 1)
    source = SourceNode(uid="clicks", source=MemorySource([], schema="user string"), place=here)
    return DoorNode(uid=CHANNEL, parent=source, sink=ChannelSink(keep_epochs=keep_epochs), place=here)


@contextmanager
def places(storages: Mapping[str, Storage]) -> Iterator[None]:
    """Both ends find each other here, whatever their storages are made of."""
    with ExitStack() as patched:
        for module in (channel_source, outlets):
            patched.enter_context(patch.object(module, "open_storage", storages.__getitem__))
        yield


def plan_of(
    epoch: int, slices: dict[str, PlannedSlice] | None = None, time_us: int | None = None, attempt: int = 1
) -> PlanRecord:
    marks = {} if time_us is None else {CHANNEL: PlannedWatermark(now_us=time_us)}
    return PlanRecord(
        epoch=epoch, attempt=attempt, term=1, run="run-1", parent=0, fingerprint="f", parallelism=1,
        clock_ms=epoch, slices=slices or {}, watermarks=marks,
    )  # fmt: skip


def lead(storage: Storage) -> None:
    """A new leader begins. Commits are not numbered by it here."""
    claim(storage, "run-1", "host", 1, 0)


def leave(storage: Storage) -> None:
    """The leader has ended in good order."""
    leader, last = newest_term(storage), Chain(storage).load()
    assert leader is not None
    record_ending(
        storage,
        EndedRecord(
            term=leader.term, run="run-1", at_ms=0, ending="exhausted", commit=last.number,
            last_epoch=last.last_epoch, published=True,
        ),
    )  # fmt: skip


class End:
    """A part at one end of a channel."""

    def __init__(self, storage: Storage, name: str, retain: int) -> None:
        self.storage, self._retain, self.clock = storage, retain, ManualClock()
        self.said: list[str] = []
        open_checkpoint(storage, f"job.{name}", 4, self.clock, identity=name)
        self.open()

    def open(self) -> None:
        self.chain = Chain(self.storage, retain=self._retain, manifest_every=4)
        self.retention = Retention(self.chain, sweep_every=2)
        self.view: CheckpointView = self.chain.load()

    def commit_record(self, record: CommitRecord) -> None:
        outcome = self.chain.commit(self.view, record)
        assert isinstance(outcome, Committed)
        self.view = outcome.view
        self.retention.after_commit(self.view)

    def rewind(self, to: int) -> None:
        """Go back, as a new leader does."""
        outcome = self.chain.rewind(self.view.head, CommitNumber(to), term=1, run="run-1")
        assert isinstance(outcome, Committed)
        self.retention.after_commit(outcome.view)
        self.open()

    @property
    def retained(self) -> range:
        return range(self.view.retained_from, self.view.number + 1)

    @property
    def context(self) -> Any:
        """As far as what asks for an epoch, and what answers, look at it."""
        job = read_job(self.storage)
        checkpoint = Checkpoint(self.storage, job, self.chain, Plans(self.storage), self.retention)
        monitor = SimpleNamespace(say=self.said.append)
        recovery = Recovery(checkpoint, 1, "run-1", self.said.append)
        return SimpleNamespace(checkpoint=checkpoint, recovery=recovery, monitor=monitor, term=1, run="run-1")


class Producer(End):
    """The part before. Whatever it computes again comes out as the caller says: with other bytes."""

    def __init__(
        self,
        storage: Storage,
        node: OutletNode | DoorNode,
        retain: int = 3,
        name: str = "main",
        writes_plans: bool = False,
    ) -> None:
        self.node, self._serial, self._writes_plans = node, 0, writes_plans
        super().__init__(storage, name, retain)

    def open(self) -> None:
        super().open()
        self.outlets = Outlets((self.node,), self.clock)
        program = SimpleNamespace(channels_of=lambda stream: (CHANNEL,))
        self._runner: Any = SimpleNamespace(
            program=program, channels=self.view.channels, whole_after=self.view.whole_after
        )

    @property
    def channel(self) -> Channel:
        return self.view.channels.get(CHANNEL, Channel())

    def look(self) -> None:
        """See how far the channel was read."""
        self.clock.advance(timedelta(seconds=outlets.LOOK_SECONDS))
        self.outlets.look()

    def commit(
        self,
        *epochs: Files,
        times: Mapping[int, int] | None = None,
        rows: int | None = None,
        needs_from: int = 0,
    ) -> None:
        """Commit the next epochs. `times`: the event time after some of them, in µs. `rows`: of each file.
        `needs_from`: of state that is in no file, the first epoch whose rows it is made of."""
        first = self.view.last_epoch + 1
        outcomes = [
            EpochOutcome(plan_of(first + n, time_us=(times or {}).get(first + n))) for n in range(len(epochs))
        ]
        for outcome in outcomes if self._writes_plans else ():
            Plans(self.storage).write(outcome.plan)
        sent = [file for n, files in enumerate(epochs) for file in self._sent(first + n, files, rows)]
        last = first + len(epochs) - 1
        self.commit_record(
            CommitRecord(
                term=1, run="run-1", first_epoch=first, last_epoch=last,
                attempts={str(epoch): 1 for epoch in range(first, last + 1)}, clock_ms=last, parallelism=1,
                fingerprint="f", positions={"clicks": last}, published_through={}, sent=tuple(sent),
                channels=self.outlets.states(self.view.channels, outcomes, last, since=first - 1),
                needs_from=needs_from,
            )
        )  # fmt: skip

    def go_on_without(self, epochs: int) -> None:
        """Commit so many epochs as a job does that has the channel no more, and begin with it again."""
        first, last = self.view.last_epoch + 1, self.view.last_epoch + epochs
        self.commit_record(
            CommitRecord(
                term=1, run="run-1", first_epoch=first, last_epoch=last,
                attempts={str(epoch): 1 for epoch in range(first, last + 1)}, clock_ms=last, parallelism=1,
                fingerprint="f", positions={"clicks": last}, published_through={}, channels={},
            )
        )  # fmt: skip
        self.open()
        self.outlets.marks()

    def answer(self) -> None:
        """See to what the part after asks for, as a leader does that has just looked."""
        self.look()
        requests = self.outlets.requests(self.view.channels)
        if requests:
            answer(self.context, EpochsAsked(requests))
            self.open()

    def files_of(self, epoch: int) -> list[SentFile]:
        return [file for file in self.channel.files if file.epoch == epoch]

    def end(self) -> None:
        """Say that this was all, and leave."""
        self.say(ended=True)
        lead(self.storage)
        leave(self.storage)

    def say(self, ended: bool = False, barrier: int = 0) -> None:
        """Commit without an epoch."""
        states = self.outlets.states(self.view.channels, since=self.view.last_epoch)
        self.commit_record(
            news(
                self.view, term=1, run="run-1", published_through={}, channels=states, ended=ended,
                barrier=barrier,
            )
        )  # fmt: skip

    def _sent(self, epoch: int, files: Files, rows: int | None) -> list[SentFile]:
        self._serial += 1
        name, sent, offset = f"{names.data_of(epoch)}bundle-{self._serial}", [], 0
        if not EpochRunner._channels_of(self._runner, "stream", epoch):
            return []
        for part, data in enumerate(files):
            extent = Extent(object=name, offset=offset, length=len(data), checksum=checksum(data))
            count = len(data) if rows is None else rows
            sent.append(SentFile(channel=CHANNEL, epoch=epoch, part=part, extent=extent, rows=count))
            offset += len(data)
        if files:
            self.storage.put(name, b"".join(files))
        return sent


class Consumer(End):
    """The part after."""

    def __init__(self, storage: Storage, producer: str, retain: int = 3) -> None:
        self._producer = producer
        super().__init__(storage, "scoring", retain)

    def open(self) -> None:
        super().open()
        self.reader = self.new_reader()
        self.planned: list[Slice] = []
        self.asking = Asking()

    def new_reader(self) -> ChannelReader:
        reader = ChannelReader(CHANNEL, "main", self._producer, COLUMNS)
        reader.asked = self.view.asked.get(CHANNEL)
        return reader

    def run(self) -> EpochDamaged | None:
        """What is damaged of what is planned; None: all of it can be read."""
        for epoch, part in enumerate(self.planned, self.view.last_epoch + 1):
            planned = PlannedSlice(start=part.start, end=part.end, rows=part.rows, detail=part.detail)
            damage = damaged_epoch(plan_of(epoch, {CHANNEL: planned}), {CHANNEL: self.reader})
            if damage is not None:
                assert isinstance(damage, EpochDamaged)
                return damage
        return None

    def ask(self, damage: EpochDamaged) -> None:
        """Ask for an epoch, and go on from there."""
        through = replayed_through(self.chain, self.view, {})
        self.view = self.asking.ask(self.context, damage, self.view, through, 1)
        self.reader, self.planned = self.new_reader(), []

    @property
    def position(self) -> Json:
        return self.planned[-1].end if self.planned else self.view.positions.get(CHANNEL)

    def take(self, max_rows: int | None = None) -> Slice | None:
        """Plan the next epoch: some of what is there."""
        part = self.reader.next(self.position, max_rows, 0)
        if part is not None:
            self._plan(part)
        return part

    def follow(self, part: Slice) -> None:
        """Plan the next epoch as it was planned before."""
        assert part.start == self.position
        self.planned.append(part)

    def _plan(self, part: Slice) -> None:
        planned = PlannedSlice(start=part.start, end=part.end, rows=part.rows, detail=part.detail)
        plans, epoch = Plans(self.storage), self.view.last_epoch + len(self.planned) + 1
        plan = plan_of(epoch, {CHANNEL: planned}, attempt=plans.next_attempt(EpochId(epoch)))
        assert isinstance(plans.write(plan), PlanWritten)
        self.planned.append(part)

    def commit(self, needs_from: int = 0) -> None:
        """Commit what is planned; also if that is nothing. `needs_from`: of state that is in no file, the
        first epoch whose rows it is made of."""
        first, last = self.view.last_epoch + 1, self.view.last_epoch + len(self.planned)
        position = {} if self.position is None else {CHANNEL: self.position}
        self.commit_record(
            CommitRecord(
                term=1, run="run-1", first_epoch=first, last_epoch=last,
                attempts={str(epoch): 1 for epoch in range(first, last + 1)}, clock_ms=last, parallelism=1,
                fingerprint="f", positions=position, published_through={}, needs_from=needs_from,
            )
        )  # fmt: skip
        self.planned = []

    def say(self, barrier: int) -> None:
        """Commit without an epoch."""
        self.commit_record(news(self.view, term=1, run="run-1", published_through={}, barrier=barrier))

    def position_at(self, number: int) -> Position:
        return Position.of(self.chain.view_at(number).positions.get(CHANNEL))


def rows_of(storage: Storage, part: Slice) -> list[bytes]:
    """The files that a slice names, read and checked."""
    extents = [Extent(object=o, offset=f, length=n, checksum=c) for o, f, n, c in part.detail["files"]]
    return [read_extent(storage, extent) for extent in extents]
