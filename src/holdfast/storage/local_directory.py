"""Storage in a directory of a local or mounted file system.

A write goes to a draft in `<root>/.tmp`, is synced, and only then gets its name: by link, which fails where
the name exists (put-if-absent), or by rename, which replaces. Then the directory is synced.

Always true: a file with a name is complete, and its content and all directories above it are durable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from holdfast.errors import ObjectMissing, StorageError, UnknownOutcome
from holdfast.storage import draft_names
from holdfast.storage.contract import RESERVED_DIRECTORY, Entry, Put, check_name, check_prefix
from holdfast.storage.os_errors import refusal

OPEN_DIRECTORIES_MAX = 64
COPY_BYTES = 1 << 20
STREAM_STEP_BYTES = 8 << 20
"""A long stream is written to disk in steps of this size rather than when it is synced, and does not stay in
the page cache: otherwise the next sync of any process waits for all of it, and it drives out others' pages.
"""
PUT_TRIES = 5
"""How often a write is begun again because its directory was removed, or its temporary swept, under it."""


_Fill = Callable[[str, int], None]
_Place = Callable[[str, int, str, int], Put]


class _Directory:
    """A directory held open, closed with its last user.

    An open one cannot be mistaken for a successor of the same name: linking into a removed directory fails.
    `durable` holds names that are known to be durable in it, so that listing them again need not sync.
    """

    __slots__ = ("durable", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.durable: set[str] = set()

    def __del__(self) -> None:
        os.close(self.fd)


class LocalStorage:
    """Objects are files below `root`.

    `fsync=False` gives up durability; it exists to measure what fsync costs.
    """

    def __init__(self, root: str | Path, *, fsync: bool = True) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root) if fsync else f"file://{quote(str(self.root))}?fsync=off"
        self._fsync = fsync
        self._open: OrderedDict[str, _Directory] = OrderedDict()
        self._lock = threading.Lock()
        draft_names.sweep(self.root / RESERVED_DIRECTORY)

    def __repr__(self) -> str:
        return f"LocalStorage({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStorage) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def put_new(self, name: str, data: bytes) -> Put:
        return self._publish(name, lambda draft, at: self._write(draft, at, data), _link)

    def put(self, name: str, data: bytes) -> None:
        self._publish(name, lambda draft, at: self._write(draft, at, data), _replace)

    def put_file(self, name: str, path: Path) -> None:
        if not os.path.isfile(path):
            raise StorageError(f"cannot write {self._path(name)}: there is no file {path} to take it from")
        self._publish(name, lambda draft, at: self._adopt(draft, at, path), _replace)
        os.unlink(path)

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        self._publish(name, lambda draft, at: self._write_parts(draft, at, parts()), _replace)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                rest = max(0, os.fstat(fd).st_size - offset)
                return _read(fd, offset, rest if length is None else min(length, rest))
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as cause:
            raise ObjectMissing(
                f"object {name!r} is not in {self.url}; restore it from a copy, or rewind"
            ) from cause
        except OSError as cause:
            raise refusal(cause, "read", path) from cause

    def size(self, name: str) -> int | None:
        path = self._path(name)
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as cause:
            raise refusal(cause, "read", path) from cause
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def entry(self, name: str) -> Entry | None:
        size = self.size(name)
        return None if size is None else Entry(name, size)

    def list(self, prefix: str) -> list[Entry]:
        parent, slash, start = check_prefix(prefix).rpartition("/")
        return sorted(self._walk(parent + slash, start))

    def delete(self, names: Iterable[str]) -> None:
        parents = set()
        for name in names:
            path = self._path(name)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as cause:
                raise refusal(cause, "delete", path) from cause
            parent, _, leaf = name.rpartition("/")
            parents.add(parent)
            with self._lock:
                if known := self._open.get(parent):
                    known.durable.discard(leaf)
        for parent in parents:
            self._remove_if_empty(parent)

    def local_path(self, name: str) -> Path | None:
        return Path(self._path(name))

    def move(self, name: str, to: str) -> bool:
        """Give an object another name, at one instant and durably. False: there is no such object."""
        path = self._path(to)
        (parent, _, leaf), (above, _, target) = name.rpartition("/"), to.rpartition("/")
        try:
            source, into = self._directory(parent), self._directory(above)
            try:
                os.rename(leaf, target, src_dir_fd=source.fd, dst_dir_fd=into.fd)
            except FileNotFoundError:
                return False
            source.durable.discard(leaf)
            self._sync_directory(into.fd)
            self._sync_directory(source.fd)
            into.durable.add(target)
        except OSError as cause:
            raise refusal(cause, "write", path) from cause
        return True

    def tidy(self) -> None:
        """Remove the directory of unfinished writes, if none is under way; the next write makes it again."""
        self._remove_if_empty(RESERVED_DIRECTORY)

    def _sync_file(self, fd: int) -> None:
        if self._fsync:
            os.fsync(fd)

    def _sync_directory(self, fd: int) -> None:
        if self._fsync:
            os.fsync(fd)

    def _path(self, name: str) -> str:
        return f"{self.root}/{check_name(name)}"

    def _publish(self, name: str, fill: _Fill, place: _Place) -> Put:
        """Make a durable draft with `fill`, give it its name with `place`, make the name durable too."""
        path = self._path(name)
        parent, _, leaf = name.rpartition("/")
        placed: Put | None = None
        for tries_left in reversed(range(PUT_TRIES)):
            try:
                into, shed = self._directory(parent), self._directory(RESERVED_DIRECTORY)
                draft = draft_names.new_name()
                try:
                    fill(draft, shed.fd)
                    placed = place(draft, shed.fd, leaf, into.fd)
                    # Also for EXISTS: its writer may not have got here yet, and our caller acts on it.
                    self._sync_directory(into.fd)
                    into.durable.add(leaf)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(draft, dir_fd=shed.fd)
                return placed
            except OSError as cause:
                if placed is not None:
                    raise UnknownOutcome(
                        f"{path} was written, but syncing its directory failed ({cause.strerror}): "
                        "a power cut may lose it; check the disk, then write it again"
                    ) from cause
                if not isinstance(cause, FileNotFoundError) or not tries_left:
                    raise refusal(cause, "write", path) from cause
                with self._lock:
                    self._open.clear()
        raise AssertionError("every try returns or raises")

    def _write(self, draft: str, shed_fd: int, data: bytes) -> None:
        fd = _create(draft, shed_fd)
        try:
            _write_all(fd, data)
            self._sync_file(fd)
        finally:
            os.close(fd)

    def _write_parts(self, draft: str, shed_fd: int, parts: Iterator[bytes]) -> None:
        fd = _create(draft, shed_fd)
        try:
            begun = end = 0
            for part in parts:
                _write_all(fd, part)
                end += len(part)
                if end - begun >= STREAM_STEP_BYTES and hasattr(os, "posix_fadvise"):
                    # Begins to write what is new, and frees what was written by now.
                    os.posix_fadvise(fd, 0, end, os.POSIX_FADV_DONTNEED)
                    begun = end
            self._sync_file(fd)
        finally:
            os.close(fd)

    def _adopt(self, draft: str, shed_fd: int, path: Path) -> None:
        """Make an existing file the draft: by a second link where that is possible, else by copying."""
        try:
            os.link(path, draft, dst_dir_fd=shed_fd)
        except OSError as cause:
            if cause.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            with open(path, "rb") as source, open(_create(draft, shed_fd), "wb") as copy:
                shutil.copyfileobj(source, copy, COPY_BYTES)
        fd = os.open(draft, os.O_RDONLY | os.O_CLOEXEC, dir_fd=shed_fd)
        try:
            self._sync_file(fd)
        finally:
            os.close(fd)

    def _directory(self, relative: str) -> _Directory:
        """The directory, open for linking into it; at its first use made durable, with all above it."""
        with self._lock:
            known = self._open.get(relative)
        if known is not None:
            return known
        path = f"{self.root}/{relative}" if relative else str(self.root)
        if not relative:
            self._create_root()
        else:
            above = self._directory(relative.rpartition("/")[0])
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            if relative != RESERVED_DIRECTORY:
                # Also if it existed: the process that created it may not have synced it yet.
                self._sync_directory(above.fd)
        opened = _open_directory(path)
        with self._lock:
            self._open[relative] = opened
            if len(self._open) > OPEN_DIRECTORIES_MAX:
                self._open.popitem(last=False)
        return opened

    def _create_root(self) -> None:
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            self._sync_path(str(path.parent))

    def _walk(self, parent: str, start: str) -> Iterator[Entry]:
        """Entries below the directory `parent` ('' or ending in '/') whose own name begins with `start`."""
        path = f"{self.root}/{parent}"
        below, names = [], set()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if not entry.name.startswith(start):
                        continue
                    if entry.is_dir():
                        below.append(f"{parent}{entry.name}/")
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        yield Entry(parent + entry.name, entry.stat().st_size)
                        names.add(entry.name)
            self._make_durable(parent.rstrip("/"), names)
        except FileNotFoundError:
            return
        except NotADirectoryError as cause:
            if parent and self.root.is_dir():
                return
            raise refusal(cause, "list", path) from cause
        except OSError as cause:
            raise refusal(cause, "list", path) from cause
        for deeper in below:
            if deeper != f"{RESERVED_DIRECTORY}/":
                yield from self._walk(deeper, "")

    def _make_durable(self, relative: str, names: set[str]) -> None:
        """What a listing shows must last: a writer may be between naming a file and syncing its directory."""
        with self._lock:
            known = self._open.get(relative)
        if not names <= (known.durable if known else set()):
            self._sync_path(f"{self.root}/{relative}")
        if known:
            known.durable = names

    def _sync_path(self, path: str) -> None:
        directory = _open_directory(path)
        self._sync_directory(directory.fd)

    def _remove_if_empty(self, relative: str) -> None:
        while relative:
            try:
                os.rmdir(f"{self.root}/{relative}")
            except OSError:
                return
            with self._lock:
                self._open.pop(relative, None)
            relative = relative.rpartition("/")[0]


def _open_directory(path: str) -> _Directory:
    return _Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _link(draft: str, shed_fd: int, leaf: str, into_fd: int) -> Put:
    try:
        os.link(draft, leaf, src_dir_fd=shed_fd, dst_dir_fd=into_fd)
    except FileExistsError:
        return Put.EXISTS
    return Put.CREATED


def _replace(draft: str, shed_fd: int, leaf: str, into_fd: int) -> Put:
    os.replace(draft, leaf, src_dir_fd=shed_fd, dst_dir_fd=into_fd)
    return Put.CREATED


def _create(draft: str, shed_fd: int) -> int:
    return os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=shed_fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) == length:
        return data
    # One read call gives at most 2 GiB.
    parts = [data]
    while parts[-1] and (got := sum(map(len, parts))) < length:
        parts.append(os.pread(fd, length - got, offset + got))
    return b"".join(parts)
