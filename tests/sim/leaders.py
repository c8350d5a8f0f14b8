"""A leader: the engine's own planner, committer and publisher over the checkpoint, with no Spark.

It does what `runtime.driver.Driver` does: claim, load, publish what was committed and not shown, then plan,
run, commit, publish and retire, the next epoch running while the last is committed. An epoch's rows are
numbers of a range, its state the last number; a snapshot is written beside the epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Adopted, Chain
from holdfast.checkpoint.chain.history import DamagedChain
from holdfast.checkpoint.chain.plans import Plans, input_of
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.checkpoint.chain.terms import claim, newest_term
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    DeltaFile,
    Extent,
    JobRecord,
    OperatorSchema,
    PlanRecord,
    SnapshotFile,
    StagedFile,
)
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
from holdfast.ids import CommitNumber, shard_ranges
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.runtime.epoch.runner import EpochOutcome
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.state.contract import Version
from holdfast.storage.checksums import checksum, read_extent
from tests.sim.scheduler import Crashed, Executor, Process
from tests.sim.storage import SimStorage
from tests.sim.world import OPERATOR, SINK, SOURCE, Rows, Violation, World, content_of, rows_of
from tests.unit.runtime.leader_kit import no_tables

GROUPS = shard_ranges(1, 1)[0]
JOB = JobRecord(job="sim", identity="sim", key_groups=1, created_ms=0, written_by="sim")
SCHEMAS = (OperatorSchema(uid=OPERATOR, key=(), states=()),)


@dataclass(frozen=True)
class Parts:
    """The parts under test; a negative control swaps one for a broken one."""

    chain: type[Chain] = Chain
    retention: type[Retention] = Retention
    committer: type[Committer] = Committer


@dataclass(frozen=True)
class Habits:
    """How the leaders of one simulation are set up."""

    retain: int = 2
    manifest_every: int = 2
    sweep_every: int = 1
    lives: int = 2
    epochs: int = 6
    barrier_chance: float = 0.7
    """Of a commit after an epoch."""
    rewind_chance: float = 0.0
    recode_chance: float = 0.0
    snapshot_chance: float = 0.3
    lose_chance: float = 0.0
    """Of the newest commit record being gone when a life begins. For a leader that is alone."""
    sink_knows: bool = True
    """Whether the sink can say how far it was published; if not, it only recognises an epoch it shows."""


class Leader:
    """One machine: runs the job as a new process when it ends, until its lives are used up."""

    def __init__(self, world: World, name: str, parts: Parts, habits: Habits) -> None:
        self.world, self.name, self.parts, self.habits = world, name, parts, habits
        self.skew = world.chance.choice((0, 0, 50, 1_000))
        self.code = "f"

    def __call__(self) -> None:
        scheduler = self.world.scheduler
        for life in range(self.habits.lives):
            if scheduler.over:
                return
            scheduler.reborn(Process(f"{self.name}{life}"))
            if self.world.chance.random() < self.habits.recode_chance:
                self.code += "'"
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

    def _live(self, run: str) -> None:
        world = self.world
        if world.chance.random() < self.habits.lose_chance:
            world.lose_newest()
        storage = SimStorage(world, f"sim://{run}")
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
                Lead(self, checkpoint, view, term, run).run()
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
        self.files = 0
        context = self._context()
        self.publishing = Publishing(context, view)
        shape = PlanShape((SOURCE,), leader.code, 1)
        recorded = recorded_plans(checkpoint.chain, view, shape, self.publishing.shown)
        self.world.seen["plan of another followed"] += len(recorded)
        self.planner = Planner(context, view, shape, recorded, no_tables())
        self.line = line_of(view, OPERATOR, GROUPS)
        self.through = self._restored()
        self.committer = leader.parts.committer(context, self.publishing, view, SCHEMAS)
        self.snapshots = Executor(self.world.scheduler, 1)
        self.snapshot: Any = None

    def _context(self) -> LeaderContext:
        """What a leader leads with, as far as the parts under test look at it."""
        source, sink = SimpleNamespace(uid=SOURCE, source=self), SimpleNamespace(uid=SINK, sink=self)
        graph = SimpleNamespace(name="sim", nodes=(), operators=(), sources=(source,), sinks=(sink,))
        unused: Any = None
        told: Any = SimpleNamespace(say=lambda text: None, update=self._committed)
        program: Any = SimpleNamespace(sinks={SINK: SINK}, graph=graph)
        settings: Any = SimpleNamespace(guarantee=Guarantee.EXACTLY_ONCE)
        clock: Any = self.leader
        return LeaderContext(
            program=program, settings=settings, spark=unused, checkpoint=self.checkpoint, term=self.term,
            run=self.run_name, clock=clock, monitor=told, wishes=Wishes(), recovery=unused,
            look_around=unused,
        )  # fmt: skip

    def _committed(self, **told: Any) -> None:
        self.world.believed(self.committer.view, self.run_name)

    def run(self) -> None:
        clean = False
        try:
            self.committer.publish_recovered()
            self._loop()
            self.committer.record_published()
            clean = True
        finally:
            self.snapshots.shutdown(wait=True, cancel_futures=True)
            self.committer.close(wait=clean)

    def _loop(self) -> None:
        chance = self.world.chance
        pending: list[EpochOutcome] = []
        for _ in range(self.habits.epochs):
            self.committer.check(allowed=1_000)
            if chance.random() < 0.1:
                self._check_term()
            plan = self.planner.next(5, self.committer.view.number)
            assert plan is not None
            pending.append(self._run_epoch(plan))
            self._take_snapshots(plan.epoch)
            if chance.random() < self.habits.barrier_chance:
                self.committer.submit(pending)
                pending = []
        if pending:
            self.committer.submit(pending)

    def _check_term(self) -> None:
        newest = newest_term(self.storage)
        if newest is not None and newest.term > self.term:
            raise FencedOut(self.term, newest.term, "it claimed the seat")

    # An epoch: what Spark would do.

    def _restored(self) -> int:
        """The state that the checkpoint names, read as a task would."""
        through = 0
        for snapshot in self.line.snapshots:
            through = rows_of(self.storage.get(snapshot.object))[1]
        for delta in self.line.deltas:
            first, last = rows_of(read_extent(self.storage, delta.extent))
            if first != through:
                raise Violation(f"restored state is at row {through}, the next delta begins at {first}")
            through = last
        return through

    def _run_epoch(self, plan: PlanRecord) -> EpochOutcome:
        part = plan.slices[SOURCE]
        if (part.start or 0) != self.through:
            raise Violation(f"{self.run_name} is at row {self.through}, its plan reads on from {part.start}")
        content = content_of((self.through, part.end))
        self.through = part.end
        name = self._name(names.data_of(plan.epoch))
        self.storage.put(name, content)
        extent = Extent(object=name, offset=0, length=len(content), checksum=checksum(content))
        delta = DeltaFile(
            operator=OPERATOR, first_group=GROUPS.first, end_group=GROUPS.end,
            version=Version(epoch=plan.epoch, attempt=plan.attempt, result=name),
            parent=self.line.version, extent=extent, entries=1,
        )  # fmt: skip
        self.line = self.line.extended(delta)
        staged = StagedFile(
            stream=SINK, epoch=plan.epoch, part=0, extent=extent, rows=1, sinks=(SINK,), input=input_of(plan)
        )
        return EpochOutcome(plan, deltas=[delta], staged=[staged])

    def _take_snapshots(self, epoch: int) -> None:
        chance = self.world.chance
        if self.snapshot is None and chance.random() < self.habits.snapshot_chance:
            self.snapshot = self.snapshots.submit(
                self._write_snapshot, epoch, self.line.version, self.through
            )
        elif self.snapshot is not None and self.snapshot.done() and chance.random() < 0.5:
            done, self.snapshot = self.snapshot, None
            try:
                file = done.result()
            except RetryableError:
                return
            if file.version in {delta.version for delta in self.line.deltas}:
                self.line = self.line.rebased(file)
                self.committer.add_snapshots([file])

    def _write_snapshot(self, epoch: int, version: Version, through: int) -> SnapshotFile:
        name = self._name(names.snapshots_of(epoch))
        content = content_of((0, through))
        self.storage.put(name, content)
        return SnapshotFile(
            operator=OPERATOR, first_group=GROUPS.first, end_group=GROUPS.end, version=version, object=name,
            length=len(content), chunk_bytes=len(content), chunks=(checksum(content),), backend="sim",
        )  # fmt: skip

    def _name(self, directory: str) -> str:
        self.files += 1
        return f"{directory}{self.run_name}-{self.world.scheduler.steps}-{self.files}"

    # The source and its reader.

    def reader(self, notes: Sequence[Any]) -> Lead:
        return self

    def next(self, after: int | None, max_rows: int | None, now_ms: int) -> Slice:
        """One to three rows: each leader cuts its epochs elsewhere."""
        return Slice(after, (after or 0) + self.world.chance.randint(1, 3))

    # The sink and its publisher.

    exactly_once = True

    def publisher(self, job: str, uid: str) -> Any:
        forgetful = SimpleNamespace(published_through=lambda: 0, publish=self.publish, close=self.close)
        return self if self.habits.sink_knows else forgetful

    def mark(self) -> Mark:
        self.world.scheduler.step()
        return self.world.mark

    def begin(self, through: int) -> None:
        """There is always a trace of this sink."""

    def published_through(self) -> int:
        return self.mark().epoch

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        rows: Rows = parts[0].load()
        world = self.world
        world.scheduler.step()
        world.tell(f"shows epoch {epoch}")
        if world.chance.random() >= world.fault_chance:
            world.show(epoch, rows, parts[0].input)
        elif world.chance.random() < 0.5:
            raise StorageError("injected: the sink took nothing")
        else:
            if world.chance.random() < 0.5:
                world.show(epoch, rows, parts[0].input)
            raise UnknownOutcome("injected: the sink did not answer")

    def close(self) -> None:
        """Nothing is held."""


def loader(world: World) -> Any:
    """Stands in for `tasks.task_output.load_extent`."""

    def load(url: str, extent: Extent) -> Rows:
        return rows_of(read_extent(SimStorage(world, url), extent))

    return load
