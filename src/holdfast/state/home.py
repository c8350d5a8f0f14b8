"""A generation that this process has open: its database, and the base under it while a restore is still lazy.

With a base, the database is an overlay: a key is looked up in `data`, then in `gone` (deleted since), then
in the base. Always true: entries, marker, undo blob and link change in one write transaction, begun under
the generation's lock, and only after the marker was read in it. Undo leads back exactly one epoch, to the
parent that its link names.
Never here: choosing a version (see working.route), choosing a generation (see opening).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import TypeVar, cast

from holdfast.clock import Clock
from holdfast.errors import CorruptionError
from holdfast.state import snapshot
from holdfast.state.generations import Generation
from holdfast.state.lmdb import (
    DATA,
    GONE,
    META,
    PAGE_BYTES,
    UNDO,
    Store,
    Tx,
    UnusableStore,
    close_shared_after_fork,
    release_readonly,
    share_readonly,
)
from holdfast.state.marker import (
    Link,
    pack_link,
    pack_marker,
    pack_undo,
    read_marker,
    unpack_base,
    unpack_link,
    unpack_undo,
)
from holdfast.state.working import Entries, StaleWorkingState, Version

MARKER_KEY, BASE_KEY, LINK_PREFIX = b"marker", b"base", b"link"

T = TypeVar("T")
Read = tuple[list[bytes], list[bytes | None]]
"""Keys and the values that they had."""

_homes: dict[Path, Home] = {}
_homes_lock = threading.Lock()


class Home:
    """One per shard directory and process. Closed when it was left and its last handle is closed."""

    def __init__(
        self, generation: Generation, lock_timeout_s: float, clock: Clock, *, may_be_lazy: bool
    ) -> None:
        """Open the files of a generation. `may_be_lazy`: the base may be read while it is being checked."""
        self.generation = generation
        self._users, self._left, self.given_up = 0, False, False
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
        self.follower: snapshot.Follower | None = None
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
            if not may_be_lazy and not self.generation.has(snapshot.VERIFIED):
                snapshot.verify(self.source)
                self.generation.flag(snapshot.VERIFIED)
            with snapshot.opened(self.source) as file:
                self.base = share_readonly(self.source.path)
                self.base_file = os.dup(file)
        except FileNotFoundError as cause:
            raise UnusableStore(f"its base {self.source.path} is gone") from cause
        except CorruptionError:
            self.generation.flag(snapshot.CONDEMNED)
            raise
        except UnusableStore as cause:
            if not self.source.path.exists():
                raise
            self.generation.flag(snapshot.CONDEMNED)
            raise CorruptionError(f"snapshot {self.source.path} is no readable database: {cause}") from cause

    def follow(self) -> None:
        """See to it that someone checks and copies the base."""
        if self.source is not None and (self.follower is None or not self.follower.busy()):
            self.follower = snapshot.Follower(self.source, self.base_file, self.generation)

    def hold(self) -> None:
        self._users += 1

    def let_go(self) -> None:
        self._users -= 1
        self._close_if_unused()

    def leave(self) -> None:
        """Nobody will open this generation again here."""
        self._left = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._left or self._users:
            return
        if self.follower is not None:
            self.follower.stop()
        if self.base is not None:
            release_readonly(self.base)
            os.close(self.base_file)
        self.store.close()
        self.generation.release()

    def look_up(self, tx: Tx, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values that the state shows, aligned with `keys`."""
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

    def read_base(self, work: Callable[[Tx], T]) -> T:
        """Read the base. What LMDB cannot make sense of is damage, and the checksums say where."""
        assert self.base is not None
        try:
            return self.base.read(work)
        except UnusableStore:
            if self.follower is not None:
                self.follower.wait_verified()
            raise

    def write_entries(self, tx: Tx, entries: Entries) -> None:
        """Store and delete, in key order."""
        # The pairs are passed on as they are: new ones by the ten thousand cost more than the database does.
        stored = [entry for entry in entries if entry[1] is not None]
        deleted = [key for key, value in entries if value is None] if len(stored) < len(entries) else []
        tx.put_many(DATA, cast("list[tuple[bytes, bytes]]", stored))
        tx.delete_many(DATA, deleted)
        if self.base is not None:
            if tx.count(GONE):
                tx.delete_many(GONE, [key for key, _ in stored])
            tx.put_many(GONE, zip(deleted, repeat(b"")))

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
            undo_to(self, tx, identity, at, check_parent(tx, at, parent))
            if undo:
                keys = [entry[0] for entry in entries]
                before = _recall(keys, reads) or self.look_up(tx, keys)
                tx.put(UNDO, _epoch_key(version.epoch), pack_undo(keys, before))
                tx.put(META, LINK_PREFIX + _epoch_key(version.epoch), pack_link(Link(version, parent)))
            self.write_entries(tx, entries)
            _drop_undo(tx, committed)
            tx.put(META, MARKER_KEY, pack_marker(identity, version))

        self.store.write(work, bytes_needed=len(entries) * PAGE_BYTES)

    def go_back(self, identity: str, expected: Version, to: Version) -> None:
        """Undo from `expected` to its ancestor `to`; the caller holds the lock."""

        def work(tx: Tx) -> None:
            at = read_marker(tx.get(META, MARKER_KEY), identity)
            if at != expected:
                raise StaleWorkingState(f"working state moved from {expected} to {at}; open it again")
            undo_to(self, tx, identity, at, to)

        self.store.write(work)

    def ancestry(self, identity: str) -> list[Version]:
        """The marker's version, then those that undo can reach. Empty: not our state, or not of this boot."""

        def work(tx: Tx) -> list[Version]:
            at = read_marker(tx.get(META, MARKER_KEY), identity)
            found = []
            while at is not None:
                found.append(at)
                link = _link(tx, at)
                at = link.parent if link else None
            return found

        return self.store.read(work)


def check_parent(tx: Tx, at: Version | None, parent: Version) -> Version:
    """The safeguard: return the version to undo to before an epoch may be applied on `parent`, or refuse."""
    if at == parent:
        return parent
    link = _link(tx, at) if at else None
    if link is None or link.parent != parent:
        raise StaleWorkingState(f"working state is at {at}, not at {parent}; open it again")
    return parent


def undo_to(home: Home, tx: Tx, identity: str, at: Version | None, to: Version) -> None:
    """Take back epoch after epoch until the state is at `to`."""
    while at is not None and at != to:
        link, blob = _link(tx, at), tx.get(UNDO, _epoch_key(at.epoch))
        if link is None or blob is None:
            raise StaleWorkingState(f"working state at {at} cannot be undone to {to}; open it again")
        home.write_entries(tx, unpack_undo(blob))
        _forget_undo(tx, _epoch_key(at.epoch))
        at = link.parent
        tx.put(META, MARKER_KEY, pack_marker(identity, at))


def current_home(directory: Path) -> Home | None:
    """What this process has open for the shard."""
    with _homes_lock:
        return _homes.get(directory)


def set_home(directory: Path, home: Home | None) -> None:
    """Go over to another generation; the one before is closed when its handles are."""
    with _homes_lock:
        before = _homes.pop(directory, None)
        if home is not None:
            _homes[directory] = home
    if before is not None and before is not home:
        before.leave()


def _recall(keys: list[bytes], reads: Sequence[Read]) -> list[bytes | None]:
    """The values of `keys`, if all were read before; else nothing."""
    if len(reads) == 1 and reads[0][0] == keys:
        return reads[0][1]
    known: dict[bytes, bytes | None] = {}
    for read_keys, values in reads:
        known.update(zip(read_keys, values, strict=True))
    try:
        return [known[key] for key in keys]
    except KeyError:
        return []


def _link(tx: Tx, at: Version) -> Link | None:
    data = tx.get(META, LINK_PREFIX + _epoch_key(at.epoch))
    link = unpack_link(data) if data else None
    return link if link and link.version == at else None


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
    global _homes_lock
    _homes_lock = threading.Lock()
    for inherited in _homes.values():
        inherited.store.close()
        inherited.generation.release()
    _homes.clear()
    close_shared_after_fork()


with contextlib.suppress(AttributeError):  # no fork on this system
    os.register_at_fork(after_in_child=_after_fork)
