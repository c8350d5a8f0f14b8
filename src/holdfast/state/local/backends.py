"""Opening a shard's working state: the backends by name, and the cheapest safe way to a version.

| name | working state | snapshots |
| --- | --- | --- |
| lmdb | LMDB files on the local disk | the LMDB file |
| memory | the same files on a memory file system | the LMDB file |
| rocksdb | a RocksDB directory on the local disk | one SST file |

    there already | deltas | undo, then deltas | a new directory: snapshot, then deltas

Always true: all backends keep the contract of ShardState (tests/contract/test_state_backend.py), and each
opens the snapshots of the others. A new directory is built out of sight and published by one rename when its
marker is at the target, so no process opens one half built. Racing openers do harmless double work: every
move checks the marker in its own transaction.
Never here: what is particular to a database (see lmdb_backend, rocksdb_backend).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import DefinitionError, MachineError, StorageError
from holdfast.state.contract import (
    Arrival,
    ShardState,
    StaleWorkingState,
    StateTarget,
    check_target,
    route,
)
from holdfast.state.local import snapshot_file
from holdfast.state.local.database import Database, leave_others, open_database, set_database
from holdfast.state.local.directories import (
    LockTimeout,
    begin,
    enter,
    newest,
    private_directory,
    publish,
    remove_if_unused,
    sweep,
)
from holdfast.state.local.lmdb_backend import LmdbDatabase
from holdfast.state.local.tables import UnusableStore

MEMORY_DIR = Path("/dev/shm")
MEMORY_DIR_SETTING = "HOLDFAST_MEMORY_DIR"
"""Environment variable: the memory file system to use instead."""

TRIES_MAX = 20
"""Each further try means that another process moved the state meanwhile."""


@dataclass(frozen=True)
class Backend:
    """One backend, the same for every shard and process."""

    database: type[Database]
    snapshots: str
    """The format of its snapshot files, as SnapshotFile.backend names it."""
    root: Callable[[Path], Path] = Path
    """From the place for working state on a machine's disk to the one to use. MachineError: there is none."""


def backend_named(name: str) -> Backend:
    """The backend of that name, or a DefinitionError that lists them. MachineError: it is not installed."""
    if name not in _BACKENDS:
        choices = ", ".join(repr(choice) for choice in _BACKENDS)
        raise DefinitionError(f"there is no state backend {name!r}; choose one of {choices}")
    return _BACKENDS[name]()


def _memory_root(on_disk: Path) -> Path:
    memory = Path(os.environ.get(MEMORY_DIR_SETTING) or MEMORY_DIR)
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        raise MachineError(
            f"there is no memory file system at {memory} to write to; "
            f"set {MEMORY_DIR_SETTING} to one, or use backend='lmdb'"
        )
    return private_directory(memory / f"holdfast-{os.getuid()}")


def _rocksdb() -> Backend:
    if importlib.util.find_spec("rocksdict") is None:
        raise MachineError(
            "backend='rocksdb' needs rocksdict, which is not installed; pip install 'holdfast[rocksdb]'"
        )
    from holdfast.state.local.rocksdb_backend import RocksDbDatabase

    return Backend(RocksDbDatabase, "rocksdb")


_BACKENDS: dict[str, Callable[[], Backend]] = {
    "lmdb": lambda: Backend(LmdbDatabase, "lmdb"),
    "memory": lambda: Backend(LmdbDatabase, "lmdb", _memory_root),
    "rocksdb": _rocksdb,
}


def open_state(directory: Path, identity: str, target: StateTarget, *, backend: str = "lmdb") -> ShardState:
    """Open a shard's working state at exactly `target.version`, by the cheapest way that is safe.

    `directory` belongs to this shard on this machine, and is created. `identity` names job, operator and
    group range: state of another identity is thrown away. CorruptionError: a snapshot was found damaged.
    """
    check_target(target)
    shard = Path(directory).absolute()
    opener = _Opener(backend_named(backend).database, shard, identity, target)
    try:
        shard.mkdir(parents=True, exist_ok=True)
        for _ in range(TRIES_MAX):
            if state := opener.attempt():
                state.arrival = opener.arrival
                sweep(shard)
                return state
    except StorageError:
        # The disk may be full, and of what could not be built.
        with contextlib.suppress(OSError):
            sweep(shard)
        raise
    except OSError as cause:
        raise StorageError(f"cannot use working state {shard}: {cause}; mend the local disk") from cause
    raise StaleWorkingState(f"{shard} kept moving under {TRIES_MAX} tries to open it at {target.version}")


def attach_state(directory: Path, identity: str, *, backend: str = "lmdb") -> ShardState | None:
    """Open what is here, at whatever version it is. None: nothing of this identity that can be used."""
    shard = Path(directory).absolute()
    kind = backend_named(backend).database
    for _ in range(TRIES_MAX):
        path = newest(shard)
        if path is None:
            return None
        try:
            database = _open_newest(kind, path)
            if database is None:
                return None
            database.hold()
            try:
                ancestry = database.ancestry(identity)
                return database.shard(identity, ancestry[0]) if ancestry else None
            finally:
                database.let_go()
        except (LockTimeout, UnusableStore):
            return None
        except StaleWorkingState:
            continue
    return None


def remove_others(parent: Path, keep: Collection[str]) -> None:
    """Remove the working state of all shards below `parent` but those named: what a rescaling has left.

    State that a process still has open stays until every such process has called this.
    """
    parent = Path(parent).absolute()
    leave_others(parent, keep)
    with contextlib.suppress(OSError):  # another process that does the same, or the next call, does the rest
        for name in set(os.listdir(parent)).difference(keep):
            remove_if_unused(parent / name)


def _open_newest(kind: type[Database], path: Path, *, may_be_lazy: bool = False) -> Database | None:
    """A shard's newest directory, opened, or open already. None: it was given up."""
    shard = path.parent
    database = open_database(shard)
    if isinstance(database, kind) and database.directory.path == path and database.directory.still_there():
        if database.given_up or database.directory.has(snapshot_file.CONDEMNED):
            return None
        database.resume()
        return database
    set_database(shard, None)
    directory = enter(path)
    if directory is None:
        raise StaleWorkingState(f"{path} was swept")
    try:
        if directory.has(snapshot_file.CONDEMNED):
            raise UnusableStore(f"{path} is condemned")
        opened = kind.open(directory, may_be_lazy=may_be_lazy)
    except BaseException:
        directory.release()
        raise
    set_database(shard, opened)
    opened.resume()
    return opened


class _Opener:
    """One call of open_state."""

    def __init__(self, kind: type[Database], shard: Path, identity: str, target: StateTarget) -> None:
        self._kind, self._shard, self._identity, self._target = kind, shard, identity, target
        self._built: Path | None = None
        self.arrival = Arrival.THERE

    def attempt(self) -> ShardState | None:
        """Try once. None: something moved, look again."""
        path = newest(self._shard)
        state = None
        try:
            database = _open_newest(self._kind, path, may_be_lazy=path == self._built) if path else None
            if database is not None:
                database.hold()
                try:
                    if database.move_on():
                        return None
                    state = self._bring(database)
                finally:
                    database.let_go()
        except (LockTimeout, UnusableStore):
            pass
        except StaleWorkingState:
            return None
        if state is None and path == newest(self._shard):
            self._built = self._rebuild(path)
            self.arrival = Arrival.REBUILT
        return state

    def _bring(self, database: Database) -> ShardState | None:
        """Undo and catch up. None: this state does not lead to the target."""
        ancestry = database.ancestry(self._identity)
        way = route(ancestry, self._target)
        if way is None:
            return None
        if self.arrival is Arrival.THERE and (way.deltas or way.back_to != ancestry[0]):
            self.arrival = Arrival.MOVED
        if way.back_to != ancestry[0]:
            with database.locked():
                database.go_back(self._identity, ancestry[0], way.back_to)
        self._catch_up(database, len(self._target.deltas) - len(way.deltas))
        return database.shard(self._identity, self._target.version)

    def _catch_up(self, database: Database, first: int) -> None:
        committed = self._target.committed
        for step in self._target.deltas[first:]:
            entries = step.load()  # may be slow: not under the lock
            with database.locked():
                database.apply(
                    self._identity,
                    step.parent,
                    step.version,
                    entries,
                    committed=committed,
                    undo=step.version.epoch > committed,
                    reads=(),
                )

    def _rebuild(self, after: Path | None) -> Path | None:
        """Build the next directory out of sight. None: another one was first."""
        target = self._target
        start = target.deltas[0].parent if target.deltas else target.version
        built = begin(self._shard)
        try:
            self._kind.fill(built, self._identity, target, start)
            database = self._kind.open(built, may_be_lazy=True)
        except UnusableStore as cause:
            built.release()
            raise StorageError(f"cannot build working state in {built.path}: {cause}; try again") from cause
        except BaseException:
            built.release()
            raise
        database.hold()
        try:
            self._catch_up(database, 0)
            database.leave()
            # Published by name before it is let go of: the sweep must never find it unused.
            return publish(built, after)
        except UnusableStore as cause:
            raise StorageError(f"cannot build working state in {built.path}: {cause}; try again") from cause
        finally:
            database.leave()
            database.let_go()
