"""The door to a checkpoint: whose it is, and that it may be opened as asked.

Always true: a checkpoint belongs to one job and has one number of key groups, from its creation on. One that
a cluster holds is refused to every other cluster until a person moves it. Nothing is ever created inside a
directory that holds something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from holdfast.checkpoint.chain.commits import RETAIN, Chain
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.log_records import ClusterRecord
from holdfast.checkpoint.store.records import JobRecord, LayoutRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, ObjectMissing, RestoreError
from holdfast.storage.contract import Storage
from holdfast.storage.urls import below


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint."""

    storage: Storage
    job: JobRecord
    chain: Chain
    plans: Plans
    retention: Retention


def open_checkpoint(
    storage: Storage,
    job: str,
    key_groups: int,
    clock: Clock,
    *,
    identity: str,
    retain: int = RETAIN,
    seeded_from: str = "",
) -> Checkpoint:
    """Open the checkpoint of `job` in `storage`, or create it there.

    `identity` is a fresh random name, which a created checkpoint keeps. `seeded_from` is the id of the
    savepoint that it begins with (see savepoints.start_from).
    RestoreError: it is another job's, has another number of key groups, began with another savepoint or still
    waits for its own, was written by a newer Holdfast, or the location holds something else.
    """
    record = find_job(storage)
    if record is None:
        refuse_if_occupied(storage)
        record = _created(
            storage,
            JobRecord(
                job=job,
                identity=identity,
                key_groups=key_groups,
                created_ms=clock.now_ms(),
                written_by=written_by(),
                seeded_from=seeded_from,
            ),
        )
    refuse_other_job(storage, record, job)
    refuse_other_key_groups(storage, record, key_groups)
    if seeded_from:
        refuse_if_seeded_otherwise(storage, record, seeded_from)
    elif record.seeded_from and not has_begun(storage):
        raise RestoreError(
            f"the checkpoint in {storage.url} is to begin with savepoint {record.seeded_from}, and that was "
            "not finished; start the job with from_savepoint again"
        )
    chain = Chain(storage, retain=retain)
    return Checkpoint(storage, record, chain, Plans(storage), Retention(chain))


def read_job(storage: Storage) -> JobRecord:
    """Whose checkpoint this is. RestoreError when there is none."""
    record = find_job(storage)
    if record is None:
        if storage.size(names.SAVEPOINT) is not None:
            raise RestoreError(_HOLDS_A_SAVEPOINT.format(storage.url))
        refuse_parts(storage)
        raise RestoreError(f"there is no checkpoint in {storage.url}; check the place")
    return record


def read_layout(storage: Storage) -> LayoutRecord | None:
    """The parts of the job whose checkpoints are below; None: this is no place of a job in parts."""
    return next(layouts(storage), None)


def layouts(storage: Storage) -> Iterator[LayoutRecord]:
    """Of which parts the job consists, and consisted before, newest first. A former record that cannot be
    read any more is left out."""
    newest = names.highest(storage, names.LAYOUTS)
    for number in range(newest, 0, -1):
        name = names.layout(number)
        try:
            record = unseal("layout", LayoutRecord, storage.get(name), name)
        except (CorruptionError, ObjectMissing):
            if number == newest:
                raise
            continue
        yield record


def place_of_part(root: str, part: str) -> str:
    """Where a part of a job has its checkpoint, or its share of a savepoint."""
    return below(root, f"{names.PARTS}{part}")


def job_url(url: str) -> str | None:
    """The place of the job whose part has its checkpoint at `url`: the inverse of `place_of_part`. None: by
    its name it is of no part."""
    place, mark, settings = url.partition("?") if "://" in url else (url, "", "")
    root, found, part = place.rstrip("/").rpartition(f"/{names.PARTS}")
    return f"{root}{mark}{settings}" if found and part and "/" not in part else None


def refuse_parts(storage: Storage) -> None:
    """RestoreError: this place is of a job in parts, whose checkpoints are below."""
    if (layout := read_layout(storage)) is not None:
        parts, example = ", ".join(layout.parts), place_of_part(storage.url, layout.parts[0])
        raise RestoreError(
            f"{storage.url} is of a job in parts ({layout.job}: {parts}), each of which has its own place "
            f"below; name one, such as {example}"
        )


def refuse_other_job(storage: Storage, record: JobRecord, job: str) -> None:
    """RestoreError: the checkpoint is another job's, whatever else of it would fit."""
    if record.job != job:
        raise RestoreError(other_job(storage, record.job, job))


def refuse_other_key_groups(storage: Storage, record: JobRecord, key_groups: int) -> None:
    """RestoreError: the checkpoint has another number of key groups than is asked for."""
    if record.key_groups != key_groups:
        raise RestoreError(
            f"the checkpoint in {storage.url} has {record.key_groups} key groups, "
            f"the job asks for {key_groups}; "
            f"start it with key_groups={record.key_groups}"
        )


def other_job(storage: Storage, owner: str, job: str) -> str:
    """What is said to a job that comes to another's checkpoint."""
    return (
        f"the checkpoint in {storage.url} belongs to job {owner!r}, not to {job!r}; "
        f"choose another place for the checkpoint of {job!r}"
    )


def has_begun(storage: Storage) -> bool:
    """Whether the checkpoint has, or ever had, a commit."""
    return bool(storage.list(names.COMMITS) or storage.list(names.FLOORS))


def find_job(storage: Storage) -> JobRecord | None:
    """Whose checkpoint this is; None: there is none."""
    try:
        data = storage.get(names.JOB)
    except ObjectMissing:
        return None
    return unseal("job", JobRecord, data, names.JOB)


def refuse_if_seeded_otherwise(storage: Storage, record: JobRecord, id: str) -> None:
    """RestoreError: the checkpoint exists and did not begin with savepoint `id`."""
    if record.seeded_from != id:
        began = f"began with savepoint {record.seeded_from}" if record.seeded_from else "began with none"
        raise RestoreError(
            f"the checkpoint in {storage.url} cannot begin with savepoint {id}: it exists and {began}; "
            "choose an empty place, or leave out from_savepoint to go on from it"
        )


def _created(storage: Storage, record: JobRecord) -> JobRecord:
    return unseal("job", JobRecord, write_once(storage, names.JOB, seal("job", record)), names.JOB)


_HOLDS_A_SAVEPOINT = (
    "{} holds a savepoint, not a checkpoint; choose another place for the checkpoint, "
    "and start from the savepoint with from_savepoint"
)


def refuse_if_occupied(storage: Storage) -> None:
    """RestoreError: the location holds no checkpoint and is not empty either."""
    found = [
        entry.name for entry in storage.list("") if not entry.name.startswith((names.CLUSTERS, names.CLAIMS))
    ]
    # Another run may be creating the checkpoint at this moment.
    if not found or names.JOB in found:
        return
    if names.SAVEPOINT in found or names.UNFINISHED in found:
        raise RestoreError(_HOLDS_A_SAVEPOINT.format(storage.url))
    refuse_parts(storage)
    ours = [
        name for name in found if name.startswith((names.TERMS, names.COMMITS, names.MANIFESTS, names.FLOORS))
    ]
    if ours:
        raise RestoreError(
            f"the checkpoint in {storage.url} has lost its 'job' record ({ours[0]} is there); "
            "restore it from a copy"
        )
    raise RestoreError(
        f"{storage.url} is not empty and holds no checkpoint ({found[0]} is there); choose an empty place"
    )


def cluster_of(storage: Storage) -> ClusterRecord | None:
    """The cluster that holds the checkpoint; None: none does."""
    return _cluster(storage, names.highest(storage, names.CLUSTERS))


def hold_by_cluster(storage: Storage, record: ClusterRecord, *, move: bool) -> None:
    """Let the checkpoint be this cluster's. RestoreError: it is another's, and `move` is not set."""
    for _ in range(100):
        newest = names.highest(storage, names.CLUSTERS)
        held = _cluster(storage, newest)
        if held is not None and held.id == record.id:
            return
        _refuse_held(storage, held, record, move)
        data = seal("cluster", record)
        if write_once(storage, names.cluster(newest + 1), data) == data:
            return
    raise RestoreError(f"several clusters claim {storage.url} at once; stop all but one")


def refuse_other_cluster(storage: Storage, record: ClusterRecord, *, move: bool) -> None:
    """RestoreError: the checkpoint is another cluster's, and `move` is not set."""
    _refuse_held(storage, cluster_of(storage), record, move)


def _refuse_held(storage: Storage, held: ClusterRecord | None, record: ClusterRecord, move: bool) -> None:
    if held is not None and held.id != record.id and not move:
        raise RestoreError(
            f"the checkpoint in {storage.url} belongs to cluster {held.cluster!r} at ZooKeeper "
            f"{held.zookeeper}, not to {record.cluster!r} at {record.zookeeper}; choose another place, "
            "or stop that cluster and start with --move-checkpoint"
        )


def _cluster(storage: Storage, number: int) -> ClusterRecord | None:
    if number == 0:
        return None
    name = names.cluster(number)
    return unseal("cluster", ClusterRecord, storage.get(name), name)


def written_by() -> str:
    """The program that writes records, for people."""
    try:
        return f"holdfast {version('holdfast')}"
    except PackageNotFoundError:
        return "holdfast"
