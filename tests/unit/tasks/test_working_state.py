"""Snapshots from storage that cannot be mapped: fetched when they are missed, and only then."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.store.records import SnapshotFile
from holdfast.state.contract import Version
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.working_state import _fetch_missing, _fetched, forget_fetched


class Bucket(LocalStorage):
    """Storage that has no paths, as object storage has none."""

    def local_path(self, name: str) -> Path | None:
        return None


def snapshot(storage: LocalStorage, name: str, data: bytes) -> SnapshotFile:
    storage.put(name, data)
    return SnapshotFile(
        operator="op",
        first_group=0,
        end_group=4,
        version=Version(epoch=1, attempt=1, result="r"),
        object=name,
        length=len(data),
        chunk_bytes=4,
        chunks=("",),
        backend="lmdb",
    )


def test_a_missed_snapshot_is_fetched_once_and_older_copies_go(tmp_path: Path) -> None:
    bucket, here = Bucket(tmp_path / "bucket"), tmp_path / "shard"
    old, new = snapshot(bucket, "snapshots/1/old", b"old"), snapshot(bucket, "snapshots/2/new", b"0123456789")
    assert _fetch_missing(bucket, here, (old,))
    assert _fetch_missing(bucket, here, (new, new))
    assert _fetched(here, new).read_bytes() == b"0123456789"
    assert [path.name for path in (here / "fetched").iterdir()] == ["new"]
    assert not _fetch_missing(bucket, here, (new,))


def test_nothing_is_fetched_from_storage_that_has_paths(tmp_path: Path) -> None:
    local, here = LocalStorage(tmp_path / "ck"), tmp_path / "shard"
    assert not _fetch_missing(local, here, (snapshot(local, "snapshots/1/s", b"s"),))


def test_a_copy_that_went_bad_can_be_forgotten(tmp_path: Path) -> None:
    bucket, here = Bucket(tmp_path / "bucket"), tmp_path / "shard"
    file = snapshot(bucket, "snapshots/1/s", b"s")
    _fetch_missing(bucket, here, (file,))
    forget_fetched(here, keep=())
    assert _fetch_missing(bucket, here, (file,))
