"""Pins: commits that are being read, so that retention keeps all of them.

Always true: a pin that `pin` returned was in storage before its commit was given up, so no retirement
misses it; a pin ends by being removed, or at the time that it names itself. A damaged pin holds back all
retirement, since what it protects is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import PinRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, DefinitionError, ObjectMissing, RestoreError
from holdfast.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class Pins:
    """All pins in storage; `damaged` names those that cannot be read."""

    records: tuple[PinRecord, ...]
    damaged: tuple[str, ...]

    def held_at(self, now_ms: int) -> list[PinRecord]:
        """Those that are not void. A wrong clock costs a reader its commit, never the job its state."""
        return [record for record in self.records if not 0 < record.expires_ms <= now_ms]


def pin(history: History, name: str, commit: int, holder: str, now_ms: int, expires_ms: int = 0) -> PinRecord:
    """Keep commit `commit` readable until `unpin(name)`, or until `expires_ms` if that is not 0.

    RestoreError: it is already given up, or the name is taken.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise DefinitionError(
            f"{name!r} cannot name a pin; use letters, digits, '.', '_' and '-', at most 100"
        )
    record = PinRecord(name=name, commit=commit, holder=holder, pinned_ms=now_ms, expires_ms=expires_ms)
    data = seal("pin", record)
    if write_once(history.storage, names.pin(name), data) != data:
        raise RestoreError(f"pin {name!r} exists already; remove it first, or choose another name")
    # Looked at after the pin is durable: a record that gives the commit up later comes after the pin.
    try:
        newest = history.load()
    except CorruptionError:
        unpin(history.storage, [name])
        raise
    if not newest.retained_from <= commit <= newest.number:
        unpin(history.storage, [name])
        retained = f"{newest.retained_from} to {newest.number}"
        raise RestoreError(
            f"commit {commit} cannot be pinned, it is not retained (retained: {retained}); choose another"
        )
    return record


def unpin(storage: Storage, pin_names: Iterable[str]) -> None:
    """Remove pins; missing ones are fine."""
    storage.delete([names.pin(name) for name in pin_names])


def release(storage: Storage, prefix: str, *, but_of: str) -> list[str]:
    """Remove the pins named by `prefix` of all holders but one: theirs have ended, and left these behind.

    One that is alive after all finds a file missing, says so, and has done no harm.
    """
    stale = [
        record.name
        for record in read_pins(storage).records
        if record.name.startswith(prefix) and record.holder != but_of
    ]
    unpin(storage, stale)
    return stale


def read_pins(storage: Storage) -> Pins:
    """Every pin that is in storage now."""
    records: list[PinRecord] = []
    damaged: list[str] = []
    for entry in storage.list(names.PINS):
        try:
            records.append(unseal("pin", PinRecord, storage.get(entry.name), entry.name))
        except ObjectMissing:
            continue
        except CorruptionError:
            damaged.append(entry.name)
    return Pins(tuple(records), tuple(damaged))
