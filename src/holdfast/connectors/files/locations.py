"""Where a FileSource finds files, and which names it reads: a directory, a mount, or a prefix in a bucket.

A name is final unless it says otherwise: names that Spark itself passes over (beginning with `.` or `_`,
ending in `._COPYING_`) and those that tools give to a file that is still being written (`.tmp`, `.filepart`)
are left alone until the file has its final name.
Always true: listing costs no look at a file that is not wanted; nothing here is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.connectors.files.frames import FileFrames, ObjectFrames, SparkFrames
from holdfast.connectors.reaching import reaching
from holdfast.errors import DefinitionError, Unavailable
from holdfast.storage.contract import check_name
from holdfast.storage.os_errors import refusal
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.storage.contract import Storage

UNFINISHED = (".tmp", "._COPYING_", ".filepart")
NAMES_SHOWN = 3

RAW_LOCAL_FILES = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Reader options for local names with a colon: Hadoop's local file system looks for a checksum file beside
each file, and cannot name it then."""

Wanted = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it was when it was looked at."""

    name: str
    size: int
    mtime_ns: int | None
    """None: this storage does not tell."""
    copy: tuple[int, int] | str | None = field(default=None, compare=False)
    """Which copy of the file it is: (inode, time of its last change), or a bucket's tag. Never stored: both
    may differ between machines that see the same file."""

    def is_same(self, now: Found) -> bool:
        """Whether `now` is this file, unchanged, as far as can be told."""
        if self != now:
            return False
        if isinstance(self.copy, tuple) and isinstance(now.copy, tuple):
            # Either alone says nothing: a new mode or link changes the time, some mounts make inodes up.
            return self.copy[0] == now.copy[0] or self.copy[1] == now.copy[1]
        return self.copy is None or now.copy is None or self.copy == now.copy


@dataclass
class Listing:
    """What a directory held when it was looked at."""

    there: bool = True
    """False: there is no such directory."""
    new: list[Found] = field(default_factory=list)
    """Files that were wanted."""
    directories: list[str] = field(default_factory=list)
    """Directories that were wanted by their name: they are not read."""
    changed: list[tuple[Found, Found]] = field(default_factory=list)
    """Files that were watched and are no longer as they were: then, now."""


class Directory(Protocol):
    """The few things that FileReader needs to know about where its files are. Looking and reading raise
    Unavailable where it is not there now, and DefinitionError where it lets nobody in."""

    @property
    def url(self) -> str:
        """Where it is, to any process: whatever directory that one was started in."""

    def check(self) -> None:
        """DefinitionError: nothing can ever be read here."""

    def readable(self, name: str) -> bool:
        """Whether a file of this name can be read here."""

    def list(self, wanted: Wanted, watched: Mapping[str, Found]) -> Listing: ...
    def find(self, name: str) -> Found | None: ...
    def refreshed(self, found: Found) -> Found | None: ...
    def read(self, name: str, offset: int, length: int) -> bytes: ...
    def frames(
        self, spark: SparkSession, format: str, options: Mapping[str, str], files: Sequence[Found]
    ) -> FileFrames:
        """The rows of these files, as Spark has them. `options`: those of Spark's reader."""


class LocalDirectory:
    """A directory of this machine or a mount."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    @property
    def url(self) -> str:
        return str(self._path)

    def check(self) -> None:
        if not self._path.is_dir():
            what = "is no directory" if self._path.exists() else "does not exist"
            raise DefinitionError(
                f"source path {self._path} {what}; correct the path, or create the directory before the start"
            )

    def readable(self, name: str) -> bool:
        return is_text(name)

    def list(self, wanted: Wanted, watched: Mapping[str, Found]) -> Listing:
        listing = Listing()
        with self._told("list"):
            try:
                with os.scandir(self._path) as entries:
                    for entry in entries:
                        if not wanted(entry.name):
                            continue
                        # Only new names cost a look: a poll of an old, full directory is just its listing.
                        if entry.is_dir():
                            listing.directories.append(entry.name)
                        elif entry.is_file() and (found := self.find(entry.name)) is not None:
                            listing.new.append(found)
            except FileNotFoundError:
                listing.there = False
        looks = [(then, self.find(name)) for name, then in watched.items()]
        listing.changed = [(then, now) for then, now in looks if now is not None and now != then]
        return listing

    def find(self, name: str) -> Found | None:
        with self._told("read", name):
            try:
                status = os.stat(self._path / name)
            except FileNotFoundError:
                return None
        return Found(name, status.st_size, status.st_mtime_ns, (status.st_ino, status.st_ctime_ns))

    def refreshed(self, found: Found) -> Found | None:
        return self.find(found.name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with self._told("read", name), open(self._path / name, "rb") as file:
            file.seek(offset)
            return file.read(length)

    def frames(
        self, spark: SparkSession, format: str, options: Mapping[str, str], files: Sequence[Found]
    ) -> FileFrames:
        paths = {found.name: f"file://{self._path / found.name}" for found in files}
        own = RAW_LOCAL_FILES if any(":" in name for name in paths) else {}
        return SparkFrames(spark, format, options, paths, own)

    @contextmanager
    def _told(self, verb: str, name: str = "") -> Iterator[None]:
        with reaching(f"source path {self._path}"):
            try:
                yield
            except OSError as cause:
                raise refusal(cause, verb, str(self._path / name)) from cause


class ObjectDirectory:
    """A prefix in object storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._place = storage, f"source path {storage.url}"

    @property
    def url(self) -> str:
        return self._storage.url

    def check(self) -> None:
        """A prefix without objects cannot be told from one that does not exist."""
        # One that is away is waited for by the run.
        with suppress(Unavailable), reaching(self._place):
            self._storage.list("")

    def readable(self, name: str) -> bool:
        try:
            check_name(name)
        except DefinitionError:
            return False
        return True

    def list(self, wanted: Wanted, watched: Mapping[str, Found]) -> Listing:
        listing, deeper = Listing(), set[str]()
        with reaching(self._place):
            entries = self._storage.list("")
        for name, size, _ in entries:
            first, below, _ = name.partition("/")
            if below:
                deeper.add(first)
                continue
            found = Found(name, size, None)
            if wanted(name):
                listing.new.append(found)
            elif name in watched and watched[name] != found:
                listing.changed.append((watched[name], found))
        listing.directories = [name for name in deeper if wanted(name)]
        return listing

    def find(self, name: str) -> Found | None:
        with reaching(self._place):
            entry = self._storage.entry(name)
        return None if entry is None else Found(name, entry.size, None, entry.tag or None)

    def refreshed(self, found: Found) -> Found | None:
        # A request per file would make planning slow; what changed since the listing shows in `frame`.
        return found

    def read(self, name: str, offset: int, length: int) -> bytes:
        with reaching(self._place):
            return self._storage.get(name, offset, length)

    def frames(
        self, spark: SparkSession, format: str, options: Mapping[str, str], files: Sequence[Found]
    ) -> FileFrames:
        sizes = {found.name: found.size for found in files}
        return ObjectFrames(spark, format, options, self._storage.url, sizes)


def is_final(name: str) -> bool:
    """Whether a file of this name is to be read."""
    return not name.startswith((".", "_")) and not name.endswith(UNFINISHED)


def is_text(name: str) -> bool:
    """Whether a name can be told to Spark and written in a plan: bytes that are not UTF-8 cannot."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def some_of(names: Iterable[str]) -> str:
    """A few of the names, for a message: `'a', 'b', 'c' and 9 more`."""
    ordered = sorted(names)
    shown = ", ".join(map(ascii, ordered[:NAMES_SHOWN]))
    more = len(ordered) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def open_directory(path: str) -> Directory:
    storage = open_storage(path)
    local = storage.local_path("any")
    return ObjectDirectory(storage) if local is None else LocalDirectory(local.parent)
