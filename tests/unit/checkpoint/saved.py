"""Checkpoints whose files have real bytes and checksums, and savepoints of them."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.checkpoint.chain.checkpoint import Checkpoint, open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.terms import claim
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.savepoints.take import take_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    DeltaFile,
    Extent,
    ListFile,
    Manifest,
    OperatorSchema,
    PartitionTime,
    SnapshotFile,
    StagedFile,
    StateSchema,
)
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.kept import GROUPS, OPERATOR, draft, version

RANGES = ((0, 2), (2, 4))
CHUNK = 64
SCHEMA = OperatorSchema(
    uid=OPERATOR,
    key=(("user", "string"),),
    states=(
        StateSchema(id=1, name="count", kind="value", type="int64"),
        StateSchema(id=2, name="seen", kind="list", type="string"),
    ),
)
LISTED = OperatorSchema(uid="reader", key=(), states=(StateSchema(id=1, name="seen", kind="list", type="s"),))


def new_checkpoint(storage: Storage, job: str = "sums", *, retain: int = 3) -> Checkpoint:
    clock = ManualClock(1_000)
    checkpoint = open_checkpoint(storage, job, GROUPS, clock, identity=f"identity-of-{job}", retain=retain)
    claim(storage, "run-1", "host", 1, clock.now_ms())
    return checkpoint


def bundle(storage: Storage, name: str, parts: list[bytes]) -> list[Extent]:
    """One object that holds all the parts, as a task writes its results."""
    storage.put(name, b"".join(parts))
    offsets = [sum(map(len, parts[:index])) for index in range(len(parts))]
    return [
        Extent(object=name, offset=offset, length=len(part), checksum=checksum(part))
        for offset, part in zip(offsets, parts, strict=True)
    ]


def snapshot_file(storage: Storage, epoch: int, first: int, end: int, tag: str) -> SnapshotFile:
    data = f"snapshot {epoch} {first}-{end} {tag} ".encode() * 20
    name = names.snapshot(epoch, OPERATOR, first, end, tag, "lmdb")
    storage.put(name, data)
    chunks = tuple(checksum(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
    return SnapshotFile(
        operator=OPERATOR, first_group=first, end_group=end, version=version(epoch), object=name,
        length=len(data), chunk_bytes=CHUNK, chunks=chunks, backend="lmdb",
    )  # fmt: skip


def advance(
    checkpoint: Checkpoint,
    view: CheckpointView,
    *,
    snapshots: tuple[tuple[int, int], ...] = (),
    term: int = 1,
    run: str = "run-1",
) -> CheckpointView:
    """Commit one epoch: staged output, the deltas of two shards and a list in one object; snapshots of the
    epoch before it.
    """
    storage, epoch, tag = checkpoint.storage, view.last_epoch + 1, f"{view.number + 1}"
    parts = [f"{what} of epoch {epoch}, {tag}".encode() for what in ("output", "left", "right", "list")]
    out, *deltas, listed = bundle(storage, f"{names.data_of(epoch)}bundle-{tag}", parts)
    record = replace(
        draft(view, deltas=(), term=term, run=run, published=max(0, view.last_epoch - 2)),
        deltas=tuple(_delta(epoch, first, end, extent)
                     for (first, end), extent in zip(RANGES, deltas, strict=True)),
        staged=(StagedFile(stream="out", epoch=epoch, part=0, extent=out, rows=1),),
        lists=(ListFile(operator="reader", shards=1, shard=0, state="seen", extent=listed, items=1),),
        snapshots=tuple(snapshot_file(storage, epoch - 1, *groups, tag) for groups in snapshots),
        operators=(SCHEMA, LISTED),
        notes={"in": (f"file-{epoch}",)},
        parallelism=2,
        event_times={"in": {"": PartitionTime(newest_us=epoch * 1_000, seen_ms=epoch)}},
        watermarks={OPERATOR: epoch * 500},
        closed_through=epoch if epoch % 2 else 0,
    )  # fmt: skip
    done = checkpoint.chain.commit(view, record)
    assert isinstance(done, Committed)
    return done.view


def _delta(epoch: int, first: int, end: int, extent: Extent) -> DeltaFile:
    return DeltaFile(
        operator=OPERATOR, first_group=first, end_group=end, version=version(epoch),
        parent=version(epoch - 1), extent=extent, entries=7,
    )  # fmt: skip


def grown(checkpoint: Checkpoint, *, epochs: int = 9) -> CheckpointView:
    """A checkpoint with deltas and, from two epochs on, snapshots now and then."""
    view = checkpoint.chain.load()
    for number in range(epochs):
        view = advance(checkpoint, view, snapshots=RANGES if number % 3 == 2 else ())
    return view


def take(
    checkpoint: Checkpoint, target: Storage, *, id: str = "sp-1", stopped: bool = False
) -> SavepointRecord:
    number = Chain(checkpoint.storage).load().number
    return take_savepoint(
        checkpoint, number, target, id=id, stopped=stopped, clock=ManualClock(2_000), holder="run-1"
    )


def contents(storage: Storage, manifest: Manifest) -> dict[str, object]:
    """The state that a manifest names, as bytes: deltas since the newest snapshots, and these."""
    newest = {
        group: file.version.epoch
        for file in sorted(manifest.snapshots, key=lambda file: file.version.epoch)
        for group in range(file.first_group, file.end_group)
    }
    return {
        "snapshots": {
            (file.first_group, file.end_group): storage.get(file.object)
            for file in manifest.snapshots
            if any(newest[group] == file.version.epoch for group in range(file.first_group, file.end_group))
        },
        "deltas": sorted(
            (file.version.epoch, file.first_group, read_extent(storage, file.extent))
            for file in manifest.deltas
            if any(file.version.epoch > newest.get(g, 0) for g in range(file.first_group, file.end_group))
        ),
        "lists": [read_extent(storage, file.extent) for file in manifest.lists],
        "positions": manifest.positions,
        "notes": manifest.notes,
        "operators": manifest.operators,
        "numbers": (manifest.last_epoch, manifest.clock_ms, manifest.parallelism, manifest.rows),
    }
