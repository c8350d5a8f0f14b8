from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.savepoints.stored_savepoint import (
    dispose_savepoint,
    list_savepoints,
    read_savepoint,
    size_of,
    verify_savepoint,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.savepoint_records import ClaimedRecord, SavepointRecord
from holdfast.errors import CorruptionError, HoldfastError, RestoreError
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage
from tests.unit.checkpoint.saved import contents, grown, new_checkpoint, take


def saved(target: MemoryStorage) -> SavepointRecord:
    checkpoint = new_checkpoint(MemoryStorage())
    grown(checkpoint)
    return take(checkpoint, target)


def snapshot_in(storage: MemoryStorage) -> str:
    return next(name for name in storage.objects if name.startswith(names.SNAPSHOTS))


def test_a_savepoint_may_be_moved_and_copied(tmp_path: Path) -> None:
    checkpoint = new_checkpoint(LocalStorage(tmp_path / "checkpoint", fsync=False))
    grown(checkpoint)
    record = take(checkpoint, LocalStorage(tmp_path / "here", fsync=False))
    found = contents(LocalStorage(tmp_path / "here"), record.manifest)
    os.rename(tmp_path / "here", tmp_path / "there")
    shutil.copytree(tmp_path / "there", tmp_path / "copy")
    for place in ("there", "copy"):
        storage = LocalStorage(tmp_path / place)
        assert read_savepoint(storage) == record
        assert verify_savepoint(storage) == []
        assert contents(storage, record.manifest) == found


@pytest.mark.parametrize("what", ["gone", "cut", "no record"])
def test_a_half_copied_savepoint_is_one_clear_error(what: str) -> None:
    storage = MemoryStorage()
    saved(storage)
    if what == "gone":
        del storage.objects[snapshot_in(storage)]
    elif what == "cut":
        storage.objects[snapshot_in(storage)] = b"beginning"
    else:
        del storage.objects[names.SAVEPOINT]
    with pytest.raises(RestoreError, match="half-copied savepoint"):
        read_savepoint(storage)


def test_where_there_is_no_savepoint_the_error_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match=r"there is no savepoint .*: it is empty or does not exist;"):
        read_savepoint(MemoryStorage())
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(RestoreError, match=r"it holds other things \(photo\.jpg is there\)"):
        read_savepoint(LocalStorage(tmp_path))
    for name in ("monday", "tuesday"):
        saved(LocalStorage(tmp_path / name))
    with pytest.raises(RestoreError, match=rf"\(monday, tuesday\); name one .* {tmp_path}/tuesday"):
        read_savepoint(LocalStorage(tmp_path))
    storage = MemoryStorage()
    grown(new_checkpoint(storage))
    with pytest.raises(RestoreError, match="holds a checkpoint, not a savepoint"):
        read_savepoint(storage)
    storage = MemoryStorage()
    saved(storage)
    storage.objects[names.UNFINISHED] = storage.objects.pop(names.SAVEPOINT)
    with pytest.raises(RestoreError, match="unfinished"):
        read_savepoint(storage)


def test_verify_names_every_damaged_object() -> None:
    storage = MemoryStorage()
    record = saved(storage)
    flipped, gone = (file.object for file in record.manifest.snapshots)
    cut = record.manifest.deltas[0].extent.object
    storage.flip(flipped)
    del storage.objects[gone]
    storage.objects[cut] = storage.objects[cut][:-1]
    problems = "\n".join(verify_savepoint(storage))
    assert f"{flipped!r} in memory:// is damaged" in problems
    assert f"{gone} is not there" in problems
    assert f"{cut!r} in memory:// is truncated" in problems
    assert problems.count("\n") == 2


def test_verify_finds_a_snapshot_with_bytes_too_many() -> None:
    storage = MemoryStorage()
    saved(storage)
    storage.objects[snapshot_in(storage)] += b"more"
    assert len(verify_savepoint(storage)) == 1


def test_verify_tells_of_a_damaged_record() -> None:
    storage = MemoryStorage()
    saved(storage)
    storage.flip(names.SAVEPOINT)
    assert "savepoint is damaged" in verify_savepoint(storage)[0]
    with pytest.raises(RestoreError, match="no savepoint"):
        verify_savepoint(MemoryStorage())


def test_a_record_that_names_other_places_is_refused() -> None:
    storage = MemoryStorage()
    record = saved(storage)
    file = replace(record.manifest.snapshots[0], object="job")
    strange = replace(record, manifest=replace(record.manifest, snapshots=(file,)))
    storage.put(names.SAVEPOINT, seal("savepoint", strange))
    with pytest.raises(CorruptionError, match="'job'"):
        read_savepoint(storage)


def test_the_size_is_that_of_the_objects() -> None:
    storage = MemoryStorage()
    record = saved(storage)
    stored = sum(len(data) for name, data in storage.objects.items() if name != names.SAVEPOINT)
    assert size_of(record) == stored


def test_dispose_removes_the_savepoint_and_nothing_else() -> None:
    storage = MemoryStorage()
    saved(storage)
    storage.put("notes.txt", b"mine")
    storage.put("data/notes.txt", b"mine")
    dispose_savepoint(storage, 0)
    assert storage.objects == {"notes.txt": b"mine", "data/notes.txt": b"mine"}


def test_dispose_refuses_what_is_not_a_savepoint() -> None:
    storage = MemoryStorage()
    grown(new_checkpoint(storage))
    before = dict(storage.objects)
    with pytest.raises(RestoreError, match="holds a checkpoint"):
        dispose_savepoint(storage, 0)
    assert storage.objects == before


def test_dispose_refuses_a_claimed_savepoint_unless_forced() -> None:
    storage = MemoryStorage()
    saved(storage)
    claimed = ClaimedRecord(job="other", checkpoint="/c", claimed_ms=0)
    storage.put(names.CLAIMED, seal("claimed", claimed))
    with pytest.raises(RestoreError, match=r"claimed by job 'other' \(checkpoint /c\)"):
        dispose_savepoint(storage, 0)
    assert read_savepoint(storage)
    dispose_savepoint(storage, 0, force=True)
    assert storage.objects == {}


def test_dispose_goes_on_wherever_it_was_interrupted() -> None:
    whole = MemoryStorage()
    saved(whole)
    for after in range(100):
        inner = MemoryStorage()
        inner.objects = dict(whole.objects)
        storage = FaultyStorage(inner, [Fault(kind=FaultKind.FAIL, after=after)])
        try:
            dispose_savepoint(storage, 0)
        except HoldfastError:
            assert names.SAVEPOINT not in inner.objects or verify_savepoint(inner) == []
            storage.heal()
            dispose_savepoint(storage, 0)
        assert inner.objects == {}
        if len(storage.calls) <= after:
            return
    raise AssertionError("the faults were to run out")


def test_a_listing_shows_every_savepoint_below_a_place_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    checkpoint = new_checkpoint(LocalStorage(tmp_path / "checkpoint", fsync=False))
    grown(checkpoint)
    for name in ("a", "deep/b", "half", "unfinished", "flipped"):
        take(checkpoint, LocalStorage(tmp_path / "all" / name, fsync=False), id=name.replace("/", "-"))
    shutil.rmtree(tmp_path / "all" / "half" / "snapshots")
    os.rename(tmp_path / "all/unfinished/savepoint", tmp_path / "all/unfinished/unfinished")
    (tmp_path / "all/flipped/savepoint").write_bytes(b"rubbish")
    root = LocalStorage(tmp_path / "all", fsync=False)
    found = {one.url.removeprefix(f"file://{tmp_path}/all/"): one for one in list_savepoints(root)}
    assert list(found) == [f"{name}?fsync=off" for name in ("a", "deep/b", "flipped", "half", "unfinished")]
    problems = [one.problem for one in found.values()]
    assert problems[:2] == ["", ""]
    assert "not a Holdfast record" in problems[2]
    assert problems[3].startswith("half-copied: snapshots/")
    assert problems[4] == "unfinished"
    assert [one.record.id for one in found.values() if one.record] == ["a", "deep-b", "half"]
