"""The only door to LMDB: one file of named tables, opened once per process.

Always true: a write transaction happens whole or not at all, also when its process is killed in it. Nothing
is synced, so this does not hold for a crash of the machine: the marker's boot id covers that. A full disk is
an error: pages are written, not changed through the map, where a page without room kills the process
([decision 020](../../../docs/decisions/020-working-state-is-written-not-mapped.md)).
Never here: who may write when. LMDB's own writer lock waits for a stopped process without end, so opening a
file and beginning a write need the directory's lock, which gives up (see directories).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from holdfast.errors import StorageError
from holdfast.state.local.directories import check_room, free_bytes
from holdfast.state.local.tables import TABLES, UnusableStore

MAP_BYTES = 4 << 30
"""Address space mapped at first; doubled whenever a transaction does not fit. Costs no memory and no disk."""

READERS_MAX = 512
PAGE_BYTES = 4096
LOCK_BYTES = 64 << 10
"""Room for the table of readers, which LMDB changes through a map of its own."""
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a commit fails with when the file system takes no more: LMDB calls a write cut short an I/O error."""

T = TypeVar("T")
_shared: dict[str, tuple[Store, int]] = {}
_shared_lock = threading.Lock()


class LmdbTx:
    """See tables.Tx."""

    def __init__(self, txn: Any, tables: dict[bytes, Any]) -> None:
        self._txn, self._tables = txn, tables

    def get(self, table: bytes, key: bytes) -> bytes | None:
        value: bytes | None = self._txn.get(key, db=self._tables[table])
        return value

    def get_many(self, table: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        # Measured: a third faster than cursor.getmulti, which also builds a copy of each key and a pair.
        return list(map(self._txn.get, keys, repeat(None), repeat(self._tables[table])))

    def count(self, table: bytes) -> int:
        return int(self._txn.stat(self._tables[table])["entries"])

    def put(self, table: bytes, key: bytes, value: bytes) -> None:
        self._txn.put(key, value, db=self._tables[table])

    def put_many(self, table: bytes, items: Iterable[tuple[bytes, bytes]], append: bool = False) -> None:
        """Store sorted items. `append`: every key is above all that the table holds."""
        with self._txn.cursor(self._tables[table]) as cursor:
            cursor.putmulti(items, append=append)

    def delete_many(self, table: bytes, keys: Iterable[bytes]) -> None:
        handle = self._tables[table]
        for key in keys:
            self._txn.delete(key, db=handle)

    def clear(self, table: bytes) -> None:
        self._txn.drop(self._tables[table], delete=False)

    def items(
        self, table: bytes, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Items in key order from `first` (in) to `end` (out; None: to the last)."""
        with self._txn.cursor(self._tables[table]) as cursor:
            if not (cursor.set_range(first) if first else cursor.first()):
                return
            for key, value in cursor.iternext(True, True):
                if end is not None and key >= end:
                    return
                yield key, value

    def page(
        self, table: bytes, first: bytes, limit: int, end: bytes | None = None
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` items from `first` (in) on, to `end` (out; None: to the last)."""
        return list(islice(self.items(table, first, end), limit))


class Store:
    """A file of tables. One transaction at a time per thread; any number of processes."""

    def __init__(self, path: Path, *, readonly: bool = False, map_bytes: int = MAP_BYTES) -> None:
        self.path = path
        if not readonly:
            _make_lock_file(path)
        try:
            self._env = lmdb.open(
                str(path),
                map_size=0 if readonly else map_bytes,
                subdir=False,
                readonly=readonly,
                lock=not readonly,
                sync=False,
                metasync=False,
                readahead=False,
                max_dbs=len(TABLES),
                max_readers=READERS_MAX,
            )
            self._tables = self._open_tables(readonly)
        except lmdb.Error as cause:
            if not readonly and _is_refusal(cause):
                raise _full(path, path.stat().st_size, PAGE_BYTES) from cause
            raise UnusableStore(f"{path}: {cause}") from cause

    def _open_tables(self, readonly: bool) -> dict[bytes, Any]:
        if not readonly:
            self._env.reader_check()  # a killed reader would keep old pages from being used again
        return {name: self._env.open_db(name, create=not readonly) for name in TABLES}

    def read(self, work: Callable[[LmdbTx], T]) -> T:
        """Run `work` on one consistent view."""
        while True:
            try:
                with self._env.begin() as txn:
                    return work(LmdbTx(txn, self._tables))
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)
            except lmdb.Error as cause:
                raise UnusableStore(f"{self.path}: {cause}") from cause

    def write(self, work: Callable[[LmdbTx], T], bytes_needed: int = 0) -> T:
        """Run `work` in one write transaction; an exception undoes all of it.

        `work` runs again when the map was too small. `bytes_needed`: about how much the file may grow.
        StorageError when the disk has no room: nothing was written, and the file is as long as before.
        """
        check_room(self.path.parent, bytes_needed)
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    return work(LmdbTx(txn, self._tables))
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)
            except lmdb.MapFullError:
                self._env.set_mapsize(self._env.info()["map_size"] * 2)
            except lmdb.Error as cause:
                if _is_refusal(cause):
                    raise self._give_back(bytes_needed) from cause
                raise UnusableStore(f"{self.path}: {cause}") from cause

    def _give_back(self, bytes_needed: int) -> StorageError:
        """Cut off the pages of a failed transaction, to which nothing refers; say what it lacked."""
        used, reached = self.size_bytes(), self.path.stat().st_size
        if reached > used:
            os.truncate(self.path, used)
        return _full(self.path, used, max(bytes_needed, reached - used))

    def copy_to(self, file: int, before: Callable[[LmdbTx], T]) -> T:
        """Write a compact copy of one view to the open file; return what `before` read in that same view."""
        try:
            with self._env.begin() as txn:
                result = before(LmdbTx(txn, self._tables))
                self._env.copyfd(file, compact=True, txn=txn)
                return result
        except lmdb.Error as cause:
            raise StorageError(
                f"cannot write a snapshot of {self.path}: {cause}; free space where it goes, or try again"
            ) from cause

    def size_bytes(self) -> int:
        """Bytes of the file that were ever used."""
        info = self._env.info()
        return int((info["last_pgno"] + 1) * self._env.stat()["psize"])

    def close(self) -> None:
        self._env.close()


def _make_lock_file(path: Path) -> None:
    """See to it that LMDB's lock file has its room on the disk: it is changed through a map."""
    try:
        file = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(file, 0, LOCK_BYTES)
        finally:
            os.close(file)
    except OSError as cause:
        if cause.errno in _REFUSED:
            raise _full(path, 0, LOCK_BYTES) from cause
        raise


def _full(path: Path, used: int, needed: int) -> StorageError:
    """The error for what the file system did not take."""
    free = free_bytes(path.parent)
    return StorageError(
        f"disk full: working state in {path.parent} has {used >> 20} MiB and needs more than "
        f"{needed / (1 << 20):.1f} MiB besides, {free >> 20} MiB are free, nothing was written; free space "
        "there or raise the quota or file size limit, or if that is backend='memory' use backend='lmdb'"
    )


def _is_refusal(cause: lmdb.Error) -> bool:
    return any(os.strerror(code) in str(cause) for code in _REFUSED)


def share_readonly(path: Path) -> Store:
    """Map a file that is not written to. LMDB allows one opening per process, so its users share it."""
    name = os.path.realpath(path)
    with _shared_lock:
        store, users = _shared.get(name, (None, 0))
        if store is None:
            store = Store(Path(name), readonly=True)
        _shared[name] = (store, users + 1)
        return store


def release_readonly(store: Store) -> None:
    """Give back what `share_readonly` gave."""
    with _shared_lock:
        name = str(store.path)
        users = _shared[name][1] - 1
        if users:
            _shared[name] = (store, users)
        else:
            del _shared[name]
            store.close()


def _close_shared_after_fork() -> None:
    """In a forked child: let go of what the parent shares. Its own handles stay open there."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for store, _ in _shared.values():
        store.close()
    _shared.clear()


with contextlib.suppress(AttributeError):  # no fork on this system
    os.register_at_fork(after_in_child=_close_shared_after_fork)
