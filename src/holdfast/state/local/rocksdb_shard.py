"""ShardState over a RocksDB directory.

Never here: what all backends do alike (see shard), getting to a version (see opening).
"""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path

from holdfast.state.contract import SnapshotInfo, StaleWorkingState, Version
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import MARKER_KEY
from holdfast.state.local.directories import LockTimeout, begin
from holdfast.state.local.marker import read_marker
from holdfast.state.local.rocksdb_home import RocksDbHome
from holdfast.state.local.rocksdb_store import RocksDbTx, Store, marker_item, write_table
from holdfast.state.local.shard_state import Shard
from holdfast.state.local.tables import DATA, META, UnusableStore


class RocksDbShard(Shard[RocksDbHome]):
    """See ShardState."""

    def size_bytes(self) -> int:
        try:
            with self._home.awake() as store:
                return store.size_bytes()
        except (LockTimeout, UnusableStore) as cause:
            raise self._judge(cause) from cause

    def snapshot(self, to: Path) -> SnapshotInfo:
        if to.exists():
            raise FileExistsError(to)
        # Swept like a half-built generation if this process dies.
        scratch = begin(self._home.generation.path.parent)
        try:
            view = scratch.path / "view"
            with self._home.awake() as store:
                store.link_to(view)
            self._home.rest_if_only_user()
            version = self._write(view, to)
        except (LockTimeout, UnusableStore) as cause:
            to.unlink(missing_ok=True)
            raise self._judge(cause) from cause
        except BaseException:
            to.unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(scratch.path, ignore_errors=True)
            scratch.release()
        return snapshot_file.describe(to, version)

    def _write(self, view: Path, to: Path) -> Version:
        """Write the entries of the linked directory, and its marker, to one table file."""

        def work(tx: RocksDbTx) -> Version:
            marker = tx.get(META, MARKER_KEY)
            version = read_marker(marker, self._identity)
            if marker is None or version is None:
                raise StaleWorkingState(f"{self._home.generation.path} changed hands; open it again")
            write_table(to, chain(tx.items(DATA), [marker_item(MARKER_KEY, marker)]))
            return version

        store = Store(view, readonly=True)
        try:
            return store.read(work)
        finally:
            store.close()
