"""One stretch of leading: from a committed view, with one number of shards, until something ends it.

    ( plan -> run -> commit -> publish )*

Epoch N+1 runs while N is being committed and published. When a commit fails, everything after it is thrown
away with the stretch; the next one begins with the checkpoint as it is then.
Never here: what a plan, a result or a commit is (see planning, runner, committing), or what follows the end
of a stretch (see driver).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.shard_lines import EMPTY_VERSION, Line, line_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import PlanRecord
from holdfast.clock import Clock
from holdfast.connectors.contract import Mark
from holdfast.errors import RestoreError
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.guarantees import Guarantee
from holdfast.ids import KeyGroupRange, shard_ranges
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.admission import Admission
from holdfast.runtime.epoch.committer import Committer, PublishOrder
from holdfast.runtime.epoch.list_state import lists_of
from holdfast.runtime.epoch.plan_clock import strange_clock
from holdfast.runtime.epoch.planner import Planner, recorded_plans
from holdfast.runtime.epoch.program import Program
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.epoch.runner import EpochOutcome, EpochRunner, Lines
from holdfast.runtime.epoch.schemas_in_force import InForce, operator_schemas
from holdfast.runtime.epoch.snapshotter import Snapshotter
from holdfast.runtime.epoch.uncoordinated import Ledger, SavingPasses, saved_operators
from holdfast.runtime.placement import Placement, workspace_of
from holdfast.runtime.progress import Monitor
from holdfast.runtime.recovery import Inspector
from holdfast.runtime.restarts import NO_EPOCH
from holdfast.runtime.settings import EPOCH_TARGET_SECONDS, POLL_SECONDS, RunSettings, Until
from holdfast.steps import Step, reached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Ending(Enum):
    """Why a stretch ended in good order: everything it ran is committed and published."""

    STOPPED = "stopped"
    EXHAUSTED = "exhausted"
    RESCALING = "rescaling"


@dataclass(frozen=True)
class Seat:
    """What a leader leads with."""

    program: Program
    settings: RunSettings
    spark: SparkSession
    checkpoint: Checkpoint
    term: int
    run: str
    clock: Clock
    monitor: Monitor
    inspector: Inspector
    wishes: Wishes
    look_around: Callable[[], None]
    """Called between epochs; raises what makes leading pointless, such as a newer leader."""
    owner: str = ""
    """The node that leads, if one does: its working state is its own."""

    @property
    def saves_state(self) -> bool:
        return self.settings.guarantee is not Guarantee.AT_MOST_ONCE


class Stretch:
    """Made for one view and one number of shards; `run` once."""

    def __init__(self, seat: Seat, view: CheckpointView, shards: int) -> None:
        self._seat, self._shards = seat, shards
        settings, checkpoint = seat.settings, seat.checkpoint
        in_force = operator_schemas(seat.program, view.operators, settings.allow_dropped_state)
        for text in in_force.news:
            seat.monitor.say(f"UPGRADE: {text}")
        program, schemas = in_force.applied_to(seat.program), in_force.records
        self._ledger = _ledger_of(seat, view, shards)
        self._lines = _lines_of(seat, view, shards, self._ledger)
        self._lists = lists_of(view, schemas, program, shards, checkpoint.storage, seat.saves_state)
        # Before anything is planned: which plans have to be followed depends on what the sinks show.
        self._publishing = Publishing(
            program, checkpoint.job.identity, checkpoint.storage.url, view, seat.monitor.say
        )
        with contextlib.ExitStack() as opened:
            opened.callback(self._publishing.close)
            self._planner = _planner_after(seat, view, shards, self._publishing.shown)
            self._publishing.begin()
            self._prepare(in_force, program, view)
            opened.pop_all()
        self._admission = Admission(target_seconds=EPOCH_TARGET_SECONDS, ceiling=settings.max_rows_per_epoch)
        self._pending: list[EpochOutcome] = []
        self._barrier = seat.clock.monotonic()
        self._state_bytes: dict[tuple[str, int], int] = {}
        self._said_of_keys = ""
        self.running = NO_EPOCH
        """The epoch whose jobs run now, or whose failure ended the stretch."""

    def _prepare(self, in_force: InForce, program: Program, view: CheckpointView) -> None:
        """Make what runs, saves and commits."""
        seat, shards = self._seat, self._shards
        settings, checkpoint = seat.settings, seat.checkpoint
        workspace = workspace_of(
            seat.spark, settings, checkpoint.job.identity, checkpoint.storage, seat.owner
        )
        placement = Placement(seat.spark)
        self._runner = EpochRunner(
            seat.spark,
            program,
            workspace,
            checkpoint.storage,
            self._planner.readers,
            settings.key_groups,
            seat.saves_state,
            placement,
            seat.term,
        )
        saved = saved_operators(program, workspace, seat.run, seat.term)
        self._passes = SavingPasses(seat.spark, saved, placement, shards, seat.clock)
        self._snapshotter = Snapshotter(seat.spark, workspace, placement, shards, in_force)
        # State that is not kept up any more is given up in the first commit, and not found again later.
        schemas = [each for each in in_force.records if seat.saves_state or each.uid in program.uncoordinated]
        self._committer = Committer(
            checkpoint, self._publishing, view, seat.term, seat.run, tuple(schemas),
            PublishOrder(str(settings.guarantee)), self._committed, seat.monitor.say,
            seat.wishes.permit,
        )  # fmt: skip

    @property
    def view(self) -> CheckpointView:
        """The newest committed view."""
        return self._committer.view

    def run(self) -> Ending:
        """Lead until something ends it. Raises what failed; nothing uncommitted is left behind then."""
        view, monitor = self._committer.view, self._seat.monitor
        monitor.update(
            phase="running",
            epoch=view.last_epoch,
            committed_epoch=view.last_epoch,
            commit=view.number,
            rows=view.rows,
            parallelism=self._shards,
        )
        clean = False
        try:
            self._committer.publish_recovered()
            ending = self._loop()
            self._save_keys(everything=True)
            self._committer.record_published()
            clean = True
        finally:
            self._snapshotter.close()
            try:
                self._committer.close(wait=clean)
            finally:
                self._publishing.close()
        monitor.update(published_through=self._publishing.through)
        return ending

    def _loop(self) -> Ending:
        clock, settings, wishes = self._seat.clock, self._seat.settings, self._seat.wishes
        while not wishes.stopping.is_set():
            self._committer.check(allowed=1_000)
            self._seat.look_around()
            if wishes.parallelism not in (None, self._shards):
                self._commit_pending()
                return Ending.RESCALING
            began = clock.monotonic()
            if wishes.draining.is_set():
                self._planner.end_here(wishes.ends)
            plan = self._planner.next(self._admission.limit, self._committer.view.number)
            self._tell_of_sources()
            if plan is None:
                if self._pending:
                    self._commit_pending()
                elif wishes.draining.is_set():
                    return Ending.STOPPED
                elif settings.until is Until.EXHAUSTED and self._planner.exhausted():
                    return Ending.EXHAUSTED
                else:
                    self._save_keys()
                    if self._committer.settled:
                        wishes.permit.satisfied()
                    wishes.stopping.wait(POLL_SECONDS)
                continue
            reached(Step.PLAN_WRITTEN)
            outcome = self._run_epoch(plan)
            if self._seat.saves_state:
                self._pending.append(outcome)
            if wishes.taken_barrier() or clock.monotonic() - self._barrier >= settings.checkpoint_interval:
                self._commit_pending()
            wishes.stopping.wait(max(0.0, settings.epoch_interval - (clock.monotonic() - began)))
        self._commit_pending()
        return Ending.STOPPED

    def _commit_pending(self) -> None:
        if self._pending:
            self._committer.submit(self._pending)
            self._pending = []
        self._barrier = self._seat.clock.monotonic()

    def _run_epoch(self, plan: PlanRecord) -> EpochOutcome:
        saves_state = self._seat.saves_state
        if not saves_state:
            self._runner.verify(plan)
            self._committer.submit([EpochOutcome(plan)])
            self._committer.check(allowed=0)
        committed = self._committer.view.last_epoch
        self.running = plan.epoch
        outcome = self._runner.run(plan, self._lines, self._lists, committed, self._seat.run)
        self.running = NO_EPOCH
        self._lists |= outcome.lists.after
        for key, version in outcome.versions.items():
            if not saves_state or key in outcome.uncoordinated:
                self._lines[key] = self._lines[key].advanced(version)
        outcome.uncoordinated_shards = [
            self._ledger.take(key, own, outcome.versions[key]) for key, own in outcome.uncoordinated.items()
        ]
        for delta in outcome.deltas:
            for key, line in self._lines.items():
                if key[0] == delta.operator and line.groups.first == delta.first_group:
                    self._lines[key] = line.extended(delta)
        if saves_state:
            self._take_snapshots(plan.epoch)
        else:
            self._committer.publish([outcome])
        self._admission = self._admission.after(outcome.rows, outcome.seconds)
        self._tell(plan.epoch, outcome)
        return outcome

    def _tell(self, epoch: int, outcome: EpochOutcome) -> None:
        self._state_bytes.update(outcome.state_bytes)
        self._seat.monitor.epoch_done(
            epoch,
            outcome.rows,
            outcome.seconds,
            state_bytes=sum(self._state_bytes.values()),
            lag_rows=self._planner.lag(),
            delta_bytes=sum(delta.extent.length for delta in outcome.deltas),
            timings_ms=outcome.timings_ms,
            arrivals=outcome.arrivals,
            executors={f"{uid}/{shard}": where for (uid, shard), where in outcome.executors.items()},
            own_keys=self._ledger.shown(),
        )
        self._tell_of_keys()

    def _tell_of_sources(self) -> None:
        """Say what the sources have to say, and show what waits there."""
        for text in self._planner.news():
            self._seat.monitor.say(text)
        waiting, shown = self._planner.waiting(), self._seat.monitor.progress
        if waiting is not None and (waiting.files, waiting.bytes) != (
            shown.waiting_files,
            shown.waiting_bytes,
        ):
            self._seat.monitor.update(waiting_files=waiting.files, waiting_bytes=waiting.bytes)

    def _save_keys(self, everything: bool = False) -> None:
        """Save keys that are due while no epoch runs; all that are dirty when the stretch ends."""
        if not self._seat.program.uncoordinated:
            return
        now_ms = self._planner.now_ms()
        found = self._passes.step(
            self._lines, self._ledger.standing, now_ms, self._seat.monitor.say, everything=everything
        )
        changed = [shard for key, own in found.items() if (shard := self._ledger.learn(key, own)) is not None]
        if changed and everything:
            self._committer.submit_uncoordinated(changed)
        if found:
            self._tell_of_keys()
            self._seat.monitor.update(own_keys=self._ledger.shown())

    def _tell_of_keys(self) -> None:
        """Say what goes wrong with saves, once for each thing."""
        for uid, counts in self._ledger.counts.items():
            if counts.error and counts.error != self._said_of_keys:
                self._said_of_keys = counts.error
                self._seat.monitor.say(f"keys of {uid!r}: {counts.error}; processing goes on")

    def _take_snapshots(self, epoch: int) -> None:
        for file in self._snapshotter.step(self._lines, epoch, self._seat.monitor.say):
            for key, line in self._lines.items():
                if (
                    key[0] == file.operator
                    and line.groups.first == file.first_group
                    and line.went_through(file.version)
                ):
                    self._lines[key] = line.rebased(file)
                    self._committer.add_snapshots([file])

    def _committed(self, view: CheckpointView) -> None:
        self._seat.monitor.update(
            committed_epoch=view.last_epoch, commit=view.number, committed_ms=self._seat.clock.now_ms(),
            published_through=view.published_through,
        )  # fmt: skip


def _planner_after(seat: Seat, view: CheckpointView, shards: int, shown: Mapping[str, Mark]) -> Planner:
    """The planner that goes on from `view`, with the plans that have to be followed first. RestoreError:
    sinks show what this checkpoint cannot replay."""
    plans, sources = seat.checkpoint.plans, seat.program.graph.sources
    uids = [node.uid for node in sources]
    code = fingerprint(seat.program.graph)
    ceiling = seat.settings.max_rows_per_epoch
    _refuse_gone_on(seat, view, shown)
    if strange := strange_clock(seat.clock, view.clock_ms):
        seat.monitor.say(strange)
    recorded = recorded_plans(
        plans, seat.checkpoint.chain, view, uids, code, shards, ceiling, seat.monitor.say, shown
    )
    return Planner(plans, sources, view, recorded, seat.clock, seat.term, seat.run, code, shards)


def _refuse_gone_on(seat: Seat, view: CheckpointView, shown: Mapping[str, Mark]) -> None:
    """Refuse a savepoint whose job has gone on from its own checkpoint since it was stopped: epochs of the
    same numbers would be taken for shown."""
    last = view.last_epoch
    ahead = [f"{uid!r} shows epoch {mark.epoch}" for uid, mark in shown.items() if mark.epoch > last]
    alone = max(seat.checkpoint.chain.numbers(), default=0) <= view.number
    if ahead and view.number == 1 and seat.checkpoint.job.seeded_from and alone:
        raise RestoreError(
            f"the savepoint ends with epoch {last} and its job went on since: sink "
            f"{', '.join(ahead)}; start without claim and with sinks of its own"
        )


def _ledger_of(seat: Seat, view: CheckpointView, shards: int) -> Ledger:
    """What the commits tell of operators whose keys are saved on their own. RestoreError: an operator's state
    was kept in the other way so far."""
    own = seat.program.uncoordinated
    for uid in own:
        if view.deltas.get(uid) or view.snapshots.get(uid):
            raise RestoreError(
                f"the state of operator {uid!r} is in this checkpoint, and hf.Uncoordinated would start it "
                "from nothing; give it another uid, or leave its protection as it was"
            )
    for uid in view.uncoordinated:
        if uid in seat.program.forms and uid not in own and not seat.settings.allow_dropped_state:
            raise RestoreError(
                f"the keys of operator {uid!r} were saved on their own, and this checkpoint has no state of "
                "it; keep its hf.Uncoordinated, give it another uid, or allow dropped state"
            )
    ranges = {
        (uid, shard): groups
        for uid in own
        for shard, groups in enumerate(shard_ranges(seat.settings.key_groups, shards))
    }
    stored = [shard for uid in own for shard in view.uncoordinated.get(uid, ())]
    return Ledger(ranges, shards, stored, seat.monitor.progress.own_keys)


def _lines_of(seat: Seat, view: CheckpointView, shards: int, ledger: Ledger) -> Lines:
    return {
        (uid, shard): _line(seat, view, uid, shard, groups, ledger)
        for uid in seat.program.keyed_uids
        for shard, groups in enumerate(shard_ranges(seat.settings.key_groups, shards))
    }


def _line(
    seat: Seat, view: CheckpointView, uid: str, shard: int, groups: KeyGroupRange, ledger: Ledger
) -> Line:
    if uid in seat.program.uncoordinated:
        return Line(groups, ledger.version((uid, shard)) or EMPTY_VERSION)
    return line_of(view, uid, groups, seat.inspector.damaged)
