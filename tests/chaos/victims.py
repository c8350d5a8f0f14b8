"""Finds, in the checkpoint of a stopped job, the file of each kind, and damages it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint import names
from holdfast.checkpoint.history import History, brings_manifest
from holdfast.checkpoint.records import Extent
from holdfast.checkpoint.view import CheckpointView
from holdfast.storage.places import open_storage
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


def replayed_plan(place: Place) -> Victim:
    """The plan of the last epoch that was shown."""
    return _plan(place, min(_view(place).published_through.values()))


def newest_delta(place: Place) -> Victim:
    return _extent(place, _view(place).live_deltas(LEDGER)[-1].extent)


def oldest_needed_delta(place: Place) -> Victim:
    """The first delta after the newest snapshot of its range."""
    view = _view(place)
    delta = view.live_deltas(LEDGER)[-1]
    group_range = (delta.first_group, delta.end_group)
    snapshot = max(
        (f.version.epoch for f in view.snapshots.get(LEDGER, ()) if (f.first_group, f.end_group) == group_range),
        default=0,
    )
    return _extent(
        place, next(d for d in view.deltas[LEDGER][group_range] if d.version.epoch > snapshot).extent
    )


def newest_snapshot(place: Place) -> Victim:
    return _file(place, _view(place).snapshots[LEDGER][-1].object)


def staged_output(place: Place) -> Victim:
    """Output that is committed and not shown."""
    view = _view(place)
    shown = min(view.published_through.values())
    return _extent(place, next(f.extent for f in view.staged if f.stream == LEDGER and f.epoch > shown + 1))


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
    "oldest-delta": oldest_needed_delta,
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
