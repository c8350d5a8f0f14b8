"""Opening working state in a RocksDB directory: a snapshot is checked while it is copied, then taken whole.

Never here: the way to a version (see opening).
"""

from __future__ import annotations

from itertools import chain

from holdfast.clock import Clock
from holdfast.errors import ObjectMissing
from holdfast.state.contract import SnapshotSource, StateTarget, Version
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import MARKER_KEY
from holdfast.state.local.directories import Generation, check_room
from holdfast.state.local.marker import pack_marker
from holdfast.state.local.opening import Database
from holdfast.state.local.rocksdb_home import DIRECTORY, RocksDbHome
from holdfast.state.local.rocksdb_shard import RocksDbShard
from holdfast.state.local.rocksdb_store import RocksDbTx, Store, marker_item, write_table
from holdfast.state.local.snapshot_reader import read_snapshot
from holdfast.state.local.tables import META


class RocksDbDatabase(Database[RocksDbHome]):
    """See Database."""

    home = RocksDbHome

    def open_home(
        self, generation: Generation, lock_timeout_s: float, clock: Clock, *, may_be_lazy: bool
    ) -> RocksDbHome:
        return RocksDbHome(generation, lock_timeout_s, clock)

    def fill(self, built: Generation, identity: str, target: StateTarget, start: Version) -> None:
        marker = pack_marker(identity, start)
        store = Store(built.path / DIRECTORY)
        try:
            _take_snapshots(store, built, target, marker)

            def mark(tx: RocksDbTx) -> None:
                tx.put(META, MARKER_KEY, marker)

            store.write(mark)
        except FileNotFoundError as cause:
            raise ObjectMissing(f"snapshot {cause.filename} is gone; use a newer checkpoint") from cause
        finally:
            store.close()

    def shard(
        self, home: RocksDbHome, identity: str, version: Version, lock_timeout_s: float, clock: Clock
    ) -> RocksDbShard:
        return RocksDbShard(home, identity, version, lock_timeout_s, clock)


def _take_snapshots(store: Store, built: Generation, target: StateTarget, marker: bytes) -> None:
    groups = target.first_group, target.end_group
    sources = sorted(
        (s for s in target.snapshots if s.first_group < groups[1] and groups[0] < s.end_group),
        key=lambda source: source.first_group,
    )
    if not sources:
        return
    check_room(built.path, sum(source.length for source in sources))
    table = built.path / "restored.sst"
    if len(sources) == 1 and _as_it_is(sources[0]):
        with snapshot_file.opened(sources[0]) as file:
            snapshot_file.copy_checked(sources[0], file, table)
        store.ingest(table)
        store.cut(_group_key(groups[0]), _group_key(groups[1]))
    else:
        entries = chain.from_iterable(read_snapshot(source, *groups) for source in sources)
        write_table(table, chain(entries, [marker_item(MARKER_KEY, marker)]))
        store.ingest(table)


def _as_it_is(source: SnapshotSource) -> bool:
    return source.backend == "rocksdb" and source.convert is None


def _group_key(group: int) -> bytes:
    return min(group, 0xFFFF).to_bytes(2, "big")
