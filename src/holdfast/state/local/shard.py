"""A shard's working state, as tasks see it: ShardState over a database that this process has open.

Always true: a read returns values of `version` or raises; it never looks at the state without looking at the
marker.
Never here: getting to a version (see backends).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Generic, TypeVar

from holdfast.state.contract import Arrival, Entries, SnapshotInfo, StaleWorkingState, Version
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import MARKER_KEY, Database, Read
from holdfast.state.local.directories import LockTimeout
from holdfast.state.local.tables import DATA, META, Tx, UnusableStore, pack_marker

SCAN_PAGES = (16, 256, 2048)
"""Entries that a scan reads in its first, its second and every further transaction: most scans are short."""
REMEMBERED_MAX = 1_000_000
"""Values remembered from reads, so that applying the epoch need not read them again for its undo."""

D = TypeVar("D", bound=Database)
T = TypeVar("T")
Item = tuple[bytes, bytes]


class Shard(ABC, Generic[D]):
    """See ShardState."""

    def __init__(self, database: D, identity: str, version: Version) -> None:
        self._database, self._identity, self._version = database, identity, version
        self._marker = pack_marker(identity, version)
        self._reads: list[Read] = []
        self._remembered = 0
        self._closed = False
        self.arrival = Arrival.THERE
        database.hold()

    @property
    def version(self) -> Version:
        return self._version

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._read(lambda tx: self._database.look_up(tx, keys))
        if self._remembered + len(keys) <= REMEMBERED_MAX:
            # Copies: what the caller does to its lists must not reach the undo.
            self._reads.append((list(keys), list(values)))
            self._remembered += len(keys)
        return values

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def scan(self, prefix: bytes, end: bytes | None = None, start: bytes = b"") -> Iterator[Item]:
        first = prefix + start
        for limit in chain(SCAN_PAGES, repeat(SCAN_PAGES[-1])):
            page, more_from = self._read(partial(self._page, first=first, limit=limit))
            for key, value in page:
                if not key.startswith(prefix) or (end is not None and key >= end):
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
            self._before_apply()
            with self._database.locked():
                self._database.apply(
                    self._identity, parent, version, entries, committed=committed, undo=undo, reads=reads
                )
        except (LockTimeout, UnusableStore) as cause:
            raise self._judge(cause) from cause
        self._version, self._marker = version, pack_marker(self._identity, version)
        self._reads, self._remembered = [], 0

    @abstractmethod
    def size_bytes(self) -> int:
        """See ShardState."""

    @abstractmethod
    def snapshot(self, to: Path) -> SnapshotInfo:
        """See ShardState."""

    def verify_base(self) -> None:
        """See ShardState. Nothing to do where snapshots are checked before they are opened."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._database.let_go()

    def _before_apply(self) -> None:
        """What is done between epochs."""

    def _page(self, tx: Tx, first: bytes, limit: int) -> tuple[list[Item], bytes | None]:
        """Some visible entries from `first` on, and where the next page begins."""
        page = tx.page(DATA, first, limit)
        return page, next_first([page], limit)

    def _read(self, work: Callable[[Tx], T]) -> T:
        def checked(tx: Tx) -> T:
            self._check(tx)
            return work(tx)

        try:
            return self._database.read(checked)
        except (LockTimeout, UnusableStore) as cause:
            raise self._judge(cause) from cause

    def _check(self, tx: Tx) -> None:
        if tx.get(META, MARKER_KEY) != self._marker:
            raise StaleWorkingState(f"working state is no longer at {self._version}; open it again")

    def _judge(self, cause: LockTimeout | UnusableStore) -> StaleWorkingState:
        """See to it that this directory is not opened again."""
        if isinstance(cause, LockTimeout):
            self._database.given_up = True
            return StaleWorkingState(f"{cause}; open it again, elsewhere")
        self._database.directory.flag(snapshot_file.CONDEMNED)
        return StaleWorkingState(f"{cause}; open it again, it will be rebuilt")


def next_first(pages: list[list[Item]], limit: int) -> bytes | None:
    """Where to go on after pages of at most `limit` items that were read from the same key on. None: all were
    read to the end."""
    lasts = [page[-1][0] for page in pages if len(page) == limit]
    return min(lasts) + b"\x00" if lasts else None
