"""A leader of one part: the engine's own planner, committer, publisher, channels and barriers, with no Spark.

It does what `runtime.epoch_loop.EpochLoop` does for a part. Its operator keeps the last row of each input,
and hands on the rows of the first; what it writes is never the same twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace as changed

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Adopted, Chain
from holdfast.checkpoint.chain.low_water import base_of, lacks_state
from holdfast.checkpoint.chain.plans import input_of
from holdfast.checkpoint.chain.shard_lines import extended, lines_of
from holdfast.checkpoint.chain.terms import newest_term, record_ending
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    DeltaFile,
    EndedRecord,
    Extent,
    OperatorSchema,
    PlannedWatermark,
    PlanRecord,
    SentFile,
    StagedFile,
)
from holdfast.errors import (
    CorruptionError,
    EpochFailed,
    FencedOut,
    ObjectMissing,
    RestoreError,
)
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import OperatorNode, OutletNode, Place, SourceNode
from holdfast.ids import CommitNumber, shard_ranges
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.low_water import LowWater
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans, replayed_through
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.epoch_loop import EpochLoop
from holdfast.runtime.latency import Latency
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.parts.coordinator import Coordinator
from holdfast.runtime.parts.damaged_epochs import EpochDamaged, EpochsAsked, damaged_epoch
from holdfast.runtime.parts.edges import Edges
from holdfast.runtime.parts.epochs_again import Asking, answer
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.recovery import Recovery
from holdfast.runtime.upstream import begins, gone_back
from holdfast.state.contract import Version
from holdfast.storage.checksums import checksum, read_extent
from tests.sim.event_time import Rows, Violation
from tests.sim.leaders import Leader
from tests.sim.parts.contents import CLOSED, Content
from tests.sim.parts.job_world import JobWorld, PartStorage, PartWorld
from tests.sim.parts.part_ends import PartSink, RowSource, WatchedReader
from tests.sim.parts.shapes import SOURCE, Link
from tests.sim.threads import STOP_STEPS
from tests.unit.runtime.leader_kit import no_tables

OPERATOR, SINK, STREAM = "rows", "out", "rows"
HERE = Place("sim", 0)
SCHEMAS = (OperatorSchema(uid=OPERATOR, key=(), states=()),)
STEPS_PER_SECOND = 50


@dataclass(frozen=True)
class JobClock:
    """Time passes by steps."""

    job: JobWorld
    skew_ms: int = 0

    def now_ms(self) -> int:
        return self.job.scheduler.steps * 1_000 // STEPS_PER_SECOND + self.skew_ms

    def monotonic(self) -> float:
        return self.job.scheduler.steps / STEPS_PER_SECOND

    def sleep(self, seconds: float) -> None:
        self.job.scheduler.nap(round(seconds * STEPS_PER_SECOND))


class PartLeader(Leader):
    """One machine that leads a part, again and again."""

    world: PartWorld

    def _live(self, run: str) -> None:
        scheduler = self.world.job.scheduler
        while self.world.is_stopped and not scheduler.over:
            scheduler.sleep(20)
        self.asking = Asking()
        self.without = self.world.chance.random() < self.habits.without_chance
        if self.world.chance.random() < self.habits.lose_last_chance:
            self.world.lose_newest()
        super()._live(run)

    def _storage(self, run: str) -> PartStorage:
        return PartStorage(self.world, f"sim://{self.world.part}/{run}")

    def _load(self, chain: Chain, term: int, run: str) -> CheckpointView:
        """As a user goes back: not past what is lost of a channel, nor to a commit whose state cannot be had
        again."""
        # One look for all: what another leader has lost since then must not be gone past.
        view = chain.load()
        if self.without and view.channels:
            return self._given_up(chain, view, term, run)
        if view.number == 0 or any(channel.lost for channel in view.channels.values()):
            return view
        if self.world.chance.random() >= self.habits.rewind_chance:
            return view
        to = self.world.chance.randint(view.retained_from, view.number)
        target = chain.view_at(to) if view.needs_from else view
        if lacks_state(target) and base_of(chain, target, view.number, view.retained_from) is None:
            self.world.seen["commit whose rows were let go of"] += 1
            return view
        outcome = chain.rewind(view.head, CommitNumber(to), term=term, run=run)
        self.world.seen["record adopted"] += isinstance(outcome, Adopted)
        return outcome.view

    def _given_up(self, chain: Chain, view: CheckpointView, term: int, run: str) -> CheckpointView:
        """As a person gives up the channels that the job has no more."""
        record = news(
            view, term=term, run=run, published_through=view.published_through, channels={}, ended=view.ended
        )
        outcome = chain.commit(view, record)
        if isinstance(outcome, Adopted):
            raise AdoptedOther("another leader has committed")
        return outcome.view

    def _lead(self, checkpoint: Checkpoint, view: CheckpointView, term: int, run: str) -> None:
        while True:
            led = PartLead(self, checkpoint, view, term, run)
            try:
                ended = led.run()
                if not (led.is_stopped and self.world.job.is_calm):
                    break
                # The stop has died: the part is started until the time of that is over.
                self.world.job.scheduler.sleep(50)
                view = checkpoint.chain.load()
            except EpochDamaged as damage:
                self._ask(led, damage)
                view = self._load(checkpoint.chain, term, run)
            except EpochsAsked as asked:
                view = answer(led._context, asked)
            except Abandoned as abandoned:
                self.world.job.start_again(abandoned.part, self)
                view = checkpoint.chain.load()
        self.world.is_stopped = led.is_stopped
        record = EndedRecord(
            term=term, run=run, at_ms=self.now_ms(), ending="exhausted" if ended else "stopped",
            commit=led.view.number, last_epoch=led.view.last_epoch, published=True,
        )  # fmt: skip
        record_ending(checkpoint.storage, record)

    def _ask(self, led: PartLead, damage: EpochDamaged) -> None:
        try:
            self.asking.ask(led._context, damage, led.view, led.replayed_through, 1)
        except RestoreError as refusal:
            self.world.tell(str(refusal))
            self.world.seen["damage that a person has to see to"] += 1
            self.world.job.parts[damage.sender].put_back()
            self.asking = Asking()


class Abandoned(Exception):
    """A part that has ended would have to compute an epoch again."""

    def __init__(self, part: str) -> None:
        super().__init__(part)
        self.part = part


class PartLead:
    """What a leader does from one load of the checkpoint to the next. Its attributes are those of EpochLoop
    where turns of that are taken."""

    def __init__(
        self, leader: PartLeader, checkpoint: Checkpoint, view: CheckpointView, term: int, run: str
    ) -> None:
        self.leader, self.world, self.habits = leader, leader.world, leader.habits
        self.job: JobWorld = self.world.job
        self.checkpoint, self.term, self.run_name = checkpoint, term, run
        self.process = run
        self._context = context = self._made_context()
        view = gone_back(context, view)
        self._begins = begins(view, context.settings)
        self._outlets = Outlets(context.program.graph.outlets, context.clock)
        self._publishing = publishing = Publishing(context, view)
        shape = PlanShape(self.job.shape.inputs[self.world.part], leader.code, 1)
        shown = {**publishing.shown, **self._outlets.marks()}
        recorded = recorded_plans(checkpoint.chain, view, shape, shown)
        self.replayed_through = replayed_through(checkpoint.chain, view, shown)
        self.world.seen["plan of another followed"] += len(recorded)
        self._planner = Planner(context, view, shape, recorded, no_tables())
        self._edges = Edges(context, view, self._outlets, self._planner.readers, self.replayed_through)
        if self.job.interval:
            self._edges._coordinator = self._coordinator()
        self.operator = self._operator(view)
        self._committer = leader.parts.committer(context, publishing, view, SCHEMAS, self._outlets)
        self._pending: list[EpochOutcome] = []
        self._barrier = 0.0
        self._began_at = max((place.number for place in view.barriers), default=0)

    def _operator(self, view: CheckpointView) -> PartOperator:
        return (WindowOperator if self._saves_nothing else PartOperator)(self, view)

    @property
    def shown_through(self) -> Mapping[str, int]:
        """What sinks show: that is not staged again."""
        return self._publishing.through

    @property
    def _reads_channels(self) -> bool:
        return self.job.shape.inputs[self.world.part] != (SOURCE,)

    @property
    def _saves_nothing(self) -> bool:
        return self.world.part in self.job.shape.windows

    def _coordinator(self) -> Coordinator:
        parts: Any = {name: self.job.storage(f"sim://{name}") for name in self.job.parts}
        root: Any = self._context.root
        channels, order = self.job.shape.channels, self.job.shape.parts
        clock, before = self._context.clock, order[: order.index(self.world.part)]
        return Coordinator(root, parts, channels, self.run_name, self.job.interval, clock, before)

    @property
    def view(self) -> CheckpointView:
        return self._committer.view

    @property
    def is_stopped(self) -> bool:
        return self._context.wishes.stopping.is_set()

    def _made_context(self) -> LeaderContext:
        unused: Any = None
        job, part = self.job, self.world.part
        sources = tuple(
            SourceNode(uid=uid, source=self._source(uid), place=HERE) for uid in job.shape.inputs[part]
        )
        operator = OperatorNode(
            uid=OPERATOR, parent=sources[0], key=("key",), order_by=(), function=unused, on_error="fail",
            place=HERE,
        )  # fmt: skip
        outlets = tuple(
            OutletNode(
                uid=uid, parent=sources[0], reader=f"sim://{link.after}", place=HERE,
                channel=SimpleNamespace(
                    uid=uid, part=SimpleNamespace(name=link.after), limit_bytes=1 << 30,
                    limit_epochs=link.limit,
                ),
            )
            for uid, link in job.shape.leaving(part).items()
            if not self.leader.without
        )  # fmt: skip
        graph = SimpleNamespace(
            name=part, nodes=(*sources, operator), operators=(operator,), sources=sources,
            sinks=(SimpleNamespace(uid=SINK, sink=PartSink(self.world)),), outlets=outlets, whole=None,
        )  # fmt: skip
        clock = JobClock(job, self.leader.skew)
        told: Any = SimpleNamespace(
            say=lambda text: None, update=self._told, progress=SimpleNamespace(channels={}, sinks={}),
            latency=Latency(clock),
        )  # fmt: skip
        program: Any = SimpleNamespace(sinks={SINK: STREAM}, graph=graph, tables={})
        settings: Any = SimpleNamespace(
            guarantee=Guarantee.EXACTLY_ONCE, barrier_interval=job.interval,
            replays_state=self._saves_nothing, stop_within=STOP_STEPS / STEPS_PER_SECOND,
        )  # fmt: skip
        return LeaderContext(
            program=program, settings=settings, spark=unused, checkpoint=self.checkpoint, term=self.term,
            run=self.run_name, clock=clock, monitor=told, wishes=Wishes(),
            recovery=Recovery(self.checkpoint, self.term, self.run_name, self.world.tell),
            look_around=lambda: None, chance=self.world.chance.random, root=job.storage("sim://root"),
        )  # fmt: skip

    def _source(self, uid: str) -> Any:
        if uid == SOURCE:
            return RowSource(self.world)
        link = self.job.shape.links[uid]
        return SimpleNamespace(reader=lambda notes: WatchedReader(self.job, uid, link.before))

    def _told(self, **told: Any) -> None:
        if "commit" in told:
            self.world.believed(self._committer.view, self.run_name)

    def run(self) -> bool:
        """Whether all inputs have come to their end."""
        clean = False
        self._committer.keep_from = self._edges.keep_from
        try:
            self._committer.publish_recovered()
            if self._begins:
                self._committer.begin_upstream()
            ended = self._loop()
            self._committer.record_published(ended=ended)
            clean = True
        finally:
            self._committer.close(wait=clean)
        if self.habits.lives == 1:
            self.world.tell(f"has come to its end: {ended}")
        return ended

    def _loop(self) -> bool:
        chance, loop = self.world.chance, self._as_loop
        for _ in range(self.habits.epochs):
            self._committer.check(allowed=1_000)
            if self._look_around():
                return True
            if self._reads_channels and chance.random() < self.habits.nap_chance:
                self.job.scheduler.sleep(self.world.chance.choice((100, 250)))
            self._spoil()
            if self.job.told_to_stop:
                self._context.wishes.stopping.set()
                break
            EpochLoop._meet_barrier(loop)
            if self.is_stopped:
                before = self._edges.last_barrier == self._began_at
                self.world.seen["leader that ends at a barrier of one before it"] += before
                break
            room = min(self._edges.room(self.view.channels, self._planner.epoch), self._committer.room)
            if not room:
                self.world.seen["turn without room"] += 1
                self._commit_pending()
                self.job.scheduler.step()
                continue
            limit = max(1, int(chance.choice((2, 6)) * room))
            plan = self._planner.next(limit, self.view.number, {}, ended=self._ended)
            if plan is None:
                if self._pending:
                    self._commit_pending()
                elif self._ended():
                    return True
                else:
                    self._see_abandoned()
                self.job.scheduler.step()
                continue
            self._pending.append(self._run(plan))
            if self._is_barrier():
                self._commit_pending()
        self._commit_pending()
        return False

    def _look_around(self) -> bool:
        """Whether another has come to the end for all."""
        if self.world.chance.random() < 0.1:
            self._check_term()
        return False

    def _is_barrier(self) -> bool:
        return self.world.chance.random() < self.habits.barrier_chance

    def _run(self, plan: PlanRecord) -> EpochOutcome:
        try:
            return self.operator.run(plan)
        except (CorruptionError, ObjectMissing) as failure:
            told = damaged_epoch(plan, self._planner.readers)
            if told is None and self.job.spoils:
                # It was restored since then, and the epoch is tried again.
                told = EpochFailed(str(failure))
            raise told or failure from failure

    def _spoil(self) -> None:
        chance, often = self.world.chance, self.habits.spoil_chance
        if often and chance.random() < often:
            self.world.spoil()
        elif often and chance.random() < often / 2:
            before = [uid for uid in self.job.shape.inputs[self.world.part] if uid != SOURCE]
            sender = self.job.shape.links[chance.choice(before)].before if before else self.world.part
            self.job.parts[sender].put_back()

    def _see_abandoned(self) -> None:
        """In the end no part may wait for one that has ended."""
        if self.job.is_calm:
            try:
                self._edges.refuse_abandoned(self._planner.positions)
            except RestoreError as refusal:
                self.world.tell(str(refusal))
                waits = [uid for uid in self._planner.readers if repr(uid) in str(refusal)]
                raise Abandoned(self.job.shape.links[waits[0]].before) from refusal

    @property
    def _as_loop(self) -> Any:
        return self

    def _ended(self) -> bool:
        return self._planner.exhausted()

    def _commit_pending(self) -> None:
        if self._pending:
            self._committer.submit(self._pending)
            self._pending = []

    def _check_term(self) -> None:
        newest = newest_term(self.checkpoint.storage)
        if newest is not None and newest.term > self.term:
            raise FencedOut(self.term, newest.term, "it claimed the seat")


class PartOperator:
    """What Spark and its tasks would do."""

    def __init__(self, lead: PartLead, view: CheckpointView) -> None:
        self.lead, self.world, self.job = lead, lead.world, lead.job
        self.storage = lead.checkpoint.storage
        self.lines = lines_of(view, [OPERATOR], shard_ranges(1, 1))
        self.files = 0
        (line,) = self.lines.values()
        self.through: dict[str, int] = {}
        if line.deltas:
            self.through = Content.of(read_extent(self.storage, line.deltas[-1].extent)).through
        leaving = self.job.shape.leaving(self.world.part)
        self.runner: Any = SimpleNamespace(
            channels=view.channels, settled=view.settled, shown_through=lead.shown_through,
            whole_after=view.whole_after,
            program=SimpleNamespace(
                channels_of=lambda stream: [] if lead.leader.without else list(leaving),
                sinks_of=lambda stream: (SINK,),
            ),
        )  # fmt: skip

    def run(self, plan: PlanRecord) -> EpochOutcome:
        outcome, before = EpochOutcome(plan), dict(self.through)
        read = {uid: self._rows_of(uid, part) for uid, part in sorted(plan.slices.items())}
        self.through |= {uid: rows[1] for uid, rows in read.items()}
        source = self.job.shape.inputs[self.world.part][0]
        ends = (before.get(source, 0), self.through.get(source, 0))
        self._send(outcome, read, lambda link: (link.handed_on(ends[0]), link.handed_on(ends[1])))
        ((_, line),) = self.lines.items()
        extent = self._write(plan, Content(self._made_by, through=self.through))
        version = self._version(plan, line.version, extent)
        outcome.deltas.append(
            DeltaFile(
                operator=OPERATOR, first_group=0, end_group=1, version=version, parent=line.version,
                extent=extent, entries=1,
            )
        )  # fmt: skip
        lines = extended(self.lines, outcome.deltas)
        assert lines is not None
        self.lines = lines
        return outcome

    def _version(self, plan: PlanRecord, before: Version, extent: Extent) -> Version:
        return Version(epoch=plan.epoch, attempt=plan.attempt, result=extent.object)

    def _send(self, outcome: EpochOutcome, shown: dict[str, Rows], leaving: Callable[[Link], Rows]) -> None:
        """Rows for the sink, and rows for the channels: those share files where they have the same rows."""
        plan = outcome.plan
        written: dict[Rows, Extent] = {}
        for uid in EpochRunner._channels_of(self.runner, STREAM, plan.epoch):
            for number, piece in enumerate(self._pieces(leaving(self.job.shape.links[uid]))):
                if piece not in written:
                    written[piece] = self._write(plan, Content(self._made_by, read=shown, sent=piece))
                outcome.sent.append(
                    SentFile(
                        channel=uid, epoch=plan.epoch, part=number, extent=written[piece],
                        rows=piece[1] - piece[0],
                    )
                )  # fmt: skip
        if not EpochRunner._sinks_of(self.runner, STREAM, plan.epoch):
            return
        staged = next(iter(written.values()), None) or self._write(plan, Content(self._made_by, read=shown))
        outcome.staged.append(
            StagedFile(
                stream=STREAM, epoch=plan.epoch, part=0, extent=staged, rows=1, sinks=(SINK,),
                input=input_of(plan),
            )
        )  # fmt: skip

    def _pieces(self, rows: Rows) -> list[Rows]:
        """One file, or two."""
        first, last = rows
        if last - first > 1 and self.world.chance.random() < 0.4:
            middle = self.world.chance.randint(first + 1, last - 1)
            return [(first, middle), (middle, last)]
        return [rows] if last > first else []

    def _rows_of(self, uid: str, part: Any) -> Rows:
        at = self.through.get(uid, 0)
        if uid == SOURCE:
            if (part.start or 0) != at:
                raise Violation(f"{self._made_by} is at row {at}, its plan reads on from {part.start}")
            return at, part.end
        first, storage = at, self.job.storage(f"sim://{self.job.shape.links[uid].before}")
        for name, offset, length, sum_ in part.detail["files"]:
            extent = Extent(object=name, offset=offset, length=length, checksum=sum_)
            rows = Content.of(read_extent(storage, extent)).sent
            if uid in self.job.parts[self.job.shape.links[uid].before].gaps and not at:
                first = at = rows[0]
            if rows[0] != at:
                raise Violation(f"{self._made_by} loses or doubles rows of {uid}: {rows} after {at}")
            at = rows[1]
        return first, at

    @property
    def _made_by(self) -> str:
        return f"{self.lead.run_name} at {self.job.scheduler.steps}"

    def _write(self, plan: PlanRecord, content: Content) -> Extent:
        self.files += 1
        run, steps, data = self.lead.process, self.job.scheduler.steps, content.encoded()
        name = f"{names.data_of(plan.epoch)}{run}-{steps}-{self.files}"
        self.storage.put(name, data)
        return Extent(object=name, offset=0, length=len(data), checksum=checksum(data))


class WindowOperator(PartOperator):
    """Of a part that saves no state: windows of rows, in memory alone. Time is the number of a row, and the
    watermark the last that was read."""

    def __init__(self, lead: PartLead, view: CheckpointView) -> None:
        super().__init__(lead, view)
        # Where the positions of the view are, in rows. What is open is nowhere.
        self.through = dict(self.world.lines[view.number][-1].through)
        self.open: set[int] = set()
        self.water = LowWater(OPERATOR, view.last_epoch)

    def run(self, plan: PlanRecord) -> EpochOutcome:
        outcome, shape, part = EpochOutcome(plan), self.job.shape, self.world.part
        read = {uid: self._rows_of(uid, slice_) for uid, slice_ in sorted(plan.slices.items())}
        self.through |= {uid: rows[1] for uid, rows in read.items()}
        source, size = shape.inputs[part][0], shape.windows[part]
        first, last = read.get(source, (0, 0))
        self.open |= {*range(first + 1, last + 1)}
        now = self.through.get(source, 0)
        end = shape.closed(part, now)
        begin = min((row - 1 for row in self.open if row <= end), default=end)
        self.open = {row for row in self.open if row > end}
        self._send(outcome, {CLOSED: (begin, end)}, lambda link: (begin, end))
        marked = changed(plan, watermarks={OPERATOR: PlannedWatermark(now_us=now)})
        expires = shape.closed(part, last - 1) + size if last > first else None
        outcome.needs_from = self.water.ran(marked, expires)
        return outcome
