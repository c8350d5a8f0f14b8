"""What runs inside a Spark task: bring the state there, run the operator, write files, say what was written.

A task decides nothing. That its input iterator ended is no evidence that the input was complete, so its files
have names
of their own and count only if the driver, told by Spark that the whole job succeeded, chooses them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from holdfast import errors
from holdfast.checkpoint.records import DeltaFile, Extent, OperatorSchema, SnapshotFile, VersionRecord
from holdfast.engine.operators.dispatch import run_function
from holdfast.engine.operators.result import EpochContext
from holdfast.engine.staged import pack_rows
from holdfast.engine.work import (
    INLINE_BYTES,
    Failure,
    OperatorTask,
    Output,
    Payload,
    ShardPlan,
    StageTask,
    TaskResult,
    WorkPlace,
    encode_result,
)
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.backends import backend_named
from holdfast.state.conversion import Lineage, delta_entries
from holdfast.state.delta import to_entries, write_delta
from holdfast.state.keys import GROUP_COLUMN
from holdfast.state.working import (
    EMPTY,
    DeltaStep,
    Entries,
    ShardState,
    SnapshotSource,
    StaleWorkingState,
    StateTarget,
    Version,
    attach_state,
    open_state,
    remove_others,
)
from holdfast.steps import Step, reached
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from holdfast.storage.places import open_storage

if TYPE_CHECKING:
    from holdfast.engine.uncoordinated.shard import OwnKeys

STALE_TRIES = 5
"""How often a task starts over when a twin of it moved the working state. Twins end; more than this is a
fault.
"""


class Kept(Enum):
    """Where a shard's state is kept besides here, as the end of its identity. Of what is kept otherwise a
    version may name an emptied copy, which must never pass for what a checkpoint holds.
    """

    IN_CHECKPOINT = ""
    BY_KEY = "/by-key"
    NOWHERE = "/unsaved"


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
            open_storage(task.place.storage_url), task.epoch, f"{task.run}-{task.attempt}", shard
        )
        payload = writer.write(pack_rows(rows), "rows.arrow")
        output = Output(task.stream, rows.num_rows, payload)
        result = msgspec.structs.replace(result, rows=rows.num_rows, outputs=(output,))
    yield as_batch(result)


def as_batch(result: TaskResult) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([encode_result(result)], pa.binary())], ["result"])


def _operator_result(task: OperatorTask, shard: int, batches: list[pa.RecordBatch]) -> TaskResult:
    """Run one shard. An error that the driver should see whole comes back as a result, not as a Spark
    failure:
    retrying a function that raises is no use, and Spark would keep only its text."""
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
            _forget_fetched(_disk_directory(task.place, task.uid, task.shards[shard].groups), keep=())
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
    storage = open_storage(task.place.storage_url)
    state = open_shard(task.place, task.uid, task.lineage, plan, task.committed, _kept(task))
    leave_former_shards(task.place, task.uid, [each.groups for each in task.shards])
    with contextlib.closing(state):
        result = _run_on(state, task, shard, plan, table, storage, watch)
        return msgspec.structs.replace(result, arrival=state.arrival)


def leave_former_shards(place: WorkPlace, uid: str, ranges: Sequence[KeyGroupRange]) -> None:
    """Remove what is here of shards from before a rescaling. `ranges`: of all shards that there are."""
    names = {str(groups) for groups in ranges}
    for directory in (shard_directory, _disk_directory):
        remove_others(directory(place, uid, ranges[0]).parent, names)


def _run_on(
    state: ShardState,
    task: OperatorTask,
    shard: int,
    plan: ShardPlan,
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
    rows, own = table.drop_columns([GROUP_COLUMN]), _own_keys(task, plan, state)
    if own is not None:
        done = own.run(rows, groups, context)
    else:
        done = run_function(task.function, task.layout, rows, groups, task.key, task.order_by, state, context)
    reached(Step.TASK_COMPUTED)
    watch.lap("compute")

    writer = TaskWriter(storage, task.epoch, f"{task.run}-{task.attempt}-{task.uid}", shard)
    outputs = tuple(
        Output(name, rows.num_rows, writer.write(pack_rows(rows), "rows.arrow"))
        for name, rows in done.outputs.items()
        if name in task.outputs and rows.num_rows
    )
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
    state.apply(_version(plan.version), _version(version), entries, task.committed, undo=task.saves_state)
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
        own_keys=own.applied() if own is not None else None,
    )


def _kept(task: OperatorTask) -> Kept:
    if task.protection is not None:
        return Kept.BY_KEY
    return Kept.IN_CHECKPOINT if task.saves_state else Kept.NOWHERE


def _own_keys(task: OperatorTask, plan: ShardPlan, state: ShardState) -> OwnKeys | None:
    """What saves the shard's keys on their own, if they are."""
    if task.protection is None:
        return None
    from holdfast.engine.uncoordinated.shard import OwnKeys

    return OwnKeys(task, state, shard_directory(task.place, task.uid, plan.groups))


def open_shard(
    place: WorkPlace, uid: str, lineage: Lineage, plan: ShardPlan, committed: int, kept: Kept
) -> ShardState:
    """Working state of one shard, at the version that the plan asks for, in the layout in force."""
    storage = open_storage(place.storage_url)
    directory, fetched = shard_directory(place, uid, plan.groups), _disk_directory(place, uid, plan.groups)
    version = _version(plan.version)
    snapshots = plan.snapshots if kept is Kept.IN_CHECKPOINT else ()
    steps = tuple(_delta_step(storage, lineage, plan, delta) for delta in plan.deltas)
    if kept is not Kept.IN_CHECKPOINT:
        # What was lost is lost, or fetched when its key is seen: an empty state takes its place under the
        # same version.
        steps = (DeltaStep(version, EMPTY, list),) if version != EMPTY else ()
    target = StateTarget(
        version=version,
        first_group=plan.groups.first,
        end_group=plan.groups.end,
        snapshots=tuple(_snapshot_source(storage, fetched, lineage, file) for file in snapshots),
        deltas=steps,
        committed=committed,
    )
    identity = state_identity(place, uid, plan.groups, lineage, kept)
    try:
        return open_state(directory, identity, target, backend=place.backend)
    except errors.ObjectMissing:
        # State that was here already needs no snapshot, so one is fetched only now that it was missed.
        if not _fetch_missing(storage, fetched, snapshots):
            raise
        return open_state(directory, identity, target, backend=place.backend)


def snapshot_shard(
    place: WorkPlace, lineage: Lineage, schema: OperatorSchema, shard: int, groups: KeyGroupRange, epoch: int
) -> pa.RecordBatch:
    """Write a shard's whole state to checkpoint storage, under `epoch`, at whatever version it is here.
    Nothing here in the layout in force, which `schema` describes: nothing written.
    """
    uid, kind = schema.uid, backend_named(place.backend).snapshots
    result = TaskResult(shard=shard, host=socket.gethostname(), executor=os.getcwd())
    identity = state_identity(place, uid, groups, lineage, Kept.IN_CHECKPOINT)
    state = attach_state(shard_directory(place, uid, groups), identity, backend=place.backend)
    if state is None:
        return as_batch(result)
    with (
        contextlib.closing(state),
        tempfile.TemporaryDirectory(dir=_disk_root(place)) as scratch,
    ):
        local = Path(scratch) / "snapshot"
        info = state.snapshot(local)
        name = f"snapshots/{epoch:012d}/{uid}-{groups}-{uuid.uuid4().hex}.{kind}"
        open_storage(place.storage_url).put_file(name, local)
    reached(Step.SNAPSHOT_WRITTEN)
    file = SnapshotFile(
        operator=uid,
        first_group=groups.first,
        end_group=groups.end,
        version=_version_record(info.version),
        object=name,
        length=info.length,
        chunk_bytes=info.chunk_bytes,
        chunks=info.chunks,
        backend=kind,
        schema=schema,
    )
    return as_batch(msgspec.structs.replace(result, snapshot=file))


def shard_directory(place: WorkPlace, uid: str, groups: KeyGroupRange) -> Path:
    """Where a shard's working state is."""
    root = backend_named(place.backend).root(_disk_root(place))
    return root / place.owner / place.identity / uid / str(groups)


def _disk_directory(place: WorkPlace, uid: str, groups: KeyGroupRange) -> Path:
    """Where files go that are too large for memory: on disk, whatever the backend."""
    return _disk_root(place) / place.owner / place.identity / uid / str(groups)


def state_identity(place: WorkPlace, uid: str, groups: KeyGroupRange, lineage: Lineage, kept: Kept) -> str:
    """With the lineage: working state of other code is thrown away and built anew, never misread."""
    return f"{place.identity}/{uid}/{groups}/{lineage.fingerprint}{kept.value}"


def _delta_step(storage: Storage, lineage: Lineage, plan: ShardPlan, delta: DeltaFile) -> DeltaStep:
    def load() -> Entries:
        data = read_extent(storage, delta.extent)
        first, end = max(delta.first_group, plan.groups.first), min(delta.end_group, plan.groups.end)
        groups = KeyGroupRange(KeyGroup(first), KeyGroup(end))
        return delta_entries(lineage, data, delta.extent.object, groups)

    return DeltaStep(_version(delta.version), _version(delta.parent), load)


def _snapshot_source(
    storage: Storage, directory: Path, lineage: Lineage, file: SnapshotFile
) -> SnapshotSource:
    path = storage.local_path(file.object) or _fetched(directory, file)
    return SnapshotSource(
        version=_version(file.version),
        first_group=file.first_group,
        end_group=file.end_group,
        path=path,
        length=file.length,
        chunk_bytes=file.chunk_bytes,
        chunks=file.chunks,
        convert=lineage.converter(file.schema.generation if file.schema else 0, file.object),
        backend=file.backend,
    )


def _fetched(directory: Path, file: SnapshotFile) -> Path:
    """Where the local copy of a snapshot goes that cannot be mapped where it is."""
    return directory / "fetched" / Path(file.object).name


def _fetch_missing(storage: Storage, directory: Path, files: tuple[SnapshotFile, ...]) -> bool:
    """Copy snapshots here, a chunk at a time; whoever opens them verifies them. Copies of others are removed.

    False: nothing was missing that could be fetched.
    """
    missing = [
        file
        for file in {file.object: file for file in files}.values()
        if storage.local_path(file.object) is None and not _fetched(directory, file).exists()
    ]
    if missing:
        _forget_fetched(directory, keep=files)
    for file in missing:
        fetched = _fetched(directory, file)
        fetched.parent.mkdir(parents=True, exist_ok=True)
        part = fetched.with_name(f"{fetched.name}.{uuid.uuid4().hex}")
        with part.open("xb") as copy:
            for offset in range(0, file.length, file.chunk_bytes):
                copy.write(storage.get(file.object, offset, min(file.chunk_bytes, file.length - offset)))
        part.replace(fetched)
    return bool(missing)


def _forget_fetched(directory: Path, keep: tuple[SnapshotFile, ...]) -> None:
    """Remove local copies of snapshots. Whoever has one mapped keeps it; whoever misses one fetches it."""
    kept = tuple(Path(file.object).name for file in keep)
    for path in (directory / "fetched").glob("*"):
        if not path.name.startswith(kept):
            path.unlink(missing_ok=True)


def _disk_root(place: WorkPlace) -> Path:
    """The user's choice; or, on a cluster, the executor's scratch directory, which Spark removes with it."""
    if place.working_root is not None:
        root = Path(place.working_root)
    else:
        root = Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]) / "holdfast"
    root.mkdir(parents=True, exist_ok=True)
    return root


def _version(record: VersionRecord) -> Version:
    return Version(record.epoch, record.attempt, record.result)


def _version_record(version: Version) -> VersionRecord:
    return VersionRecord(epoch=version.epoch, attempt=version.attempt, result=version.result)


class TaskWriter:
    """Writes a task's files under names that no other attempt has."""

    def __init__(self, storage: Storage, epoch: int, who: str, shard: int) -> None:
        self.unique = uuid.uuid4().hex
        self._storage = storage
        self._stem = f"data/{epoch:012d}/{who}-{shard}-{self.unique}"
        self._count = 0

    def write(self, data: bytes, suffix: str) -> Payload:
        total = checksum(data)
        if len(data) <= INLINE_BYTES:
            return Payload(checksum=total, length=len(data), inline=data)
        name = f"{self._stem}-{self._count}.{suffix}"
        self._count += 1
        self._storage.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=total)
        return Payload(checksum=total, length=len(data), extent=extent)


class Watch:
    """Where a task's time went."""

    def __init__(self) -> None:
        self.laps_ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps_ms[name] = (now - self._last) * 1_000
        self._last = now
