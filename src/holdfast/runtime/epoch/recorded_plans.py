"""The plans that earlier leaders left behind, and which of them the next leader follows.

Following them means that a crash after planning changes nothing. What sinks may show must be read again
exactly as it was, whatever else has changed; where that cannot be done the run is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.plans import (
    Plans,
    committed_attempts,
    gives_up,
    input_of,
    may_follow,
    place_of,
    same_range,
)
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Json, PlanRecord
from holdfast.connectors.contract import Mark
from holdfast.errors import CorruptionError, HoldfastError, ObjectMissing, RestoreError, RetryableError
from holdfast.ids import EpochId, PlanAttempt
from holdfast.runtime.epoch.epoch_frames import slice_of
from holdfast.runtime.leader_context import AdoptedOther
from holdfast.runtime.parts.channel_source import OpenChannel, Position

PLANS_AHEAD_MAX = 1_000
"""How many recorded plans a recovery follows at most, beyond those that a rewind has to replay."""


@dataclass(frozen=True)
class PlanShape:
    """What a run makes plans for: these sources, this code, so many shards, and at most so many rows."""

    sources: tuple[str, ...]
    fingerprint: str
    parallelism: int
    max_rows: int | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    """Lookup uid -> the columns of its table."""


@dataclass(frozen=True)
class Recorded:
    """A plan found in storage. `obstacle`: why its slices have to be planned again."""

    plan: PlanRecord
    obstacle: str | None


def recorded_plans(
    chain: Chain,
    view: CheckpointView,
    shape: PlanShape,
    shown: Mapping[str, Mark],
    say: Callable[[str], None] = lambda text: None,
    doors: Mapping[str, OpenChannel] = MappingProxyType({}),
) -> deque[Recorded]:
    """The plans after the view, in order, for as long as each reads on from where the one before ended.

    Sinks may show epochs after the view: history went back, or the checkpoint lost its newest commits.
    Exactly the slices that those epochs had are read again, whatever else has changed. RestoreError where
    that cannot be done. A plan that no sink can show anything of is followed only as it is, and only if it is
    not too large by now; unless a user has given up a part of it: then its slices are read in any case.
    `shown`: what the sinks themselves say that they show. `doors`: the channels that are read of senders that
    wait for no reader, and may have computed again what a plan names. AdoptedOther: the chain has gone on
    since the view.
    """
    positions: dict[str, Json] = {uid: view.positions.get(uid) for uid in shape.sources}
    plans, clock_ms = Plans(chain.storage), view.clock_ms
    found: deque[Recorded] = deque()
    stand = _EventTime(dict(view.watermarks), view.closed_through)
    replayed = _Replayed(plans, chain, view, shown, say)
    if replayed.through > view.last_epoch:
        say(
            f"REPLAY: sinks show epochs up to {replayed.through} and this checkpoint ends with epoch "
            f"{view.last_epoch}: those between are read again as they were, and not shown where they are"
        )
    for epoch in range(view.last_epoch + 1, max(replayed.through, view.last_epoch + PLANS_AHEAD_MAX) + 1):
        plan = replayed.plan(epoch) if epoch <= replayed.through else _newest(plans, EpochId(epoch), say)
        if plan is None or _leads_elsewhere(plan, positions):
            if epoch <= replayed.through:
                raise replayed.refusal(epoch, "its plan is damaged or missing, or reads other sources")
            break
        obstacle = may_follow(
            plan,
            start_positions=positions,
            fingerprint=shape.fingerprint,
            parallelism=shape.parallelism,
        )
        other_tables, replaced = _other_tables(plan, shape.tables), _replaced(plan, doors)
        obstacle = obstacle or other_tables
        if epoch <= replayed.through:
            replayed.refuse_other(epoch, other_tables, replaced)
        else:
            late = plan.clock_ms < clock_ms
            # Its event time may follow from rows that the plans before it do not read, or from what a leader
            # observed of them whose epoch was not committed.
            strayed = plan.after not in ("", place_of(positions)) or not stand.leads_to(plan)
            strayed = strayed or _reads_asked(plan, view.asked) or replaced is not None
            if not gives_up(plan) and (obstacle or _too_large(plan, shape.max_rows) or late or strayed):
                break
            # Planned from the sources, it would read again what a user has given up.
            obstacle = obstacle or ("its clock is behind that of the plan before it" if late else None)
        found.append(Recorded(plan, obstacle))
        # Plans of several leaders may lie here: what one planned follows what another did, but not its clock.
        clock_ms = max(clock_ms, plan.clock_ms)
        stand = stand.after(plan)
        positions.update({uid: part.end for uid, part in plan.slices.items()})
    return found


@dataclass(frozen=True)
class _EventTime:
    """How far event time is after an epoch: the watermark of each operator, and the newest epoch that closed
    what was open.

    Two leaders may have planned one epoch with the same rows and other times. The next plan of the one does
    not follow the epoch of the other: rows would be late that nothing has fired for, and windows taken for
    shown that are not.
    """

    watermarks: dict[str, int]
    closed_through: int

    def leads_to(self, plan: PlanRecord) -> bool:
        marks = plan.watermarks.items()
        return plan.closed_through == self.closed_through and all(
            mark.before_us == self.watermarks.get(uid) for uid, mark in marks
        )

    def after(self, plan: PlanRecord) -> _EventTime:
        reached = {uid: mark.now_us for uid, mark in plan.watermarks.items() if mark.now_us is not None}
        closed = plan.epoch if plan.closing else self.closed_through
        return _EventTime({**self.watermarks, **reached}, closed)


class _Replayed:
    """Which plan each epoch had that sinks may show and the view lacks: epochs up to `through`."""

    def __init__(
        self,
        plans: Plans,
        chain: Chain,
        view: CheckpointView,
        shown: Mapping[str, Mark],
        say: Callable[[str], None],
    ) -> None:
        self._plans, self._chain, self._view = plans, chain, view
        self._shown, self._say = shown, say
        self._committed = committed_attempts(chain, view)
        self.through = _last_seen(self._committed, view, shown)

    def plan(self, epoch: int) -> PlanRecord | None:
        """The plan by which the epoch was committed. None: it is not there. RestoreError: which of several it
        was is not known, or a sink shows what came of another."""
        newest = _newest(self._plans, EpochId(epoch), self._say)
        plan = self._committed_plan(epoch, newest)
        if newest is not None and gives_up(newest):
            if plan is not None and not same_range(plan, newest):
                other = names.plan(epoch, newest.attempt)
                raise self.refusal(epoch, f"{other} gives up a part of another plan: remove it")
            # A user decided since then to give up a part of it.
            self._say(f"GIVEN UP: a part of epoch {epoch}; sinks show it as it was committed, state lacks it")
            return newest
        for uid, mark in self._shown.items():
            if plan is not None and mark.epoch == epoch and mark.input not in ("", input_of(plan)):
                raise self.refusal(epoch, f"sink {uid!r} shows what came of a plan that is not here")
        return plan

    def _committed_plan(self, epoch: int, newest: PlanRecord | None) -> PlanRecord | None:
        if attempt := self._committed.get(epoch):
            return self._read(epoch, attempt)
        wanted = {mark.input for mark in self._shown.values() if mark.epoch == epoch and mark.input}
        if newest is None:
            return None
        # The commit record itself is lost: its plan is one of these.
        attempts = [self._read(epoch, number) for number in range(1, newest.attempt + 1)]
        attempts = [each for each in attempts if each is None or not gives_up(each)] or [newest]
        inputs = {attempt and input_of(attempt) for attempt in attempts}
        if not wanted and len(inputs) > 1:
            raise self.refusal(
                epoch, f"it was planned {newest.attempt} times and which of the plans was committed is lost"
            )
        return next(
            (each for each in reversed(attempts) if each and (not wanted or input_of(each) in wanted)), newest
        )

    def _read(self, epoch: int, attempt: int) -> PlanRecord | None:
        return _readable(lambda: self._plans.read(EpochId(epoch), PlanAttempt(attempt)), self._say)

    def refuse_other(self, epoch: int, other_tables: str | None, replaced: _Replaced | None) -> None:
        """RestoreError: a plan that has to be followed reads what is not there any more as it was."""
        if replaced is not None and not replaced.is_there:
            why = f"{replaced.sender} has computed again what it read of {replaced.uid!r}"
            raise self.refusal(epoch, why)
        if other_tables:
            raise self.refusal(epoch, other_tables)

    def refusal(self, epoch: int, why: str) -> HoldfastError:
        if max(self._chain.numbers(), default=0) > self._view.number:
            # The leader before us committed, and published, after we had read the chain: nothing is missing.
            return AdoptedOther(f"commit {self._view.number + 1} came first; going on from it")
        ahead = {uid: mark.epoch for uid, mark in self._shown.items() if mark.epoch > self._view.last_epoch}
        sinks = ", ".join(f"{uid!r} shows epochs up to {last}" for uid, last in sorted(ahead.items()))
        since = f"sink {sinks}, and " if sinks else "after a rewind "
        return RestoreError(
            f"{since}this checkpoint ends with epoch {self._view.last_epoch}: epoch {epoch} has to be read "
            f"again as it was, and {why}; restore {names.plans_of(epoch)} or a newer copy of the checkpoint, "
            f"or take back what the sinks show after epoch {self._view.last_epoch} "
            "(docs/how-to/restarts.md, 'An older copy')"
        )


def replayed_through(chain: Chain, view: CheckpointView, shown: Mapping[str, Mark]) -> int:
    """The newest epoch that was committed, or that a sink or another part may know: after the view it is read
    again as it was."""
    return _last_seen(committed_attempts(chain, view), view, shown)


def _last_seen(committed: Iterable[int], view: CheckpointView, shown: Mapping[str, Mark]) -> int:
    marks, settled = (mark.epoch for mark in shown.values()), view.settled.through.values()
    return max([*committed, *view.published_through.values(), *settled, *marks], default=0)


def _too_large(plan: PlanRecord, max_rows: int | None) -> bool:
    return max_rows is not None and sum(part.rows or 0 for part in plan.slices.values()) > max_rows


def _reads_asked(plan: PlanRecord, asked: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a plan reads an epoch of a channel that was asked for again since: it may name what is not in
    the channel any more."""
    return any(
        Position.of(part.start) < Position(asked[uid][0]) and Position.of(part.end).newest >= asked[uid][0]
        for uid, part in plan.slices.items()
        if uid in asked
    )


@dataclass(frozen=True)
class _Replaced:
    """What a plan reads of channel `uid`, some of which `sender` has computed again since, or is to.
    `is_there`: whether it can be read all the same."""

    uid: str
    sender: str
    is_there: bool


def _replaced(plan: PlanRecord, doors: Mapping[str, OpenChannel]) -> _Replaced | None:
    for uid, part in plan.slices.items():
        # A sender that cannot be asked now is met again where the epoch reads.
        with suppress(RetryableError):
            if not part.skipped and uid in doors and doors[uid].replaced(slice_of(part)):
                return _Replaced(uid, doors[uid].sender, doors[uid].is_there(slice_of(part)))
    return None


def _other_tables(plan: PlanRecord, tables: Mapping[str, str]) -> str | None:
    """Why the copies of tables that a plan names cannot be used by this job; None: they can."""
    for uid, copy in plan.tables.items():
        if tables.get(uid, copy.columns) != copy.columns:
            return (
                f"the table of lookup {uid!r} had the columns '{copy.columns}' then, and has '{tables[uid]}' "
                "now: give it those until the job is past that epoch"
            )
    return None


def _leads_elsewhere(plan: PlanRecord, positions: dict[str, Json]) -> bool:
    """Whether the plan reads what does not follow these positions, or a source that the job does not have."""
    return not plan.slices.keys() <= positions.keys() or bool(
        may_follow(
            plan, start_positions=positions, fingerprint=plan.fingerprint, parallelism=plan.parallelism
        )
    )


def _newest(plans: Plans, epoch: EpochId, say: Callable[[str], None]) -> PlanRecord | None:
    return _readable(lambda: plans.newest(epoch), say)


def _readable(read: Callable[[], PlanRecord | None], say: Callable[[str], None]) -> PlanRecord | None:
    try:
        return read()
    except ObjectMissing:
        return None
    except CorruptionError as damage:
        say(f"DAMAGE: {damage}")
        return None
