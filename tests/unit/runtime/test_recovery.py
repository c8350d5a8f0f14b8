"""Which checkpoints can be restored when files are damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from msgspec.structs import replace

from holdfast.checkpoint.chain.checkpoint import Checkpoint, open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import DeltaFile, Extent, ListFile, SnapshotFile, StagedFile
from holdfast.clock import SystemClock
from holdfast.runtime.recovery import Inspector, Recovery
from holdfast.state.contract import EMPTY_VERSION, Version
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.kept import draft


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


def waiting(storage: LocalStorage, epoch: int) -> StagedFile:
    name = f"data/{epoch:012d}/rows"
    storage.put(name, b"rows")
    extent = Extent(object=name, offset=0, length=4, checksum=checksum(b"rows"))
    return StagedFile(stream="s", epoch=epoch, part=0, extent=extent, rows=1, sinks=("out",))


def test_rows_that_the_epochs_to_come_compute_again_need_not_be_whole(tmp_path: Path) -> None:
    storage, said = LocalStorage(tmp_path), list[str]()
    files = [waiting(storage, epoch) for epoch in (1, 2, 3)]
    view = CheckpointView(
        number=9, last_epoch=1, staged=SharedList(files), published_through={"out": 0},
        settled=Settled({"out": 3}),
    )  # fmt: skip
    (tmp_path / files[1].extent.object).write_bytes(b"lost")
    inspector = Inspector(storage, 4, said.append)
    assert inspector.restorable(view)
    assert inspector.damaged_output(view) == [files[1]]
    # Once the view is past them they have to be: nothing computes them again.
    assert not inspector.restorable(dataclasses.replace(view, last_epoch=2))
    lost = dataclasses.replace(view, last_epoch=2, settled=Settled({"out": 3}, {"out": (2,)}))
    assert not Inspector(storage, 4, said.append).restorable(lost)
    assert "rows for sinks of epochs up to 2 have to be computed again" in said[-1]
    # Shown rows are not read any more.
    shown = dataclasses.replace(view, last_epoch=2, published_through={"out": 2})
    assert Inspector(storage, 4, said.append).restorable(shown)


def test_damaged_rows_for_a_sink_are_computed_again_and_those_after_them_are_kept(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    checkpoint = open_checkpoint(storage, "job", 4, SystemClock(), identity="i")
    view, files = checkpoint.chain.load(), [waiting(storage, epoch) for epoch in (1, 2, 3)]
    for file in files:
        record = replace(draft(view, deltas=(), published=0), staged=(file,))
        record = replace(record, published_through={"out": 0}, staged_through={"out": file.epoch})
        done = checkpoint.chain.commit(view, record)
        assert isinstance(done, Committed)
        view = done.view
    (tmp_path / files[1].extent.object).write_bytes(b"lost")
    said: list[str] = []
    recovery = Recovery(checkpoint, 1, "run-1", said.append)
    after = recovery.past_damage(view)
    assert (after.last_epoch, [file.epoch for file in after.staged]) == (1, [1, 3])
    assert after.settled == Settled({"out": 3}, {"out": (2,)})
    assert any("rows for sinks of epochs 2 are lost" in line for line in said), said
    # What is damaged only now, of an epoch that is to be computed again anyway, is lost as well.
    (tmp_path / files[2].extent.object).write_bytes(b"lost")
    again = recovery_of(checkpoint).past_damage(after)
    assert (again.last_epoch, again.settled.lost) == (1, {"out": (2, 3)})
    assert Chain(storage).load().settled == again.settled


def recovery_of(checkpoint: Checkpoint) -> Recovery:
    return Recovery(checkpoint, 1, "run-1", lambda text: None)
