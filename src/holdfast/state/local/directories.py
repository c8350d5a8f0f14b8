"""The directories that hold a shard's working state, one generation after the other.

    <shard>/g00000007/    the newest is the one to open; an older one is in use by someone who has not noticed
    <shard>/.new-*/       being built; becomes the next generation by one rename: there whole or not at all
    <shard>/.dead-*/      being removed

Two lock files in each: `use` is held shared by every process that has the generation open, so that what
nobody uses can be swept; `lock` is held by whoever writes. The system drops both when a process dies,
however it dies.
Always true: after a sweep there are at most as many directories as live processes using the shard, and one
more.
Never here: what the files mean (see home, rocksdb_home).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import StorageError

DISK_RESERVE_BYTES = 64 << 20
_POLL_S = 0.002
_POLL_MAX_S = 0.05


class LockTimeout(Exception):
    """Someone holds the lock and does not let go. Internal: the way on is a new generation."""


class Lock:
    """A lock file. Taken by one process at a time; the system gives it up when that process dies."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def try_take(self) -> bool:
        return _try_flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        # Unlocked by name, not by closing alone: a forked child may hold a copy of the file.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    def abandon(self) -> None:
        """In a forked child: let go of the copy. The lock stays with the parent."""
        os.close(self._file)


class Generation:
    """One directory, in use by this process until `release`."""

    def __init__(self, path: Path, use: int) -> None:
        self.path, self._use = path, use

    @property
    def file(self) -> Path:
        """The database file, where the database is a file."""
        return self.path / "data.mdb"

    def still_there(self) -> bool:
        """False: someone removed the directory under us (never the sweep)."""
        return _same_file(self._use, self.path / "use")

    def lock(self, timeout_s: float, clock: Clock) -> Lock:
        """Take the writer's lock. LockTimeout when it is not free in time."""
        lock = Lock(self.path / "lock")
        try:
            give_up, pause = clock.monotonic() + timeout_s, _POLL_S
            while not lock.try_take():
                if clock.monotonic() >= give_up:
                    raise LockTimeout(f"{self.path} stayed locked for {timeout_s} s")
                clock.sleep(pause)
                pause = min(pause * 2, _POLL_MAX_S)
        except BaseException:
            lock.release()
            raise
        return lock

    @contextlib.contextmanager
    def locked(self, timeout_s: float, clock: Clock) -> Iterator[None]:
        """Hold the writer's lock. LockTimeout when it is not free in time."""
        lock = self.lock(timeout_s, clock)
        try:
            yield
        finally:
            lock.release()

    def flag(self, name: str) -> None:
        """Raise a flag that every process sees, for ever."""
        with contextlib.suppress(FileNotFoundError):  # the directory was removed: nobody will ask
            (self.path / name).touch()

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def release(self) -> None:
        os.close(self._use)


def check_room(directory: Path, bytes_needed: int) -> None:
    """Refuse to begin what the disk may have no room for. StorageError: nothing was written."""
    needed = bytes_needed + DISK_RESERVE_BYTES
    if free_bytes(directory) < needed:
        raise StorageError(
            f"disk full: working state in {directory} needs about {needed >> 20} MiB to go on, nothing was "
            "written; free space there, or if that is backend='memory' use backend='lmdb'"
        )


def free_bytes(directory: Path) -> int:
    """What the file system of a directory still takes from this user."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Try to be the only one at something. False: another process is at it."""
    lock = Lock(path)
    try:
        yield lock.try_take()
    finally:
        lock.release()


def newest(directory: Path) -> Path | None:
    """The generation to open."""
    numbered = _numbered(directory)
    return numbered[-1] if numbered else None


def enter(path: Path) -> Generation | None:
    """Begin to use a generation. None: it was just swept."""
    try:
        use = os.open(path / "use", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if _try_flock(use, fcntl.LOCK_SH) and _same_file(use, path / "use"):
        return Generation(path, use)
    os.close(use)
    return None


def begin(directory: Path) -> Generation:
    """A new, empty directory to build the next generation in."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=".new-", dir=directory))
        with contextlib.suppress(FileNotFoundError):  # swept between its creation and its lock: try again
            (path / "use").touch()
            if generation := enter(path):
                return generation


def publish(built: Generation, after: Path | None) -> Path | None:
    """Make a built generation the newest, by one rename.

    None: another one than `after` is the newest by now, and ours was removed.
    """
    directory = built.path.parent
    path = directory / f"g{int(after.name[1:]) + 1 if after else 1:08d}"
    if newest(directory) == after:
        with contextlib.suppress(OSError):  # the name is taken: someone else was first
            os.rename(built.path, path)
            return path
    shutil.rmtree(built.path, ignore_errors=True)
    return None


def sweep(directory: Path, *, newest_too: bool = False) -> None:
    """Remove what nobody uses: older generations, and what killed processes left half built or removed."""
    old = _numbered(directory)
    if not newest_too:
        old = old[:-1]
    hidden = [path for path in directory.iterdir() if path.name.startswith((".new-", ".dead-"))]
    for path in [*old, *hidden]:
        try:
            use = os.open(path / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _try_flock(use, fcntl.LOCK_EX) and _same_file(use, path / "use"):
                # Renamed first, so that nobody enters what is half removed.
                dead = tempfile.mkdtemp(prefix=".dead-", dir=directory)
                with contextlib.suppress(FileNotFoundError):  # another sweeper has it
                    os.rename(path, dead)
                shutil.rmtree(dead, ignore_errors=True)
        finally:
            os.close(use)


def remove_if_unused(directory: Path) -> None:
    """Remove a shard's directory unless some process uses what is in it."""
    sweep(directory, newest_too=True)
    if not any(name.startswith(("g", ".new-")) for name in os.listdir(directory)):
        shutil.rmtree(directory)


def _numbered(directory: Path) -> list[Path]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(names) if name.startswith("g") and name[1:].isdigit()]


def _try_flock(file: int, mode: int) -> bool:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
