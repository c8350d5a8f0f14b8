"""A hot standby's follower: brings this node's working state to each new commit, by small Spark jobs.

    look for a new commit -> read its records -> bring the changed shards along -> look again

The restore of a takeover catches up on what was committed after the last look. A standby that was too slow,
and whose deltas retention has removed meanwhile, goes on from the snapshots.
Always true: only committed versions are followed; storage is read and never written; a step costs what the
new records and the keys that they touch cost, unless shards have to be rebuilt.
Never here: the thread, and what an error means (see standby).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.checkpoint import find_job
from holdfast.checkpoint.chain.history import History, NewestCommit
from holdfast.checkpoint.chain.shard_lines import Lines
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import CommitRecord, JobRecord
from holdfast.clock import Clock
from holdfast.cluster.node_records import Lag, in_short
from holdfast.errors import CorruptionError, ObjectMissing, RetryableError
from holdfast.ids import shard_ranges
from holdfast.nodes.follow_plan import Followed, Sight, settled
from holdfast.runtime.epoch.program import Program
from holdfast.runtime.epoch.schemas_in_force import operator_schemas
from holdfast.runtime.placement import Placement, workspace_of
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import describe_jobs
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.contract import Storage
from holdfast.tasks.follow import FollowedOperator, FollowTask
from holdfast.tasks.messages import RESULT_SCHEMA, TaskResult, decode_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIST_SECONDS = 5.0
"""How often the commits are listed though the one that comes next is not there."""


class _Gone(RetryableError):
    """A file that a shard needs is not in storage."""


class Follower:
    """For one job and one Spark session. Used by one thread; `lag` and `view` may be read by any."""

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        settings: RunSettings,
        storage: Storage,
        owner: str,
        clock: Clock,
    ) -> None:
        self._spark, self._program, self._settings, self._storage = spark, program, settings, storage
        self._owner, self._clock = owner, clock
        self._placement = Placement(spark)
        self._job: JobRecord | None = None
        self._sight = Sight()
        self._problem, self._looked = "", False
        self._forget()
        self._lineages: dict[str, Lineage] = {}
        # Keys that are saved on their own are fetched when they are seen: there is nothing to follow.
        self._uids = [uid for uid in program.keyed_uids if uid not in program.uncoordinated]

    @property
    def view(self) -> CheckpointView:
        """The newest commit that was followed."""
        return self._followed.view

    @property
    def lag(self) -> Lag | None:
        """How far behind the working state is; None: that is not known before the first look."""
        if not self._looked and not self._problem:
            return None
        return self._sight.lag(self._clock.monotonic(), self._problem)

    def step(self) -> bool:
        """Follow what is new. False: nothing was. Raises what went wrong; the next step starts over then."""
        try:
            moved = self._step_or_start_over()
        except Exception as failure:
            self._problem = in_short(failure)
            self._forget()
            raise
        self._problem = ""
        return moved

    def _step_or_start_over(self) -> bool:
        """What retention has removed since the last step is not damage: the view knows of another way."""
        try:
            return self._step()
        except _Gone:
            self._forget()
            return self._step()

    def _forget(self) -> None:
        self._followed, self._history = Followed(), History(self._storage)
        self._newest_commit = NewestCommit(self._history, self._clock, LIST_SECONDS)

    def _step(self) -> bool:
        view = self._newest()
        self._sight = self._sight.seen(view.last_epoch, self._clock.monotonic())
        self._looked = True
        if view.checksum == self._followed.view.checksum:
            return False
        lineages = operator_schemas(
            self._program, view.operators, self._settings.allow_dropped_state
        ).lineages
        if lineages != self._lineages:
            self._followed, self._lineages = Followed(), lineages
        records = self._records_until(view)
        key_groups = self._settings.key_groups
        lines = self._followed.towards(view, records, self._uids, key_groups)
        wanted = self._followed.changed(lines)
        if wanted:
            self._bring(lines, wanted, view)
        self._followed = settled(view, lines, records)
        self._history.forget_below(view.number)
        self._sight = self._sight.reached(view.last_epoch, self._clock.monotonic())
        return bool(wanted)

    def _newest(self) -> CheckpointView:
        """The newest commit."""
        view = self._followed.view
        if self._newest_commit.is_still(view):
            return view
        newest = self._newest_commit.load()
        if newest.number < view.number:
            raise CorruptionError(f"commit {view.number} was there and is not any more; reading all again")
        return newest

    def _records_until(self, view: CheckpointView) -> list[CommitRecord]:
        """The records after the one that was followed; none where one of them is gone by now."""
        first = self._followed.view.number + 1
        if first == 1:
            return []
        try:
            return [self._history.record(number) for number in range(first, view.number + 1)]
        except CorruptionError:
            return []

    def _bring(self, lines: Lines, wanted: list[tuple[str, int]], view: CheckpointView) -> None:
        self._job = self._job or find_job(self._storage)
        assert self._job is not None, "a checkpoint that has commits has a job record"
        workspace = workspace_of(self._spark, self._settings, self._job.identity, self._storage, self._owner)
        operators = tuple(
            FollowedOperator(
                uid,
                self._lineages[uid],
                {shard: lines[key, shard] for key, shard in wanted if key == uid},
            )
            for uid in dict.fromkeys(uid for uid, _ in wanted)
        )
        ranges = tuple(shard_ranges(self._settings.key_groups, view.parallelism))
        task = FollowTask(workspace, operators, view.last_epoch, ranges)
        for result in self._run(task, view.parallelism):
            if result.failure is not None:
                kind = _Gone if result.failure.kind == ObjectMissing.__name__ else RetryableError
                raise kind(f"shard {result.shard}: {result.failure.args[0]}")

    def _run(self, task: FollowTask, shards: int) -> list[TaskResult]:
        name = self._program.graph.name
        describe_jobs(self._spark, f"holdfast standby of {name}: epoch {task.committed}")
        wanted = sorted({shard for operator in task.operators for shard in operator.shards})
        rows = self._placement.shard_rows(shards, wanted).mapInArrow(partial(task), RESULT_SCHEMA).collect()
        return [decode_result(bytes(row[0])) for row in rows]
