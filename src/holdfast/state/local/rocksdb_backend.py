"""Working state in a RocksDB directory. A snapshot is checked while it is copied, then taken whole.

One process at a time can have a RocksDB directory open. So it is awake, open and locked, only while some
handle of this process is in use; others wait for the lock, or begin the next directory.
Always true: a process that has the RocksDB directory open holds the lock of the directory that it lies in.
Never here: marker, undo and versions (see database), the way to a version (see backends).
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Self, TypeVar

from holdfast.errors import ObjectMissing, StorageError
from holdfast.state.contract import SnapshotInfo, StaleWorkingState, StateTarget, Version
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import MARKER_KEY, Database
from holdfast.state.local.directories import Directory, LockTimeout, begin, check_room
from holdfast.state.local.rocksdb_store import RocksDbTx, Store, marker_item, write_table
from holdfast.state.local.shard import Shard
from holdfast.state.local.snapshot_reader import read_snapshot
from holdfast.state.local.tables import DATA, META, Tx, UnusableStore, pack_marker, read_marker
from holdfast.storage.file_lock import FileLock

SUBDIRECTORY = "rocksdb"

T = TypeVar("T")


class RocksDbDatabase(Database):
    """See Database."""

    entry_bytes = 512

    def __init__(self, directory: Directory) -> None:
        super().__init__(directory)
        self._path = directory.path / SUBDIRECTORY
        self._store: Store | None = None
        self._lock: FileLock | None = None
        # Threads of one process share the open directory: no read may see half of another's write.
        self._guard = threading.RLock()
        if not self._path.is_dir():
            raise UnusableStore(f"{directory.path} holds no RocksDB directory")

    @classmethod
    def open(cls, directory: Directory, *, may_be_lazy: bool) -> Self:
        return cls(directory)

    @staticmethod
    def fill(built: Directory, identity: str, target: StateTarget, start: Version) -> None:
        marker = pack_marker(identity, start)
        store = Store(built.path / SUBDIRECTORY)
        try:
            _take_snapshots(store, built, target, marker)
            store.write(lambda tx: tx.put(META, MARKER_KEY, marker))
        except FileNotFoundError as cause:
            raise ObjectMissing(f"snapshot {cause.filename} is gone; use a newer checkpoint") from cause
        finally:
            store.close()

    def shard(self, identity: str, version: Version) -> RocksDbShard:
        return RocksDbShard(self, identity, version)

    def read(self, work: Callable[[Tx], T]) -> T:
        with self.awake() as store:
            return store.read(work)

    def write(self, work: Callable[[Tx], T], bytes_needed: int = 0) -> T:
        try:
            with self.awake() as store:
                return store.write(work, bytes_needed)
        except StorageError:
            self.rest()  # RocksDB takes no more writes after a failed one, until it is opened again
            raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self.awake():
            yield

    @contextlib.contextmanager
    def awake(self) -> Iterator[Store]:
        """The open store; nothing else of this process uses it meanwhile. It stays open afterwards.

        LockTimeout when another process has it and does not let go in time.
        """
        with self._guard:
            if self._store is None:
                self._lock = self.directory.lock()
                try:
                    self._store = Store(self._path)
                except BaseException:
                    self._lock.release()
                    raise
            yield self._store

    def rest(self) -> None:
        """Let other processes have it. The next use here opens it again."""
        with self._guard:
            if self._store is not None and self._lock is not None:
                self._store.settle()
                self._store.close()
                self._lock.release()
            self._store = self._lock = None

    def rest_if_only_user(self) -> None:
        """Rest, unless another handle of this process would have to open it again."""
        with self._guard:
            if self._users == 1:
                self.rest()

    def hold(self) -> None:
        with self._guard:
            super().hold()

    def let_go(self) -> None:
        with self._guard:
            self.rest_if_only_user()
            super().let_go()

    def leave(self) -> None:
        self.rest()
        super().leave()

    def close(self) -> None:
        self.rest()
        self.directory.release()

    def abandon(self) -> None:
        self._guard = threading.RLock()
        if self._store is not None and self._lock is not None:
            self._store.abandon()
            self._lock.abandon()
        self._store = self._lock = None
        self.directory.release()


def _take_snapshots(store: Store, built: Directory, target: StateTarget, marker: bytes) -> None:
    groups = target.first_group, target.end_group
    sources = sorted(
        (s for s in target.snapshots if s.first_group < groups[1] and groups[0] < s.end_group),
        key=lambda source: source.first_group,
    )
    if not sources:
        return
    check_room(built.path, sum(source.length for source in sources))
    table = built.path / "restored.sst"
    if len(sources) == 1 and sources[0].backend == "rocksdb" and sources[0].convert is None:
        with snapshot_file.opened(sources[0]) as file:
            snapshot_file.copy_checked(sources[0], file, table)
        store.ingest(table)
        store.cut(_group_key(groups[0]), _group_key(groups[1]))
    else:
        entries = chain.from_iterable(read_snapshot(source, *groups) for source in sources)
        write_table(table, chain(entries, [marker_item(MARKER_KEY, marker)]))
        store.ingest(table)


def _group_key(group: int) -> bytes:
    return min(group, 0xFFFF).to_bytes(2, "big")


class RocksDbShard(Shard[RocksDbDatabase]):
    """See ShardState."""

    def size_bytes(self) -> int:
        try:
            with self._database.awake() as store:
                return store.size_bytes()
        except (LockTimeout, UnusableStore) as cause:
            raise self._judge(cause) from cause

    def snapshot(self, to: Path) -> SnapshotInfo:
        if to.exists():
            raise FileExistsError(to)
        # Swept like a half-built directory if this process dies.
        scratch = begin(self._database.directory.path.parent)
        try:
            view = scratch.path / "view"
            with self._database.awake() as store:
                store.link_to(view)
            self._database.rest_if_only_user()
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
                raise StaleWorkingState(f"{self._database.directory.path} changed hands; open it again")
            write_table(to, chain(tx.items(DATA), [marker_item(MARKER_KEY, marker)]))
            return version

        store = Store(view, readonly=True)
        try:
            return store.read(work)
        finally:
            store.close()
