"""Leading a job: from a committed view, with one number of shards, until something ends it.

    ( plan -> run -> commit -> publish )*

Epoch N+1 runs while N is being committed and published. When a commit fails, everything after it is thrown
away with this object; the driver makes the next one from the checkpoint as it is then.
Never here: what a plan, a result or a commit is (see planner, runner, committer), or what follows the end
(see driver).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.shard_lines import Line, Lines, as_committed, extended, lines_of, rebased
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import PlanRecord
from holdfast.connectors.contract import Mark
from holdfast.errors import DefinitionError, RestoreError
from holdfast.graph.fingerprint import fingerprint
from holdfast.ids import NO_EPOCH, shard_ranges
from holdfast.runtime.doors.channel_source import doors_of
from holdfast.runtime.epoch.acknowledgements import Acknowledgements
from holdfast.runtime.epoch.admission import Admission
from holdfast.runtime.epoch.combining import Combining
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.list_state import lists_of
from holdfast.runtime.epoch.lookups import declared_tables, tables_of
from holdfast.runtime.epoch.low_water import LowWater
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.plan_clock import strange_clock
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans, replayed_through
from holdfast.runtime.epoch.runner import EpochRunner, EpochStart
from holdfast.runtime.epoch.schemas_in_force import InForce, operator_schemas
from holdfast.runtime.epoch.snapshotter import Snapshotter
from holdfast.runtime.epoch.source_health import SourceHealth
from holdfast.runtime.epoch.uncoordinated import Ledger, SavingPasses, saved_operators
from holdfast.runtime.epoch.unfired_timers import refuse_unfired
from holdfast.runtime.epoch.watermarks import milliseconds
from holdfast.runtime.joining import Joining
from holdfast.runtime.latency import waited_seconds
from holdfast.runtime.leader_context import LeaderContext, ToldToStop
from holdfast.runtime.parts.edges import Edges
from holdfast.runtime.parts.outlets import Outlets, refuse_unread
from holdfast.runtime.placement import Placement, workspace_of
from holdfast.runtime.settings import EPOCH_TARGET_SECONDS, POLL_SECONDS, Until
from holdfast.runtime.spark_session import groups_cheaply
from holdfast.runtime.upstream import begins, operator_of, refuse_saved
from holdfast.state.contract import EMPTY_VERSION, NextDue
from holdfast.steps import Step, reached
from holdfast.tasks.operators.dispatch import keeps_times


class Ending(Enum):
    """Why leading ended in good order: everything that was run is committed, and published, unless the loop
    says what is `uncommitted` and `unpublished`, or goes on with other shards."""

    STOPPED = "stopped"
    EXHAUSTED = "exhausted"
    RESCALING = "rescaling"


class EpochLoop:
    """Made for one view and one number of shards; `run` once."""

    def __init__(self, context: LeaderContext, view: CheckpointView, shards: int) -> None:
        settings = context.settings
        # The driver has compared schemas before it claimed the term, to leave a fitting leader alone. Again:
        # until the claim that leader may have committed others, and after a rewind older ones hold.
        in_force = operator_schemas(context.program, view.operators, settings.allow_dropped_state)
        refuse_unfired(context.program.graph, view, settings.allow_dropped_state)
        refuse_saved(context.program.graph, view, settings)
        for text in in_force.news:
            context.monitor.say(f"UPGRADE: {text}")
        context = replace(context, program=in_force.applied_to(context.program))
        self._context, self._shards = context, shards
        self._ledger = _ledger_of(context, view, shards)
        self._lines = _lines_of(context, view, shards, self._ledger)
        self._lists = lists_of(
            view, in_force.records, context.program, shards, context.checkpoint.storage, settings.saves_state
        )
        refuse_unread(
            view.channels, context.program.graph.outlets, context.checkpoint.storage.url,
            settings.allow_dropped_state,
        )  # fmt: skip
        self._outlets = Outlets(context.program.graph.outlets, context.clock)
        # Before anything is planned: which plans have to be followed depends on what the sinks show.
        self._publishing = Publishing(context, view)
        with contextlib.ExitStack() as opened:
            opened.callback(self._publishing.close)
            shown = {**self._publishing.shown, **self._outlets.marks()}
            self._planner = _planner_after(context, view, shards, shown)
            self.replayed_through = replayed_through(context.checkpoint.chain, view, shown)
            """The newest epoch that sinks or other parts may know: none up to it may read other rows."""
            # Nothing refuses the run from here on, so sinks may be marked as this job's.
            self._publishing.begin()
            self._prepare(in_force, view)
            self._edges = Edges(context, view, self._outlets, self._planner.readers, self.replayed_through)
            opened.pop_all()
        self._admission = Admission.first(
            EPOCH_TARGET_SECONDS, settings.target_latency, settings.max_rows_per_epoch
        )
        self._combining = _combining_of(context, shards)
        self._pending: list[EpochOutcome] = []
        """Epochs that ran and wait for the next barrier, which commits them as one."""
        self._barrier = context.clock.monotonic()
        self._state_bytes: dict[tuple[str, int], int] = {}
        self._said_of_keys = ""
        self._health = SourceHealth(
            context.program.graph.sources, context.monitor, context.clock.now_ms(), self._planner.outages
        )
        self._acknowledged = Acknowledgements(context, self._planner.readers)
        self.running: int = NO_EPOCH
        """The epoch whose jobs run now, or whose failure ended this."""
        self._abandoned = False
        """Whether an epoch was begun, and given up because the run was told to stop."""
        self.unpublished: dict[str, int] = {}
        """After the end: sink -> how many epochs that it was given it has not shown."""
        self.uncommitted = 0
        """After the end: how many epochs are not committed, because a sink that comes before the commit has
        not shown them."""
        self.refused: dict[str, str] = {}
        """After an end that nobody has asked for: sink -> why it refuses what it has not shown."""

    def _prepare(self, in_force: InForce, view: CheckpointView) -> None:
        """Make what runs, saves and commits."""
        context, shards, program = self._context, self._shards, self._context.program
        settings, checkpoint = context.settings, context.checkpoint
        workspace = workspace_of(
            context.spark, settings, checkpoint.job.identity, checkpoint.storage, context.owner
        )
        placement = Placement(context.spark)
        self._runner = EpochRunner(
            spark=context.spark, program=program, workspace=workspace, placement=placement,
            storage=checkpoint.storage, readers=self._planner.readers, key_groups=settings.key_groups,
            saves_state=settings.saves_state, run_name=context.run, term=context.term,
            replicated=context.replica is not None,
            channels=view.channels,
            settled=view.settled if settings.saves_state else Settled(),
            # Other members have not asked the sinks at the same moment, and all are to stage the same.
            shown_through={} if context.replica is not None else self._publishing.through,
            upstream=settings.replays_state, whole_after=view.whole_after,
            awaited=self._planner.outages.awaited,
        )  # fmt: skip
        saved = saved_operators(program, workspace, context.run, context.term)
        self._passes = SavingPasses(context.spark, saved, placement, shards, context.clock)
        self._snapshotter = Snapshotter(context.spark, workspace, placement, shards, in_force)
        # The first commit gives up state that is not kept up any more, so that it is not found again later.
        kept = [
            each for each in in_force.records if settings.saves_state or each.uid in program.uncoordinated
        ]
        self._committer = Committer(context, self._publishing, view, tuple(kept), self._outlets, shards)
        self._joining = Joining(context, shards)
        self._committer.on_epoch = self._joining.ran
        self._low_water = LowWater(operator_of(program.graph), view.last_epoch)
        self._begins_upstream = begins(view, settings)

    @property
    def view(self) -> CheckpointView:
        """The newest committed view."""
        return self._committer.view

    def run(self) -> Ending:
        """Lead until something ends it. Raises what failed; nothing uncommitted is left behind then."""
        view, monitor = self._committer.view, self._context.monitor
        monitor.update(
            phase=self._joining.phase,
            epoch=view.last_epoch,
            committed_epoch=view.last_epoch,
            committed_ms=view.clock_ms or None,
            commit=view.number,
            rows=view.rows,
            parallelism=self._shards,
            target_latency=self._context.settings.target_latency,
        )
        clean = False
        self._committer.keep_from = self._edges.keep_from
        try:
            # Before the first plan: what sinks show stays a prefix of what is committed.
            self._committer.publish_recovered()
            if self._begins_upstream:
                self._committer.begin_upstream()
            ending = self._loop()
            self._save_keys(everything=True)
            if ending is Ending.RESCALING and self._context.settings.saves_state:
                # What waits for sinks waits in storage, and is given to them again at once.
                self._committer.check(allowed=0)
            else:
                self._committer.record_published(self._has_read_all(ending), self._context.look_around)
                self._committer.check(allowed=0)
                self._acknowledged.step(self._committer.view)
                clean = True
        finally:
            self._planner.let_go()
            self._snapshotter.close()
            try:
                self._committer.close(wait=clean)
            finally:
                self._publishing.close()
        self.unpublished, self.uncommitted = self._committer.unpublished, self._committer.uncommitted
        self.refused = self._committer.refused
        monitor.update(published_through=self._publishing.through)
        if self.refused and self._committer.is_cut_short:
            raise DefinitionError("; ".join(self.refused.values()))
        return ending

    def _loop(self) -> Ending:
        clock, settings, wishes = self._context.clock, self._context.settings, self._context.wishes
        while not (wishes.stopping.is_set() or self._committer.is_cut_short):
            # Raises what a commit or a sink failed with since the last turn; waits for none.
            self._committer.check(allowed=1_000)
            self._context.look_around()
            self._acknowledged.step(self._committer.view)
            for record in self._committer.taken_fellows():
                self._lines = as_committed(self._lines, record)
            if self._committer.has_ended:
                return Ending.STOPPED if wishes.draining.is_set() else Ending.EXHAUSTED
            if wishes.parallelism not in (None, self._shards):
                self._commit_pending()
                return Ending.RESCALING
            began = clock.monotonic()
            self._meet_barrier()
            if wishes.stopping.is_set():
                break
            if wishes.draining.is_set() and not self._end_here():
                break
            room = self._edges.room(self._committer.view.channels, self._planner.epoch)
            room = min(room, self._committer.room)
            if not room:
                self._commit_pending()
                if not self._committer.ends_without_room():
                    self._wait_for_work()
                continue
            parent, open_times = self._committer.view.number, self._open_times()
            limit = max(1, int(self._admission.limit * room))
            plan = self._planner.next(limit, parent, open_times, self._combining.chosen, self._input_ended)
            if plan is None and self._input_ended():
                plan = self._planner.close(parent, open_times)
            self._tell_of_sources()
            if plan is None:
                ending = self._idle()
                if ending is not None:
                    return ending
                continue
            reached(Step.PLAN_WRITTEN)
            try:
                outcome = self._run_epoch(plan)
            except ToldToStop as told:
                # Its plan is followed by the next start.
                self._context.monitor.say(f"epoch {plan.epoch} is left to the next start: {told}")
                self._abandoned = True
                break
            if settings.saves_state:
                self._pending.append(outcome)
            if self._is_barrier():
                self._commit_pending()
            wishes.stopping.wait(max(0.0, settings.epoch_interval - self._elapsed(plan, began)))
        self._commit_pending()
        return Ending.STOPPED

    def _elapsed(self, plan: PlanRecord, began: float) -> float:
        """How long ago the epoch began, in seconds. With replicas, for whichever planned it first: they keep
        step, and a member that is behind waits for nothing until it is level."""
        clock = self._context.clock
        elapsed = clock.monotonic() - began
        if self._context.replica is None:
            return elapsed
        return max(elapsed, (clock.now_ms() - plan.clock_ms) / 1_000)

    def _end_here(self) -> bool:
        """Plan no more than is there now. False: the run was told to stop while a server was waited for that
        is to say what that is."""
        try:
            self._planner.end_here(self._context.wishes.ends)
        except ToldToStop as told:
            self._context.monitor.say(str(told))
            return False
        return True

    def _is_barrier(self) -> bool:
        """Whether what was run is to be committed now. Members of a set of replicas commit every epoch on its
        own: they have no common clock to share several by."""
        context = self._context
        waited, wished = context.clock.monotonic() - self._barrier, context.wishes.taken_barrier()
        return wished or context.replica is not None or waited >= context.settings.checkpoint_interval

    def _meet_barrier(self) -> None:
        """Carry the barrier of the whole job that falls here, if one does: it needs no epoch and no room. End
        where the job stops at one that is carried, by this leader or one before it: once that is committed,
        for a run that is told to stop tries nothing again."""
        barrier = self._edges.barrier(self._planner.positions, self._planner.epoch)
        if barrier:
            pending, self._pending = self._pending, []
            self._committer.submit(pending, barrier)
            self._barrier = self._context.clock.monotonic()
            if self._context.replica is not None or self._edges.last_barrier:
                self._committer.check(allowed=0)
                if not any(place.number == barrier for place in self.view.barriers):
                    self._edges.missed(barrier)
                    return
        if last := self._edges.last_barrier:
            self._context.monitor.say(f"ENDING at barrier {last}: the job stops with a savepoint")
            self._context.wishes.job_stops.set()
            self._context.wishes.stopping.set()

    def _has_read_all(self, ending: Ending) -> bool:
        drained = ending is Ending.STOPPED and self._context.wishes.draining.is_set()
        return ending is Ending.EXHAUSTED or (drained and not self._context.wishes.stopping.is_set())

    def _idle(self) -> Ending | None:
        """No source has anything new: commit what waits, at once; then see whether that was the end."""
        wishes = self._context.wishes
        if self._pending:
            self._commit_pending()
            return None
        self._refuse_abandoned()
        if self._input_ended():
            return Ending.STOPPED if wishes.draining.is_set() else Ending.EXHAUSTED
        self._save_keys()
        if self._committer.settled:
            wishes.permit.satisfied()
        self._wait_for_work()
        return None

    def _wait_for_work(self) -> None:
        if self._committer.settled:
            self._joining.waits()
        self._context.wishes.stopping.wait(POLL_SECONDS)

    def _refuse_abandoned(self) -> None:
        """Refuse to wait for what a part that has ended would have to compute again, where this one is to
        come to its end."""
        wishes = self._context.wishes
        ends = wishes.draining.is_set() or self._context.settings.until is Until.EXHAUSTED
        if ends and not wishes.parts_before_run():
            self._edges.refuse_abandoned(self._planner.positions)

    def _input_ended(self) -> bool:
        """Whether nothing more is to be read. Asked when no source has anything new. Not while the server of
        one is waited for."""
        if self._context.wishes.draining.is_set():
            return not self._planner.waits
        if self._context.settings.until is not Until.EXHAUSTED or self._context.wishes.parts_before_run():
            return False
        return self._planner.exhausted()

    def _open_times(self) -> dict[str, NextDue | None]:
        """Of each operator that keeps times, when it has something to do next; None: not known."""
        found: dict[str, NextDue | None] = {}
        for uid, form in self._context.program.forms.items():
            if not keeps_times(form.layout):
                continue
            each = [self._lines[uid, shard].next_due for shard in range(self._shards)]
            known = [due for due in each if due is not None]
            found[uid] = (
                None
                if len(known) < len(each)
                else NextDue(
                    event_us=min((due.event_us for due in known if due.event_us is not None), default=None),
                    processing_us=min(
                        (due.processing_us for due in known if due.processing_us is not None), default=None
                    ),
                )
            )
        return found

    def _commit_pending(self) -> None:
        if self._pending:
            self._committer.submit(self._pending)
            self._pending = []
        self._barrier = self._context.clock.monotonic()

    def _run_epoch(self, plan: PlanRecord) -> EpochOutcome:
        """Run the epoch, and let state run ahead of the commits: the next epoch starts from what this one
        left, whether or not it is committed by then."""
        saves_state, upstream = self._context.settings.saves_state, self._context.settings.replays_state
        if not saves_state:
            # At most once: committed first, and alone. What fails from here on is not run again.
            self._runner.verify(plan)
            self._committer.submit([EpochOutcome(plan)])
            self._committer.check(allowed=0)
        start = EpochStart(plan, self._lines, self._lists, self._committer.view.last_epoch)
        self.running = plan.epoch
        outcome = self._runner.run(start)
        self.running = NO_EPOCH
        self._context.monitor.latency.ran(plan.epoch, outcome.arrived, self._publishing.through)
        self._planner.watermarks.observed(outcome.times, plan, outcome.silent)
        outcome.event_times = self._planner.watermarks.standing()
        self._lists |= outcome.lists.after
        for key, version in outcome.versions.items():
            if not saves_state or upstream or key in outcome.uncoordinated:
                self._lines[key] = self._lines[key].advanced(version, outcome.next_due.get(key))
        outcome.uncoordinated_shards = [
            self._ledger.take(key, own, outcome.versions[key]) for key, own in outcome.uncoordinated.items()
        ]
        lines = extended(self._lines, outcome.deltas)
        assert lines is not None, f"epoch {plan.epoch} does not follow the lines that it was given"
        self._lines = lines
        if upstream:
            outcome.needs_from = self._low_water.ran(plan, outcome.expires_us)
        elif saves_state:
            self._take_snapshots(plan.epoch)
        else:
            self._committer.publish([outcome])
        self._admission = self._admission.after(
            outcome.rows, outcome.seconds, self._context.monitor.latency.publishing_seconds,
            waited_seconds(outcome.arrived, plan.clock_ms),
        )  # fmt: skip
        self._combining = self._combining.after(outcome.loads)
        self._tell(plan.epoch, outcome)
        return outcome

    def _tell(self, epoch: int, outcome: EpochOutcome) -> None:
        self._state_bytes.update(outcome.state_bytes)
        self._context.monitor.epoch_done(
            epoch,
            outcome.rows,
            outcome.seconds,
            state_bytes=sum(self._state_bytes.values()),
            lag_rows=self._planner.lag(),
            delta_bytes=sum(delta.extent.length for delta in outcome.deltas),
            timings_ms=outcome.timings_ms,
            late_rows=_added(self._context.monitor.progress.late_rows, outcome.late),
            combined=outcome.plan.combined,
            arrivals=outcome.arrivals,
            executors={f"{uid}/{shard}": where for (uid, shard), where in outcome.executors.items()},
            own_keys=self._ledger.shown(),
            watermarks=milliseconds(outcome.plan.watermarks),
            tables=self._planner.tables.shown(),
        )
        self._tell_of_keys()
        self._health.ran(outcome.plan, outcome.set_aside, self._context.clock.now_ms())

    def _tell_of_sources(self) -> None:
        """Say what the sources have to say, and show what waits there."""
        for text in self._planner.news():
            self._context.monitor.say(text)
        self._health.look(self._planner.readers, self._context.clock.now_ms())
        waiting, shown = self._planner.waiting(), self._context.monitor.progress
        if waiting is not None and (waiting.files, waiting.bytes) != (
            shown.waiting_files,
            shown.waiting_bytes,
        ):
            self._context.monitor.update(waiting_files=waiting.files, waiting_bytes=waiting.bytes)
        idle = tuple(self._planner.watermarks.idle_sources(self._planner.now_ms()))
        if idle != shown.idle_sources:
            for uid in sorted({*idle} - {*shown.idle_sources}):
                self._context.monitor.say(
                    f"IDLE: source {uid!r} has no rows; event time does not wait for it"
                )
            self._context.monitor.update(idle_sources=idle)

    def _save_keys(self, everything: bool = False) -> None:
        """Save keys that are due while no epoch runs; all that are dirty at the end."""
        if not self._context.program.uncoordinated or self._abandoned:
            return
        now_ms = self._planner.now_ms()
        found = self._passes.step(
            self._lines, self._ledger.standing, now_ms, self._context.monitor.say, everything=everything
        )
        changed = [shard for key, own in found.items() if (shard := self._ledger.learn(key, own)) is not None]
        if changed and everything:
            self._committer.submit_uncoordinated(changed)
        if found:
            self._tell_of_keys()
            self._context.monitor.update(own_keys=self._ledger.shown())

    def _tell_of_keys(self) -> None:
        """Say what goes wrong with saves, once for each thing."""
        for uid, counts in self._ledger.counts.items():
            if counts.error and counts.error != self._said_of_keys:
                self._said_of_keys = counts.error
                self._context.monitor.say(f"keys of {uid!r}: {counts.error}; processing goes on")

    def _take_snapshots(self, epoch: int) -> None:
        finished = self._snapshotter.step(
            self._lines, epoch, self._context.monitor.say, begin=self._committer.has_lead
        )
        self._lines, used = rebased(self._lines, finished)
        self._committer.add_snapshots(used)


def _combining_of(context: LeaderContext, shards: int) -> Combining:
    """Which operators may combine their rows; none before an epoch has shown that it pays."""
    partials = {uid: form.partials for uid, form in context.program.forms.items()}
    alone = context.replica is None
    # What depends on how rows were combined is not for replicas, which have to come to the same.
    able = [uid for uid, each in partials.items() if each is not None and (alone or each.exact)]
    return Combining(frozenset(able if groups_cheaply(context.spark, shards) else ()))


def _added(so_far: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {uid: so_far.get(uid, 0) + more.get(uid, 0) for uid in {**so_far, **more}}


def _planner_after(
    context: LeaderContext, view: CheckpointView, shards: int, shown: Mapping[str, Mark]
) -> Planner:
    """The planner that goes on from `view`, with the plans that have to be followed first. RestoreError:
    sinks show what this checkpoint cannot replay."""
    _refuse_gone_on(context, view, shown)
    if strange := strange_clock(context.clock, view.clock_ms):
        context.monitor.say(strange)
    graph = context.program.graph
    uids = tuple(node.uid for node in graph.sources)
    tables = declared_tables(graph.lookups, context.program.tables)
    columns = {uid: table.columns for uid, table in tables.items()}
    shape = PlanShape(uids, fingerprint(graph), shards, context.settings.max_rows_per_epoch, columns)
    recorded = recorded_plans(
        context.checkpoint.chain, view, shape, shown, context.monitor.say, doors_of(graph.sources)
    )
    return Planner(context, view, shape, recorded, tables_of(context, view))


def _refuse_gone_on(context: LeaderContext, view: CheckpointView, shown: Mapping[str, Mark]) -> None:
    """Refuse a savepoint whose job has gone on from its own checkpoint since it was stopped: epochs of the
    same numbers would be taken for shown."""
    last = view.last_epoch
    ahead = [f"{uid!r} shows epoch {mark.epoch}" for uid, mark in shown.items() if mark.epoch > last]
    # With a newer commit in the chain it was the leader before us that showed them: they can be replayed.
    alone = max(context.checkpoint.chain.numbers(), default=0) <= view.number
    if ahead and view.number == 1 and context.checkpoint.job.seeded_from and alone:
        raise RestoreError(
            f"the savepoint ends with epoch {last} and its job went on since: sink "
            f"{', '.join(ahead)}; start without claim and with sinks of its own"
        )


def _ledger_of(context: LeaderContext, view: CheckpointView, shards: int) -> Ledger:
    """What the commits tell of operators whose keys are saved on their own. RestoreError: an operator's state
    was kept in the other way so far."""
    own = context.program.uncoordinated
    for uid in own:
        if view.deltas.get(uid) or view.snapshots.get(uid):
            raise RestoreError(
                f"the state of operator {uid!r} is in this checkpoint, and hf.Uncoordinated would start it "
                "from nothing; give it another uid, or leave its protection as it was"
            )
    for uid in view.uncoordinated:
        if uid in context.program.forms and uid not in own and not context.settings.allow_dropped_state:
            raise RestoreError(
                f"the keys of operator {uid!r} were saved on their own, and this checkpoint has no state of "
                "it; keep its hf.Uncoordinated, give it another uid, or allow dropped state"
            )
    ranges = {
        (uid, shard): groups
        for uid in own
        for shard, groups in enumerate(shard_ranges(context.settings.key_groups, shards))
    }
    stored = [shard for uid in own for shard in view.uncoordinated.get(uid, ())]
    return Ledger(ranges, shards, stored, context.monitor.progress.own_keys)


def _lines_of(context: LeaderContext, view: CheckpointView, shards: int, ledger: Ledger) -> Lines:
    own, ranges = context.program.uncoordinated, shard_ranges(context.settings.key_groups, shards)
    saved = [uid for uid in context.program.keyed_uids if uid not in own]
    lines = lines_of(view, saved, ranges, context.recovery.damaged)
    stored = {schema.uid: schema.generation for schema in view.operators}
    for (uid, shard), line in lines.items():
        # What is due follows from the schema: with another one it is not known.
        if stored.get(uid, 0) != context.program.forms[uid].layout.generation:
            lines[uid, shard] = line.advanced(line.version, None)
    return lines | {
        (uid, shard): Line(groups, ledger.version((uid, shard)) or EMPTY_VERSION)
        for uid in own
        for shard, groups in enumerate(ranges)
    }
