"""The end of a lazy restore: the overlay is merged into a copy of its base, as the next generation.

The cost follows the overlay, not the state: the base was copied behind. Whoever still has the old generation
open goes on there unharmed, and finds the new one at its next opening.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import StorageError
from holdfast.state.contract import StaleWorkingState
from holdfast.state.local import snapshot_file
from holdfast.state.local.directories import Generation, begin, newest, publish
from holdfast.state.local.lmdb_home import BASE_KEY, LmdbHome
from holdfast.state.local.lmdb_store import PAGE_BYTES, LmdbTx, Store
from holdfast.state.local.tables import DATA, GONE, META, UNDO


def ready(home: LmdbHome) -> bool:
    """Whether a copy of the base lies ready."""
    return home.source is not None and home.generation.has(snapshot_file.COPY)


def promote(home: LmdbHome, lock_timeout_s: float, clock: Clock) -> Path | None:
    """Merge, and publish the next generation. None: another generation was begun meanwhile.

    Copies the base first if no copy lies ready. LockTimeout as ever; nothing has changed then.
    """
    directory = home.generation.path.parent
    built = begin(directory)
    try:
        if not ready(home):
            _copy_base(home, built)
        with home.generation.locked(lock_timeout_s, clock):
            if newest(directory) != home.generation.path:
                return None
            if not built.file.exists():
                try:
                    os.rename(home.generation.path / snapshot_file.COPY, built.file)
                except FileNotFoundError as cause:
                    raise StaleWorkingState(f"{home.generation.path} was merged by someone else") from cause
            _merge(home, built)
            return publish(built, home.generation.path)
    finally:
        built.release()


def _copy_base(home: LmdbHome, built: Generation) -> None:
    assert home.source is not None
    assert home.follower is not None
    home.follower.wait_done()
    if ready(home):
        return
    home.follower.wait_verified()
    try:
        snapshot_file.copy_checked(home.source, home.base_file, built.file)
    except OSError as cause:
        raise StorageError(f"cannot copy snapshot {home.source.path} to {built.path}: {cause}") from cause


def _merge(home: LmdbHome, built: Generation) -> None:
    merged = Store(built.file)
    try:
        changed = home.store.read(lambda overlay: overlay.count(DATA) + overlay.count(GONE))
        bytes_needed = changed * PAGE_BYTES
        home.store.read(lambda overlay: merged.write(lambda tx: _copy_overlay(overlay, tx), bytes_needed))
    finally:
        merged.close()


def _copy_overlay(overlay: LmdbTx, merged: LmdbTx) -> None:
    for table in (META, UNDO):
        merged.clear(table)
        merged.put_many(table, overlay.items(table))
    merged.delete_many(META, [BASE_KEY])
    merged.put_many(DATA, overlay.items(DATA))
    merged.delete_many(DATA, (key for key, _ in overlay.items(GONE)))
