"""Opening working state in LMDB files: a snapshot of the same key groups is mapped and read at once.

Never here: the way to a version (see opening).
"""

from __future__ import annotations

from itertools import chain

from holdfast.clock import Clock
from holdfast.errors import ObjectMissing
from holdfast.state.contract import StateTarget, Version
from holdfast.state.local import promotion, snapshot_file
from holdfast.state.local.database import MARKER_KEY
from holdfast.state.local.directories import Generation
from holdfast.state.local.lmdb_home import BASE_KEY, LmdbHome
from holdfast.state.local.lmdb_shard import LmdbShard
from holdfast.state.local.lmdb_store import MAP_BYTES, LmdbTx, Store
from holdfast.state.local.marker import pack_base, pack_marker
from holdfast.state.local.opening import Database
from holdfast.state.local.snapshot_reader import read_snapshot
from holdfast.state.local.tables import DATA, META

GROWTH = 2
"""Entries copied from a file of another format may take this much more room here."""


class LmdbDatabase(Database[LmdbHome]):
    """See Database."""

    home = LmdbHome

    def open_home(
        self, generation: Generation, lock_timeout_s: float, clock: Clock, *, may_be_lazy: bool
    ) -> LmdbHome:
        return LmdbHome(generation, lock_timeout_s, clock, may_be_lazy=may_be_lazy)

    def fill(self, built: Generation, identity: str, target: StateTarget, start: Version) -> None:
        length = sum(source.length for source in target.snapshots)
        store = Store(built.file, map_bytes=max(MAP_BYTES, 2 * length))
        try:
            _fill(store, identity, target, start)
        finally:
            store.close()

    def shard(
        self, home: LmdbHome, identity: str, version: Version, lock_timeout_s: float, clock: Clock
    ) -> LmdbShard:
        return LmdbShard(home, identity, version, lock_timeout_s, clock)

    def move_on(self, home: LmdbHome, lock_timeout_s: float, clock: Clock) -> bool:
        if not promotion.ready(home):
            return False
        promotion.promote(home, lock_timeout_s, clock)
        return True


def _fill(store: Store, identity: str, target: StateTarget, start: Version) -> None:
    sources = sorted(target.snapshots, key=lambda source: source.first_group)
    groups = target.first_group, target.end_group
    lazy = [
        source
        for source in sources
        if (source.first_group, source.end_group) == groups
        and source.backend == "lmdb"
        and source.convert is None
    ]

    def work(tx: LmdbTx) -> None:
        tx.put(META, MARKER_KEY, pack_marker(identity, start))
        if lazy:
            with snapshot_file.opened(lazy[0]):
                tx.put(META, BASE_KEY, pack_base(lazy[0]))
        else:
            entries = chain.from_iterable(read_snapshot(source, *groups) for source in sources)
            tx.put_many(DATA, entries, append=True)

    try:
        store.write(work, bytes_needed=0 if lazy else GROWTH * sum(source.length for source in sources))
    except FileNotFoundError as cause:
        raise ObjectMissing(f"snapshot {cause.filename} is gone; use a newer checkpoint") from cause
