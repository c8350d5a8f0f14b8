"""What went wrong with a job: failures, restarts and failovers, for the next leader and for people.

Always true: a record is written once and tells of one event; the newest 200 of each kind are kept. Losing one
(storage may be what failed) loses history, never data.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import R, seal, unseal
from holdfast.checkpoint.store.log_records import FailoverRecord, FailureRecord
from holdfast.checkpoint.store.records import Record
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.storage.contract import Storage

FAILURES_KEPT = 200
FAILOVERS_KEPT = 200


def record_failure(storage: Storage, record: FailureRecord) -> None:
    """Write a failure down, after all that are there, and forget the oldest beyond those kept."""
    _append(storage, names.FAILURES, "failure", record, FAILURES_KEPT)


def read_failures(storage: Storage) -> list[FailureRecord]:
    """Every failure that is kept, oldest first, without damaged records."""
    return list(_newest_first(storage, names.FAILURES, "failure", FailureRecord))[::-1]


def times_retried(storage: Storage) -> int:
    """How often the job was tried again so far, as the newest failure that can be read tells."""
    newest = next(_newest_first(storage, names.FAILURES, "failure", FailureRecord), None)
    return newest.retried if newest is not None else 0


def counted(history: list[FailureRecord]) -> list[FailureRecord]:
    """The failures that a restart strategy counts: those after the last clean stop and the last giving up."""
    since: list[FailureRecord] = []
    for record in history:
        since = [*since, record] if record.decision == "restart" else []
    return since


def record_failover(storage: Storage, record: FailoverRecord) -> None:
    """Write a failover down, after all that are there, and forget the oldest beyond those kept."""
    _append(storage, names.FAILOVERS, "failover", record, FAILOVERS_KEPT)


def read_failovers(storage: Storage) -> list[FailoverRecord]:
    """Every failover that is kept, oldest first, without damaged records."""
    return list(_newest_first(storage, names.FAILOVERS, "failover", FailoverRecord))[::-1]


def _append(storage: Storage, prefix: str, kind: str, record: Record, kept: int) -> None:
    found = [entry.name for entry in storage.list(prefix)]
    number = max((names.number_of(name) or 0 for name in found), default=0) + 1
    data = seal(kind, record)
    # A leader that was replaced and does not know it may write at the same time: the next number is free.
    while write_once(storage, f"{prefix}{number:012d}", data) != data:
        number += 1
    storage.delete(found[: max(0, len(found) + 1 - kept)])


def _newest_first(storage: Storage, prefix: str, kind: str, type: type[R]) -> Iterator[R]:
    for entry in reversed(storage.list(prefix)):
        try:
            yield unseal(kind, type, storage.get(entry.name), entry.name)
        except (CorruptionError, ObjectMissing):
            continue
