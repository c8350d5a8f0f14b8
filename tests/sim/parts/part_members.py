"""A member of a set of replicas that leads one part of a job in parts: it reads from channels and sends into
them, with its fellows, as the leader of any other part does alone.

Members come to the same bytes: their files are cut alike, and versions are named by content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.shard_lines import as_committed
from holdfast.checkpoint.chain.terms import record_ending
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import EndedRecord, Extent, PlanRecord
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.parts.epochs_again import Asking
from holdfast.runtime.replica import Replica
from holdfast.state.contract import Version
from holdfast.tasks.messages import Payload
from holdfast.tasks.same_results import content_of
from tests.sim.event_time import Rows
from tests.sim.parts.job_world import PartWorld
from tests.sim.parts.part_leaders import PartLead, PartLeader, PartOperator
from tests.sim.replicas.members import BEHIND_MAX, Member, SetOver


class PartMember(Member, PartLeader):
    """One machine: joins the set of its part as a new process when it ends, until its lives are used up."""

    world: PartWorld  # type: ignore[assignment]

    def _live(self, run: str) -> None:
        self.asking, self.without = Asking(), False
        if not (self.has_ended and self.world.job.is_calm):
            super()._live(run)

    def _led(self, checkpoint: Checkpoint, view: CheckpointView, replica: Replica, process: str) -> None:
        MemberLeadOfPart(self, checkpoint, view, replica, process).run()


class MemberLeadOfPart(PartLead):
    """What a member does from one load of the checkpoint to the next."""

    leader: PartMember

    def __init__(
        self, leader: PartMember, checkpoint: Checkpoint, view: CheckpointView, replica: Replica, process: str
    ) -> None:
        self.replica = replica
        super().__init__(leader, checkpoint, view, replica.set.term, replica.set.run)
        self.process = process

    def _made_context(self) -> LeaderContext:
        return replace(super()._made_context(), replica=self.replica)

    def _operator(self, view: CheckpointView) -> PartOperator:
        return SameOperator(self, view)

    @property
    def shown_through(self) -> Mapping[str, int]:
        """Members stage the same rows, however much a sink showed when each of them looked."""
        return {}

    def run(self) -> bool:
        ended = super().run()
        if ended:
            self.leader.has_ended = True
            view = self.view
            record = EndedRecord(
                term=self.term, run=self.run_name, at_ms=0, ending="exhausted", commit=view.number,
                last_epoch=view.last_epoch, published=True,
            )  # fmt: skip
            record_ending(self.checkpoint.storage, record)
        return ended

    def _look_around(self) -> bool:
        for record in self._committer.taken_fellows():
            self.operator.lines = as_committed(self.operator.lines, record)
            self.world.seen["commit of another member taken"] += 1
        if self._committer.has_ended:
            return True
        if self.world.chance.random() < 0.3:
            self._check_term()
            self.replica.refuse_if_replaced()
            if self.replica.set_has_ended():
                raise SetOver
            newest = names.highest(self.checkpoint.storage, names.COMMITS)
            if newest > self.view.number + BEHIND_MAX:
                raise AdoptedOther(f"BEHIND: the others have come to commit {newest}")
        return False

    def _is_barrier(self) -> bool:
        return True


class SameOperator(PartOperator):
    """Comes to the same bytes as that of every other member."""

    lead: MemberLeadOfPart

    @property
    def _made_by(self) -> str:
        return f"the members of part {self.world.part}"

    def _pieces(self, rows: Rows) -> list[Rows]:
        first, last = rows
        if last - first > 1 and (first + last) % 3 == 0:
            middle = (first + last) // 2
            return [(first, middle), (middle, last)]
        return [rows] if last > first else []

    def _version(self, plan: PlanRecord, before: Version, extent: Extent) -> Version:
        payload: Any = Payload(checksum=extent.checksum, length=extent.length)
        result = content_of(before, payload, [])
        return Version(epoch=plan.epoch, attempt=plan.attempt, result=result)
