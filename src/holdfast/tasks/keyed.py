"""What runs inside a Spark task: bring the state there, run the operator, write files, say what was written.

A task decides nothing. The end of its input iterator does not prove that the input was complete, so its files
have names of their own and count only if the driver chooses them, once Spark says that the job succeeded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from holdfast.connectors.contract import Pieces
from holdfast.errors import CorruptionError, HoldfastError, RetryableError, WorkingStateLost
from holdfast.graph.job_graph import LATE_ROWS
from holdfast.graph.partials import ROWS_COLUMN
from holdfast.state.contract import ShardState, StaleWorkingState, Version
from holdfast.state.encoding.keys import GROUP_COLUMN
from holdfast.state.files.delta import write_delta
from holdfast.steps import Step, reached
from holdfast.storage.urls import open_storage
from holdfast.tasks.held_lists import broadcast_entries
from holdfast.tasks.messages import (
    KeyedTask,
    StageTask,
    StopWatch,
    TaskResult,
    as_batch,
    encode_result,
    failed_here,
    result_here,
    this_partition,
)
from holdfast.tasks.operators.broadcast import BroadcastEntries
from holdfast.tasks.operators.dispatch import keeps_times, next_due, run_function
from holdfast.tasks.operators.shard_rows import cut
from holdfast.tasks.routed_rows import SHARD_COLUMN, RoutedRows, as_spark_gives, rows_of, unpacked
from holdfast.tasks.same_results import content_of, in_one_order
from holdfast.tasks.task_output import TaskWriter
from holdfast.tasks.working_state import (
    Kept,
    disk_directory,
    forget_fetched,
    leave_former_shards,
    open_shard,
    shard_directory,
)

if TYPE_CHECKING:
    from holdfast.tasks.uncoordinated.shard_run import ShardRun

STALE_TRIES = 5
"""How often a task starts over when a twin of it moved the working state. Twins end; more than this is a
fault."""


def run_operator(task: KeyedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of an operator's task under `mapInArrow`: the partition is the shard."""
    yield as_batch(operator_result(task, this_partition(), list(batches)))


def run_operator_on_packed(task: KeyedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same where the rows come packed."""
    yield as_batch(operator_result(task, this_partition(), unpacked(batches)))


def run_operator_on_few(task: KeyedTask, routed: RoutedRows, shards: Iterable[int]) -> Iterator[bytes]:
    """The same where the task reads all rows by itself, and is given the number of its shard alone."""
    for shard in shards:
        yield encode_result(operator_result(task, shard, routed.of_shard(shard)))


def operator_by_shard(
    task: KeyedTask, rows_of: Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]] = list
) -> Callable[..., pa.Table]:
    """The body of an operator's task under `cogroup`, where the key is the shard."""

    def body(key: tuple[pa.Scalar, ...], rows: pa.Table, placement: pa.Table) -> pa.Table:
        batches = rows_of(rows.drop_columns([SHARD_COLUMN]).to_batches())
        return pa.Table.from_batches([as_batch(operator_result(task, key[0].as_py(), batches))])

    return body


def run_stage(task: StageTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage a stream's rows as they are."""
    yield as_batch(_staged(task, batches))


def run_stage_of_pieces(
    task: StageTask, pieces: Pieces, zone: str, numbers: Iterable[int]
) -> Iterator[bytes]:
    """The same where the task reads the rows by itself, of the pieces whose numbers it is given."""
    read = (rows for number in numbers for rows in rows_of(pieces, number))
    yield encode_result(_staged(task, (as_spark_gives(rows, zone) for rows in read)))


def _staged(task: StageTask, batches: Iterable[pa.RecordBatch]) -> TaskResult:
    result = result_here(this_partition())
    given = [batch for batch in batches if batch.num_rows]
    if not given:
        return result
    rows = in_one_order(pa.Table.from_batches(given), task.work.replicated)
    writer = TaskWriter(open_storage(task.work.workspace.storage_url), task.work, result.shard)
    outputs = writer.stage({task.stream: rows}, (task.stream,))
    return replace(result, rows=rows.num_rows, outputs=outputs)


def operator_result(task: KeyedTask, shard: int, batches: list[pa.RecordBatch]) -> TaskResult:
    """Run one shard. What it raises is worth a retry by Spark; any other error comes back as a result."""
    try:
        given = [batch for batch in batches if batch.num_rows]
        if not given and not _is_due(task, shard):
            return result_here(shard)
        rows = pa.Table.from_batches(given) if given else _no_rows(task)
        return _retrying_when_stale(lambda: _run_shard(task, shard, rows))
    except WorkingStateLost as error:
        # Another try would not find it either.
        return failed_here(shard, error)
    except RetryableError:
        raise
    except HoldfastError as error:
        if isinstance(error, CorruptionError):
            # If it was the local copy of a snapshot that went bad, the next run fetches another.
            groups = task.shards[shard].groups
            forget_fetched(disk_directory(task.work.workspace, task.uid, groups), keep=())
        return failed_here(shard, error)


def _retrying_when_stale(run: Callable[[], TaskResult]) -> TaskResult:
    for attempt in range(STALE_TRIES):
        try:
            return run()
        except StaleWorkingState:
            if attempt == STALE_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _run_shard(task: KeyedTask, shard: int, rows: pa.Table) -> TaskResult:
    watch, workspace = StopWatch(), task.work.workspace
    state = open_shard(workspace, task.uid, task.lineage, task.shards[shard], task.committed, _kept(task))
    leave_former_shards(workspace, task.uid, [line.groups for line in task.shards])
    with contextlib.closing(state):
        reached(Step.TASK_STATE_READY)
        watch.lap("open")
        return replace(_run_on(state, task, shard, rows, watch), arrival=state.arrival)


def _run_on(state: ShardState, task: KeyedTask, shard: int, rows: pa.Table, watch: StopWatch) -> TaskResult:
    line, context = task.shards[shard], task.context(shard)
    uncoordinated = _uncoordinated(task, shard, state)
    rows = in_one_order(rows, task.work.replicated)
    if task.sides is not None:
        rows = task.sides.arranged(rows)
    groups = rows[GROUP_COLUMN].combine_chunks().to_numpy(zero_copy_only=False)
    partials = task.partials if rows.num_rows else None
    # What is combined has its place in the order with it.
    keyed = cut(task.layout, rows, groups, task.key, () if partials else task.order_by)
    if uncoordinated is not None:
        done = uncoordinated.run(keyed, context)
    else:
        broadcast = _broadcast(task)
        done = run_function(task.function, task.layout, keyed, state, context, partials, broadcast)
    reached(Step.TASK_COMPUTED)
    watch.lap("compute")

    writer = TaskWriter(open_storage(task.work.workspace.storage_url), task.work, shard, task.uid)
    outputs = writer.stage(done.outputs, task.outputs)
    watch.lap("stage")
    delta = None
    if task.saves_state and not task.upstream and uncoordinated is None:
        delta = writer.write(write_delta(task.layout, done.changes), "delta.parquet")
    reached(Step.TASK_FILES_WRITTEN)
    watch.lap("delta")

    result = content_of(line.version, delta, outputs) if task.work.replicated else writer.unique
    version = Version(epoch=task.work.epoch, attempt=task.work.attempt, result=result)
    entries = done.entries(task.layout)
    if uncoordinated is not None:
        entries = uncoordinated.with_books(entries)
    state.apply(line.version, version, entries, task.committed, undo=task.saves_state)
    reached(Step.TASK_APPLIED)
    watch.lap("apply")
    due = next_due(task.function, task.layout, line.groups, state, task.time)
    state.verify_base()
    watch.lap("verify")
    return result_here(
        shard,
        rows=_row_count(task, rows),
        partial_rows=keyed.key_count if done.partial_rows is None else done.partial_rows,
        version=version,
        outputs=outputs,
        delta=delta,
        entries=len(entries),
        state_bytes=state.size_bytes(),
        timings_ms=watch.laps_ms,
        uncoordinated=uncoordinated.applied() if uncoordinated is not None else None,
        late=done.late + (done.outputs[LATE_ROWS].num_rows if LATE_ROWS in done.outputs else 0),
        next_due=due,
        expires_us=done.expires_us,
        newest_us=_newest(task, rows),
    )


def _is_due(task: KeyedTask, shard: int) -> bool:
    """Whether the shard has something to do without rows. What is not known counts as due."""
    if not keeps_times(task.layout):
        return False
    due, until_us = task.shards[shard].next_due, task.time.due_us if task.time is not None else None
    if due is None:
        return True
    return (due.event_us is not None and until_us is not None and due.event_us <= until_us) or (
        due.processing_us is not None and due.processing_us <= task.work.clock_ms * 1_000
    )


def _row_count(task: KeyedTask, rows: pa.Table) -> int:
    """How many rows these are or, where they come combined, stand for."""
    if task.partials is None or not rows.num_rows:
        return int(rows.num_rows)
    return int(pc.sum(rows[ROWS_COLUMN]).as_py())


def _newest(task: KeyedTask, rows: pa.Table) -> int | None:
    """The newest time in the column of event time, in µs since 1970."""
    if task.event_time is None:
        return None
    newest: int | None = pc.max(rows[task.event_time]).cast(pa.int64()).as_py()
    return newest


def _no_rows(task: KeyedTask) -> pa.Table:
    return task.input.append(pa.field(GROUP_COLUMN, pa.int32())).empty_table()


def _kept(task: KeyedTask) -> Kept:
    if task.uncoordinated is not None:
        return Kept.UNCOORDINATED
    if task.upstream:
        return Kept.UPSTREAM
    return Kept.IN_CHECKPOINT if task.saves_state else Kept.NOWHERE


def _broadcast(task: KeyedTask) -> BroadcastEntries | None:
    if task.broadcast is None:
        return None
    return broadcast_entries(open_storage(task.work.workspace.storage_url), task.broadcast)


def _uncoordinated(task: KeyedTask, shard: int, state: ShardState) -> ShardRun | None:
    """What runs the shard instead, if its keys are saved on their own."""
    if task.uncoordinated is None:
        return None
    from holdfast.tasks.uncoordinated.shard_run import ShardRun

    groups = task.shards[shard].groups
    return ShardRun(task, state, shard_directory(task.work.workspace, task.uid, groups))
