"""ShardState over LMDB files, and over a base that is still being restored.

Never here: what all backends do alike (see shard), getting to a version (see opening).
"""

from __future__ import annotations

import os
from heapq import merge
from pathlib import Path

from holdfast.state.contract import SnapshotInfo, StaleWorkingState
from holdfast.state.local import promotion, snapshot_file
from holdfast.state.local.database import MARKER_KEY, set_home
from holdfast.state.local.directories import LockTimeout, enter
from holdfast.state.local.lmdb_home import LmdbHome
from holdfast.state.local.marker import read_marker
from holdfast.state.local.shard_state import Item, Shard, next_first
from holdfast.state.local.tables import DATA, GONE, META, Tx, UnusableStore


class LmdbShard(Shard[LmdbHome]):
    """See ShardState."""

    def entry_count(self) -> int:
        def count(tx: Tx) -> int:
            own = tx.count(DATA)
            if self._home.base is None:
                return own
            changed = [key for table in (DATA, GONE) for key, _ in tx.items(table)]
            below = self._home.read_base(lambda base: base.get_many(DATA, changed))
            hidden = sum(value is not None for value in below)
            return own + self._home.read_base(lambda base: base.count(DATA)) - hidden

        return self._read(count)

    def size_bytes(self) -> int:
        source = self._home.source
        return self._home.store.size_bytes() + (source.length if source else 0)

    def snapshot(self, to: Path) -> SnapshotInfo:
        if self._home.source is not None:
            try:
                self._promote()
            except (LockTimeout, UnusableStore) as cause:
                raise self._judge(cause) from cause
            if self._home.source is not None:
                raise StaleWorkingState(f"{self._home.generation.path} was superseded; open it again")
        file = os.open(to, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            marker = self._home.store.copy_to(file, lambda tx: tx.get(META, MARKER_KEY))
        except BaseException:
            to.unlink()
            raise
        finally:
            os.close(file)
        version = read_marker(marker, self._identity)
        assert version is not None, f"the marker of {self._home.generation.path} changed hands"
        return snapshot_file.describe(to, version)

    def verify_base(self) -> None:
        if self._home.follower is not None:
            self._home.follower.wait_verified()

    def _before_apply(self) -> None:
        if promotion.ready(self._home):
            self._promote()

    def _page(self, tx: Tx, first: bytes, limit: int) -> tuple[list[Item], bytes | None]:
        own = tx.page(DATA, first, limit)
        if self._home.base is None:
            return own, next_first([own], limit)
        gone = tx.page(GONE, first, limit)
        below = self._home.read_base(lambda base: base.page(DATA, first, limit))
        # A full page may have more keys behind its last one: what lies above that is left to the next page.
        more_from = next_first([own, gone, below], limit)
        hidden = {key for key, _ in own} | {key for key, _ in gone}
        shown = merge(own, (item for item in below if item[0] not in hidden))
        return [item for item in shown if more_from is None or item[0] < more_from], more_from

    def _promote(self) -> None:
        """Go over to the merged generation, unless another one was begun."""
        before = self._home
        path = promotion.promote(before, self._lock_timeout_s, self._clock)
        generation = enter(path) if path else None
        if generation is None:
            return
        home = LmdbHome(generation, self._lock_timeout_s, self._clock, may_be_lazy=False)
        home.hold()
        set_home(before.generation.path.parent, home)
        self._home = home
        before.let_go()
