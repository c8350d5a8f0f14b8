"""A member of a set of replicas: the engine's own sets, votes, planner, committer and publisher, no Spark.

It does what `runtime.driver.Driver` does with `runtime.epoch_loop.EpochLoop`: join or found a set, load, then
plan or follow, run, vote, commit or take the commit of another, publish and retire. Members come to the same
bytes; one that lies does not. The source remembers which rows it has planned, as one of files does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Adopted
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.shard_lines import Line, as_committed
from holdfast.checkpoint.chain.terms import newest_term, record_ending
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import EndedRecord, Extent, PlanRecord
from holdfast.connectors.contract import Slice
from holdfast.connectors.files.planned_files import ReadNames
from holdfast.errors import (
    CorruptionError,
    FencedOut,
    ObjectMissing,
    RestoreError,
    RetryableError,
    StorageError,
)
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch_loop import EpochLoop
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.replica import Replica, join
from holdfast.tasks.messages import Output, Payload
from holdfast.tasks.same_results import content_of
from tests.sim.event_time import OPERATOR, SINK, Content, Violation, groups_of
from tests.sim.habits import Habits
from tests.sim.leaders import JOB, Lead, Leader, Parts
from tests.sim.operator import Operator
from tests.sim.replicas.set_world import SetWorld, Told

STEPS_PER_SECOND = 50
BEHIND_MAX = 4


class SetOver(Exception):
    """A member has ended the run of all."""


@dataclass(frozen=True)
class WatchedReplica(Replica):
    """A member, with a checker of what it is told of its results."""

    world: Any = None

    def diverged(self, done: Adopted) -> str:
        self.world.diverged(self.seat, "; ".join(done.differences))
        return super().diverged(done)


class Member(Leader):
    """One machine: joins the set as a new process when it ends, until its lives are used up."""

    world: SetWorld

    def __init__(self, world: SetWorld, name: str, parts: Parts, habits: Habits, seat: int) -> None:
        super().__init__(world, name, parts, habits)
        self.seat = seat
        self.spare = not seat
        self.founds = False
        """Whether it founds a set with as many shards as it has, in its next life."""
        self.has_ended = False
        """Whether it has come to the end of the input, once."""

    def monotonic(self) -> float:
        return self.world.scheduler.steps / STEPS_PER_SECOND

    def sleep(self, seconds: float) -> None:
        self.world.scheduler.sleep(max(1, round(seconds * STEPS_PER_SECOND)))

    def _live(self, run: str) -> None:
        world, habits = self.world, self.habits
        if self.has_ended and not habits.rows and world.line[-1].through == world.available:
            return
        storage = self._storage(run)
        if self.spare:
            self.seat = world.chance.randint(1, world.members)
        if world.chance.random() < habits.damage_chance:
            world.damage_newest_plan()
        protection = ActiveReplicas(k=world.members - 1, vote=world.vote)
        founding = self.founds or world.chance.random() < habits.rescale_chance
        self.founds = False
        clock: Any = self
        joined = join(storage, protection, self.seat, run, self.code, self.shards, clock, founding=founding)
        world.tell(f"is member {self.seat} in the set of term {joined.set.term}")
        world.claimed(joined.set.term, joined.set.run)
        world.seen["set founded"] += joined.set.run == run
        world.seen["member joined"] += joined.set.run != run
        self.shards = joined.set.parallelism
        monitor: Any = SimpleNamespace(
            say=world.tell, update=lambda **told: None, progress=SimpleNamespace(divergences=0)
        )
        replica = WatchedReplica(joined, storage, clock, monitor, lambda: False, world)
        chain = self.parts.chain(storage, retain=habits.retain, manifest_every=habits.manifest_every)
        retention = self.parts.retention(chain, sweep_every=habits.sweep_every, by_member=True)
        self._go_on(Checkpoint(storage, JOB, chain, Plans(storage), retention), replica, run)

    def _go_on(self, checkpoint: Checkpoint, replica: Replica, process: str) -> None:
        """Load and lead, until that ends the life."""
        world, view = self.world, EMPTY
        term, run = replica.set.term, replica.set.run
        while True:
            try:
                view = self._load(checkpoint.chain, term, run)
                self._led(checkpoint, view, replica, process)
                return
            except AdoptedOther as other:
                world.tell(str(other))
            except SetOver:
                world.seen["set ended by another member"] += 1
                self.has_ended = True
                return
            except FencedOut as fenced:
                world.tell(str(fenced))
                world.seen["member fenced out"] += 1
                replaced = world.objects_in(names.MEMBERS)
                world.stopped(term, fenced, replaced="is member" in str(fenced) and bool(replaced))
                return
            except RetryableError as failure:
                world.tell(str(failure))
                with contextlib.suppress(StorageError, FencedOut):
                    self._refuse_if_superseded(checkpoint, term)
                if world.chance.random() < 0.3:
                    raise
            except (CorruptionError, ObjectMissing) as missing:
                world.tell(str(missing))
                if "does not continue the chain" in str(missing):
                    raise Violation(f"{process} would commit what cannot follow: {missing}") from missing
                world.seen["member that missed what was retired"] += 1
                if checkpoint.chain.load().number <= view.number:
                    world.stopped(term, missing)
                    return
            except RestoreError as refusal:
                world.tell(str(refusal))
                world.stopped(term, refusal)
                return

    def _led(self, checkpoint: Checkpoint, view: CheckpointView, replica: Replica, process: str) -> None:
        """From one load of the checkpoint to the next."""
        MemberLead(self, checkpoint, view, replica, process).run()

    def _refuse_if_superseded(self, checkpoint: Checkpoint, term: int) -> None:
        newest = newest_term(checkpoint.storage)
        if newest is not None and newest.term > term:
            raise FencedOut(term, newest.term, "it claimed the seat")


class MemberLead(Lead):
    """What a member does from one load of the checkpoint to the next."""

    leader: Member
    world: SetWorld

    def __init__(
        self, leader: Member, checkpoint: Checkpoint, view: CheckpointView, replica: Replica, process: str
    ) -> None:
        self.replica, self.process = replica, process
        super().__init__(leader, checkpoint, view, replica.set.term, replica.set.run)
        self.edges = Barriers(self.world, self.committer)
        adopted, committer = self.committer._adopted, self.committer

        def noted(done: Adopted) -> AdoptedOther:
            self.world.thrown_away(self.run_name, committer.view, done.view)
            return adopted(done)

        self.committer._adopted = noted  # type: ignore[method-assign]

    def _context(self) -> LeaderContext:
        storage: Any = self.checkpoint.storage
        self.context = replace(super()._context(), replica=self.replica, root=storage)
        return self.context

    def _operator(self, view: CheckpointView) -> MemberOperator:
        lies = self.leader.seat == self.world.liar
        self.member_operator = MemberOperator(
            self.world, self.habits, self.storage, view, self.leader.shards, self.process, lies
        )
        return self.member_operator

    def run(self) -> None:
        clean = ended = False
        try:
            self.committer.publish_recovered()
            ended = self._loop()
            self.committer.record_published(ended)
            clean = True
        finally:
            self.operator.close()
            self.committer.close(wait=clean)
        if ended:
            self._end()

    def _end(self) -> None:
        view = self.committer.view
        self.leader.has_ended = True
        self.world.ended(view)
        record = EndedRecord(
            term=self.term, run=self.run_name, at_ms=0, ending="exhausted", commit=view.number,
            last_epoch=view.last_epoch, published=True,
        )  # fmt: skip
        record_ending(self.storage, record)

    def _loop(self) -> bool:
        chance = self.world.chance
        for _ in range(self.habits.epochs):
            self.committer.check(allowed=1_000)
            self._look_around()
            settled = self._settled()
            for record in self.committer.taken_fellows():
                self.operator.lines = as_committed(self.operator.lines, record)
                self.world.seen["commit of another taken"] += 1
            if self.committer.has_ended:
                return True
            self._meet_barrier()
            parent, open_times = self.committer.view.number, {OPERATOR: self.operator.open_times()}
            plan = self.planner.next(5, parent, open_times, ended=self._ended)
            if plan is None and self._ended():
                plan = self.planner.close(parent, open_times)
            if plan is None:
                return self._ended()
            if chance.random() < self.habits.forget_chance:
                self.member_operator.restart(settled)
            outcome = self._run_epoch(plan, fresh=False)
            if self.committer.has_lead or self.operator.snapshot is not None:
                self.committer.add_snapshots(self.operator.take_snapshots(plan.epoch))
            self.committer.submit([outcome])
        return False

    def _settled(self) -> tuple[CheckpointView, int]:
        """The newest commit, and the epoch up to which lines are made to go by it: what another committed
        before news of ours is still to be compared."""
        view, ahead = self.committer.view, self.committer._ahead
        return view, min([view.last_epoch, *(epoch - 1 for epoch in ahead)])

    def _meet_barrier(self) -> None:
        if self.world.chance.random() < self.habits.news_chance:
            self.world.barrier += 1
        loop: Any = _Loop(self)
        EpochLoop._meet_barrier(loop)

    def _look_around(self) -> None:
        if self.world.chance.random() >= 0.3:
            return
        self._check_term()
        self.replica.refuse_if_replaced()
        if self.replica.set_has_ended():
            raise SetOver
        newest = names.highest(self.storage, names.COMMITS)
        if newest > self.committer.view.number + BEHIND_MAX:
            self.world.seen["member that was far behind"] += 1
            raise AdoptedOther(f"BEHIND: the others have come to commit {newest}")

    # The source.

    def reader(self, notes: Sequence[Any]) -> Any:
        return RowFiles(self.world, notes)


class _Loop:
    """What a turn of EpochLoop looks at."""

    def __init__(self, lead: MemberLead) -> None:
        self._lead, self._edges, self._planner = lead, lead.edges, lead.planner
        self._committer, self._context = lead.committer, lead.context
        self._pending: list[Any] = []
        self._barrier = 0.0

    @property
    def view(self) -> CheckpointView:
        return self._committer.view


class Barriers:
    """Stands in for `runtime.parts.edges.Edges`."""

    last_barrier = 0

    def __init__(self, world: SetWorld, committer: Committer) -> None:
        self.world, self._committer, self.carried = world, committer, 0

    def barrier(self, positions: Any, epoch: int) -> int:
        self.carried = max([self.carried, *(place.number for place in self._committer.view.barriers)])
        if self.world.barrier <= self.carried:
            return 0
        self.carried = self.world.barrier
        return self.carried

    def missed(self, barrier: int) -> None:
        self.carried = barrier - 1


class MemberOperator(Operator):
    """Comes to the same bytes as that of every other member, unless it lies."""

    def __init__(
        self, world: SetWorld, habits: Habits, storage: Any, view: CheckpointView, shards: int, process: str,
        lies: bool,
    ) -> None:  # fmt: skip
        self.lies, self.set_world = lies, world
        super().__init__(world, habits, storage, view, shards, process)

    def restart(self, settled: tuple[CheckpointView, int]) -> None:
        """The working state is gone, as with the machine of an executor: have it again from the lines.
        `settled`: the commit that the lines were last made to go by, and up to which epoch."""
        wanted, self.open = self.open, set()
        self.world.seen["working state had again"] += 1
        try:
            for line in self.lines.values():
                for group in groups_of(line.groups):
                    if self._restored_group(line, group) != self.through:
                        raise Violation(f"{self.run_name} was at row {self.through}, its lines are not")
        except ObjectMissing as missing:
            self._judge(missing, settled)
            raise
        if self.open != wanted:
            raise Violation(f"{self.run_name} had the timers {wanted} open, its lines have {self.open}")

    def _judge(self, missing: ObjectMissing, settled: tuple[CheckpointView, int]) -> None:
        view, through = settled
        deltas = [delta for line in self.lines.values() for delta in line.deltas]
        for delta in deltas:
            known = delta.version.epoch <= through
            gone = delta.extent.object not in self.world.objects_in(delta.extent.object)
            if known and gone and self.set_world.is_kept(view.number):
                raise Violation(
                    f"{self.run_name} goes by commit {view.number}, which is retained, and "
                    f"{delta.extent.object} of its line is gone"
                ) from missing

    def _told(self, plan: PlanRecord, content: Content) -> Content:
        lie = ""
        if self.lies and self.world.chance.random() < 0.3:
            lie = f"{self.run_name} at {self.world.scheduler.steps}"
            self.set_world.lied()
        return Told(**msgspec.structs.asdict(content), lie=lie)

    def _result(self, line: Line, extent: Extent) -> str:
        payload = Payload(checksum=extent.checksum, length=extent.length)
        return content_of(line.version, payload, [Output(name=SINK, rows=1, payload=payload)])


class RowFiles:
    """Rows as files: which were planned is remembered by name, with what a source of files remembers them."""

    def __init__(self, world: SetWorld, notes: Sequence[Any]) -> None:
        self.world, self.read = world, ReadNames(notes)

    def next(self, after: int | None, max_rows: int | None, now_ms: int) -> Slice | None:
        self.read.go_to(after or 0)
        there = map(str, range(1, self.world.available + 1))
        wanted = [name for name in there if name not in self.read.known]
        chosen = wanted[: self.world.chance.randint(1, 3)]
        if not chosen:
            return None
        notes, replaces = self.read.learn(chosen)
        detail = [[name, 0, 0] for name in chosen]
        return Slice(after, self.read.position, detail=detail, notes=tuple(notes), replaces_notes=replaces)

    def follow(self, slice: Slice) -> None:
        self.read.go_to(slice.start or 0)
        self.read.follow(slice)

    def exhausted(self, position: int | None) -> bool:
        return (position or 0) >= self.world.available
