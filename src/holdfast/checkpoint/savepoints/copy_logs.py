"""The unread part of received logs, in savepoints: what was acknowledged to a sender is nowhere else.

Always true: a savepoint holds, of each log, every batch after the position up to a number that it names, and
a checkpoint that begins with it has them before its first commit. Not here: what is received after the
savepoint was taken, by the job that goes on: it is in that job's log.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.log.received import FLOOR_KIND, unpacked
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal_bytes
from holdfast.checkpoint.store.records import Json
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.storage.contract import Storage


def copy_unread(storage: Storage, target: Storage, positions: Mapping[str, Json]) -> None:
    """Copy what the logs of a checkpoint hold after these positions into a savepoint. CorruptionError: some
    of it is missing."""
    for source, batches in _logs(storage).items():
        position = positions.get(source)
        read = position["batch"] if position else 0
        end = max([read, *batches])
        # Each by its number: a listing need not show what is written while it runs.
        for number in range(read + 1, end + 1):
            _copy(storage, target, source, number)
        floor = names.log_floor(source, read)
        write_once(target, floor, seal_bytes(FLOOR_KIND, b""))
        target.put(names.log_end(source, end), seal_bytes(FLOOR_KIND, b""))


def take_over(savepoint: Storage, storage: Storage) -> None:
    """Begin the logs of a checkpoint with those of a savepoint. Called again after it was interrupted, it
    goes on. CorruptionError: some of them is missing."""
    for entry in savepoint.list(names.LOGS):
        source, kind, number = _parsed(entry.name)
        if kind == "end":
            floor = max(
                (_parsed(each.name)[2] for each in savepoint.list(names.log_floors_of(source))), default=0
            )
            for wanted in range(floor + 1, number + 1):
                _copy(savepoint, storage, source, wanted)
            write_once(storage, names.log_floor(source, floor), seal_bytes(FLOOR_KIND, b""))


def _copy(storage: Storage, target: Storage, source: str, number: int) -> None:
    name = names.log_batch(source, number)
    try:
        data = storage.get(name)
    except ObjectMissing as cause:
        raise CorruptionError(f"{name} is missing in {storage.url}; restore it from a copy") from cause
    unpacked(data, number, name)
    write_once(target, name, data)


def _logs(storage: Storage) -> dict[str, list[int]]:
    """The batches of every log that a checkpoint has."""
    found: dict[str, list[int]] = {}
    for entry in storage.list(names.LOGS):
        source, kind, number = _parsed(entry.name)
        batches = found.setdefault(source, [])
        if not kind:
            batches.append(number)
    return found


def _parsed(name: str) -> tuple[str, str, int]:
    """Source, kind (empty: a batch) and number of a name in a log."""
    source, *kind, number = name.removeprefix(names.LOGS).split("/")
    return source, kind[0] if kind else "", int(number)
