"""Savepoints that are made: what is copied, what is written, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.savepoints.stored_savepoint import (
    dispose_savepoint,
    read_savepoint,
    verify_savepoint,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import DeltaFile, Extent
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.errors import RestoreError, StorageError, UnknownOutcome
from holdfast.runtime.savepoints.draft import drafted, make_savepoint, reading_from, renewed, without
from holdfast.state.contract import EMPTY_VERSION
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Storage
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import GROUPS, OPERATOR, MemoryStorage, version
from tests.unit.checkpoint.saved import SCHEMA, grown, new_checkpoint, take


def new_draft() -> SavepointRecord:
    return drafted(job="sums", key_groups=GROUPS, positions={}, parallelism=2, operators=(SCHEMA,))


def put_state(target: Storage, draft: SavepointRecord, tag: str = "a", data: bytes = b"state") -> DeltaFile:
    """All state of an operator, as a task writes it."""
    name = f"{names.data_of(draft.manifest.last_epoch)}{tag}"
    target.put(name, data)
    return DeltaFile(
        operator=OPERATOR, first_group=0, end_group=GROUPS, version=version(1), parent=EMPTY_VERSION,
        extent=Extent(object=name, offset=0, length=len(data), checksum=checksum(data)), entries=3,
    )  # fmt: skip


def test_state_from_nowhere_is_a_canonical_savepoint_without_what_nothing_names() -> None:
    target, draft = MemoryStorage(), new_draft()

    def written() -> Iterator[list[DeltaFile]]:
        put_state(target, draft, "of-a-task-that-ran-twice")
        yield [put_state(target, draft)]

    record = make_savepoint(target, draft, None, written())
    assert read_savepoint(target) == record
    assert verify_savepoint(target) == []
    assert (record.format, [delta.entries for delta in record.manifest.deltas]) == ("canonical", [3])
    assert len(target.list(names.DATA)) == 1


@pytest.mark.parametrize("dropped", [(), (OPERATOR,)])
def test_what_a_draft_keeps_of_another_savepoint_is_copied(dropped: tuple[str, ...]) -> None:
    checkpoint, native, target = new_checkpoint(MemoryStorage()), MemoryStorage(), MemoryStorage()
    grown(checkpoint)
    draft = renewed(take(checkpoint, native))
    draft = replace(draft, manifest=without(draft.manifest, dropped))
    record = make_savepoint(target, draft, native, [])
    assert verify_savepoint(target) == []
    assert record.format == ("canonical" if dropped else "native")
    assert [target.get(file.extent.object) for file in record.manifest.lists]


def test_a_failure_leaves_nothing() -> None:
    target, draft = MemoryStorage(), new_draft()

    def written() -> Iterator[list[DeltaFile]]:
        yield [put_state(target, draft)]
        raise StorageError("no more")

    with pytest.raises(StorageError):
        make_savepoint(target, draft, None, written())
    assert target.objects == {}


def test_after_an_unanswered_write_the_location_stays_marked() -> None:
    """The write may still land: without the mark, an object would be there that no record explains."""
    inner, draft = MemoryStorage(), new_draft()
    target = FaultyStorage(inner, [Fault(kind=FaultKind.LOSE_REQUEST, operation="put")])
    with pytest.raises(UnknownOutcome):
        make_savepoint(target, draft, None, ([put_state(target, draft)] for _ in "1"))
    assert names.UNFINISHED in inner.objects
    dispose_savepoint(inner, 0)
    assert inner.objects == {}


def test_a_savepoint_that_another_has_finished_here_is_left_alone() -> None:
    target, draft = MemoryStorage(), new_draft()
    theirs = seal("savepoint", new_draft())

    def written() -> Iterator[list[DeltaFile]]:
        yield [put_state(target, draft)]
        target.put(names.SAVEPOINT, theirs)

    with pytest.raises(RestoreError, match="another savepoint was written"):
        make_savepoint(target, draft, None, written())
    assert target.objects[names.SAVEPOINT] == theirs


def test_a_savepoint_of_an_empty_job_gets_an_epoch_to_hold_state() -> None:
    empty = replace(new_draft(), manifest=replace(new_draft().manifest, last_epoch=0))
    assert renewed(empty).manifest.last_epoch == 1


def test_event_time_is_not_known_where_sources_are_moved() -> None:
    checkpoint = new_checkpoint(MemoryStorage())
    grown(checkpoint)
    manifest = take(checkpoint, MemoryStorage()).manifest
    assert manifest.watermarks
    assert manifest.event_times.keys() == {"in"}
    assert reading_from(manifest, {}) == manifest
    moved = reading_from(manifest, {"in": 2})
    assert (moved.positions, moved.event_times, moved.watermarks) == ({"in": 2}, {}, {})
    other = reading_from(manifest, {"other": 7})
    assert (other.positions["other"], other.event_times, other.watermarks) == (7, manifest.event_times, {})
    assert other.closed_through == manifest.closed_through
