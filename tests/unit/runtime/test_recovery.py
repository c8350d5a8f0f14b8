"""Which checkpoints can be restored when snapshots are damaged."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import DeltaFile, Extent, ListFile, SnapshotFile
from holdfast.runtime.recovery import Inspector
from holdfast.state.contract import EMPTY_VERSION, Version
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage


def delta(storage: LocalStorage, first: int, end: int, epoch: int) -> DeltaFile:
    name = f"data/{epoch:012d}/{first}"
    storage.put(name, b"delta")
    return DeltaFile(
        operator="op",
        first_group=first,
        end_group=end,
        version=Version(epoch=epoch, attempt=1, result=f"{epoch}-{first}"),
        parent=EMPTY_VERSION if epoch == 1 else Version(epoch=epoch - 1, attempt=1, result="p"),
        extent=Extent(object=name, offset=0, length=5, checksum=checksum(b"delta")),
        entries=1,
    )


def lost_snapshot(epoch: int) -> SnapshotFile:
    return SnapshotFile(
        operator="op",
        first_group=0,
        end_group=2,
        version=Version(epoch=epoch, attempt=1, result=f"{epoch}-0"),
        object=f"snapshots/{epoch:012d}/lost",
        length=1,
        chunk_bytes=1,
        chunks=("",),
        backend="lmdb",
    )


def restorable(storage: LocalStorage, *snapshots: SnapshotFile) -> bool:
    """One shard wrote epoch 1, two shards the rest. Deltas 2 and 3 of the first are gone if two snapshots
    made them needless; the delta that reaches back to the beginning is there, its other half is needed.
    """
    dropped = len(snapshots) > 1
    first = tuple(delta(storage, 0, 2, epoch) for epoch in ((4,) if dropped else (2, 3, 4)))
    view = CheckpointView(
        number=4,
        last_epoch=4,
        deltas={"op": {(0, 4): (delta(storage, 0, 4, 1),), (0, 2): first}},  # type: ignore[dict-item]
        snapshots={"op": snapshots},
    )
    return Inspector(storage, 4, lambda text: None).restorable(view)


def test_a_damaged_only_snapshot_is_made_good_by_the_deltas_from_the_beginning(tmp_path: Path) -> None:
    assert restorable(LocalStorage(tmp_path), lost_snapshot(3))


def test_two_damaged_snapshots_are_never_taken_for_restorable(tmp_path: Path) -> None:
    assert not restorable(LocalStorage(tmp_path), lost_snapshot(3), lost_snapshot(4))


def test_a_damaged_snapshot_from_a_savepoint_is_not_made_good_by_deltas(tmp_path: Path) -> None:
    assert not restorable(LocalStorage(tmp_path), replace(lost_snapshot(3), sole=True))


def test_a_damaged_list_makes_a_checkpoint_unrestorable(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("data/1/bundle", b"list")
    where = Extent(object="data/1/bundle", offset=0, length=4, checksum=checksum(b"list"))
    file = ListFile(operator="op", shards=1, shard=0, state="seen", extent=where, items=1)
    view = CheckpointView(number=1, last_epoch=1, lists={"op": (file,)})
    assert Inspector(storage, 4, lambda text: None).restorable(view)
    (tmp_path / "data/1/bundle").write_bytes(b"lost")
    assert not Inspector(storage, 4, lambda text: None).restorable(view)
