"""A leader: the engine's own planner, committer and publisher over the checkpoint, with no Spark.

It does what `runtime.driver.Driver` does: claim, load, publish what was committed and not shown, then plan,
run, commit, publish and retire, the next epoch running while the last is committed. An epoch's rows are
numbers of a range, each of which sets a timer; its state is the last number and the timers that are open, in
one shard or in two. A snapshot is written beside the epochs. The source has an end, which moves: a leader
that comes to it closes what is open, or waits no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Adopted, Chain
from holdfast.checkpoint.chain.history import DamagedChain
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.terms import claim, newest_term
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store.records import Extent, JobRecord, OperatorSchema, PlanRecord
from holdfast.connectors.contract import Mark, Slice, StagedPart
from holdfast.errors import (
    CorruptionError,
    FencedOut,
    ObjectMissing,
    RestoreError,
    RetryableError,
    StorageError,
    UnknownOutcome,
)
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import OperatorNode, Place, SourceNode, WatermarkNode
from holdfast.ids import CommitNumber
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.runtime.latency import Latency
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.settings import Until
from holdfast.storage.checksums import read_extent
from tests.sim.event_time import (
    DELAY_US,
    GROUP_COUNT,
    OPERATOR,
    SINK,
    SOURCE,
    Content,
    Violation,
)
from tests.sim.habits import Habits
from tests.sim.operator import Operator
from tests.sim.scheduler import Crashed, Process
from tests.sim.storage import SimStorage
from tests.sim.threads import STOP_STEPS
from tests.sim.world import World
from tests.unit.runtime.leader_kit import no_tables

JOB = JobRecord(job="sim", identity="sim", key_groups=GROUP_COUNT, created_ms=0, written_by="sim")
HERE = Place("sim", 0)
SCHEMAS = (OperatorSchema(uid=OPERATOR, key=(), states=()),)


@dataclass(frozen=True)
class Parts:
    """The parts under test; a negative control swaps one for a broken one."""

    chain: type[Chain] = Chain
    retention: type[Retention] = Retention
    committer: type[Committer] = Committer


class Leader:
    """One machine: runs the job as a new process when it ends, until its lives are used up."""

    def __init__(self, world: World, name: str, parts: Parts, habits: Habits) -> None:
        self.world, self.name, self.parts, self.habits = world, name, parts, habits
        self.skew = world.chance.choice((0, 0, 50, 1_000))
        self.code = "f"
        self.shards = 1

    def __call__(self) -> None:
        scheduler = self.world.scheduler
        for life in range(self.habits.lives):
            if scheduler.over:
                return
            rest = self.world.chance.randint(0, self.habits.rest) if life and self.habits.rest else 0
            scheduler.reborn(Process(f"{self.name}{life}"))
            if rest:
                scheduler.sleep(rest)
            if self.world.chance.random() < self.habits.recode_chance:
                self.code += "'"
            if self.world.chance.random() < self.habits.rescale_chance:
                self.shards = 3 - self.shards
            self.world.available += self.world.chance.randint(0, self.habits.rows)
            try:
                self._live(f"{self.name}{life}")
            except Crashed:
                self.world.seen["crash"] += 1
            except RetryableError:
                self.world.seen["life ended by storage"] += 1

    def now_ms(self) -> int:
        return self.world.scheduler.steps + self.skew

    def monotonic(self) -> float:
        return self.world.scheduler.steps / 1_000

    def sleep(self, seconds: float) -> None:
        self.world.scheduler.nap(round(seconds * 1_000))

    def _live(self, run: str) -> None:
        world = self.world
        if world.chance.random() < self.habits.lose_chance:
            world.lose_newest()
        storage = self._storage(run)
        term = claim(storage, run, "host", 1, self.now_ms())
        world.tell(f"leads with term {term}")
        world.claimed(term, run)
        chain = self.parts.chain(
            storage, retain=self.habits.retain, manifest_every=self.habits.manifest_every
        )
        retention = self.parts.retention(chain, sweep_every=self.habits.sweep_every)
        checkpoint = Checkpoint(storage, JOB, chain, Plans(storage), retention)
        view = EMPTY
        while True:
            try:
                view = self._load(chain, term, run)
                self._lead(checkpoint, view, term, run)
                return
            except AdoptedOther as other:
                world.tell(str(other))
                world.seen["record adopted"] += 1
            except RetryableError as failure:
                world.tell(str(failure))
                if world.chance.random() < 0.3:
                    raise
            except FencedOut as fenced:
                world.tell(str(fenced))
                world.seen["leader fenced out"] += 1
                world.stopped(term, fenced)
                return
            except DamagedChain as damage:
                raise Violation(f"{run} takes the chain for damaged: {damage}") from damage
            except (CorruptionError, ObjectMissing) as missing:
                world.tell(str(missing))
                world.seen["leader that missed what was retired"] += 1
                newest = chain.load()
                if newest.run == run or newest.number == view.number:
                    world.stopped(term, missing)
                    return
                # Gone, not damaged: others went on and retired what we were reading. The next load fences us,
                # or gives us theirs to go on from.
            except RestoreError as refusal:
                world.tell(str(refusal))
                world.stopped(term, refusal)
                return

    def _storage(self, run: str) -> SimStorage:
        return SimStorage(self.world, f"sim://{run}")

    def _lead(self, checkpoint: Checkpoint, view: CheckpointView, term: int, run: str) -> None:
        """From one load of the checkpoint to the next."""
        Lead(self, checkpoint, view, term, run).run()

    def _load(self, chain: Chain, term: int, run: str) -> CheckpointView:
        """The newest view, or the one that history was made to go back to."""
        view = chain.load()
        if view.number == 0 or self.world.chance.random() >= self.habits.rewind_chance:
            return view
        to = self.world.chance.randint(view.retained_from, view.number)
        outcome = chain.rewind(view.head, CommitNumber(to), term=term, run=run)
        self.world.seen["record adopted"] += isinstance(outcome, Adopted)
        return outcome.view


class Lead:
    """What a leader does from one load of the checkpoint to the next."""

    def __init__(
        self, leader: Leader, checkpoint: Checkpoint, view: CheckpointView, term: int, run: str
    ) -> None:
        self.leader, self.world, self.habits = leader, leader.world, leader.habits
        self.storage, self.checkpoint, self.term, self.run_name = checkpoint.storage, checkpoint, term, run
        self.wishes = Wishes()
        context = self._context()
        self.publishing = Publishing(context, view)
        shape = PlanShape((SOURCE,), leader.code, leader.shards)
        recorded = recorded_plans(checkpoint.chain, view, shape, self.publishing.shown)
        self.world.seen["plan of another followed"] += len(recorded)
        self.planner = Planner(context, view, shape, recorded, no_tables())
        self.operator = self._operator(view)
        self.closes = self.world.chance.random() < self.habits.close_chance
        outlets = Outlets((), context.clock)
        self.committer = leader.parts.committer(context, self.publishing, view, SCHEMAS, outlets)

    def _operator(self, view: CheckpointView) -> Operator:
        return Operator(self.world, self.habits, self.storage, view, self.leader.shards, self.run_name)

    def _context(self) -> LeaderContext:
        """What a leader leads with, as far as the parts under test look at it."""
        here: Any = self
        unused: Any = None
        source = SourceNode(uid=SOURCE, source=here, place=HERE)
        timed = WatermarkNode(
            parent=source, column="ts", delay=f"{DELAY_US // 1_000}ms", idle_after=None, place=HERE
        )
        operator = OperatorNode(
            uid=OPERATOR, parent=timed, key=("key",), order_by=(), function=unused, on_error="fail",
            place=HERE,
        )  # fmt: skip
        sink = SimpleNamespace(uid=SINK, sink=self)
        graph = SimpleNamespace(
            name="sim", nodes=(source, timed, operator), operators=(operator,), sources=(source,),
            sinks=(sink,), outlets=(),
        )  # fmt: skip
        clock: Any = self.leader
        told: Any = SimpleNamespace(
            say=lambda text: None, update=self._committed, progress=SimpleNamespace(sinks={}),
            latency=Latency(clock),
        )  # fmt: skip
        program: Any = SimpleNamespace(sinks={SINK: SINK}, graph=graph)
        settings: Any = SimpleNamespace(
            guarantee=Guarantee.EXACTLY_ONCE, stop_within=STOP_STEPS / 1_000, until=Until.EXHAUSTED
        )
        return LeaderContext(
            program=program, settings=settings, spark=unused, checkpoint=self.checkpoint, term=self.term,
            run=self.run_name, clock=clock, monitor=told, wishes=self.wishes, recovery=unused,
            look_around=lambda: None, chance=self.world.chance.random,
        )  # fmt: skip

    def _committed(self, **told: Any) -> None:
        if "commit" in told:
            self.world.believed(self.committer.view, self.run_name)

    def run(self) -> None:
        clean = ended = False
        try:
            self.committer.publish_recovered()
            ended = self._loop()
            if self.world.chance.random() < self.habits.stop_chance:
                self.wishes.stopping.set()
            self.committer.record_published()
            clean = True
        finally:
            self.operator.close()
            self.committer.close(wait=clean)
        if left := self.committer.unpublished:
            self.world.tell(f"stops with {left} unpublished")
            self.world.seen["stop before the sink has shown all"] += 1
        if ended:
            self.world.ended(self.committer.view)

    def _loop(self) -> bool:
        """Whether it came to the end of the input, and closed what was open."""
        chance = self.world.chance
        pending: list[EpochOutcome] = []
        ended = False
        for _ in range(self.habits.epochs):
            self.committer.check(allowed=1_000)
            if chance.random() < 0.1:
                self._check_term()
            if not self.committer.room:
                self.world.seen["turn without room"] += 1
                self.sleep_a_turn(pending)
                pending = []
                if self._ends_without_room():
                    break
                continue
            parent, open_times = self.committer.view.number, {OPERATOR: self.operator.open_times()}
            fresh = not recorded_left(self.planner)
            plan = self.planner.next(5, parent, open_times, ended=self._ended)
            if plan is None and self._ended():
                plan = self.planner.close(parent, open_times)
            if plan is None:
                ended = self._ended()
                break
            pending.append(self._run_epoch(plan, fresh))
            self.committer.add_snapshots(self.operator.take_snapshots(plan.epoch))
            if chance.random() < self.habits.barrier_chance:
                self.committer.submit(pending)
                pending = []
        if pending:
            self.committer.submit(pending)
        return ended

    def sleep_a_turn(self, pending: list[EpochOutcome]) -> None:
        """There is no room: commit what was run, and wait a little."""
        if pending:
            self.committer.submit(pending)
        self.world.scheduler.nap(10)

    def _ends_without_room(self) -> bool:
        """Whether the run ends because the sink refuses what it is given; else a person may say try again."""
        if not self.habits.refuse_chance:
            return False
        if self.world.chance.random() < 0.3 and self.committer.ends_without_room():
            self.world.seen["end without room"] += 1
            return True
        if self.world.chance.random() < 0.3:
            self.wishes.retry(SINK)
        return False

    def _ended(self) -> bool:
        return self.closes and self.planner.exhausted()

    def _run_epoch(self, plan: PlanRecord, fresh: bool) -> EpochOutcome:
        if self.habits.barrier_chance == 1:
            self.world.check_backlog(self.committer.view.last_epoch)
        outcome = self.operator.run(plan, fresh)
        self.planner.watermarks.observed(outcome.times, plan)
        outcome.event_times = self.planner.watermarks.standing()
        return outcome

    def _check_term(self) -> None:
        newest = newest_term(self.storage)
        if newest is not None and newest.term > self.term:
            raise FencedOut(self.term, newest.term, "it claimed the seat")

    # The source and its reader.

    def reader(self, notes: Sequence[Any]) -> Lead:
        return self

    def next(self, after: int | None, max_rows: int | None, now_ms: int) -> Slice | None:
        """A few rows: each leader cuts its epochs elsewhere."""
        rows = self.world.chance.randint(*self.habits.slice_rows)
        last = min((after or 0) + rows, self.world.available)
        return Slice(after, last) if last > (after or 0) else None

    def exhausted(self, position: int | None) -> bool:
        return (position or 0) >= self.world.available

    # The sink and its publisher.

    exactly_once = True

    def publisher(self, job: str, uid: str) -> Any:
        forgetful = SimpleNamespace(published_through=lambda: 0, publish=self.publish, close=self.close)
        return self if self.habits.sink_knows else forgetful

    def mark(self) -> Mark:
        self.world.scheduler.step()
        self.world.reach_sink(0.0)
        return self.world.mark

    def begin(self, through: int) -> None:
        """There is always a trace of this sink."""

    def published_through(self) -> int:
        return self.mark().epoch

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        loaded: list[Content] = [part.load() for part in parts]
        given = loaded[0].rows, tuple(sorted(row for each in loaded for row in each.fired))
        world = self.world
        world.scheduler.step()
        world.reach_sink(self.habits.away_chance)
        world.offer(self.habits.refuse_chance)
        world.tell(f"shows epoch {epoch}")
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


def recorded_left(planner: Planner) -> int:
    """How many plans of earlier leaders are still to be followed."""
    return len(planner._recorded)


def loader(world: World) -> Any:
    """Stands in for `tasks.task_output.load_extent`."""

    def load(url: str, extent: Extent) -> Content:
        return Content.of(read_extent(SimStorage(world, url), extent))

    return load
