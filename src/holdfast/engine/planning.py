"""Plans epochs: what the next one reads, written down before it runs.

A plan that an earlier leader left behind is followed if it can and may be, so that a crash after planning
changes nothing;
otherwise a new attempt is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from holdfast.checkpoint.plans import Plans, PlanTaken, may_follow
from holdfast.checkpoint.records import Json, PlanRecord, Slice
from holdfast.checkpoint.view import CheckpointView
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, FencedOut
from holdfast.graph.nodes import SourceNode
from holdfast.ids import EpochId
from holdfast.io.contract import SourceReader

PLANS_AHEAD_MAX = 1_000
"""How many recorded plans a recovery follows at most: a rewind may have to replay this many."""


def recorded_plans(
    plans: Plans, view: CheckpointView, uids: list[str], fingerprint: str, parallelism: int
) -> deque[PlanRecord]:
    """The plans after the view that can be followed, in order."""
    positions: dict[str, Json] = {uid: view.positions.get(uid) for uid in uids}
    found: deque[PlanRecord] = deque()
    for epoch in range(view.last_epoch + 1, view.last_epoch + 1 + PLANS_AHEAD_MAX):
        try:
            plan = plans.newest(EpochId(epoch))
        except CorruptionError:
            break
        if plan is None or may_follow(
            plan, start_positions=positions, fingerprint=fingerprint, parallelism=parallelism
        ):
            break
        found.append(plan)
        positions.update({uid: part.end for uid, part in plan.slices.items()})
    return found


class Planner:
    """Makes the plan of each epoch in turn. `positions` and `epoch` run ahead of the commits."""

    def __init__(
        self,
        plans: Plans,
        sources: tuple[SourceNode, ...],
        view: CheckpointView,
        recorded: deque[PlanRecord],
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
        for plan in recorded:
            for uid, part in plan.slices.items():
                notes[uid].extend(part.notes)
        self.readers: Mapping[str, SourceReader] = {
            node.uid: node.source.reader(notes[node.uid]) for node in sources
        }

    def next(self, max_rows: int, parent: int) -> PlanRecord | None:
        """The plan of the next epoch, in storage; None: no source has anything new. `parent`: the newest
        commit.
        """
        while True:
            if self._recorded:
                plan = self._recorded.popleft()
                break
            slices = self._slices(max_rows)
            if not slices:
                return None
            draft = self._draft(slices, parent)
            written = self._plans.write(draft)
            plan = written.plan
            if not isinstance(written, PlanTaken):
                break
            if plan.term > self._term:
                raise FencedOut(self._term, plan.term, f"plan {plan.epoch}/{plan.attempt} is its")
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
        for uid, reader in self.readers.items():
            part = reader.next(self.positions[uid], left, now_ms) if left > 0 else None
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
