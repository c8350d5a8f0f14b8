"""A database of working state that this process has open, of whatever backend: marker, undo and versions.

Always true: entries, marker, undo blob and link change in one write transaction, begun under the directory's
lock, and only after the marker was read in it. Undo leads back exactly one epoch, to the parent that its link
names.
Never here: choosing a version (see contract.route), choosing a directory (see backends).
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, TypeVar, cast

from holdfast.state.contract import Entries, ShardState, StaleWorkingState, StateTarget, Version
from holdfast.state.local.directories import Directory
from holdfast.state.local.tables import (
    DATA,
    META,
    UNDO,
    Tx,
    pack_link,
    pack_marker,
    pack_undo,
    read_marker,
    unpack_link,
    unpack_undo,
)

MARKER_KEY, LINK_PREFIX = b"marker", b"link"

T = TypeVar("T")
Read = tuple[list[bytes], list[bytes | None]]
"""Keys and the values that they had."""

_open: dict[Path, Database] = {}
"""By the shard that they belong to."""
_open_lock = threading.Lock()


class Database(ABC):
    """One per shard and process. Closed once it was left and its last user has let go of it."""

    entry_bytes: int
    """What the files may have to grow by for one changed entry."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.given_up = False
        self._users, self._left = 0, False

    @classmethod
    @abstractmethod
    def open(cls, directory: Directory, *, may_be_lazy: bool) -> Self:
        """Open the files of a directory. UnusableStore: they are not to be used.

        `may_be_lazy`: this process built it, and may read a snapshot while it is being checked.
        """

    @staticmethod
    @abstractmethod
    def fill(built: Directory, identity: str, target: StateTarget, start: Version) -> None:
        """Make the files of a new directory, at `start`: the entries of the target's snapshots, no deltas.

        CorruptionError, ObjectMissing: as the snapshots are.
        """

    @abstractmethod
    def shard(self, identity: str, version: Version) -> ShardState:
        """A handle for a task."""

    def move_on(self) -> bool:
        """Begin the next directory if there is a reason to. True: look again for the newest."""
        return False

    @abstractmethod
    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on one consistent view."""

    @abstractmethod
    def write(self, work: Callable[[Tx], T], bytes_needed: int = 0) -> T:
        """Run `work` in one write transaction; an exception undoes all of it. The caller holds the lock.

        `work` may run more than once. StorageError when the disk has no room for `bytes_needed`.
        """

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Hold the directory's lock. LockTimeout when it is not free in time."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files: called once, when nothing here will use them again."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: let go of what the parent has open, without harm to it."""

    def resume(self) -> None:  # noqa: B027
        """Go on with work in the background that an earlier process left unfinished."""

    def hold(self) -> None:
        self._users += 1

    def let_go(self) -> None:
        self._users -= 1
        self._close_if_unused()

    def leave(self) -> None:
        """This process will not open the directory again."""
        self._left = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._left and not self._users:
            self.close()

    def look_up(self, tx: Tx, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values that the state shows, aligned with `keys`."""
        return tx.get_many(DATA, keys)

    def write_entries(self, tx: Tx, entries: Entries) -> None:
        """Store and delete, in key order."""
        # The pairs are passed on as they are: new ones by the ten thousand cost more than the database does.
        stored = [entry for entry in entries if entry[1] is not None]
        deleted = [key for key, value in entries if value is None] if len(stored) < len(entries) else []
        self.store_and_delete(tx, cast("list[tuple[bytes, bytes]]", stored), deleted)

    def store_and_delete(self, tx: Tx, stored: list[tuple[bytes, bytes]], deleted: list[bytes]) -> None:
        """Change the table of entries."""
        tx.put_many(DATA, stored)
        tx.delete_many(DATA, deleted)

    def apply(
        self,
        identity: str,
        parent: Version,
        version: Version,
        entries: Entries,
        *,
        committed: int,
        undo: bool,
        reads: Sequence[Read],
    ) -> None:
        """See ShardState.apply; the caller holds the lock. `reads`: what was read at `parent` before."""

        def work(tx: Tx) -> None:
            at = read_marker(tx.get(META, MARKER_KEY), identity)
            if at == version:
                return
            self._undo_to(tx, identity, at, check_parent(tx, at, parent))
            if undo:
                keys = [entry[0] for entry in entries]
                before = self._before(tx, keys, reads)
                tx.put(UNDO, _epoch_key(version.epoch), pack_undo(keys, before))
                tx.put(META, LINK_PREFIX + _epoch_key(version.epoch), pack_link(version, parent))
            self.write_entries(tx, entries)
            _drop_undo(tx, committed)
            tx.put(META, MARKER_KEY, pack_marker(identity, version))

        self.write(work, bytes_needed=len(entries) * self.entry_bytes)

    def _before(self, tx: Tx, keys: list[bytes], reads: Sequence[Read]) -> list[bytes | None]:
        """The values of `keys` before they change: as they were read, and from the table where not."""
        if len(reads) == 1 and reads[0][0] == keys:
            return reads[0][1]
        known: dict[bytes, bytes | None] = {}
        for read_keys, values in reads:
            known.update(zip(read_keys, values, strict=True))
        try:
            return list(map(known.__getitem__, keys))
        except KeyError:
            unread = [key for key in keys if key not in known]
            known.update(zip(unread, self.look_up(tx, unread), strict=True))
            return list(map(known.__getitem__, keys))

    def go_back(self, identity: str, expected: Version, to: Version) -> None:
        """Undo from `expected` to its ancestor `to`; the caller holds the lock."""

        def work(tx: Tx) -> None:
            at = read_marker(tx.get(META, MARKER_KEY), identity)
            if at != expected:
                raise StaleWorkingState(f"working state moved from {expected} to {at}; open it again")
            self._undo_to(tx, identity, at, to)

        self.write(work)

    def _undo_to(self, tx: Tx, identity: str, at: Version | None, to: Version) -> None:
        """Take back epoch after epoch until the state is at `to`."""
        while at is not None and at != to:
            parent, blob = _parent(tx, at), tx.get(UNDO, _epoch_key(at.epoch))
            if parent is None or blob is None:
                raise StaleWorkingState(f"working state at {at} cannot be undone to {to}; open it again")
            self.write_entries(tx, unpack_undo(blob))
            _forget_undo(tx, _epoch_key(at.epoch))
            at = parent
            tx.put(META, MARKER_KEY, pack_marker(identity, at))

    def ancestry(self, identity: str) -> list[Version]:
        """The marker's version, then those that undo can reach. Empty: not our state, or not of this boot."""

        def work(tx: Tx) -> list[Version]:
            at = read_marker(tx.get(META, MARKER_KEY), identity)
            found = []
            while at is not None:
                found.append(at)
                at = _parent(tx, at)
            return found

        return self.read(work)


def check_parent(tx: Tx, at: Version | None, parent: Version) -> Version:
    """The safeguard: return the version to undo to before an epoch may be applied on `parent`, or refuse."""
    if at != parent and (at is None or _parent(tx, at) != parent):
        raise StaleWorkingState(f"working state is at {at}, not at {parent}; open it again")
    return parent


def open_database(shard: Path) -> Database | None:
    """What this process has open for a shard."""
    with _open_lock:
        return _open.get(shard)


def set_database(shard: Path, database: Database | None) -> None:
    """Go over to another directory; the one before is closed when its handles are."""
    with _open_lock:
        before = _open.pop(shard, None)
        if database is not None:
            _open[shard] = database
    if before is not None and before is not database:
        before.leave()


def leave_others(parent: Path, keep: Collection[str]) -> None:
    """Let go of the shards below `parent` that are not among `keep`."""
    with _open_lock:
        others = [path for path in _open if path.parent == parent and path.name not in keep]
    for path in others:
        set_database(path, None)


def _parent(tx: Tx, at: Version) -> Version | None:
    """The version that undo leads back to from `at`."""
    data = tx.get(META, LINK_PREFIX + _epoch_key(at.epoch))
    version, parent = unpack_link(data) if data else (None, None)
    return parent if version == at else None


def _drop_undo(tx: Tx, committed: int) -> None:
    end = _epoch_key(committed + 1)
    for key in [key for key, _ in tx.items(META, LINK_PREFIX, LINK_PREFIX + end)]:
        _forget_undo(tx, key.removeprefix(LINK_PREFIX))


def _forget_undo(tx: Tx, epoch_key: bytes) -> None:
    tx.delete_many(UNDO, [epoch_key])
    tx.delete_many(META, [LINK_PREFIX + epoch_key])


def _epoch_key(epoch: int) -> bytes:
    return epoch.to_bytes(8, "big")


def _after_fork() -> None:
    """In a forked child: let go of the parent's files. Handles do not survive a fork."""
    global _open_lock
    _open_lock = threading.Lock()
    for inherited in _open.values():
        inherited.abandon()
    _open.clear()


with contextlib.suppress(AttributeError):  # no fork on this system
    os.register_at_fork(after_in_child=_after_fork)
