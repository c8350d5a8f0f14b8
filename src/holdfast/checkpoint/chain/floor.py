"""The floor: commit names at or below it are used up for ever.

Always true: the floor was raised durably before any commit record at or below it was deleted, so whoever
manages to create such a name again learns here that it was late. The highest floor record counts.
"""

from __future__ import annotations

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import FloorRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.ids import CommitNumber
from holdfast.storage.contract import Storage

FLOORS_KEPT = 2
"""Two, so that a listing that races with a raise never shows none."""


def read_floor(storage: Storage) -> CommitNumber:
    """The highest floor, from names alone; 0 when it was never raised."""
    return CommitNumber(
        max((names.number_of(entry.name) or 0 for entry in storage.list(names.FLOORS)), default=0)
    )


def raise_floor(storage: Storage, record: FloorRecord) -> None:
    """Make `record.floor` the floor. Another leader's record under the same name says the same."""
    write_once(storage, names.floor(record.floor), seal("floor", record))


def outdated_floors(storage: Storage) -> list[str]:
    """Names of floor records that may be deleted; never the highest."""
    return [entry.name for entry in storage.list(names.FLOORS)][:-FLOORS_KEPT]
