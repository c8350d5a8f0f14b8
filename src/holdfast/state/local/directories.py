"""The directories of working state: whose they are, and how one of a shard follows the other.

    <shard>/g00000007/    the newest is the one to open; an older one serves a process that has not noticed
    <shard>/.new-*/       being built; becomes the next one by one rename: there whole or not at all
    <shard>/.dead-*/      being removed

Two lock files in each: `use` is held shared by every process that has the directory open, so that unused ones
can be swept; `lock` is held by the process that writes. The system drops both when a process dies.
Always true: after a sweep there are at most as many directories as live processes using the shard, and one
more. Working state is read without suspicion of who wrote it, so where the user chose no place for it, it
lies in a directory that no other user can look into or change.
Never here: what the files mean (see database).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.errors import MachineError, StorageError
from holdfast.storage.file_lock import FileLock, try_flock

DISK_RESERVE_BYTES = 64 << 20
PRIVATE = 0o700
_REMEDY = "remove it, or choose a place with --working-dir or HOLDFAST_WORKING_DIR"
LOCK_TIMEOUT_S = 10.0
"""How long to wait for a process that holds the writer's lock. One that is stopped keeps its directory, and
the others begin the next one."""


class LockTimeout(Exception):
    """Another process does not let go of the lock. Internal: the way on is a new directory."""


class Directory:
    """One of a shard's directories, in use by this process until `release`."""

    def __init__(self, path: Path, use: int) -> None:
        self.path, self._use = path, use

    @property
    def file(self) -> Path:
        """The database file, where the database is a file."""
        return self.path / "data.mdb"

    def still_there(self) -> bool:
        """False: it was removed under us, though never by a sweep."""
        return _same_file(self._use, self.path / "use")

    def lock(self) -> FileLock:
        """Take the writer's lock. LockTimeout when it is not free in time."""
        lock = FileLock(self.path / "lock")
        try:
            if not lock.take_within(LOCK_TIMEOUT_S, SystemClock()):
                raise LockTimeout(f"{self.path} stayed locked for {LOCK_TIMEOUT_S} s")
        except BaseException:
            lock.release()
            raise
        return lock

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writer's lock. LockTimeout when it is not free in time."""
        lock = self.lock()
        try:
            yield
        finally:
            lock.release()

    def flag(self, name: str) -> None:
        """Raise a flag that every process sees, and that stays."""
        with contextlib.suppress(FileNotFoundError):  # the directory was removed
            (self.path / name).touch()

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def release(self) -> None:
        os.close(self._use)


def default_working_dir() -> Path:
    """Where working state goes by default, once `private_directory` has seen to it."""
    return Path(tempfile.gettempdir()) / f"holdfast-{os.geteuid()}"


def private_directory(path: Path) -> Path:
    """Make the directory, or see that it is this user's alone. MachineError: it is another user's or a link,
    or cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(PRIVATE)
        # Not followed: a link may point to where another user wants this user's files to be.
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise MachineError(f"{path} is no directory, where working state was to go; {_REMEDY}")
        if found.st_uid != os.geteuid():
            raise MachineError(
                f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()}, whose working state was "
                f"to go there; {_REMEDY}"
            )
        if stat.S_IMODE(found.st_mode) & ~PRIVATE:
            path.chmod(PRIVATE)
    except OSError as cause:
        raise MachineError(f"working state cannot be kept in {path} ({cause}); {_REMEDY}") from cause
    return path


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


def newest(shard: Path) -> Path | None:
    """The directory to open."""
    numbered = _numbered(shard)
    return numbered[-1] if numbered else None


def enter(path: Path) -> Directory | None:
    """Begin to use a directory. None: it was just swept."""
    try:
        use = os.open(path / "use", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if try_flock(use, fcntl.LOCK_SH) and _same_file(use, path / "use"):
        return Directory(path, use)
    os.close(use)
    return None


def begin(shard: Path) -> Directory:
    """A new, empty directory to build the next one in."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=".new-", dir=shard))
        with contextlib.suppress(FileNotFoundError):  # swept between its creation and its lock: try again
            (path / "use").touch()
            if directory := enter(path):
                return directory


def publish(built: Directory, after: Path | None) -> Path | None:
    """Make a built directory the newest, by one rename.

    None: another one than `after` is the newest by now, and ours was removed.
    """
    shard = built.path.parent
    path = shard / f"g{int(after.name[1:]) + 1 if after else 1:08d}"
    if newest(shard) == after:
        with contextlib.suppress(OSError):  # the name is taken: another process was first
            os.rename(built.path, path)
            return path
    shutil.rmtree(built.path, ignore_errors=True)
    return None


def sweep(shard: Path, *, newest_too: bool = False) -> None:
    """Remove what is unused: older directories, and what killed processes left half built or removed."""
    old = _numbered(shard)
    if not newest_too:
        old = old[:-1]
    hidden = [path for path in shard.iterdir() if path.name.startswith((".new-", ".dead-"))]
    for path in [*old, *hidden]:
        try:
            use = os.open(path / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if try_flock(use, fcntl.LOCK_EX) and _same_file(use, path / "use"):
                # Renamed first, so that no process enters what is half removed.
                dead = tempfile.mkdtemp(prefix=".dead-", dir=shard)
                with contextlib.suppress(FileNotFoundError):  # another sweeper has it
                    os.rename(path, dead)
                shutil.rmtree(dead, ignore_errors=True)
        finally:
            os.close(use)


def remove_if_unused(shard: Path) -> None:
    """Remove all of a shard's working state unless some process uses it."""
    sweep(shard, newest_too=True)
    if not any(name.startswith(("g", ".new-")) for name in os.listdir(shard)):
        shutil.rmtree(shard)


def _numbered(shard: Path) -> list[Path]:
    try:
        names = os.listdir(shard)
    except FileNotFoundError:
        return []
    return [shard / name for name in sorted(names) if name.startswith("g") and name[1:].isdigit()]


def _same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
