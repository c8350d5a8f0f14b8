"""A generation of LMDB files: the database, and the base under it while a restore is still lazy.

With a base, the database is an overlay: a key is looked up in `data`, then in `gone` (deleted since), then
in the base.
Never here: marker, undo and versions (see home), the end of a lazy restore (see promotion).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import repeat
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import CorruptionError
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import Home
from holdfast.state.local.directories import Generation
from holdfast.state.local.lmdb_store import PAGE_BYTES, LmdbTx, Store, release_readonly, share_readonly
from holdfast.state.local.marker import unpack_base
from holdfast.state.local.tables import DATA, GONE, META, Tx, UnusableStore

BASE_KEY = b"base"

T = TypeVar("T")


class LmdbHome(Home):
    """See Home."""

    entry_bytes = PAGE_BYTES

    def __init__(
        self, generation: Generation, lock_timeout_s: float, clock: Clock, *, may_be_lazy: bool
    ) -> None:
        """Open the files of a generation. `may_be_lazy`: the base may be read while it is being checked."""
        super().__init__(generation)
        # LMDB takes locks of its own at opening and at the first read: a process stopped in there holds ours
        # too.
        with generation.locked(lock_timeout_s, clock):
            self.store = Store(generation.file)
            try:
                described = self.store.read(lambda tx: tx.get(META, BASE_KEY))
            except UnusableStore:
                self.store.close()
                raise
        self.source = unpack_base(described) if described else None
        self.base: Store | None = None
        self.base_file = -1
        self.follower: snapshot_file.Follower | None = None
        if self.source is not None:
            try:
                self._open_base(may_be_lazy)
            except BaseException:
                self.store.close()
                raise

    def _open_base(self, may_be_lazy: bool) -> None:
        assert self.source is not None
        try:
            # Damaged pages can crash LMDB. So only the process that began the generation reads a base
            # unchecked: if it dies of it, the next one checks first and can say why.
            if not may_be_lazy and not self.generation.has(snapshot_file.VERIFIED):
                snapshot_file.verify(self.source)
                self.generation.flag(snapshot_file.VERIFIED)
            with snapshot_file.opened(self.source) as file:
                self.base = share_readonly(self.source.path)
                self.base_file = os.dup(file)
        except FileNotFoundError as cause:
            raise UnusableStore(f"its base {self.source.path} is gone") from cause
        except CorruptionError:
            self.generation.flag(snapshot_file.CONDEMNED)
            raise
        except UnusableStore as cause:
            if not self.source.path.exists():
                raise
            self.generation.flag(snapshot_file.CONDEMNED)
            raise CorruptionError(f"snapshot {self.source.path} is no readable database: {cause}") from cause

    def follow(self) -> None:
        """See to it that someone checks and copies the base."""
        if self.source is not None and (self.follower is None or not self.follower.busy()):
            self.follower = snapshot_file.Follower(self.source, self.base_file, self.generation)

    def read(self, work: Callable[[Tx], T]) -> T:
        return self.store.read(work)

    def write(self, work: Callable[[Tx], T], bytes_needed: int = 0) -> T:
        return self.store.write(work, bytes_needed)

    def locked(self, lock_timeout_s: float, clock: Clock) -> AbstractContextManager[None]:
        return self.generation.locked(lock_timeout_s, clock)

    def close(self) -> None:
        if self.follower is not None:
            self.follower.stop()
        if self.base is not None:
            release_readonly(self.base)
            os.close(self.base_file)
        self.store.close()
        self.generation.release()

    def abandon(self) -> None:
        self.store.close()
        self.generation.release()

    def look_up(self, tx: Tx, keys: Sequence[bytes]) -> list[bytes | None]:
        values = tx.get_many(DATA, keys)
        if self.base is None:
            return values
        missing = [index for index, value in enumerate(values) if value is None]
        if tx.count(GONE):
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
            if self.follower is not None:
                self.follower.wait_verified()
            raise

    def store_and_delete(self, tx: Tx, stored: list[tuple[bytes, bytes]], deleted: list[bytes]) -> None:
        super().store_and_delete(tx, stored, deleted)
        if self.base is not None:
            if tx.count(GONE):
                tx.delete_many(GONE, [key for key, _ in stored])
            tx.put_many(GONE, zip(deleted, repeat(b"")))
