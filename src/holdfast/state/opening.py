"""Bringing a shard's working state to a version, by the cheapest way that is safe.

    there already | deltas | undo, then deltas | a new generation: snapshot, then deltas

Always true: a new generation is built out of sight and published by one rename when its marker is at the
target, so nobody ever opens one half built. Racing openers do harmless double work: every move checks the
marker in its own transaction.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import CorruptionError, ObjectMissing, StorageError
from holdfast.state import promotion, snapshot
from holdfast.state.generations import LockTimeout, begin, enter, newest, publish, sweep
from holdfast.state.home import BASE_KEY, MARKER_KEY, Home, current_home, set_home
from holdfast.state.lmdb import (
    DATA,
    MAP_BYTES,
    META,
    Store,
    Tx,
    UnusableStore,
    release_readonly,
    share_readonly,
)
from holdfast.state.marker import pack_base, pack_marker
from holdfast.state.shard import LmdbShard
from holdfast.state.working import SnapshotSource, StaleWorkingState, StateTarget, Version, route

TRIES_MAX = 20
"""Each further try means that another process moved the state meanwhile."""


def open_shard(
    directory: Path, identity: str, target: StateTarget, lock_timeout_s: float, clock: Clock
) -> LmdbShard:
    """See working.open_state."""
    directory = Path(directory).absolute()
    opener = _Opener(directory, identity, target, lock_timeout_s, clock)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for _ in range(TRIES_MAX):
            if shard := opener.attempt():
                sweep(directory)
                return shard
    except OSError as cause:
        raise StorageError(f"cannot use working state {directory}: {cause}; mend the local disk") from cause
    raise StaleWorkingState(f"{directory} kept moving under {TRIES_MAX} tries to open it at {target.version}")


def attach_shard(directory: Path, identity: str, lock_timeout_s: float, clock: Clock) -> LmdbShard | None:
    """See working.attach_state."""
    directory = Path(directory).absolute()
    for _ in range(TRIES_MAX):
        path = newest(directory)
        if path is None:
            return None
        try:
            home = open_home(directory, path, lock_timeout_s, clock)
            ancestry = home.ancestry(identity) if home else []
        except (LockTimeout, UnusableStore):
            return None
        except StaleWorkingState:
            continue
        if home is None or not ancestry:
            return None
        return LmdbShard(home, identity, ancestry[0], lock_timeout_s, clock)
    return None


def open_home(
    directory: Path, path: Path, lock_timeout_s: float, clock: Clock, *, may_be_lazy: bool = False
) -> Home | None:
    """The newest generation, opened, or open already. None: it was given up."""
    home = current_home(directory)
    if home is not None and home.generation.path == path and home.generation.still_there():
        if home.given_up or home.generation.has(snapshot.CONDEMNED):
            return None
        home.follow()
        return home
    set_home(directory, None)
    generation = enter(path)
    if generation is None:
        raise StaleWorkingState(f"{path} was swept")
    try:
        if generation.has(snapshot.CONDEMNED):
            raise UnusableStore(f"{path} is condemned")
        home = Home(generation, lock_timeout_s, clock, may_be_lazy=may_be_lazy)
    except BaseException:
        generation.release()
        raise
    set_home(directory, home)
    home.follow()
    return home


class _Opener:
    """One call of open_shard."""

    def __init__(
        self, directory: Path, identity: str, target: StateTarget, lock_timeout_s: float, clock: Clock
    ) -> None:
        self._directory, self._identity, self._target = directory, identity, target
        self._lock_timeout_s, self._clock = lock_timeout_s, clock
        self._built: Path | None = None

    def attempt(self) -> LmdbShard | None:
        """Try once. None: something moved, look again."""
        path = newest(self._directory)
        try:
            home = self._home(path) if path else None
            if home is not None and promotion.ready(home):
                promotion.promote(home, self._lock_timeout_s, self._clock)
                return None
            shard = self._bring(home) if home else None
        except (LockTimeout, UnusableStore):
            shard = None
        except StaleWorkingState:
            return None
        if shard is None and path == newest(self._directory):
            self._built = self._rebuild(path)
        return shard

    def _home(self, path: Path) -> Home | None:
        lazy = path == self._built
        return open_home(self._directory, path, self._lock_timeout_s, self._clock, may_be_lazy=lazy)

    def _bring(self, home: Home) -> LmdbShard | None:
        """Undo and catch up. None: this state does not lead to the target."""
        ancestry = home.ancestry(self._identity)
        way = route(ancestry, self._target)
        if way is None:
            return None
        if way.back_to != ancestry[0]:
            with home.generation.locked(self._lock_timeout_s, self._clock):
                home.go_back(self._identity, ancestry[0], way.back_to)
        self._catch_up(home, len(self._target.deltas) - len(way.deltas))
        return LmdbShard(home, self._identity, self._target.version, self._lock_timeout_s, self._clock)

    def _catch_up(self, home: Home, first: int) -> None:
        committed = self._target.committed
        for step in self._target.deltas[first:]:
            entries = step.load()  # may be slow: not under the lock
            with home.generation.locked(self._lock_timeout_s, self._clock):
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
            store = Store(built.file, map_bytes=max(MAP_BYTES, 2 * sum(s.length for s in target.snapshots)))
            try:
                self._fill(store, start)
            finally:
                store.close()
            home = Home(built, self._lock_timeout_s, self._clock, may_be_lazy=True)
            home.hold()
            self._catch_up(home, 0)
            home.leave()
            # Published by name before it is let go of: the sweep must never find it unused.
            path = publish(built, after)
            home.let_go()
            return path
        except UnusableStore as cause:
            built.release()
            raise StorageError(f"cannot build working state in {built.path}: {cause}; try again") from cause
        except BaseException:
            built.release()
            raise

    def _fill(self, store: Store, start: Version) -> None:
        sources = sorted(self._target.snapshots, key=lambda source: source.first_group)
        marker = pack_marker(self._identity, start)
        groups = self._target.first_group, self._target.end_group
        lazy = [source for source in sources if (source.first_group, source.end_group) == groups]

        def work(tx: Tx) -> None:
            tx.put(META, MARKER_KEY, marker)
            if lazy:
                with snapshot.opened(lazy[0]):
                    tx.put(META, BASE_KEY, pack_base(lazy[0]))
            else:
                for source in sources:
                    self._copy_range(source, tx)

        try:
            store.write(work, bytes_needed=0 if lazy else sum(s.length for s in sources))
        except FileNotFoundError as cause:
            raise ObjectMissing(f"snapshot {cause.filename} is gone; use a newer checkpoint") from cause

    def _copy_range(self, source: SnapshotSource, tx: Tx) -> None:
        """Copy this shard's key groups out of a snapshot of other groups, checked first."""
        first = max(source.first_group, self._target.first_group)
        end = min(source.end_group, self._target.end_group)
        if first >= end:
            return
        snapshot.verify(source)
        try:
            base = share_readonly(source.path)
        except UnusableStore as cause:
            raise CorruptionError(f"snapshot {source.path} is no readable database: {cause}") from cause
        try:
            stop = end.to_bytes(2, "big") if end < 1 << 16 else None
            start = first.to_bytes(2, "big")
            base.read(lambda found: tx.put_many(DATA, found.items(DATA, start, stop), append=True))
        finally:
            release_readonly(base)
