from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.savepoints.canonical import WholeState, canonical, whole_state_delta, write_savepoint
from holdfast.checkpoint.savepoints.layout import read_savepoint, verify_savepoint
from holdfast.checkpoint.savepoints.take import begin_savepoint, seal_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, SavepointRecord, UnfinishedRecord, VersionRecord
from holdfast.errors import DefinitionError, RestoreError, StorageError
from holdfast.storage.checksums import checksum
from tests.unit.checkpoint.kept import MemoryStorage
from tests.unit.checkpoint.saved import grown, new_checkpoint, take


def canonical_draft(checkpoint: Checkpoint) -> SavepointRecord:
    return replace(take(checkpoint, MemoryStorage()), id="made")


def test_a_canonical_savepoint_is_written_from_whole_states() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    states = [WholeState("totals", 0, 2, 3, b"left"), WholeState("totals", 2, 4, 4, b"right")]
    draft = canonical_draft(checkpoint)
    lists = [(file, b"items") for file in draft.manifest.lists]
    record = write_savepoint(target, draft, states, "maker", lists)
    assert read_savepoint(target) == record
    assert verify_savepoint(target) == []
    assert (record.format, record.manifest.snapshots) == ("canonical", ())
    assert [delta.entries for delta in record.manifest.deltas] == [3, 4]
    assert [target.get(file.extent.object) for file in record.manifest.lists] == [b"items"]
    nothing = VersionRecord(epoch=0, attempt=0, result="")
    assert all(delta.parent == nothing for delta in record.manifest.deltas)


def test_a_canonical_savepoint_whose_making_fails_leaves_nothing() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)

    def states() -> object:
        yield WholeState("totals", 0, 2, 3, b"left")
        raise StorageError("no more")

    with pytest.raises(StorageError):
        write_savepoint(target, canonical_draft(checkpoint), states(), "maker")  # type: ignore[arg-type]
    assert target.objects == {}


def test_a_savepoint_is_not_sealed_without_its_objects() -> None:
    checkpoint, made, target = new_checkpoint(MemoryStorage()), MemoryStorage(), MemoryStorage()
    grown(checkpoint)
    record = take(checkpoint, made)
    with pytest.raises(RestoreError, match=r"cannot be finished.*missing"):
        seal_savepoint(target, record)


def test_state_needs_an_epoch_and_an_id_a_name() -> None:
    checkpoint = new_checkpoint(MemoryStorage())
    grown(checkpoint)
    draft = canonical_draft(checkpoint)
    unborn = replace(draft, manifest=replace(draft.manifest, last_epoch=0))
    with pytest.raises(DefinitionError, match="epoch"):
        write_savepoint(MemoryStorage(), unborn, [], "maker")
    with pytest.raises(DefinitionError, match="a/b"):
        write_savepoint(MemoryStorage(), replace(draft, id="a/b"), [], "maker")


def test_objects_put_by_others_make_a_savepoint_too() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    draft = canonical_draft(checkpoint)
    begin_savepoint(target, UnfinishedRecord(id=draft.id, job="x", holder="y", since_ms=0))
    name = f"{names.data_of(draft.manifest.last_epoch)}from-a-task"
    target.put(name, b"xxstate")
    extent = Extent(object=name, offset=2, length=5, checksum=checksum(b"state"))
    delta = whole_state_delta(draft, WholeState("totals", 0, 4, 1), extent)
    record = seal_savepoint(target, canonical(draft, [delta]))
    assert verify_savepoint(target) == []
    assert Chain(checkpoint.storage).load().number == record.commit
