"""A shard's working state, as tasks see it: ShardState over a generation of LMDB files.

Always true: a read returns values of `version` or raises; it never looks at the state without looking at the
marker.
Never here: getting to a version (see opening).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from pathlib import Path
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import CorruptionError
from holdfast.state import promotion, snapshot
from holdfast.state.generations import LockTimeout, enter
from holdfast.state.home import MARKER_KEY, Home, Read, set_home
from holdfast.state.lmdb import DATA, GONE, META, Tx, UnusableStore
from holdfast.state.marker import pack_marker, read_marker
from holdfast.state.working import Entries, SnapshotInfo, StaleWorkingState, Version

SCAN_PAGE = 2048
"""Entries that a scan reads in one transaction."""
REMEMBERED_MAX = 1_000_000
"""Values remembered from reads, so that applying the epoch need not read them again for its undo."""

T = TypeVar("T")
Item = tuple[bytes, bytes]


class LmdbShard:
    """See ShardState."""

    def __init__(
        self, home: Home, identity: str, version: Version, lock_timeout_s: float, clock: Clock
    ) -> None:
        self._home, self._identity, self._version = home, identity, version
        self._lock_timeout_s, self._clock = lock_timeout_s, clock
        self._marker = pack_marker(identity, version)
        self._reads: list[Read] = []
        self._remembered = 0
        self._closed = False
        home.hold()

    @property
    def version(self) -> Version:
        return self._version

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._read(lambda tx: self._home.look_up(tx, keys))
        if self._remembered + len(keys) <= REMEMBERED_MAX:
            # Copies: what the caller does to its lists must not reach the undo.
            self._reads.append((list(keys), list(values)))
            self._remembered += len(keys)
        return values

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def scan(self, prefix: bytes) -> Iterator[Item]:
        first = prefix
        while True:
            page, more_from = self._read(lambda tx, first=first: self._page(tx, first))  # type: ignore[misc]
            for key, value in page:
                if not key.startswith(prefix):
                    return
                yield key, value
            if more_from is None:
                return
            first = more_from

    def apply(
        self, parent: Version, version: Version, entries: Entries, committed: int, undo: bool = True
    ) -> None:
        reads = self._reads if parent == self._version else []
        try:
            if promotion.ready(self._home):
                self._promote()
            with self._home.generation.locked(self._lock_timeout_s, self._clock):
                self._home.apply(
                    self._identity, parent, version, entries, committed=committed, undo=undo, reads=reads
                )
        except LockTimeout as cause:
            self._home.given_up = True
            raise StaleWorkingState(f"{cause}; open it again, elsewhere") from cause
        except UnusableStore as cause:
            raise self._condemn(cause) from cause
        self._version, self._marker = version, pack_marker(self._identity, version)
        self._reads, self._remembered = [], 0

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
            except LockTimeout as cause:
                self._home.given_up = True
                raise StaleWorkingState(f"{cause}; open it again, elsewhere") from cause
            except UnusableStore as cause:
                raise self._condemn(cause) from cause
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
        return snapshot.describe(to, version)

    def verify_base(self) -> None:
        if self._home.follower is not None:
            self._home.follower.wait_verified()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._home.let_go()

    def _read(self, work: Callable[[Tx], T]) -> T:
        def checked(tx: Tx) -> T:
            self._check(tx)
            return work(tx)

        try:
            return self._home.store.read(checked)
        except UnusableStore as cause:
            raise self._condemn(cause) from cause

    def _check(self, tx: Tx) -> None:
        if tx.get(META, MARKER_KEY) != self._marker:
            raise StaleWorkingState(f"working state is no longer at {self._version}; open it again")

    def _page(self, tx: Tx, first: bytes) -> tuple[list[Item], bytes | None]:
        """Some visible entries from `first` on, and where the next page begins."""
        own = tx.page(DATA, first, SCAN_PAGE)
        if self._home.base is None:
            return own, _next_first([own])
        gone = tx.page(GONE, first, SCAN_PAGE)
        below = self._home.read_base(lambda base: base.page(DATA, first, SCAN_PAGE))
        # A full page may have more keys behind its last one: what lies above that is left to the next page.
        more_from = _next_first([own, gone, below])
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
        home = Home(generation, self._lock_timeout_s, self._clock, may_be_lazy=False)
        home.hold()
        set_home(before.generation.path.parent, home)
        self._home = home
        before.let_go()

    def _condemn(self, cause: UnusableStore) -> StaleWorkingState | CorruptionError:
        self._home.generation.flag(snapshot.CONDEMNED)
        return StaleWorkingState(f"{cause}; open it again, it will be rebuilt")


def _next_first(pages: list[list[Item]]) -> bytes | None:
    lasts = [page[-1][0] for page in pages if len(page) == SCAN_PAGE]
    return min(lasts) + b"\x00" if lasts else None
