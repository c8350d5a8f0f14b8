"""The history of failovers, and whose a checkpoint is."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.log import failovers
from holdfast.checkpoint.log.failovers import cluster_of, hold_by_cluster, read_failovers, record_failover
from holdfast.checkpoint.store.records import ClusterRecord, FailoverRecord
from holdfast.errors import RestoreError
from holdfast.storage.local_directory import LocalStorage

FIRST = FailoverRecord(
    at_ms=1, node="a", host="h", standby="warm", term=1, before="", reason="nobody held it"
)
OURS = ClusterRecord(cluster="ours", id="1", zookeeper="h:2181", node="a", at_ms=1)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "ck")


def test_failovers_are_kept_in_order_and_the_oldest_are_forgotten(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failovers, "FAILOVERS_KEPT", 3)
    for term in range(1, 6):
        record_failover(storage, replace(FIRST, term=term))
    assert [record.term for record in read_failovers(storage)] == [3, 4, 5]


def test_a_damaged_failover_is_passed_over(storage: LocalStorage, tmp_path: Path) -> None:
    record_failover(storage, FIRST)
    record_failover(storage, replace(FIRST, term=2))
    (tmp_path / "ck" / "failovers" / f"{1:012d}").write_bytes(b"?")
    assert [record.term for record in read_failovers(storage)] == [2]


def test_a_checkpoint_belongs_to_the_cluster_that_came_first_until_it_is_moved(storage: LocalStorage) -> None:
    assert cluster_of(storage) is None
    hold_by_cluster(storage, OURS, move=False)
    hold_by_cluster(storage, replace(OURS, node="b", at_ms=2), move=False)
    assert cluster_of(storage) == OURS, "another node of the same cluster changes nothing"
    theirs = replace(OURS, cluster="theirs", id="2")
    with pytest.raises(RestoreError, match="belongs to cluster 'ours' at ZooKeeper h:2181, not to 'theirs'"):
        hold_by_cluster(storage, theirs, move=False)
    hold_by_cluster(storage, theirs, move=True)
    with pytest.raises(RestoreError, match="belongs to cluster 'theirs'"):
        hold_by_cluster(storage, OURS, move=False)
