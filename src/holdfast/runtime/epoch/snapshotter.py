"""Snapshots of working state, in the background: they bound how many deltas a restore has to apply.

A snapshot is taken of whatever version the working state is at when the task gets there. A commit record
names it only if the driver chose that version and has committed it.
Always true: at most one snapshot job runs at a time; no epoch waits for one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.checkpoint.chain.shard_lines import Line, Lines
from holdfast.checkpoint.store.records import OperatorSchema, SnapshotFile
from holdfast.errors import first_line
from holdfast.ids import KeyGroupRange
from holdfast.runtime.epoch.schemas_in_force import InForce
from holdfast.runtime.placement import Placement
from holdfast.runtime.spark_session import interrupt_jobs, run_in_background
from holdfast.state.contract import Version
from holdfast.state.files.schema_conversion import Lineage
from holdfast.tasks.messages import RESULT_SCHEMA, Workspace, decode_result
from holdfast.tasks.working_state import snapshot_shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTAS_MIN = 20
"""Below this many deltas a restore is quick enough, and the job that snapshots would cost more than it
saves.
"""
DELTAS_MAX = 200
"""With more deltas than this, opening their files costs more than copying the state."""
SNAPSHOT_RATIO = 0.1
"""Deltas may hold this part of the last snapshot's entries. A restore then has little to apply, and copying
still costs a constant factor of what epochs write.
"""
ENTRY_BYTES = 32
"""About what an entry takes in a snapshot: deltas are compressed, so bytes of the two cannot be compared."""
SHARDS_AT_ONCE = 4


@dataclass(frozen=True)
class SnapshotTask:
    """Shards to be snapshotted, by shard number. `epoch`: the newest one when it was asked for.

    Files are named by that, not by their version: the version of an idle shard is old, and retention takes an
    old name that no commit has for a leftover.
    """

    workspace: Workspace
    lineage: Lineage
    schema: OperatorSchema
    epoch: int
    groups: dict[int, KeyGroupRange]

    @property
    def uid(self) -> str:
        return self.schema.uid

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                groups = self.groups[shard]
                yield snapshot_shard(self.workspace, self.lineage, self.schema, shard, groups, self.epoch)


def due(line: Line) -> bool:
    """Whether a shard's deltas have outgrown its last snapshot."""
    count = len(line.deltas)
    if count < DELTAS_MIN:
        return False
    written = sum(delta.entries for delta in line.deltas) * ENTRY_BYTES
    before = sum(file.length for file in line.snapshots)
    return count >= DELTAS_MAX or written >= SNAPSHOT_RATIO * before


class Snapshotter:
    """Starts snapshot jobs and hands over what they wrote."""

    def __init__(
        self, spark: SparkSession, workspace: Workspace, placement: Placement, shards: int, in_force: InForce
    ) -> None:
        self._spark, self._workspace, self._placement, self._shards = spark, workspace, placement, shards
        self._in_force = in_force
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-snapshot")
        self._tag = f"holdfast-snapshot-{uuid.uuid4().hex}"
        self._running: Future[list[SnapshotFile]] | None = None
        self._tried: dict[tuple[str, int], Version] = {}
        """Shards asked for a snapshot, the last one last, and where their line stood."""

    def step(
        self, lines: Lines, epoch: int, on_failure: Callable[[str], None], begin: bool = True
    ) -> list[SnapshotFile]:
        """Called after each epoch: gives the snapshots that were finished since, and starts the next ones
        that are due, unless `begin` is off.
        """
        finished = self._finished(on_failure)
        if self._running is None and begin:
            wanted = self._wanted(lines, finished)
            if wanted:
                uid = wanted[0][0]
                groups = {shard: lines[name, shard].groups for name, shard in wanted if name == uid}
                first = dict(list(groups.items())[:SHARDS_AT_ONCE])
                for shard in first:
                    self._tried.pop((uid, shard), None)
                    self._tried[uid, shard] = lines[uid, shard].version
                self._running = self._pool.submit(self._run, self._task(uid, epoch, first))
        return finished

    def _task(self, uid: str, epoch: int, groups: dict[int, KeyGroupRange]) -> SnapshotTask:
        schema = self._in_force.written_as(uid)
        return SnapshotTask(self._workspace, self._in_force.lineages[uid], schema, epoch, groups)

    def _wanted(self, lines: Lines, finished: list[SnapshotFile]) -> list[tuple[str, int]]:
        """The shards that are due, the longest waiting first; `finished` are not in their lines yet.

        One that gave nothing (its working state is on another machine, say) and was idle since would give
        nothing again: it must not keep the others from their turn.
        """
        done = {(file.operator, file.first_group) for file in finished}
        due_now = [
            key
            for key, line in lines.items()
            if due(line) and self._tried.get(key) != line.version and (key[0], line.groups.first) not in done
        ]
        turn = {key: number for number, key in enumerate(self._tried)}
        return sorted(due_now, key=lambda key: turn.get(key, -1))

    def close(self) -> None:
        """Cut short what is under way: nothing depends on it."""
        while self._running is not None and not self._running.done():
            # Again and again: a job that is only just being started does not have the tag yet.
            interrupt_jobs(self._spark, self._tag)
            wait([self._running], timeout=0.2)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _finished(self, on_failure: Callable[[str], None]) -> list[SnapshotFile]:
        if self._running is None or not self._running.done():
            return []
        done, self._running = self._running, None
        try:
            return done.result()
        except Exception as failure:
            # Nothing depends on a snapshot: the deltas are still there, and the next epoch tries again.
            on_failure(f"a snapshot failed and will be tried again: {first_line(failure)}")
            return []

    def _run(self, task: SnapshotTask) -> list[SnapshotFile]:
        run_in_background(self._spark, self._tag, f"holdfast snapshot of {task.uid} after epoch {task.epoch}")
        rows = self._placement.shard_rows(self._shards, list(task.groups))
        results = [
            decode_result(bytes(row[0])) for row in rows.mapInArrow(partial(task), RESULT_SCHEMA).collect()
        ]
        return [result.snapshot for result in results if result.snapshot is not None]
