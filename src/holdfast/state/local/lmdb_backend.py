"""Working state in LMDB files. A snapshot of the same key groups is mapped and read at once: a lazy restore.

Until that ends the snapshot is the *base* and the files are an overlay: a key is looked up in `data`, then in
`gone` (deleted since), then in the base. A thread checks and copies the base; then the overlay is merged into
the copy, as the next directory. That costs what the overlay costs, not the state. A process that still has
the old directory open goes on there unharmed, and finds the new one at its next opening.
Never here: marker, undo and versions (see database), the way to a version (see backends).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from heapq import merge
from itertools import chain, repeat
from pathlib import Path
from typing import Self, TypeVar

from holdfast.errors import CorruptionError, ObjectMissing, StorageError
from holdfast.state.contract import SnapshotInfo, StaleWorkingState, StateTarget, Version
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import MARKER_KEY, Database, set_database
from holdfast.state.local.directories import Directory, LockTimeout, begin, enter, newest, publish
from holdfast.state.local.lmdb_store import (
    MAP_BYTES,
    PAGE_BYTES,
    LmdbTx,
    Store,
    release_readonly,
    share_readonly,
)
from holdfast.state.local.shard import Item, Shard, next_first
from holdfast.state.local.snapshot_reader import read_snapshot
from holdfast.state.local.tables import (
    DATA,
    GONE,
    META,
    UNDO,
    Tx,
    UnusableStore,
    pack_base,
    pack_marker,
    read_marker,
    unpack_base,
)

BASE_KEY = b"base"
GROWTH = 2
"""Entries copied from a file of another format may take this much more room here."""

T = TypeVar("T")


class LmdbDatabase(Database):
    """See Database."""

    entry_bytes = PAGE_BYTES

    def __init__(self, directory: Directory, *, may_be_lazy: bool) -> None:
        super().__init__(directory)
        # LMDB takes locks of its own at opening and at the first read: a process stopped in there holds ours
        # too.
        with directory.locked():
            self.store = Store(directory.file)
            try:
                described = self.store.read(lambda tx: tx.get(META, BASE_KEY))
            except UnusableStore:
                self.store.close()
                raise
        self.source = unpack_base(described) if described else None
        self.base: Store | None = None
        self.base_file = -1
        self.copier: snapshot_file.BaseCopier | None = None
        if self.source is not None:
            try:
                self._open_base(may_be_lazy)
            except BaseException:
                self.store.close()
                raise

    @classmethod
    def open(cls, directory: Directory, *, may_be_lazy: bool) -> Self:
        return cls(directory, may_be_lazy=may_be_lazy)

    def _open_base(self, may_be_lazy: bool) -> None:
        assert self.source is not None
        try:
            # Damaged pages can crash LMDB. So only the process that began the directory reads a base
            # unchecked: if it dies of it, the next one checks first and can say why.
            if not may_be_lazy and not self.directory.has(snapshot_file.VERIFIED):
                snapshot_file.verify(self.source)
                self.directory.flag(snapshot_file.VERIFIED)
            with snapshot_file.opened(self.source) as file:
                self.base = share_readonly(self.source.path)
                self.base_file = os.dup(file)
        except FileNotFoundError as cause:
            raise UnusableStore(f"its base {self.source.path} is gone") from cause
        except CorruptionError:
            self.directory.flag(snapshot_file.CONDEMNED)
            raise
        except UnusableStore as cause:
            if not self.source.path.exists():
                raise
            self.directory.flag(snapshot_file.CONDEMNED)
            raise CorruptionError(f"snapshot {self.source.path} is no readable database: {cause}") from cause

    @staticmethod
    def fill(built: Directory, identity: str, target: StateTarget, start: Version) -> None:
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

        length = sum(source.length for source in sources)
        store = Store(built.file, map_bytes=max(MAP_BYTES, 2 * length))
        try:
            store.write(work, bytes_needed=0 if lazy else GROWTH * length)
        except FileNotFoundError as cause:
            raise ObjectMissing(f"snapshot {cause.filename} is gone; use a newer checkpoint") from cause
        finally:
            store.close()

    def shard(self, identity: str, version: Version) -> LmdbShard:
        return LmdbShard(self, identity, version)

    def resume(self) -> None:
        """See to it that the base is being checked and copied."""
        if self.source is not None and (self.copier is None or not self.copier.busy()):
            self.copier = snapshot_file.BaseCopier(self.source, self.base_file, self.directory)

    def read(self, work: Callable[[Tx], T]) -> T:
        return self.store.read(work)

    def write(self, work: Callable[[Tx], T], bytes_needed: int = 0) -> T:
        return self.store.write(work, bytes_needed)

    def locked(self) -> AbstractContextManager[None]:
        return self.directory.locked()

    def close(self) -> None:
        if self.copier is not None:
            self.copier.stop()
        if self.base is not None:
            release_readonly(self.base)
            os.close(self.base_file)
        self.abandon()

    def abandon(self) -> None:
        self.store.close()
        self.directory.release()

    def look_up(self, tx: Tx, keys: Sequence[bytes]) -> list[bytes | None]:
        values = tx.get_many(DATA, keys)
        if self.base is None:
            return values
        missing = [index for index, value in enumerate(values) if value is None]
        if tx.page(GONE, b"", 1):
            gone = tx.get_many(GONE, [keys[index] for index in missing])
            missing = [index for index, tomb in zip(missing, gone, strict=True) if tomb is None]
        wanted = [keys[index] for index in missing]
        below = self.read_base(lambda base: base.get_many(DATA, wanted))
        for index, value in zip(missing, below, strict=True):
            values[index] = value
        return values

    def read_base(self, work: Callable[[LmdbTx], T]) -> T:
        """Read the base. What LMDB cannot make sense of is damage, and the checksums say where."""
        assert self.base is not None
        try:
            return self.base.read(work)
        except UnusableStore:
            if self.copier is not None:
                self.copier.wait_verified()
            raise

    def store_and_delete(self, tx: Tx, stored: list[tuple[bytes, bytes]], deleted: list[bytes]) -> None:
        super().store_and_delete(tx, stored, deleted)
        if self.base is not None:
            if tx.page(GONE, b"", 1):
                tx.delete_many(GONE, [key for key, _ in stored])
            tx.put_many(GONE, zip(deleted, repeat(b"")))

    def base_is_copied(self) -> bool:
        return self.source is not None and self.directory.has(snapshot_file.COPY)

    def move_on(self) -> bool:
        if not self.base_is_copied():
            return False
        self.merge()
        return True

    def merge(self) -> Path | None:
        """End the lazy restore: publish the next directory. None: another one was begun meanwhile.

        Copies the base first if no copy is there. After a LockTimeout nothing has changed.
        """
        built = begin(self.directory.path.parent)
        try:
            if not self.base_is_copied():
                self._copy_base(built)
            with self.directory.locked():
                if newest(self.directory.path.parent) != self.directory.path:
                    return None
                if not built.file.exists():
                    try:
                        os.rename(self.directory.path / snapshot_file.COPY, built.file)
                    except FileNotFoundError as cause:
                        at = self.directory.path
                        raise StaleWorkingState(f"{at} was merged by someone else") from cause
                self._merge_into(built)
                return publish(built, self.directory.path)
        finally:
            built.release()

    def _copy_base(self, built: Directory) -> None:
        assert self.source is not None
        assert self.copier is not None
        self.copier.wait_done()
        if self.base_is_copied():
            return
        self.copier.wait_verified()
        try:
            snapshot_file.copy_checked(self.source, self.base_file, built.file)
        except OSError as cause:
            raise StorageError(f"cannot copy snapshot {self.source.path} to {built.path}: {cause}") from cause

    def _merge_into(self, built: Directory) -> None:
        merged = Store(built.file)
        try:
            changed = self.store.read(lambda overlay: overlay.count(DATA) + overlay.count(GONE))
            bytes_needed = changed * PAGE_BYTES
            self.store.read(lambda overlay: merged.write(lambda tx: _copy_overlay(overlay, tx), bytes_needed))
        finally:
            merged.close()


def _copy_overlay(overlay: LmdbTx, merged: LmdbTx) -> None:
    for table in (META, UNDO):
        merged.clear(table)
        merged.put_many(table, overlay.items(table))
    merged.delete_many(META, [BASE_KEY])
    merged.put_many(DATA, overlay.items(DATA))
    merged.delete_many(DATA, (key for key, _ in overlay.items(GONE)))


class LmdbShard(Shard[LmdbDatabase]):
    """See ShardState."""

    def size_bytes(self) -> int:
        source = self._database.source
        return self._database.store.size_bytes() + (source.length if source else 0)

    def snapshot(self, to: Path) -> SnapshotInfo:
        if self._database.source is not None:
            try:
                self._merge()
            except (LockTimeout, UnusableStore) as cause:
                raise self._judge(cause) from cause
            if self._database.source is not None:
                raise StaleWorkingState(f"{self._database.directory.path} was superseded; open it again")
        file = os.open(to, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            marker = self._database.store.copy_to(file, lambda tx: tx.get(META, MARKER_KEY))
        except BaseException:
            to.unlink()
            raise
        finally:
            os.close(file)
        version = read_marker(marker, self._identity)
        assert version is not None, f"the marker of {self._database.directory.path} changed hands"
        return snapshot_file.describe(to, version)

    def verify_base(self) -> None:
        if self._database.copier is not None:
            self._database.copier.wait_verified()

    def _before_apply(self) -> None:
        if self._database.base_is_copied():
            self._merge()

    def _page(self, tx: Tx, first: bytes, limit: int) -> tuple[list[Item], bytes | None]:
        own = tx.page(DATA, first, limit)
        if self._database.base is None:
            return own, next_first([own], limit)
        gone = tx.page(GONE, first, limit)
        below = self._database.read_base(lambda base: base.page(DATA, first, limit))
        # A full page may have more keys behind its last one: what lies above that is left to the next page.
        more_from = next_first([own, gone, below], limit)
        hidden = {key for key, _ in own} | {key for key, _ in gone}
        shown = merge(own, (item for item in below if item[0] not in hidden))
        return [item for item in shown if more_from is None or item[0] < more_from], more_from

    def _merge(self) -> None:
        """Go over to the merged directory, unless another one was begun."""
        before = self._database
        path = before.merge()
        directory = enter(path) if path else None
        if directory is None:
            return
        merged = LmdbDatabase.open(directory, may_be_lazy=False)
        merged.hold()
        set_database(directory.path.parent, merged)
        self._database = merged
        before.let_go()
