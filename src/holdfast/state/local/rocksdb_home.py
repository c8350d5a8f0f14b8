"""A generation that is a RocksDB directory.

One process at a time can have it open. So it is awake, open and locked, only while some handle of this
process is in use; others wait for the lock, or begin the next generation.
Always true: whoever has the directory open holds the generation's lock.
Never here: marker, undo and versions (see home).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import StorageError
from holdfast.state.local.database import Home
from holdfast.state.local.directories import Generation, Lock
from holdfast.state.local.rocksdb_store import Store
from holdfast.state.local.tables import Tx, UnusableStore

DIRECTORY = "rocksdb"

T = TypeVar("T")


class RocksDbHome(Home):
    """See Home."""

    entry_bytes = 512

    def __init__(self, generation: Generation, lock_timeout_s: float, clock: Clock) -> None:
        super().__init__(generation)
        self._lock_timeout_s, self._clock = lock_timeout_s, clock
        self._store: Store | None = None
        self._lock: Lock | None = None
        # Threads of one process share the open directory: no read may see half of another's write.
        self._guard = threading.RLock()
        if not self.directory.is_dir():
            raise UnusableStore(f"{generation.path} holds no RocksDB directory")

    @property
    def directory(self) -> Path:
        return self.generation.path / DIRECTORY

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
    def locked(self, lock_timeout_s: float, clock: Clock) -> Iterator[None]:
        with self.awake():
            yield

    @contextlib.contextmanager
    def awake(self) -> Iterator[Store]:
        """The open directory; nothing else of this process uses it meanwhile. It stays open afterwards.

        LockTimeout when another process has it and does not let go in time.
        """
        with self._guard:
            if self._store is None:
                self._lock = self.generation.lock(self._lock_timeout_s, self._clock)
                try:
                    self._store = Store(self.directory)
                except BaseException:
                    self._lock.release()
                    raise
            yield self._store

    def rest(self) -> None:
        """Let other processes have it. Whoever uses it next here opens it again."""
        with self._guard:
            if self._store is not None and self._lock is not None:
                self._store.settle(self._clock)
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
        self.generation.release()

    def abandon(self) -> None:
        self._guard = threading.RLock()
        if self._store is not None and self._lock is not None:
            self._store.abandon()
            self._lock.abandon()
        self._store = self._lock = None
        self.generation.release()
