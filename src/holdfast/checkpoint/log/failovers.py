"""The history of failovers, and the cluster that a checkpoint belongs to, kept beside the failures.

Always true: a record is written once; the newest `FAILOVERS_KEPT` failovers are kept. A checkpoint that a
cluster holds is refused to every other one until somebody moves it on purpose. Losing a failover record loses
history, never data.
"""

from __future__ import annotations

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import ClusterRecord, FailoverRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing, RestoreError
from holdfast.storage.contract import Storage

FAILOVERS_KEPT = 200


def record_failover(storage: Storage, record: FailoverRecord) -> None:
    """Write a failover down, after all that are there, and forget the oldest beyond those kept."""
    found = [entry.name for entry in storage.list(names.FAILOVERS)]
    number = max((names.number_of(name) or 0 for name in found), default=0) + 1
    data = seal("failover", record)
    while write_once(storage, names.failover(number), data) != data:
        number += 1
    storage.delete(found[: max(0, len(found) + 1 - FAILOVERS_KEPT)])


def read_failovers(storage: Storage) -> list[FailoverRecord]:
    """Every failover that is kept, oldest first. A damaged one is passed over: nothing depends on it."""
    found: list[FailoverRecord] = []
    for entry in storage.list(names.FAILOVERS):
        try:
            found.append(unseal("failover", FailoverRecord, storage.get(entry.name), entry.name))
        except (CorruptionError, ObjectMissing):
            continue
    return found


def cluster_of(storage: Storage) -> ClusterRecord | None:
    """The cluster that holds the checkpoint; None: none does."""
    newest = max((names.number_of(entry.name) or 0 for entry in storage.list(names.CLUSTERS)), default=0)
    if newest == 0:
        return None
    name = names.cluster(newest)
    return unseal("cluster", ClusterRecord, storage.get(name), name)


def hold_by_cluster(storage: Storage, record: ClusterRecord, *, move: bool) -> None:
    """Let the checkpoint be this cluster's. RestoreError: it is another's, and `move` is not set."""
    for _ in range(100):
        newest = max((names.number_of(entry.name) or 0 for entry in storage.list(names.CLUSTERS)), default=0)
        if newest:
            name = names.cluster(newest)
            held = unseal("cluster", ClusterRecord, storage.get(name), name)
            if held.id == record.id:
                return
            if not move:
                raise RestoreError(_belongs(storage, held, record))
        data = seal("cluster", record)
        if write_once(storage, names.cluster(newest + 1), data) == data:
            return
    raise RestoreError(f"several clusters claim {storage.url} at once; stop all but one")


def _belongs(storage: Storage, held: ClusterRecord, asking: ClusterRecord) -> str:
    return (
        f"the checkpoint in {storage.url} belongs to cluster {held.cluster!r} at ZooKeeper {held.zookeeper}, "
        f"not to {asking.cluster!r} at {asking.zookeeper}; choose another place, or stop that cluster and "
        "start with --move-checkpoint"
    )
