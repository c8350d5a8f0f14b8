"""The history of failures and restarts, kept in storage for whoever leads next and whoever asks.

Always true: a record is written once and tells of one event; the newest `FAILURES_KEPT` are kept. Losing
one (storage was what failed) loses history, never data.
"""

from __future__ import annotations

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import FailureRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.storage.contract import Storage

FAILURES_KEPT = 200


def record_failure(storage: Storage, record: FailureRecord) -> None:
    """Write an event down, after all that are there, and forget the oldest beyond those kept."""
    found = [entry.name for entry in storage.list(names.FAILURES)]
    number = max((names.number_of(name) or 0 for name in found), default=0) + 1
    data = seal("failure", record)
    # Somebody who was replaced and does not know it may write at the same time: the next number is free.
    while write_once(storage, names.failure(number), data) != data:
        number += 1
    storage.delete(found[: max(0, len(found) + 1 - FAILURES_KEPT)])


def read_failures(storage: Storage) -> list[FailureRecord]:
    """Every event that is kept, oldest first. A damaged one is passed over: nothing depends on it."""
    found: list[FailureRecord] = []
    for entry in storage.list(names.FAILURES):
        try:
            found.append(unseal("failure", FailureRecord, storage.get(entry.name), entry.name))
        except (CorruptionError, ObjectMissing):
            continue
    return found


def times_retried(storage: Storage) -> int:
    """How often the job was tried again so far, as the newest event that can be read tells."""
    for entry in reversed(storage.list(names.FAILURES)):
        try:
            return unseal("failure", FailureRecord, storage.get(entry.name), entry.name).retried
        except (CorruptionError, ObjectMissing):
            continue
    return 0


def counted(history: list[FailureRecord]) -> list[FailureRecord]:
    """The failures that a restart strategy counts: those after the last clean stop and the last giving up."""
    since: list[FailureRecord] = []
    for record in history:
        since = [*since, record] if record.decision == "restart" else []
    return since
