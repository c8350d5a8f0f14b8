from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.checkpoint import (
    Checkpoint,
    cluster_of,
    hold_by_cluster,
    open_checkpoint,
    read_job,
)
from holdfast.checkpoint.store import envelope, names
from holdfast.checkpoint.store.log_records import ClusterRecord
from holdfast.errors import CorruptionError, RestoreError
from holdfast.storage.contract import Put
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.kept import MemoryStorage


def open_it(storage: MemoryStorage, job: str = "sums", key_groups: int = 128) -> Checkpoint:
    return open_checkpoint(storage, job, key_groups, ManualClock(5), identity="abc")


def test_a_checkpoint_keeps_its_identity() -> None:
    storage = MemoryStorage()
    created = open_it(storage)
    again = open_checkpoint(storage, "sums", 128, ManualClock(9), identity="other")
    assert again.job == created.job == read_job(storage)
    assert (again.job.identity, again.job.created_ms) == ("abc", 5)


def test_another_jobs_checkpoint_is_refused_naming_both() -> None:
    storage = MemoryStorage()
    open_it(storage)
    with pytest.raises(RestoreError, match=r"'sums'.*'words'"):
        open_it(storage, job="words")


def test_changed_key_groups_are_refused_with_the_stored_number() -> None:
    storage = MemoryStorage()
    open_it(storage)
    with pytest.raises(RestoreError, match=r"128 key groups.*64.*key_groups=128"):
        open_it(storage, key_groups=64)


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    job = open_it(MemoryStorage()).job
    with monkeypatch.context() as newer:
        newer.setattr(envelope, "FORMAT", 99)
        storage.put(names.JOB, envelope.seal("job", job))
    with pytest.raises(RestoreError, match="newer Holdfast"):
        open_it(storage)


def test_a_damaged_job_record_is_an_error() -> None:
    storage = MemoryStorage()
    open_it(storage)
    storage.flip(names.JOB)
    with pytest.raises(CorruptionError, match="job"):
        open_it(storage)


def test_a_place_that_holds_something_else_is_refused_and_left_alone() -> None:
    storage = MemoryStorage()
    storage.put("holiday.jpg", b"")
    with pytest.raises(RestoreError, match=r"holiday\.jpg"):
        open_it(storage)
    assert list(storage.objects) == ["holiday.jpg"]


def test_a_lost_job_record_is_not_created_again() -> None:
    storage = MemoryStorage()
    open_it(storage)
    storage.put(names.commit(1), b"")
    storage.delete([names.JOB])
    with pytest.raises(RestoreError, match="lost its 'job' record"):
        open_it(storage)


def test_of_two_creators_at_once_both_get_the_same_checkpoint() -> None:
    class Racing(MemoryStorage):
        def put_new(self, name: str, data: bytes) -> Put:
            if not self.objects:
                self.objects.update(rival.objects)
            return super().put_new(name, data)

    rival = MemoryStorage()
    winner = open_checkpoint(rival, "sums", 128, ManualClock(), identity="first")
    assert open_it(Racing()).job == winner.job


def test_a_checkpoint_belongs_to_the_cluster_that_came_first_until_it_is_moved() -> None:
    storage = MemoryStorage()
    ours = ClusterRecord(cluster="ours", id="1", zookeeper="h:2181", node="a", at_ms=1)
    assert cluster_of(storage) is None
    hold_by_cluster(storage, ours, move=False)
    hold_by_cluster(storage, replace(ours, node="b", at_ms=2), move=False)
    assert cluster_of(storage) == ours, "another node of the same cluster changes nothing"
    theirs = replace(ours, cluster="theirs", id="2")
    with pytest.raises(RestoreError, match="belongs to cluster 'ours' at ZooKeeper h:2181, not to 'theirs'"):
        hold_by_cluster(storage, theirs, move=False)
    hold_by_cluster(storage, theirs, move=True)
    with pytest.raises(RestoreError, match="belongs to cluster 'theirs'"):
        hold_by_cluster(storage, ours, move=False)
