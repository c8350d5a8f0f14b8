"""What runs inside a Spark task for an operator without keys: unpack the shard's lists, run, pack changes.

As in `keyed`, nothing is decided here: outputs and lists count only if the driver chooses this result.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.errors import HoldfastError, RetryableError
from holdfast.graph.broadcast import BroadcastSide
from holdfast.steps import Step, reached
from holdfast.storage.urls import open_storage
from holdfast.tasks.held_lists import packed, unpacked
from holdfast.tasks.messages import (
    HeldList,
    StopWatch,
    TaskResult,
    UnkeyedTask,
    as_batch,
    failed_here,
    result_here,
    this_partition,
)
from holdfast.tasks.operators.broadcast import run_broadcast_rows
from holdfast.tasks.operators.row_function import run_unkeyed_rows
from holdfast.tasks.operators.shard_rows import in_order
from holdfast.tasks.task_output import TaskWriter


def run_unkeyed(task: UnkeyedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of the task under `mapInArrow`: the partition is the shard."""
    yield as_batch(unkeyed_result(task, this_partition(), list(batches)))


def unkeyed_result(task: UnkeyedTask, shard: int, batches: list[pa.RecordBatch]) -> TaskResult:
    """Run one shard. What it raises is worth a retry by Spark; any other error comes back as a result."""
    given = [batch for batch in batches if batch.num_rows]
    if not given:
        return result_here(shard)
    try:
        return _run_shard(task, shard, pa.Table.from_batches(given))
    except RetryableError:
        raise
    except HoldfastError as error:
        return failed_here(shard, error)


def _run_shard(task: UnkeyedTask, shard: int, rows: pa.Table) -> TaskResult:
    watch = StopWatch()
    storage = open_storage(task.work.workspace.storage_url)
    held = task.lists[shard]
    lists = {
        field.name: unpacked(storage, field, held[field.name])
        for field in task.layout.fields
        if field.name in held
    }
    reached(Step.TASK_STATE_READY)
    watch.lap("open")
    if task.order_by:
        rows = rows.take(in_order(rows, task.order_by))
    if isinstance(task.function, BroadcastSide):
        done = run_broadcast_rows(task.function, task.layout.fields, rows, lists, task.context(shard))
    else:
        done = run_unkeyed_rows(
            task.function, task.layout.fields, rows, lists, len(task.lists), task.context(shard)
        )
    reached(Step.TASK_COMPUTED)
    watch.lap("compute")

    writer = TaskWriter(storage, task.work, shard, task.uid)
    outputs = writer.stage(done.outputs, task.outputs)
    watch.lap("stage")
    changed = {name: packed(task.uid, task.layout.field(name), each) for name, each in done.lists.items()}
    if task.saves_state:
        changed = {name: _written(writer, each) for name, each in changed.items()}
    reached(Step.TASK_FILES_WRITTEN)
    watch.lap("lists")
    return result_here(shard, rows=rows.num_rows, outputs=outputs, timings_ms=watch.laps_ms, lists=changed)


def _written(writer: TaskWriter, held: HeldList) -> HeldList:
    """The same list; a long one as an object of its own."""
    assert held.payload.inline is not None
    return HeldList(writer.write(held.payload.inline, "list.arrow"), held.items, held.inherited)
