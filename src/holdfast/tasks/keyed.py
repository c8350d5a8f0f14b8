"""What runs inside a Spark task: bring the state there, run the operator, write files, say what was written.

A task decides nothing. That its input iterator ended is no evidence that the input was complete, so its files
have names of their own and count only if the driver, told by Spark that the whole job succeeded, chooses
them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from holdfast import errors
from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.checkpoint.store.records import VersionRecord
from holdfast.state.contract import ShardState, StaleWorkingState
from holdfast.state.encoding.keys import GROUP_COLUMN
from holdfast.state.files.delta import to_entries, write_delta
from holdfast.steps import Step, reached
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import Failure, OperatorTask, StageTask, TaskResult, as_batch
from holdfast.tasks.operators.dispatch import run_function
from holdfast.tasks.operators.result import EpochContext
from holdfast.tasks.task_files import TaskWriter, Watch
from holdfast.tasks.working_state import (
    Kept,
    disk_directory,
    forget_fetched,
    leave_former_shards,
    open_shard,
    shard_directory,
    version_of,
)

if TYPE_CHECKING:
    from holdfast.tasks.uncoordinated.shard_run import ShardRun

STALE_TRIES = 5
"""How often a task starts over when a twin of it moved the working state. Twins end; more than this is a
fault.
"""


def run_operator(task: OperatorTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of an operator's task under `mapInArrow`: the partition is the shard."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    yield as_batch(_operator_result(task, context.partitionId(), list(batches)))


def run_operator_grouped(
    task: OperatorTask, key: tuple[pa.Scalar, ...], rows: pa.Table, placement: pa.Table
) -> pa.Table:
    """The body of an operator's task under `cogroup`: the key is the shard."""
    batch = as_batch(_operator_result(task, key[0].as_py(), rows.to_batches()))
    return pa.Table.from_batches([batch])


def run_stage(task: StageTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage a stream's rows as they are."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    shard = context.partitionId()
    given = [batch for batch in batches if batch.num_rows]
    result = TaskResult(shard=shard, host=socket.gethostname(), executor=os.getcwd())
    if given:
        rows = pa.Table.from_batches(given)
        writer = TaskWriter(
            open_storage(task.workspace.storage_url), task.epoch, f"{task.run}-{task.attempt}", shard
        )
        outputs = writer.stage({task.stream: rows}, (task.stream,))
        result = msgspec.structs.replace(result, rows=rows.num_rows, outputs=outputs)
    yield as_batch(result)


def _operator_result(task: OperatorTask, shard: int, batches: list[pa.RecordBatch]) -> TaskResult:
    """Run one shard. An error that the driver should see whole comes back as a result, not as a Spark
    failure: retrying a function that raises is no use, and Spark would keep only its text.
    """
    try:
        given = [batch for batch in batches if batch.num_rows]
        if not given:
            return TaskResult(shard=shard, host=socket.gethostname(), executor=os.getcwd())
        return _retrying_when_stale(lambda: _run_shard(task, shard, pa.Table.from_batches(given)))
    except errors.RetryableError:
        raise
    except errors.HoldfastError as error:
        if isinstance(error, errors.CorruptionError):
            # If it was the local copy of a snapshot that went bad, the next run fetches another.
            forget_fetched(disk_directory(task.workspace, task.uid, task.shards[shard].groups), keep=())
        failure = Failure(type(error).__name__, error.args)
        return TaskResult(shard=shard, host=socket.gethostname(), executor=os.getcwd(), failure=failure)


def _retrying_when_stale(run: Callable[[], TaskResult]) -> TaskResult:
    for attempt in range(STALE_TRIES):
        try:
            return run()
        except StaleWorkingState:
            if attempt == STALE_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _run_shard(task: OperatorTask, shard: int, table: pa.Table) -> TaskResult:
    watch = Watch()
    plan = task.shards[shard]
    storage = open_storage(task.workspace.storage_url)
    state = open_shard(task.workspace, task.uid, task.lineage, plan, task.committed, _kept(task))
    leave_former_shards(task.workspace, task.uid, [each.groups for each in task.shards])
    with contextlib.closing(state):
        result = _run_on(state, task, shard, plan, table, storage, watch)
        return msgspec.structs.replace(result, arrival=state.arrival)


def _run_on(
    state: ShardState,
    task: OperatorTask,
    shard: int,
    plan: Line,
    table: pa.Table,
    storage: Storage,
    watch: Watch,
) -> TaskResult:
    reached(Step.TASK_STATE_READY)
    watch.lap("open")
    groups = table[GROUP_COLUMN].combine_chunks().to_numpy(zero_copy_only=False)
    context = EpochContext(
        uid=task.uid, epoch=task.epoch, clock_ms=task.clock_ms, shard=shard, on_error=task.on_error
    )
    rows, own = table.drop_columns([GROUP_COLUMN]), _uncoordinated(task, plan, state)
    if own is not None:
        done = own.run(rows, groups, context)
    else:
        done = run_function(task.function, task.layout, rows, groups, task.key, task.order_by, state, context)
    reached(Step.TASK_COMPUTED)
    watch.lap("compute")

    writer = TaskWriter(storage, task.epoch, f"{task.run}-{task.attempt}-{task.uid}", shard)
    outputs = writer.stage(done.outputs, task.outputs)
    watch.lap("stage")
    delta = None
    if task.saves_state and own is None:
        delta = writer.write(write_delta(task.layout, done.changes), "delta.parquet")
    reached(Step.TASK_FILES_WRITTEN)
    watch.lap("delta")

    version = VersionRecord(epoch=task.epoch, attempt=task.attempt, result=writer.unique)
    entries = to_entries(task.layout, done.changes)
    if own is not None:
        entries = own.with_books(entries)
    state.apply(version_of(plan.version), version_of(version), entries, task.committed, undo=task.saves_state)
    reached(Step.TASK_APPLIED)
    watch.lap("apply")
    state.verify_base()
    watch.lap("verify")
    return TaskResult(
        shard=shard,
        host=socket.gethostname(),
        executor=os.getcwd(),
        rows=table.num_rows,
        version=version,
        outputs=outputs,
        delta=delta,
        entries=len(entries),
        state_bytes=state.size_bytes(),
        timings_ms=watch.laps_ms,
        uncoordinated=own.applied() if own is not None else None,
    )


def _kept(task: OperatorTask) -> Kept:
    if task.uncoordinated is not None:
        return Kept.UNCOORDINATED
    return Kept.IN_CHECKPOINT if task.saves_state else Kept.NOWHERE


def _uncoordinated(task: OperatorTask, plan: Line, state: ShardState) -> ShardRun | None:
    """What saves the shard's keys on their own, if they are."""
    if task.uncoordinated is None:
        return None
    from holdfast.tasks.uncoordinated.shard_run import ShardRun

    return ShardRun(task, state, shard_directory(task.workspace, task.uid, plan.groups))
