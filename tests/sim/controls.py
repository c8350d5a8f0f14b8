"""Negative controls: each takes one safeguard away, and the simulation must find that out.

A simulation that stays green without a safeguard does not test it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import msgspec

from holdfast.checkpoint.chain import commits, history, pins, retention
from holdfast.checkpoint.chain import view as view_module
from holdfast.checkpoint.chain.commits import Adopted, Chain, Committed
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.live_files import unpublished
from holdfast.checkpoint.chain.retention import Retention, Retired
from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, Head, fold, rewound
from holdfast.checkpoint.store import names, write_once
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import (
    CommitRecord,
    DeltaFile,
    Parent,
    PinRecord,
    PlanRecord,
)
from holdfast.connectors.contract import Mark
from holdfast.errors import DefinitionError, FencedOut, RetryableError, UnknownOutcome
from holdfast.ids import CommitNumber
from holdfast.runtime.epoch import planner
from holdfast.runtime.epoch import recorded_plans as recorded
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.recorded_plans import recorded_plans
from holdfast.runtime.epoch.sink_queues import SinkQueues
from holdfast.runtime.epoch.watermarks import Watermarks, is_due, to_close
from holdfast.state.contract import NextDue
from holdfast.storage.contract import Put, Storage
from holdfast.tasks.operators.result import FOREVER_US
from tests.sim import leaders
from tests.sim import world as world_module
from tests.sim.event_time import Shown, Violation
from tests.sim.leaders import Parts
from tests.sim.world import World


@dataclass(frozen=True)
class Control:
    """A safeguard taken away. `finds`: what the checker says, or a part of it."""

    finds: str
    parts: Parts = field(default_factory=Parts)
    instead: tuple[tuple[Any, str, Any], ...] = ()
    """Module, name in it, and what stands there instead."""
    world: type[World] = World
    plain: bool = False
    """Neither rewinds nor copies: the broken part knows nothing of them."""
    season: str = ""
    """The weather that brings it to light; empty: any."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        patches = [patch.object(*where) for where in self.instead]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()


def _never_read_back(storage: Storage, name: str, data: bytes) -> bytes:
    storage.put_new(name, data)
    return data


def _hoped_for(storage: Storage, name: str, data: bytes) -> bytes:
    try:
        return data if storage.put_new(name, data) is Put.CREATED else storage.get(name)
    except UnknownOutcome:
        return data


class _Blind(Chain):
    def _overtaken(self, number: int, run: str = "") -> bool:
        return False


class _Floorless(Retention):
    def _raise_floor(self, oldest: CheckpointView, head: CheckpointView, floor: int) -> int:
        return max(floor, (names.number_of(oldest.manifest) or 0) - 1)


def _all_floors(storage: Storage) -> list[str]:
    return [entry.name for entry in storage.list(names.FLOORS)]


class _Hasty(Retention):
    def after_commit(self, head: CheckpointView) -> Retired | None:
        return super().after_commit(replace(head, given_up_below=head.retained_from + 1))


class _Strict(Chain):
    def _give_way(self, term: int, run: str) -> Adopted:
        raise FencedOut(term, self.load().term, "another record has the number")


class _LastEpochOnly(Committer):
    def publish_recovered(self) -> None:
        before = self.view.last_epoch - 1
        through = self._publishing.through
        self._publishing.through = {sink: max(before, epoch) for sink, epoch in through.items()}
        super().publish_recovered()


class _Timeless(Committer):
    def _record(self, outcomes: list[EpochOutcome]) -> CommitRecord:
        return msgspec.structs.replace(super()._record(outcomes), event_times={})


class _Unmarked(Committer):
    def _record(self, outcomes: list[EpochOutcome]) -> CommitRecord:
        return msgspec.structs.replace(super()._record(outcomes), watermarks={})


class _Unclosed(Committer):
    def _record(self, outcomes: list[EpochOutcome]) -> CommitRecord:
        return msgspec.structs.replace(super()._record(outcomes), closed_through=0)


class _HeedlessOfSinks(Committer):
    @property
    def room(self) -> float:
        return 1.0


def _out_of_turn(self: SinkQueues, uid: str, first: int, last: int, files: Any) -> None:
    """An epoch that a sink failed on, is not there for, or refuses is left out: the next one is shown."""
    try:
        self._publishing.show(uid, first, last, files)
    except (RetryableError, DefinitionError):
        through = self._publishing.through
        self._publishing.through = {**through, uid: max(last, through[uid])}


def _given_up(staged: Any, published: Mapping[str, int]) -> Any:
    """What waits for a sink is kept no longer than what one that is never behind needs."""
    newest = max((file.epoch for file in staged), default=0)
    return unpublished(staged, {uid: max(epoch, newest - 1) for uid, epoch in published.items()})


def _judged_anew(self: Planner, plan: PlanRecord, parent: int) -> PlanRecord:
    return self._draft(plan.slices, parent, plan.closing)


def _closing_for_good(
    self: Planner, slices: Any, parent: int, closing: bool = False, *more: Any
) -> PlanRecord:
    plan = _draft(self, slices, parent, closing, *more)
    marks = {uid: msgspec.structs.replace(mark, now_us=FOREVER_US) for uid, mark in plan.watermarks.items()}
    return msgspec.structs.replace(plan, watermarks=marks) if closing else plan


_draft = Planner._draft
_extended = Line.extended
_init = Watermarks.__init__


def _nothing_due(self: Line, delta: DeltaFile) -> Line:
    return replace(_extended(self, delta), next_due=NextDue())


def _from_rows_alone(self: Watermarks, graph: Any, view: CheckpointView) -> None:
    _init(self, graph, replace(view, watermarks={}))


def _known(open_times: Mapping[str, NextDue | None]) -> dict[str, NextDue | None]:
    return {uid: due or NextDue() for uid, due in open_times.items()}


def _pinned_unseen(history: History, name: str, commit: int, holder: str, now_ms: int) -> PinRecord:
    record = PinRecord(name=name, commit=commit, holder=holder, pinned_ms=now_ms)
    write_once.write_once(history.storage, names.pin(name), seal("pin", record))
    return record


class _NumberedByEpoch(Chain):
    """Names a commit by its last epoch. Two leaders that cut barriers elsewhere then never meet."""

    def load(self) -> CheckpointView:
        numbers = self.numbers()
        line: list[CommitRecord] = []
        number = numbers[-1] if numbers else CommitNumber(0)
        while number:
            line.append(self.record(number))
            number = CommitNumber(line[-1].parent.number)
        view = EMPTY
        for record in reversed(line):
            view = self._folded(view, record)
        return view

    def commit(
        self, view: CheckpointView, record: CommitRecord, keep_from: int | None = None
    ) -> Committed | Adopted:
        number = record.last_epoch
        parent = Parent(number=view.number, checksum="")
        record = msgspec.structs.replace(record, number=number, parent=parent)
        data = seal("commit", record)
        if write_once.write_once(self.storage, names.commit(number), data) != data or self._overtaken(number):
            return self._give_way(record.term, record.run)
        return Committed(self._folded(view, record), record)

    def rewind(self, head: Head, to: CommitNumber, **given: Any) -> Committed | Adopted:
        raise NotImplementedError

    def _folded(self, view: CheckpointView, record: CommitRecord) -> CheckpointView:
        before = Parent(number=record.number - 1, checksum="")
        base = replace(view, number=before.number, checksum=before.checksum)
        return fold(base, msgspec.structs.replace(record, parent=before), "")


def _keeping_nothing(head: Head, to: CheckpointView, *given: Any) -> CheckpointView:
    published = rewound(head, to).published_through
    return replace(rewound(head, to), staged=unpublished(to.staged, published), settled=Settled())


class _NoRetention(Retention):
    def after_commit(self, head: CheckpointView) -> Retired | None:
        return None


class FloorUnknown(World):
    """Does not insist on the floor, so that only what comes of having none is found."""

    def _check_used_up(self, name: str) -> None: ...


class BacklogUnknown(World):
    """Does not insist on how much may wait for the sink, so that only what it is shown is judged."""

    def check_backlog(self, committed: int) -> None: ...


class EpochsOnce(World):
    """Knows nothing of commit numbers: content as long as no epoch is committed twice."""

    def create(self, name: str, data: bytes) -> Put:
        beside = self.objects_in(name)
        if name in beside:
            return Put.EXISTS
        beside[name] = data
        if name.startswith(names.COMMITS):
            record = unseal("commit", CommitRecord, data, name)
            covered = {e for other in self.chain for e in range(other.first_epoch, other.last_epoch + 1)}
            if covered & set(range(record.first_epoch, record.last_epoch + 1)):
                raise Violation(f"{name} covers epoch {record.first_epoch} again")
            self.chain.append(record)
        return Put.CREATED

    def check_whole(self) -> None: ...

    def check_backlog(self, committed: int) -> None: ...

    def show(self, epoch: int, given: Shown, input: str) -> None:
        self.mark = Mark(max(epoch, self.mark.epoch))

    def lose_newest(self) -> None: ...

    def check_first(self, epoch: int, files: list[str]) -> None: ...

    def believed(self, view: CheckpointView, run: str) -> None: ...


SOUND: dict[str, Control] = {
    "": Control(""),
    "epochs-once": Control("", Parts(retention=_NoRetention), world=EpochsOnce, plain=True),
}
"""No safeguard is taken away: a checker must be content."""

CONTROLS: dict[str, Control] = {
    "no-read-back": Control("", instead=((commits, "write_once", _never_read_back),)),
    "unknown-taken-for-success": Control("", instead=((commits, "write_once", _hoped_for),), season="faults"),
    "no-look-at-the-floor": Control("for its own", Parts(chain=_Blind)),
    "no-floor": Control("does not follow", Parts(retention=_Floorless), world=FloorUnknown),
    "commits-named-by-epoch": Control(
        "again", Parts(chain=_NumberedByEpoch, retention=_NoRetention), world=EpochsOnce, plain=True
    ),
    "floor-cleaned-away": Control("the floor falls", instead=((retention, "outdated_floors", _all_floors),)),
    "early-deletion": Control("is retained, but", Parts(retention=_Hasty)),
    "republish-last-epoch-only": Control("and was given epoch", Parts(committer=_LastEpochOnly)),
    "building-on-a-higher-term": Control(
        "follows one of term",
        instead=(
            (commits, "_refuse_if_superseded", lambda head, term, run: None),
            (view_module, "_refuse_unless_next", lambda view, record: None),
        ),
    ),
    "fencing-the-rightful-leader": Control("though it is the newest", Parts(chain=_Strict)),
    "pins-not-looked-at": Control(
        "is pinned", instead=((retention, "read_pins", lambda storage: pins.Pins((), ())),)
    ),
    "pin-without-a-second-look": Control("pinned", instead=((pins, "pin", _pinned_unseen),), season="copies"),
    "recorded-plans-ignored": Control(
        "the sink", instead=((leaders, "recorded_plans", lambda *given: deque()),)
    ),
    "event-times-not-committed": Control("the times reported make it", Parts(committer=_Timeless)),
    "watermarks-not-committed": Control("the epoch before it was at", Parts(committer=_Unmarked)),
    "watermarks-not-restored": Control(
        "the epoch before it was at", instead=((Watermarks, "__init__", _from_rows_alone),)
    ),
    "closed-through-not-committed": Control("for the last that closed", Parts(committer=_Unclosed)),
    "closing-without-end": Control("is ahead of the rows", instead=((Planner, "_draft", _closing_for_good),)),
    "judged-anew-when-planned-again": Control("", instead=((Planner, "_drafted_again", _judged_anew),)),
    "next-due-forgotten": Control("timer", instead=((Line, "extended", _nothing_due),)),
    "not-known-taken-for-none": Control(
        "is still open",
        instead=(
            (planner, "is_due", lambda open_times, *given: is_due(_known(open_times), *given)),
            (planner, "to_close", lambda open_times, marks: to_close(_known(open_times), marks)),
        ),
        season="ends",
    ),
    "plans-followed-with-another-event-time": Control(
        "the epoch before it was at",
        instead=((recorded._EventTime, "leads_to", lambda *given: True),),
        season="rivals",
    ),
    "committed-output-dropped-by-a-rewind": Control(
        "the first commit named others",
        instead=tuple((module, "rewound", _keeping_nothing) for module in (commits, history, world_module)),
        season="rewinds",
    ),
    "more-planned-than-a-sink-can-take": Control(
        "and more is planned", Parts(committer=_HeedlessOfSinks), season="outages"
    ),
    "epochs-shown-out-of-turn": Control(
        "was given epoch",
        instead=((SinkQueues, "_show", _out_of_turn),),
        world=BacklogUnknown,
        season="outages",
    ),
    "released-before-the-sink-has-it": Control(
        "", instead=((view_module, "unpublished", _given_up),), season="outages"
    ),
    "sinks-not-asked": Control(
        "the sink", instead=((leaders, "recorded_plans", lambda *given: recorded_plans(*given[:-1], {})),)
    ),
}
