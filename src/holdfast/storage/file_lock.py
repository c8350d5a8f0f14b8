"""Locks between processes of one machine: a file that one of them holds.

Always true: the system gives a lock up when its process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.clock import Clock

_POLL_S = 0.002
_POLL_MAX_S = 0.05


class FileLock:
    """A lock file. One process at a time takes it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def try_take(self) -> bool:
        return try_flock(self._file, fcntl.LOCK_EX)

    def take_within(self, timeout_s: float, clock: Clock) -> bool:
        """Wait for the lock. False: another process held it all the time."""
        give_up, pause = clock.monotonic() + timeout_s, _POLL_S
        while not self.try_take():
            if clock.monotonic() >= give_up:
                return False
            clock.sleep(pause)
            pause = min(pause * 2, _POLL_MAX_S)
        return True

    def release(self) -> None:
        # Unlocked by name, not by closing alone: a forked child may hold a copy of the file.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    def abandon(self) -> None:
        """In a forked child: let go of the copy. The lock stays with the parent."""
        os.close(self._file)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Try to be the only process to do something. False: another one does it."""
    lock = FileLock(path)
    try:
        yield lock.try_take()
    finally:
        lock.release()


def try_flock(file: int, mode: int) -> bool:
    """Lock an open file, shared or exclusively. False: another process has it."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
