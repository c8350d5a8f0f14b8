"""The door to a checkpoint: whose it is, and that it may be opened as asked.

Always true: a checkpoint belongs to one job and has one number of key groups, from its creation on.
Nothing is ever created inside a directory that holds something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from holdfast.checkpoint import names
from holdfast.checkpoint.commits import RETAIN, Chain
from holdfast.checkpoint.envelope import seal, unseal
from holdfast.checkpoint.once import write_once
from holdfast.checkpoint.plans import Plans
from holdfast.checkpoint.records import JobRecord
from holdfast.checkpoint.retention import Retention
from holdfast.clock import Clock
from holdfast.errors import ObjectMissing, RestoreError
from holdfast.storage.contract import Storage


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
    create: bool = True,
    retain: int = RETAIN,
) -> Checkpoint:
    """Open the checkpoint of `job` in `storage`, or create it there.

    `identity` is a fresh random name, which a created checkpoint keeps for ever. RestoreError: it is
    another job's, has another number of key groups, was written by a newer Holdfast, or the place holds
    something else.
    """
    record = _read_job(storage)
    if record is None:
        _refuse_if_occupied(storage)
        if not create:
            raise RestoreError(
                f"there is no checkpoint in {storage.url}; check the place, or start the job to create one"
            )
        record = _created(storage, job, key_groups, identity, clock.now_ms())
    if record.job != job:
        raise RestoreError(
            f"the checkpoint in {storage.url} belongs to job {record.job!r}, not {job!r}; "
            "choose another place for it"
        )
    if record.key_groups != key_groups:
        raise RestoreError(
            f"the checkpoint in {storage.url} has {record.key_groups} key groups, "
            f"the job asks for {key_groups}; "
            f"start it with key_groups={record.key_groups}"
        )
    chain = Chain(storage, retain=retain)
    return Checkpoint(storage, record, chain, Plans(storage), Retention(chain))


def read_job(storage: Storage) -> JobRecord:
    """Whose checkpoint this is. RestoreError when there is none."""
    record = _read_job(storage)
    if record is None:
        raise RestoreError(f"there is no checkpoint in {storage.url}; check the place")
    return record


def _read_job(storage: Storage) -> JobRecord | None:
    try:
        data = storage.get(names.JOB)
    except ObjectMissing:
        return None
    return unseal("job", JobRecord, data, names.JOB)


def _created(storage: Storage, job: str, key_groups: int, identity: str, now_ms: int) -> JobRecord:
    record = JobRecord(
        job=job, identity=identity, key_groups=key_groups, created_ms=now_ms, written_by=_written_by()
    )
    return unseal("job", JobRecord, write_once(storage, names.JOB, seal("job", record)), names.JOB)


def _refuse_if_occupied(storage: Storage) -> None:
    found = [entry.name for entry in storage.list("")]
    # Somebody else may be creating the checkpoint at this moment.
    if not found or names.JOB in found:
        return
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


def _written_by() -> str:
    try:
        return f"holdfast {version('holdfast')}"
    except PackageNotFoundError:
        return "holdfast"
