"""Plans epochs: what the next one reads, written down before it runs."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from holdfast.checkpoint.chain.plans import PlanTaken, may_follow, place_of, same_range
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.checkpoint.store.records import DrainEndRecord, Json, PlannedSlice, PlanRecord, TableCopy
from holdfast.connectors.contract import (
    ClosingReader,
    FollowingReader,
    LoggedSource,
    PartitionedReader,
    PartitionedSource,
    Slice,
    SourceReader,
    TellingReader,
    Waiting,
    WaitingReader,
)
from holdfast.errors import CorruptionError, DefinitionError, FencedOut, RestoreError, Unavailable
from holdfast.graph.job_graph import SourceNode
from holdfast.ids import NO_EPOCH, EpochId, PlanAttempt
from holdfast.runtime.epoch.drain_ends import Ends, RowsLeft, left_after
from holdfast.runtime.epoch.epoch_frames import slice_of
from holdfast.runtime.epoch.lookups import Tables
from holdfast.runtime.epoch.outages import Outages
from holdfast.runtime.epoch.plan_clock import PlanClock
from holdfast.runtime.epoch.recorded_plans import PlanShape, Recorded
from holdfast.runtime.epoch.source_health import show_outages
from holdfast.runtime.epoch.watermarks import Watermarks, is_due, to_close
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.parts.channel_source import ChannelReader
from holdfast.state.contract import NextDue

LOOK_SECONDS = 0.2
"""How often a member of a set of replicas that has no input looks whether another has planned some."""


class Planner:
    """Makes the plan of each epoch in turn. `positions` and `epoch` run ahead of the commits."""

    def __init__(
        self,
        context: LeaderContext,
        view: CheckpointView,
        shape: PlanShape,
        recorded: deque[Recorded],
        tables: Tables,
    ) -> None:
        self._context, self._plans, self._shape = context, context.checkpoint.plans, shape
        self._time, self._recorded = PlanClock(context.clock, view.clock_ms), recorded
        self.watermarks = Watermarks(context.program.graph, view)
        self.tables = tables
        self._closed_through, self._planned_ms = view.closed_through, view.clock_ms
        self._read_rows = True
        """Whether the newest plan reads any, as far as is known."""
        sources = context.program.graph.sources
        self._partitioned = {node.uid for node in sources if isinstance(node.source, PartitionedSource)}
        self._ends: Ends | None = None
        self._looked = (-1, 0.0, 0)
        """Of a set of replicas: after which epoch a plan was looked for last, when, and which was found."""
        self.epoch = view.last_epoch
        self.positions: dict[str, Json] = {node.uid: view.positions.get(node.uid) for node in sources}
        notes = {node.uid: list(view.notes.get(node.uid, ())) for node in sources}
        for found in recorded:
            for uid, part in found.plan.slices.items():
                notes[uid] = [*([] if part.replaces_notes else notes[uid]), *part.notes]
        self.outages = Outages(context, "source")
        self.outages.on_change = partial(show_outages, context.monitor, self.outages)
        self.readers: Mapping[str, SourceReader] = {
            node.uid: self.outages.awaited(node.uid, partial(self._opened, node, notes[node.uid]))
            for node in sources
        }

    def _opened(self, node: SourceNode, notes: list[Json]) -> SourceReader:
        """A reader of a source; one that cannot be read again by itself is given its log."""
        if not isinstance(node.source, LoggedSource):
            return node.source.reader(notes)
        writer = f"{self._context.term}-{uuid.uuid4().hex[:12]}"
        log = ReceivedLog(self._context.checkpoint.storage, node.uid, writer, self._context.clock)
        return node.source.logged_reader(notes, log)

    def let_go(self) -> None:
        """Of what the readers hold: leading is over."""
        for reader in self.readers.values():
            if isinstance(reader, ClosingReader):
                reader.close()

    def next(
        self,
        max_rows: int,
        parent: int,
        open_times: Mapping[str, NextDue | None] | None = None,
        combined: tuple[str, ...] = (),
        ended: Callable[[], bool] = lambda: False,
    ) -> PlanRecord | None:
        """The plan of the next epoch, in storage; None: no source has anything new, and nothing is due.

        `parent`: the newest commit. `open_times`: of the operators that keep times, when each has something
        to do next (None: not known). `combined`: the operators to combine rows of, unless a recorded plan
        says which. `ended`: asked when no source has anything new, whether that was all: then only what its
        last rows made due is planned, and the rest is left to `close`.
        """
        draft = partial(self._drafted, max_rows, parent, open_times or {}, ended)
        return self._next(parent, combined, draft)

    def close(self, parent: int, open_times: Mapping[str, NextDue | None]) -> PlanRecord | None:
        """The plan of an epoch that closes whatever is open, now that the input has ended. None: nothing is,
        or the epoch before has done that.

        Once: a timer that sets the next one would keep a job from ending.
        """
        now_ms = self._time.now_ms()
        marks = self.watermarks.next(now_ms)
        left = to_close(open_times, marks) or is_due(open_times, marks, now_ms)
        if self._closed_through == self.epoch or not left:
            return None
        return self._next(parent, (), lambda: self._draft({}, parent, closing=True))

    def _next(
        self, parent: int, combined: tuple[str, ...], draft: Callable[[], PlanRecord | None]
    ) -> PlanRecord | None:
        # Again where an older leader, which is still at work, has taken the attempt.
        while True:
            recorded = self._recorded.popleft() if self._recorded else None
            if recorded is not None and recorded.obstacle is None:
                plan = recorded.plan
                break
            newest = self._newest_attempt()
            fellow = self._fellow_plan(recorded, newest)
            if fellow is not None:
                plan = fellow
                break
            drafted = draft() if recorded is None else self._drafted_again(recorded.plan, parent)
            if drafted is None:
                return None
            if self._context.replica is not None:
                # What another member has planned since that look is met when this is written, and followed.
                drafted = replace(drafted, attempt=newest + 1)
            written = self._written(replace(drafted, combined=combined), recorded)
            if written is not None:
                plan = written
                break
            if recorded is not None:
                self._recorded.appendleft(recorded)
        if self._ends is not None:
            self._ends.planned(plan)
        self.epoch, self._read_rows = plan.epoch, bool(plan.slices)
        if plan.closing:
            self._closed_through = plan.epoch
            if self._context.replica is not None:
                # That another member drains may be news: nothing is to be read after it has closed all.
                self._context.replica.share_drain(self._context.wishes.draining)
        self._time.reach(plan.clock_ms)
        self._planned_ms = plan.clock_ms
        self.watermarks.planned(plan)
        self.tables.planned(plan)
        self.positions.update({uid: part.end for uid, part in plan.slices.items()})
        return plan

    def _written(self, drafted: PlanRecord, recorded: Recorded | None) -> PlanRecord | None:
        """The plan that counts where a draft was to be written. None: another has the attempt, and it is not
        followed."""
        try:
            written = self._plans.write(drafted)
        except CorruptionError:
            # It was damaged while we drafted: it is found again, and told, by the next look.
            if self._context.replica is None:
                raise
            return None
        plan = written.plan
        if not isinstance(written, PlanTaken) or self._is_followed(plan, recorded):
            return plan
        if plan.term > self._context.term and plan.run != self._context.run:
            raise FencedOut(self._context.term, plan.term, f"plan {plan.epoch}/{plan.attempt} is its")
        return None

    def _newest_attempt(self) -> int:
        """Of a set of replicas: the newest plan of the next epoch; 0: there is none, or none was a moment
        ago."""
        if self._context.replica is None:
            return 0
        now, (looked_for, looked, known) = self._context.clock.monotonic(), self._looked
        if looked_for == self.epoch and now - looked < LOOK_SECONDS and not known:
            # While no input is there: a plan that comes meanwhile is met when this member writes its own.
            return 0
        newest = self._plans.next_attempt(EpochId(self.epoch + 1)) - 1
        self._looked = self.epoch, now, newest
        return newest

    def _fellow_plan(self, recorded: Recorded | None, newest: int) -> PlanRecord | None:
        """The plan of the next epoch that another member of our set of replicas has written. None: there is
        none that can be followed, or it is the one that has to be planned again."""
        if not newest or (recorded is not None and newest <= recorded.plan.attempt):
            return None
        try:
            plan = self._plans.read(EpochId(self.epoch + 1), PlanAttempt(newest))
        except CorruptionError as damage:
            # No member can follow it: the next attempt is for all.
            self._context.monitor.say(f"DAMAGE: {damage}")
            return None
        return plan if self._is_followed(plan, recorded) else None

    def _is_followed(self, plan: PlanRecord, recorded: Recorded | None) -> bool:
        """Whether a plan is one of another member that can be followed; then reads on after its slices,
        whatever was drafted here. One that does not follow what was read here is of a member that has come
        to other results: if it is this one, its commit will tell. `recorded`: what is to be planned again."""
        obstacle = may_follow(
            plan, start_positions=self.positions, fingerprint=self._shape.fingerprint,
            parallelism=self._shape.parallelism,
        )  # fmt: skip
        if self._context.replica is None or plan.run != self._context.run or obstacle is not None:
            return False
        if self._strays(plan):
            return False
        if recorded is not None:
            # The readers were given its slices when this began.
            return same_range(plan, recorded.plan)
        for uid, part in plan.slices.items():
            reader = self.readers[uid]
            if isinstance(reader, FollowingReader):
                reader.follow(slice_of(part))
            elif part.notes or part.replaces_notes:
                raise DefinitionError(
                    f"source {uid!r} remembers what it has read, and its reader cannot follow what another "
                    "member of a set of replicas has planned; give it `follow`, or read it in a part of its "
                    "own that has another protection"
                )
        return True

    def _strays(self, plan: PlanRecord) -> bool:
        """Whether a plan follows from rows, event time or a clock that are not those here: its member may
        have run the epoch before by a plan that does not count."""
        return (
            plan.after not in ("", place_of(self.positions))
            or plan.clock_ms < self._planned_ms
            or plan.closed_through != self._closed_through
            or not self.watermarks.lead_to(plan)
        )

    def end_here(self, fixed: dict[str, Json]) -> None:
        """Plan what is there now, and nothing that comes later. `fixed`: ends that were fixed before, by
        source. Waits until recorded plans are used up, because they come before anything new. Of a set of
        replicas the first end that a member has fixed is that of all. AdoptedOther: another was quicker.
        """
        if self._ends is not None or self._recorded:
            return
        replica, now_ms = self._context.replica, self._time.now_ms()
        shared = replica.joined.drain_end(replica.storage) if replica is not None else None
        if shared is not None:
            fixed.update(shared.ends)
        ends = Ends(self.readers, self.positions, now_ms, fixed, self._counted(shared), self.outages.awaited)
        if replica is not None and shared is None:
            end = DrainEndRecord(
                term=self._context.term, seat=replica.seat, epoch=self.epoch,
                ends={uid: fixed[uid] for uid in fixed if uid in self.readers}, rows=dict(ends.rows_left),
            )  # fmt: skip
            if not replica.joined.fix_drain_end(replica.storage, end):
                # Readers fix their end once: others are made.
                raise AdoptedOther("another member has fixed where the drain ends; going on by that")
        self._ends = ends
        self.watermarks.looks_no_further(now_ms)

    def _counted(self, shared: DrainEndRecord | None) -> tuple[int, RowsLeft]:
        """The rows that are left of sources which cannot fix their end, as a member of our set has counted
        them, and after which epoch. Nothing: they are to be counted here."""
        if shared is None:
            return NO_EPOCH, {}
        left = dict(shared.rows)
        for epoch in range(shared.epoch + 1, self.epoch + 1):
            plan = self._plans.newest(EpochId(epoch))
            if plan is None:
                # Given up: this member joined long after.
                return NO_EPOCH, {}
            left = left_after(left, plan.slices)
        return shared.epoch, left

    def news(self) -> list[str]:
        """What the sources have to say since this was last asked."""
        telling = [reader for reader in self.readers.values() if isinstance(reader, TellingReader)]
        return [text for reader in telling for text in reader.news()]

    def waiting(self) -> Waiting | None:
        """Files and bytes that wait at the sources; None: no source tells, or one has not looked yet."""
        told = [
            reader.waiting(self.positions[uid])
            for uid, reader in self.readers.items()
            if isinstance(reader, WaitingReader)
        ]
        known = [each for each in told if each is not None]
        if not known or len(known) < len(told):
            return None
        return Waiting(sum(each.files for each in known), sum(each.bytes for each in known))

    def now_ms(self) -> int:
        """The time that a plan made now would have."""
        return self._time.now_ms()

    def exhausted(self) -> bool:
        """Whether no source will ever have more. Asked after `next` gave None. Of one whose server is waited
        for it is not known."""
        try:
            return not self.waits and all(
                reader.exhausted(self.positions[uid]) for uid, reader in self.readers.items()
            )
        except Unavailable:
            return False

    @property
    def waits(self) -> bool:
        """Whether the server of a source is waited for: it may have more."""
        return any(self.outages.told(uid) is not None for uid in self.readers)

    def lag(self) -> int | None:
        try:
            lags = [reader.lag(self.positions[uid]) for uid, reader in self.readers.items()]
        except Unavailable:
            return None
        return None if any(lag is None for lag in lags) else sum(lag for lag in lags if lag is not None)

    def _slices(self, max_rows: int, parent: int) -> dict[str, PlannedSlice]:
        now_ms = self._time.now_ms()
        slices: dict[str, PlannedSlice] = {}
        waiting: dict[str, frozenset[str] | None] = {}
        left = max_rows
        uids = list(self.readers)
        first = self.epoch % max(1, len(uids))
        # In turn: a source that always has more than an epoch takes must not keep the others waiting.
        for uid in uids[first:] + uids[:first]:
            if left <= 0:
                waiting[uid] = None
                continue
            most = left if self._ends is None else self._ends.rows(uid, left, self.epoch)
            part = self._slice(uid, most, now_ms, parent) if most > 0 else None
            known = self.outages.told(uid) is None
            # Of a server that is waited for it is not known: event time waits, too.
            waiting[uid] = _with_rows(self.readers[uid], uid in self._partitioned, part) if known else None
            if part is not None:
                slices[uid] = PlannedSlice(
                    start=part.start,
                    end=part.end,
                    rows=part.rows,
                    detail=part.detail,
                    notes=tuple(part.notes),
                    replaces_notes=part.replaces_notes,
                )
                left -= part.rows or 0
        self.watermarks.looked(waiting)
        self.watermarks.ended = frozenset(
            uid
            for uid, reader in self.readers.items()
            if isinstance(reader, ChannelReader)
            and uid not in slices
            and reader.exhausted(self.positions[uid])
        )
        return slices

    def _slice(self, uid: str, max_rows: int, now_ms: int, parent: int) -> Slice | None:
        """None: nothing is new, or the server is waited for. AdoptedOther: what a source no longer has, the
        leader before us has read, and committed since."""
        if not self.outages.is_due(uid):
            return None
        try:
            part = self.readers[uid].next(self.positions[uid], max_rows, now_ms)
            self.outages.answered(uid)
            return part
        except Unavailable as failure:
            self.outages.failed(uid, failure)
            return None
        except RestoreError as refusal:
            newest = max(self._context.checkpoint.chain.numbers(), default=0)
            if newest > parent:
                raise AdoptedOther(f"commit {newest} came first; going on from it") from refusal
            raise

    def _drafted(
        self,
        max_rows: int,
        parent: int,
        open_times: Mapping[str, NextDue | None],
        ended: Callable[[], bool],
    ) -> PlanRecord | None:
        slices = self._slices(max_rows, parent)
        return self._draft(slices, parent) if slices or self._is_due(open_times, ended) else None

    def _is_due(self, open_times: Mapping[str, NextDue | None], ended: Callable[[], bool]) -> bool:
        now_ms = self._time.now_ms()
        marks = self.watermarks.next(now_ms)
        if not is_due(open_times, marks, now_ms):
            return False
        if not ended():
            return True
        # What the last rows made due fires as it would if more had come; all else is left to `close`.
        by_rows = {uid: due and replace(due, processing_us=None) for uid, due in open_times.items()}
        return self._read_rows and self._closed_through != self.epoch and is_due(by_rows, marks, now_ms)

    def _drafted_again(self, plan: PlanRecord, parent: int) -> PlanRecord:
        """Another attempt at a plan: the same slices, at the same time, judged by the same event time where
        it says one, and joined with the same copies of tables. What sinks show of it they do not show again:
        what fired in it because it is due by now would be lost to them."""
        clock_ms = max(plan.clock_ms, self._planned_ms)
        drafted = self._draft(plan.slices, parent, plan.closing, clock_ms, plan.tables)
        return replace(drafted, watermarks={**drafted.watermarks, **plan.watermarks})

    def _draft(
        self,
        slices: dict[str, PlannedSlice],
        parent: int,
        closing: bool = False,
        clock_ms: int | None = None,
        tables: Mapping[str, TableCopy] | None = None,
    ) -> PlanRecord:
        """`clock_ms`: None: now."""
        epoch, clock_ms = EpochId(self.epoch + 1), self._time.now_ms() if clock_ms is None else clock_ms
        watermarks = self.watermarks.next(clock_ms)
        return PlanRecord(
            epoch=epoch,
            attempt=self._plans.next_attempt(epoch),
            term=self._context.term,
            run=self._context.run,
            parent=parent,
            fingerprint=self._shape.fingerprint,
            parallelism=self._shape.parallelism,
            clock_ms=clock_ms,
            slices=slices,
            watermarks=watermarks,
            closing=closing,
            closed_through=self._closed_through,
            after=place_of(self.positions) if watermarks or not slices else "",
            tables=self.tables.for_plan(epoch, clock_ms, tables),
        )


def _with_rows(reader: SourceReader, partitioned: bool, part: Slice | None) -> frozenset[str] | None:
    """The partitions that a slice has rows of; None: there are rows, and no partitions."""
    if part is None:
        return frozenset()
    if not partitioned:
        return None
    assert isinstance(reader, PartitionedReader)
    return frozenset(name for name, has_rows in reader.partitions(part).items() if has_rows)
