"""Which working state is a node's own: each node on a machine locks a name below the working directory.

A node that is gone leaves its name to the next one that starts: the state there is checked before it is used,
and may save a restore. So there are never more directories than nodes were up at once.
Always true: two nodes that are up and have the same working directory have different owners. The system
releases an owner's lock when its process dies, however it dies.
"""

from __future__ import annotations

import socket
from pathlib import Path

from holdfast.errors import MachineError
from holdfast.state.local.directories import private_directory
from holdfast.storage.file_lock import FileLock

OWNERS_MAX = 1_000


class Owner:
    """A name that is this process's until `release`."""

    def __init__(self, name: str, lock: FileLock) -> None:
        self.name, self._lock = name, lock

    def release(self) -> None:
        self._lock.release()


def take_owner(working_dir: str, *, private: bool = False) -> Owner:
    """The first free name. MachineError: nothing can be written there. `private`: the directory is a default
    and not a choice, so it must be this user's alone.
    """
    if private:
        private_directory(Path(working_dir))
    try:
        Path(working_dir).mkdir(parents=True, exist_ok=True)
        for number in range(1, OWNERS_MAX + 1):
            name = f"{socket.gethostname()}-{number}"
            lock = FileLock(Path(working_dir) / f"{name}.lock")
            if lock.try_take():
                return Owner(name, lock)
            lock.abandon()
    except OSError as cause:
        raise MachineError(
            f"working state cannot be kept in {working_dir} ({cause}); choose another --working-dir"
        ) from cause
    raise MachineError(f"{OWNERS_MAX} nodes keep working state in {working_dir}; choose another place")
