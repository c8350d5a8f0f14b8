"""Plans epochs: what the next one reads, written down before it runs.

A plan that an earlier leader left behind is followed if it can and may be, so that a crash after planning
changes nothing; otherwise a new attempt is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.checkpoint import names
from holdfast.checkpoint.commits import Chain
from holdfast.checkpoint.plans import Plans, PlanTaken, may_follow
from holdfast.checkpoint.records import Json, PlanRecord, Slice
from holdfast.checkpoint.view import CheckpointView
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, FencedOut, ObjectMissing, RestoreError
from holdfast.graph.nodes import SourceNode
from holdfast.ids import EpochId, PlanAttempt
from holdfast.io.contract import SourceReader

PLANS_AHEAD_MAX = 1_000
"""How many recorded plans a recovery follows at most, beyond those that a rewind has to replay."""


@dataclass(frozen=True)
class Recorded:
    """A plan found in storage. `obstacle`: why its slices have to be planned again."""

    plan: PlanRecord
    obstacle: str | None


def recorded_plans(
    plans: Plans,
    chain: Chain,
    view: CheckpointView,
    uids: list[str],
    fingerprint: str,
    parallelism: int,
    max_rows: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> deque[Recorded]:
    """The plans after the view, in order, for as long as each reads on from where the one before ended.

    After a rewind these are the plans that were committed then: sinks may show what came of them, so
    exactly these slices are read again, whatever else has changed. RestoreError where one cannot be. A plan
    that nobody can have seen anything of is followed only as it is, and only if it is not too large by now.
    """
    positions: dict[str, Json] = {uid: view.positions.get(uid) for uid in uids}
    committed, clock_ms = _committed_attempts(chain, view), view.clock_ms
    found: deque[Recorded] = deque()
    shown = max([*committed, *view.published_through.values()], default=0)
    for epoch in range(view.last_epoch + 1, max(shown, view.last_epoch + PLANS_AHEAD_MAX) + 1):
        plan = _recorded(plans, EpochId(epoch), committed.get(epoch), say)
        if plan is None or _leads_elsewhere(plan, positions):
            if epoch <= shown:
                raise RestoreError(
                    f"epoch {epoch} has to be replayed after a rewind, and its plan is damaged or missing or "
                    f"reads other sources; restore {names.plans_of(epoch)} from a copy, or the sources' uids"
                )
            break
        obstacle = may_follow(
            plan, start_positions=positions, fingerprint=fingerprint, parallelism=parallelism
        )
        if epoch > shown and (obstacle or _too_large(plan, max_rows) or plan.clock_ms < clock_ms):
            break
        found.append(Recorded(plan, obstacle))
        # Plans of several leaders may lie here: what one planned follows what another did, but not its clock.
        clock_ms = max(clock_ms, plan.clock_ms)
        positions.update({uid: part.end for uid, part in plan.slices.items()})
    return found


def _too_large(plan: PlanRecord, max_rows: int | None) -> bool:
    return max_rows is not None and sum(part.rows or 0 for part in plan.slices.values()) > max_rows


def _leads_elsewhere(plan: PlanRecord, positions: dict[str, Json]) -> bool:
    """Whether the plan reads what does not follow these positions, or a source that the job does not have."""
    return not plan.slices.keys() <= positions.keys() or bool(
        may_follow(
            plan, start_positions=positions, fingerprint=plan.fingerprint, parallelism=plan.parallelism
        )
    )


def _committed_attempts(chain: Chain, view: CheckpointView) -> dict[int, PlanAttempt]:
    """Epoch -> attempt that was committed, for epochs after the view: there are some after a rewind."""
    attempts: dict[int, PlanAttempt] = {}
    for number in chain.numbers():
        if number > view.number:
            # A superseded leader has just committed it: no history went back, and our commit will meet it.
            break
        try:
            record = chain.record(number)
        except CorruptionError:
            continue
        for epoch, attempt in record.attempts.items():
            if int(epoch) > view.last_epoch:
                attempts[int(epoch)] = PlanAttempt(attempt)
    return attempts


def _recorded(
    plans: Plans, epoch: EpochId, attempt: PlanAttempt | None, say: Callable[[str], None]
) -> PlanRecord | None:
    """The committed attempt, unless somebody has since decided to skip a part of it; else the newest."""
    newest = _readable(lambda: plans.newest(epoch), say)
    if attempt is None or (newest is not None and any(part.skipped for part in newest.slices.values())):
        return newest
    return _readable(lambda: plans.read(epoch, attempt), say)


def _readable(read: Callable[[], PlanRecord | None], say: Callable[[str], None]) -> PlanRecord | None:
    try:
        return read()
    except ObjectMissing:
        return None
    except CorruptionError as damage:
        say(f"DAMAGE: {damage}")
        return None


class Planner:
    """Makes the plan of each epoch in turn. `positions` and `epoch` run ahead of the commits."""

    def __init__(
        self,
        plans: Plans,
        sources: tuple[SourceNode, ...],
        view: CheckpointView,
        recorded: deque[Recorded],
        clock: Clock,
        term: int,
        run: str,
        fingerprint: str,
        parallelism: int,
    ) -> None:
        self._plans, self._clock = plans, clock
        self._term, self._run = term, run
        self._fingerprint, self._parallelism = fingerprint, parallelism
        self._recorded = recorded
        self._clock_ms = view.clock_ms
        self.epoch = view.last_epoch
        self.positions: dict[str, Json] = {node.uid: view.positions.get(node.uid) for node in sources}
        notes = {node.uid: list(view.notes.get(node.uid, ())) for node in sources}
        for found in recorded:
            for uid, part in found.plan.slices.items():
                notes[uid].extend(part.notes)
        self.readers: Mapping[str, SourceReader] = {
            node.uid: node.source.reader(notes[node.uid]) for node in sources
        }

    def next(self, max_rows: int, parent: int) -> PlanRecord | None:
        """The plan of the next epoch, in storage; None: no source has anything new. `parent`: the newest
        commit.
        """
        while True:
            recorded = self._recorded.popleft() if self._recorded else None
            if recorded is not None and recorded.obstacle is None:
                plan = recorded.plan
                break
            slices = self._slices(max_rows) if recorded is None else recorded.plan.slices
            if not slices:
                return None
            draft = self._draft(slices, parent)
            written = self._plans.write(draft)
            plan = written.plan
            if not isinstance(written, PlanTaken):
                break
            if plan.term > self._term:
                raise FencedOut(self._term, plan.term, f"plan {plan.epoch}/{plan.attempt} is its")
            if recorded is not None:
                self._recorded.appendleft(recorded)
        self.epoch = plan.epoch
        self._clock_ms = plan.clock_ms
        self.positions.update({uid: part.end for uid, part in plan.slices.items()})
        return plan

    def exhausted(self) -> bool:
        """Whether no source will ever have more. Asked after `next` gave None."""
        return all(reader.exhausted(self.positions[uid]) for uid, reader in self.readers.items())

    def lag(self) -> int | None:
        lags = [reader.lag(self.positions[uid]) for uid, reader in self.readers.items()]
        return None if any(lag is None for lag in lags) else sum(lag for lag in lags if lag is not None)

    def _slices(self, max_rows: int) -> dict[str, Slice]:
        now_ms = max(self._clock.now_ms(), self._clock_ms)
        slices: dict[str, Slice] = {}
        left = max_rows
        uids = list(self.readers)
        first = self.epoch % max(1, len(uids))
        # In turn: a source that always has more than an epoch takes must not keep the others waiting.
        for uid in uids[first:] + uids[:first]:
            part = self.readers[uid].next(self.positions[uid], left, now_ms) if left > 0 else None
            if part is not None:
                slices[uid] = Slice(
                    start=part.start,
                    end=part.end,
                    rows=part.rows,
                    detail=part.detail,
                    notes=tuple(part.notes),
                )
                left -= part.rows or 0
        return slices

    def _draft(self, slices: dict[str, Slice], parent: int) -> PlanRecord:
        epoch = EpochId(self.epoch + 1)
        return PlanRecord(
            epoch=epoch,
            attempt=self._plans.next_attempt(epoch),
            term=self._term,
            run=self._run,
            parent=parent,
            fingerprint=self._fingerprint,
            parallelism=self._parallelism,
            # The clock of plans never goes back, whoever leads and whatever their machine thinks the time is.
            clock_ms=max(self._clock.now_ms(), self._clock_ms),
            slices=slices,
        )
