"""What runs inside a Spark task for an operator without keys: unpack the shard's lists, run, pack what
changed.

As in `task`, nothing is decided here: outputs and lists count only if the driver chooses this result.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pyarrow as pa

from holdfast import errors
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.shard_list import pack_list, unpack_list
from holdfast.state.encoding.layout import StateField
from holdfast.steps import Step, reached
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import Failure, HeldList, Payload, TaskResult, UnkeyedTask, as_batch
from holdfast.tasks.operators.operator_function import run_unkeyed_rows
from holdfast.tasks.operators.result import EpochContext
from holdfast.tasks.task_files import TaskWriter, Watch


def run_unkeyed(task: UnkeyedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of the task under `mapInArrow`: the partition is the shard."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    yield as_batch(unkeyed_result(task, context.partitionId(), list(batches)))


def unkeyed_result(task: UnkeyedTask, shard: int, batches: list[pa.RecordBatch]) -> TaskResult:
    """Run one shard. An error that the driver should see whole comes back as a result, not as a Spark
    failure."""
    host, executor = socket.gethostname(), os.getcwd()
    given = [batch for batch in batches if batch.num_rows]
    if not given:
        return TaskResult(shard=shard, host=host, executor=executor)
    try:
        return _run_shard(task, shard, pa.Table.from_batches(given), host, executor)
    except errors.RetryableError:
        raise
    except errors.HoldfastError as error:
        failure = Failure(type(error).__name__, error.args)
        return TaskResult(shard=shard, host=host, executor=executor, failure=failure)


def unpacked(storage: Storage, field: StateField, held: HeldList) -> ShardList:
    """A list as objects, from wherever its bytes are."""
    extent = held.payload.extent
    if extent is not None:
        items = unpack_list(read_extent(storage, extent), field, extent.object)
    else:
        assert held.payload.inline is not None
        items = unpack_list(held.payload.inline, field, "the result of a task")
    return ShardList(items, held.inherited)


def packed(operator: str, field: StateField, held: ShardList) -> HeldList:
    """A list as bytes that travel with the value."""
    data = pack_list(operator, field, held.items)
    payload = Payload(checksum=checksum(data), length=len(data), inline=data)
    return HeldList(payload, len(held.items), held.inherited)


def _run_shard(task: UnkeyedTask, shard: int, rows: pa.Table, host: str, executor: str) -> TaskResult:
    watch = Watch()
    storage = open_storage(task.workspace.storage_url)
    held = task.lists[shard]
    lists = {
        field.name: unpacked(storage, field, held[field.name])
        for field in task.layout.fields
        if field.name in held
    }
    reached(Step.TASK_STATE_READY)
    watch.lap("open")
    context = EpochContext(
        uid=task.uid, epoch=task.epoch, clock_ms=task.clock_ms, shard=shard, on_error=task.on_error
    )
    done = run_unkeyed_rows(task.function, task.layout, rows, lists, len(task.lists), context)
    reached(Step.TASK_COMPUTED)
    watch.lap("compute")

    writer = TaskWriter(storage, task.epoch, f"{task.run}-{task.attempt}-{task.uid}", shard)
    outputs = writer.stage(done.outputs, task.outputs)
    watch.lap("stage")
    changed = {name: packed(task.uid, task.layout.field(name), each) for name, each in done.lists.items()}
    if task.saves_state:
        changed = {name: _written(writer, each) for name, each in changed.items()}
    reached(Step.TASK_FILES_WRITTEN)
    watch.lap("lists")
    return TaskResult(
        shard=shard,
        host=host,
        executor=executor,
        rows=rows.num_rows,
        outputs=outputs,
        timings_ms=watch.laps_ms,
        lists=changed,
    )


def _written(writer: TaskWriter, held: HeldList) -> HeldList:
    """The same list; a long one as an object of its own."""
    assert held.payload.inline is not None
    return HeldList(writer.write(held.payload.inline, "list.arrow"), held.items, held.inherited)
