"""The state backends by name: the one place where a backend is chosen.

| name | working state | snapshots |
| --- | --- | --- |
| lmdb | LMDB files on the local disk | the LMDB file |
| memory | the same files on a memory file system | the LMDB file |
| rocksdb | a RocksDB directory on the local disk | one SST file |

Always true: all keep the contract of working.ShardState (tests/contract/test_state_backend.py), and each
opens the snapshots of the others.
Never here: what a backend does (see lmdb_opening, rocksdb_opening).
"""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import DefinitionError, MachineError
from holdfast.state.local.private_directory import private_directory

if TYPE_CHECKING:
    from holdfast.state.local.opening import Database

MEMORY_DIR = Path("/dev/shm")
MEMORY_DIR_SETTING = "HOLDFAST_MEMORY_DIR"
"""Environment variable: the memory file system to use instead."""


class Backend(ABC):
    """One backend. Holds nothing: the same for every shard and process."""

    snapshots: str
    """The format of its snapshot files, as SnapshotFile.backend names it."""

    @abstractmethod
    def database(self) -> Database[Any]:
        """What keeps its working state. MachineError when it is not installed."""

    def check_installed(self) -> None:  # noqa: B027
        """MachineError with the command that helps, if something is not installed."""

    def root(self, on_disk: Path) -> Path:
        """Where working state goes on a machine whose disk has `on_disk` for it. MachineError: nowhere."""
        return on_disk


class _Lmdb(Backend):
    snapshots = "lmdb"

    def database(self) -> Database[Any]:
        from holdfast.state.local.lmdb_opening import LmdbDatabase

        return LmdbDatabase()


class _Memory(_Lmdb):
    def root(self, on_disk: Path) -> Path:
        memory = Path(os.environ.get(MEMORY_DIR_SETTING) or MEMORY_DIR)
        if not memory.is_dir() or not os.access(memory, os.W_OK):
            raise MachineError(
                f"there is no memory file system at {memory} to write to; "
                f"set {MEMORY_DIR_SETTING} to one, or use backend='lmdb'"
            )
        return private_directory(memory / f"holdfast-{os.getuid()}")


class _RocksDb(Backend):
    snapshots = "rocksdb"

    def database(self) -> Database[Any]:
        self.check_installed()
        from holdfast.state.local.rocksdb_opening import RocksDbDatabase

        return RocksDbDatabase()

    def check_installed(self) -> None:
        if importlib.util.find_spec("rocksdict") is None:
            raise MachineError(
                "backend='rocksdb' needs rocksdict, which is not installed; pip install 'holdfast[rocksdb]'"
            )


_BACKENDS: dict[str, Backend] = {"lmdb": _Lmdb(), "memory": _Memory(), "rocksdb": _RocksDb()}


def backend_named(name: str) -> Backend:
    """The backend of that name, or a DefinitionError that lists them."""
    try:
        return _BACKENDS[name]
    except KeyError:
        choices = ", ".join(repr(choice) for choice in _BACKENDS)
        raise DefinitionError(f"there is no state backend {name!r}; choose one of {choices}") from None
