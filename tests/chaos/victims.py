"""Finds, in the checkpoint of a stopped job, the file of each kind, and damages it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.chain.history import History, brings_manifest
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent
from holdfast.storage.urls import open_storage
from tests.chaos.apps import LEDGER, Place


@dataclass(frozen=True)
class Victim:
    """A stretch of a file."""

    name: str
    path: Path
    offset: int
    length: int

    def flip(self) -> None:
        """Turn one bit in the middle of the stretch."""
        data = bytearray(self.path.read_bytes())
        data[self.offset + self.length // 2] ^= 0x10
        self.path.write_bytes(bytes(data))

    def truncate(self) -> None:
        """Cut the file in the middle of the stretch."""
        self.path.write_bytes(self.path.read_bytes()[: self.offset + self.length // 2])

    def delete(self) -> None:
        self.path.unlink()


def newest_commit(place: Place) -> Victim:
    return _file(place, names.commit(_view(place).number))


def older_commit(place: Place) -> Victim:
    """The commit before the newest, unless a manifest makes it needless."""
    history = _history(place)
    newest = history.load().number
    assert not brings_manifest(history.record(newest)), "the newest commit does not need the one before"
    return _file(place, names.commit(newest - 1))


def manifest(place: Place) -> Victim:
    return _file(place, _view(place).manifest)


def next_plan(place: Place) -> Victim:
    """The plan of an epoch that was not committed."""
    return _plan(place, _view(place).last_epoch + 1)


def newest_delta(place: Place) -> Victim:
    return _extent(place, _view(place).live_deltas(LEDGER)[-1].extent)


def older_delta(place: Place) -> Victim:
    """The delta of the epoch before the newest."""
    view = _view(place)
    deltas = [delta for delta in view.live_deltas(LEDGER) if delta.version.epoch == view.last_epoch - 1]
    return _extent(place, deltas[0].extent)


def newest_snapshot(place: Place) -> Victim:
    return _file(place, _view(place).snapshots[LEDGER][-1].object)


def staged_output(place: Place) -> Victim:
    """Output that is committed and not shown."""
    return _extent(place, [file.extent for file in _view(place).staged if file.stream == LEDGER][-1])


def job_record(place: Place) -> Victim:
    return _file(place, names.JOB)


def newest_term(place: Place) -> Victim:
    return _newest(place, names.TERMS)


def newest_floor(place: Place) -> Victim:
    return _newest(place, names.FLOORS)


KINDS: dict[str, Callable[[Place], Victim]] = {
    "newest-commit": newest_commit,
    "older-commit": older_commit,
    "manifest": manifest,
    "next-plan": next_plan,
    "newest-delta": newest_delta,
    "older-delta": older_delta,
    "newest-snapshot": newest_snapshot,
    "staged-output": staged_output,
    "job": job_record,
    "term": newest_term,
    "floor": newest_floor,
}


def _history(place: Place) -> History:
    return History(open_storage(str(place.checkpoint)))


def _view(place: Place) -> CheckpointView:
    return _history(place).load()


def _plan(place: Place, epoch: int) -> Victim:
    return _newest(place, names.plans_of(epoch))


def _newest(place: Place, prefix: str) -> Victim:
    return _file(place, open_storage(str(place.checkpoint)).list(prefix)[-1].name)


def _file(place: Place, name: str) -> Victim:
    path = place.checkpoint / name
    return Victim(name, path, 0, path.stat().st_size)


def _extent(place: Place, extent: Extent) -> Victim:
    return Victim(extent.object, place.checkpoint / extent.object, extent.offset, extent.length)
