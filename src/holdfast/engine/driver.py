"""The driver: leads, plans, runs, commits and publishes, epoch after epoch, until told to stop.

    claim a term -> load the checkpoint -> publish what was committed and not shown -> ( plan -> run -> commit
    -> publish )*

Epoch N+1 runs while N is being committed and published. When a commit fails, everything after it is thrown
away and the
checkpoint is loaded again.
Never here: what a plan, a result or a commit is (see planning, runner, committing).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

from holdfast.checkpoint.commits import DamagedChain
from holdfast.checkpoint.identity import open_checkpoint
from holdfast.checkpoint.records import PlanRecord
from holdfast.checkpoint.terms import claim, newest_term
from holdfast.checkpoint.view import CheckpointView
from holdfast.clock import Clock
from holdfast.engine.committing import AdoptedOther, Committer, PublishOrder
from holdfast.engine.lines import line_of
from holdfast.engine.placement import Placement
from holdfast.engine.planning import Planner, recorded_plans
from holdfast.engine.program import compile_graph
from holdfast.engine.progress import Monitor
from holdfast.engine.publishing import Publishing
from holdfast.engine.recovery import Inspector, load_view, rewind_past_damage
from holdfast.engine.runner import EpochOutcome, EpochRunner, Lines
from holdfast.engine.schemas import operator_schemas
from holdfast.engine.session import default_parallelism, is_single_executor
from holdfast.engine.settings import EPOCH_TARGET_SECONDS, POLL_SECONDS, RunSettings, Until
from holdfast.engine.snapshots import Snapshotter
from holdfast.engine.work import WorkPlace
from holdfast.epoch.admission import Admission
from holdfast.errors import CorruptionError, FencedOut, ObjectMissing, StorageError
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.nodes import Graph
from holdfast.ids import shard_ranges
from holdfast.steps import Step, reached
from holdfast.storage.contract import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TERM_CHECK_SECONDS = 1.0
"""How often a leader looks whether it was replaced. Only to stop early: safety does not depend on it."""


class Driver:
    """One run of a job by one process."""

    def __init__(
        self,
        graph: Graph,
        settings: RunSettings,
        spark: SparkSession,
        storage: Storage,
        run: str,
        clock: Clock,
        monitor: Monitor,
    ) -> None:
        self._graph, self._settings, self._spark, self._storage = graph, settings, spark, storage
        self._run, self._clock, self._monitor = run, clock, monitor
        self._fingerprint = fingerprint(graph)
        self._stopping = threading.Event()
        self._admission = Admission(target_seconds=EPOCH_TARGET_SECONDS, ceiling=settings.max_rows_per_epoch)
        self._term_checked = clock.monotonic()
        self._state_bytes: dict[tuple[str, int], int] = {}

    def stop(self) -> None:
        """Ask the run to end after the epoch in hand is committed. Safe from any thread and from a signal
        handler.
        """
        self._stopping.set()

    def run(self) -> None:
        """Run until stopped or exhausted. Raises what ended the run otherwise."""
        settings = self._settings
        self._checkpoint = open_checkpoint(
            self._storage,
            self._graph.name,
            settings.key_groups,
            self._clock,
            identity=self._run,
            retain=settings.retain,
        )
        self._term = claim(self._storage, self._run, socket.gethostname(), os.getpid(), self._clock.now_ms())
        reached(Step.TERM_CLAIMED)
        self._monitor.update(term=self._term, restarts=self._term - 1, phase="restoring")
        self._inspector = Inspector(self._storage, settings.key_groups, self._monitor.say)
        self._program = compile_graph(self._graph, self._spark)
        chain = self._checkpoint.chain
        view = self._load()
        while True:
            reached(Step.RECOVERY_READ)
            try:
                self._lead(view)
                return
            except AdoptedOther as other:
                self._monitor.say(str(other))
                view = self._load()
            except (CorruptionError, ObjectMissing) as damage:
                # What a newer leader has retired is gone, not damaged.
                self._refuse_if_superseded()
                found_before = self._inspector.damaged
                self._monitor.say(f"DAMAGE: {damage}")
                view = rewind_past_damage(
                    chain, self._load(), self._inspector, self._term, self._run, self._monitor.say
                )
                if self._inspector.damaged == found_before and not isinstance(damage, DamagedChain):
                    raise

    def _load(self) -> CheckpointView:
        chain = self._checkpoint.chain
        return load_view(chain, self._inspector, self._term, self._run, self._monitor.say)

    def _lead(self, view: CheckpointView) -> None:
        """Go on from `view` until stopped."""
        settings, program = self._settings, self._program
        shards = settings.parallelism or view.parallelism or self._usual_parallelism()
        schemas = operator_schemas(program, view.operators)
        self._planner = self._planner_after(view, shards)
        self._lines = self._lines_of(view, shards)
        exactly = settings.guarantee is not Guarantee.AT_MOST_ONCE
        place = WorkPlace(
            identity=self._checkpoint.job.identity,
            storage_url=self._storage.url,
            working_root=settings.working_dir if is_single_executor(self._spark) else None,
            backend=settings.backend,
        )
        placement = Placement(self._spark)
        self._runner = EpochRunner(
            self._spark,
            program,
            place,
            self._storage,
            self._planner.readers,
            settings.key_groups,
            exactly,
            placement,
        )
        self._snapshotter = Snapshotter(self._spark, place, placement, shards)
        publishing = Publishing(program, place.identity, self._storage.url, view)
        self._committer = Committer(
            self._checkpoint, publishing, view, self._term, self._run, schemas,
            PublishOrder(str(settings.guarantee)), self._committed, self._monitor.say,
        )  # fmt: skip
        self._monitor.update(
            phase="running",
            epoch=view.last_epoch,
            committed_epoch=view.last_epoch,
            commit=view.number,
            rows=view.rows,
        )
        clean = False
        try:
            self._committer.publish_recovered()
            self._loop()
            clean = True
        finally:
            self._snapshotter.close()
            try:
                self._committer.close(wait=clean)
            finally:
                publishing.close()
        self._monitor.update(phase="stopped", published_through=publishing.through)

    def _usual_parallelism(self) -> int:
        return min(default_parallelism(self._spark), self._settings.key_groups)

    def _planner_after(self, view: CheckpointView, shards: int) -> Planner:
        plans, sources = self._checkpoint.plans, self._graph.sources
        uids = [node.uid for node in sources]
        ceiling = self._settings.max_rows_per_epoch
        recorded = recorded_plans(
            plans, self._checkpoint.chain, view, uids, self._fingerprint, shards, ceiling, self._monitor.say
        )
        return Planner(
            plans, sources, view, recorded, self._clock, self._term, self._run, self._fingerprint, shards
        )

    def _lines_of(self, view: CheckpointView, shards: int) -> Lines:
        return {
            (uid, shard): line_of(view, uid, groups, self._inspector.damaged)
            for uid in self._program.forms
            for shard, groups in enumerate(shard_ranges(self._settings.key_groups, shards))
        }

    def _loop(self) -> None:
        pending: list[EpochOutcome] = []
        barrier = self._clock.monotonic()
        while not self._stopping.is_set():
            self._committer.check(allowed=1_000)
            self._check_term()
            began = self._clock.monotonic()
            plan = self._planner.next(self._admission.limit, self._committer.view.number)
            if plan is None:
                if pending:
                    self._committer.submit(pending)
                    pending, barrier = [], self._clock.monotonic()
                elif self._settings.until is Until.EXHAUSTED and self._planner.exhausted():
                    return
                else:
                    self._stopping.wait(POLL_SECONDS)
                continue
            reached(Step.PLAN_WRITTEN)
            outcome = self._run_epoch(plan)
            if self._settings.guarantee is not Guarantee.AT_MOST_ONCE:
                pending.append(outcome)
            if pending and self._clock.monotonic() - barrier >= self._settings.checkpoint_interval:
                self._committer.submit(pending)
                pending, barrier = [], self._clock.monotonic()
            self._stopping.wait(max(0.0, self._settings.epoch_interval - (self._clock.monotonic() - began)))
        if pending:
            self._committer.submit(pending)

    def _run_epoch(self, plan: PlanRecord) -> EpochOutcome:
        at_most_once = self._settings.guarantee is Guarantee.AT_MOST_ONCE
        if at_most_once:
            self._committer.submit([EpochOutcome(plan)])
            self._committer.check(allowed=0)
        outcome = self._runner.run(plan, self._lines, self._committer.view.last_epoch, self._run)
        for key, version in outcome.versions.items():
            if at_most_once:
                self._lines[key] = self._lines[key].advanced(version)
        for delta in outcome.deltas:
            for key, line in self._lines.items():
                if key[0] == delta.operator and line.groups.first == delta.first_group:
                    self._lines[key] = line.extended(delta)
        if at_most_once:
            self._committer.publish([outcome])
        else:
            self._take_snapshots(plan.epoch)
        self._admission = self._admission.after(outcome.rows, outcome.seconds)
        self._state_bytes.update(outcome.state_bytes)
        self._monitor.epoch_done(
            plan.epoch,
            outcome.rows,
            outcome.seconds,
            state_bytes=sum(self._state_bytes.values()),
            lag_rows=self._planner.lag(),
            delta_bytes=sum(delta.extent.length for delta in outcome.deltas),
            timings_ms=outcome.timings_ms,
            executors={f"{uid}/{shard}": where for (uid, shard), where in outcome.executors.items()},
        )
        return outcome

    def _take_snapshots(self, epoch: int) -> None:
        for file in self._snapshotter.step(self._lines, epoch, self._monitor.say):
            for key, line in self._lines.items():
                chosen = {delta.version for delta in line.deltas}
                if (
                    key[0] == file.operator
                    and line.groups.first == file.first_group
                    and file.version in chosen
                ):
                    self._lines[key] = line.rebased(file)
                    self._committer.add_snapshots([file])

    def _committed(self, view: CheckpointView) -> None:
        self._monitor.update(
            committed_epoch=view.last_epoch, commit=view.number, committed_ms=self._clock.now_ms(),
            published_through=view.published_through,
        )  # fmt: skip

    def _check_term(self) -> None:
        now = self._clock.monotonic()
        if now - self._term_checked < TERM_CHECK_SECONDS:
            return
        self._term_checked = now
        # Safety does not depend on this look: storage that cannot be reached now may be by the next commit.
        with contextlib.suppress(StorageError):
            self._refuse_if_superseded()

    def _refuse_if_superseded(self) -> None:
        newest = newest_term(self._storage)
        if newest is not None and newest.term > self._term:
            raise FencedOut(self._term, newest.term, f"claimed by {newest.host}, process {newest.pid}")
