"""A shard's working state on the machine of a task: where it is, and how it gets there from the checkpoint.

Always true: what is here is only a copy; what is asked for is a version, and that exactly is opened.
Never here: how a version is reached (see state.local.backends), and what is done with it (see keyed).
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import uuid
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast import errors
from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.open_snapshot import copy_snapshot, snapshot_source
from holdfast.checkpoint.store.records import DeltaFile, OperatorSchema, SnapshotFile
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.contract import EMPTY_VERSION, DeltaStep, Entries, ShardState, StateTarget
from holdfast.state.files.schema_conversion import Lineage, delta_entries
from holdfast.state.local.backends import attach_state, backend_named, open_state, remove_others
from holdfast.state.local.directories import default_working_dir, private_directory
from holdfast.steps import Step, reached
from holdfast.storage.checksums import read_extent
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import TaskResult, Workspace, as_batch


class Kept(Enum):
    """Where a shard's state is kept besides here, as the end of its identity. Of what is kept otherwise a
    version may name an emptied copy, which must never pass for what a checkpoint holds.
    """

    IN_CHECKPOINT = ""
    UNCOORDINATED = "/by-key"
    NOWHERE = "/unsaved"
    UPSTREAM = "/upstream"
    """In the rows that it is made of. A copy that is not at the version asked for is of no use."""


def open_shard(
    workspace: Workspace, uid: str, lineage: Lineage, plan: Line, committed: int, kept: Kept
) -> ShardState:
    """Working state of one shard, at the version that the plan asks for, in the layout in force."""
    storage = open_storage(workspace.storage_url)
    directory, fetched = (
        shard_directory(workspace, uid, plan.groups),
        disk_directory(workspace, uid, plan.groups),
    )
    snapshots = plan.snapshots if kept is Kept.IN_CHECKPOINT else ()
    steps = tuple(_delta_step(storage, lineage, plan, delta) for delta in plan.deltas)
    if kept is not Kept.IN_CHECKPOINT:
        # What was lost is lost, or fetched when its key is seen: an empty state takes its place under the
        # same version. Not where it can be had again.
        load = partial(_refuse_lost, uid, plan) if kept is Kept.UPSTREAM else list
        steps = (DeltaStep(plan.version, EMPTY_VERSION, load),) if plan.version != EMPTY_VERSION else ()
    target = StateTarget(
        version=plan.version,
        first_group=plan.groups.first,
        end_group=plan.groups.end,
        snapshots=tuple(
            snapshot_source(file, lineage, storage.local_path(file.object) or _fetched(fetched, file))
            for file in snapshots
        ),
        deltas=steps,
        committed=committed,
    )
    identity = _identity(workspace, uid, plan.groups, lineage, kept)
    try:
        return open_state(directory, identity, target, backend=workspace.backend)
    except errors.ObjectMissing:
        # State that was here already needs no snapshot, so one is fetched only now that it was missed.
        if not _fetch_missing(storage, fetched, snapshots):
            raise
        return open_state(directory, identity, target, backend=workspace.backend)


def _refuse_lost(uid: str, plan: Line) -> Entries:
    raise errors.WorkingStateLost(
        f"the working state of operator {uid!r}, key groups {plan.groups}, is not at epoch "
        f"{plan.version.epoch} any more; its rows are read again"
    )


def attach_shard(
    workspace: Workspace, uid: str, lineage: Lineage, groups: KeyGroupRange, kept: Kept
) -> ShardState | None:
    """Working state of one shard, at whatever version it is. None: there is none in the layout in force."""
    identity = _identity(workspace, uid, groups, lineage, kept)
    return attach_state(shard_directory(workspace, uid, groups), identity, backend=workspace.backend)


def snapshot_shard(
    workspace: Workspace,
    lineage: Lineage,
    schema: OperatorSchema,
    shard: int,
    groups: KeyGroupRange,
    epoch: int,
) -> pa.RecordBatch:
    """Write a shard's whole state to checkpoint storage, under `epoch`, at whatever version it is here.
    Nothing here in the layout in force, which `schema` describes: nothing written.
    """
    uid, kind = schema.uid, backend_named(workspace.backend).snapshots
    result = TaskResult(shard=shard, host=socket.gethostname(), executor=os.getcwd())
    state = attach_shard(workspace, uid, lineage, groups, Kept.IN_CHECKPOINT)
    if state is None:
        return as_batch(result)
    with (
        contextlib.closing(state),
        tempfile.TemporaryDirectory(dir=_disk_root(workspace)) as scratch,
    ):
        local = Path(scratch) / "snapshot"
        info = state.snapshot(local)
        name = names.snapshot(epoch, uid, groups.first, groups.end, uuid.uuid4().hex, kind)
        open_storage(workspace.storage_url).put_file(name, local)
    reached(Step.SNAPSHOT_WRITTEN)
    file = SnapshotFile(
        operator=uid,
        first_group=groups.first,
        end_group=groups.end,
        version=info.version,
        object=name,
        length=info.length,
        chunk_bytes=info.chunk_bytes,
        chunks=info.chunks,
        backend=kind,
        schema=schema,
    )
    return as_batch(msgspec.structs.replace(result, snapshot=file))


def leave_former_shards(workspace: Workspace, uid: str, ranges: Sequence[KeyGroupRange]) -> None:
    """Remove what is here of shards from before a rescaling. `ranges`: of all shards that there are."""
    names = {str(groups) for groups in ranges}
    for directory in (shard_directory, disk_directory):
        remove_others(directory(workspace, uid, ranges[0]).parent, names)


def shard_directory(workspace: Workspace, uid: str, groups: KeyGroupRange) -> Path:
    """Where a shard's working state is."""
    root = backend_named(workspace.backend).root(_disk_root(workspace))
    return root / workspace.owner / workspace.identity / uid / str(groups)


def disk_directory(workspace: Workspace, uid: str, groups: KeyGroupRange) -> Path:
    """Where files go that are too large for memory: on disk, whatever the backend."""
    return _disk_root(workspace) / workspace.owner / workspace.identity / uid / str(groups)


def _identity(workspace: Workspace, uid: str, groups: KeyGroupRange, lineage: Lineage, kept: Kept) -> str:
    """With the lineage: working state of other code is thrown away and rebuilt, never misread."""
    return f"{workspace.identity}/{uid}/{groups}/{lineage.fingerprint}{kept.value}"


def _delta_step(storage: Storage, lineage: Lineage, plan: Line, delta: DeltaFile) -> DeltaStep:
    def load() -> Entries:
        data = read_extent(storage, delta.extent)
        first, end = max(delta.first_group, plan.groups.first), min(delta.end_group, plan.groups.end)
        groups = KeyGroupRange(KeyGroup(first), KeyGroup(end))
        return delta_entries(lineage, data, delta.extent.object, groups)

    return DeltaStep(delta.version, delta.parent, load)


def _fetched(directory: Path, file: SnapshotFile) -> Path:
    """Where the local copy of a snapshot goes that cannot be mapped where it is."""
    return directory / "fetched" / Path(file.object).name


def _fetch_missing(storage: Storage, directory: Path, files: tuple[SnapshotFile, ...]) -> bool:
    """Copy snapshots here, to be verified when they are opened. Copies of others are removed.

    False: nothing was missing that could be fetched.
    """
    missing = [
        file
        for file in {file.object: file for file in files}.values()
        if storage.local_path(file.object) is None and not _fetched(directory, file).exists()
    ]
    if missing:
        forget_fetched(directory, keep=files)
    for file in missing:
        fetched = _fetched(directory, file)
        fetched.parent.mkdir(parents=True, exist_ok=True)
        part = fetched.with_name(f"{fetched.name}.{uuid.uuid4().hex}")
        copy_snapshot(storage, file, part)
        part.replace(fetched)
    return bool(missing)


def forget_fetched(directory: Path, keep: tuple[SnapshotFile, ...]) -> None:
    """Remove local copies of snapshots. A task that has one mapped keeps it; another fetches it again."""
    kept = tuple(Path(file.object).name for file in keep)
    for path in (directory / "fetched").glob("*"):
        if not path.name.startswith(kept):
            path.unlink(missing_ok=True)


def _disk_root(workspace: Workspace) -> Path:
    """The user's choice; or, on a cluster, the executor's scratch directory, which Spark removes with it."""
    if workspace.working_root is None:
        scratch = os.environ.get("SPARK_LOCAL_DIRS")
        ours = Path(scratch.split(",")[0]) / "holdfast" if scratch else default_working_dir()
        return private_directory(ours)
    root = Path(workspace.working_root)
    if workspace.private_root:
        return private_directory(root)
    root.mkdir(parents=True, exist_ok=True)
    return root
