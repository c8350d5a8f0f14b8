"""Bringing a shard's working state to a version, by the cheapest way that is safe.

    there already | deltas | undo, then deltas | a new generation: snapshot, then deltas

Always true: a new generation is built out of sight and published by one rename when its marker is at the
target, so nobody ever opens one half built. Racing openers do harmless double work: every move checks the
marker in its own transaction.
Never here: what is particular to a database (see lmdb_opening, rocksdb_opening).
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import Generic, TypeVar

from holdfast.clock import Clock
from holdfast.errors import StorageError
from holdfast.state.contract import Arrival, ShardState, StaleWorkingState, StateTarget, Version, route
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import Home, current_home, leave_others, set_home
from holdfast.state.local.directories import (
    Generation,
    LockTimeout,
    begin,
    enter,
    newest,
    publish,
    remove_if_unused,
    sweep,
)
from holdfast.state.local.tables import UnusableStore

TRIES_MAX = 20
"""Each further try means that another process moved the state meanwhile."""

H = TypeVar("H", bound=Home)


class Database(ABC, Generic[H]):
    """What the way to a version asks of a database. Holds nothing: the same for every shard and process."""

    home: type[H]

    @abstractmethod
    def open_home(
        self, generation: Generation, lock_timeout_s: float, clock: Clock, *, may_be_lazy: bool
    ) -> H:
        """Open the files of a generation. UnusableStore: they are not to be used.

        `may_be_lazy`: this process built it, and may read a snapshot while it is being checked.
        """

    @abstractmethod
    def fill(self, built: Generation, identity: str, target: StateTarget, start: Version) -> None:
        """Make the files of a new generation, at `start`: the entries of the target's snapshots, no deltas.

        CorruptionError, ObjectMissing: as the snapshots are.
        """

    @abstractmethod
    def shard(
        self, home: H, identity: str, version: Version, lock_timeout_s: float, clock: Clock
    ) -> ShardState:
        """A handle."""

    def move_on(self, home: H, lock_timeout_s: float, clock: Clock) -> bool:
        """Begin the next generation if there is a reason to. True: look again for the newest."""
        return False


def open_shard(
    database: Database[H],
    directory: Path,
    identity: str,
    target: StateTarget,
    lock_timeout_s: float,
    clock: Clock,
) -> ShardState:
    """See working.open_state."""
    directory = Path(directory).absolute()
    opener = _Opener(database, directory, identity, target, lock_timeout_s, clock)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for _ in range(TRIES_MAX):
            if shard := opener.attempt():
                shard.arrival = opener.arrival
                sweep(directory)
                return shard
    except StorageError:
        # The disk may be full, and of what could not be built.
        with contextlib.suppress(OSError):
            sweep(directory)
        raise
    except OSError as cause:
        raise StorageError(f"cannot use working state {directory}: {cause}; mend the local disk") from cause
    raise StaleWorkingState(f"{directory} kept moving under {TRIES_MAX} tries to open it at {target.version}")


def attach_shard(
    database: Database[H], directory: Path, identity: str, lock_timeout_s: float, clock: Clock
) -> ShardState | None:
    """See working.attach_state."""
    directory = Path(directory).absolute()
    for _ in range(TRIES_MAX):
        path = newest(directory)
        if path is None:
            return None
        try:
            home = _open_home(database, directory, path, lock_timeout_s, clock)
            if home is None:
                return None
            home.hold()
            try:
                ancestry = home.ancestry(identity)
                if not ancestry:
                    return None
                return database.shard(home, identity, ancestry[0], lock_timeout_s, clock)
            finally:
                home.let_go()
        except (LockTimeout, UnusableStore):
            return None
        except StaleWorkingState:
            continue
    return None


def vacate(parent: Path, keep: Collection[str]) -> None:
    """See working.remove_others."""
    parent = Path(parent).absolute()
    leave_others(parent, keep)
    with contextlib.suppress(OSError):  # whoever else is at it, or the next time, does the rest
        for name in set(os.listdir(parent)).difference(keep):
            remove_if_unused(parent / name)


def _open_home(
    database: Database[H],
    directory: Path,
    path: Path,
    lock_timeout_s: float,
    clock: Clock,
    *,
    may_be_lazy: bool = False,
) -> H | None:
    """The newest generation, opened, or open already. None: it was given up."""
    home = current_home(directory)
    ours = isinstance(home, database.home) and home.generation.path == path
    if isinstance(home, database.home) and ours and home.generation.still_there():
        if home.given_up or home.generation.has(snapshot_file.CONDEMNED):
            return None
        home.follow()
        return home
    set_home(directory, None)
    generation = enter(path)
    if generation is None:
        raise StaleWorkingState(f"{path} was swept")
    try:
        if generation.has(snapshot_file.CONDEMNED):
            raise UnusableStore(f"{path} is condemned")
        opened = database.open_home(generation, lock_timeout_s, clock, may_be_lazy=may_be_lazy)
    except BaseException:
        generation.release()
        raise
    set_home(directory, opened)
    opened.follow()
    return opened


class _Opener(Generic[H]):
    """One call of open_shard."""

    def __init__(
        self,
        database: Database[H],
        directory: Path,
        identity: str,
        target: StateTarget,
        lock_timeout_s: float,
        clock: Clock,
    ) -> None:
        self._database = database
        self._directory, self._identity, self._target = directory, identity, target
        self._lock_timeout_s, self._clock = lock_timeout_s, clock
        self._built: Path | None = None
        self.arrival = Arrival.THERE

    def attempt(self) -> ShardState | None:
        """Try once. None: something moved, look again."""
        path = newest(self._directory)
        shard = None
        try:
            home = self._home(path) if path else None
            if home is not None:
                home.hold()
                try:
                    if self._database.move_on(home, self._lock_timeout_s, self._clock):
                        return None
                    shard = self._bring(home)
                finally:
                    home.let_go()
        except (LockTimeout, UnusableStore):
            pass
        except StaleWorkingState:
            return None
        if shard is None and path == newest(self._directory):
            self._built = self._rebuild(path)
            self.arrival = Arrival.REBUILT
        return shard

    def _home(self, path: Path) -> H | None:
        lazy = path == self._built
        return _open_home(
            self._database, self._directory, path, self._lock_timeout_s, self._clock, may_be_lazy=lazy
        )

    def _bring(self, home: H) -> ShardState | None:
        """Undo and catch up. None: this state does not lead to the target."""
        ancestry = home.ancestry(self._identity)
        way = route(ancestry, self._target)
        if way is None:
            return None
        if self.arrival is Arrival.THERE and (way.deltas or way.back_to != ancestry[0]):
            self.arrival = Arrival.MOVED
        if way.back_to != ancestry[0]:
            with home.locked(self._lock_timeout_s, self._clock):
                home.go_back(self._identity, ancestry[0], way.back_to)
        self._catch_up(home, len(self._target.deltas) - len(way.deltas))
        return self._database.shard(
            home, self._identity, self._target.version, self._lock_timeout_s, self._clock
        )

    def _catch_up(self, home: H, first: int) -> None:
        committed = self._target.committed
        for step in self._target.deltas[first:]:
            entries = step.load()  # may be slow: not under the lock
            with home.locked(self._lock_timeout_s, self._clock):
                home.apply(
                    self._identity,
                    step.parent,
                    step.version,
                    entries,
                    committed=committed,
                    undo=step.version.epoch > committed,
                    reads=(),
                )

    def _rebuild(self, after: Path | None) -> Path | None:
        """Build the next generation out of sight. None: another one was first."""
        target = self._target
        start = target.deltas[0].parent if target.deltas else target.version
        built = begin(self._directory)
        try:
            self._database.fill(built, self._identity, target, start)
            home = self._database.open_home(built, self._lock_timeout_s, self._clock, may_be_lazy=True)
        except UnusableStore as cause:
            built.release()
            raise StorageError(f"cannot build working state in {built.path}: {cause}; try again") from cause
        except BaseException:
            built.release()
            raise
        home.hold()
        try:
            self._catch_up(home, 0)
            home.leave()
            # Published by name before it is let go of: the sweep must never find it unused.
            return publish(built, after)
        except UnusableStore as cause:
            raise StorageError(f"cannot build working state in {built.path}: {cause}; try again") from cause
        finally:
            home.leave()
            home.let_go()
