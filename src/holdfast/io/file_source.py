"""Files that appear in a directory, each read once.

A writer must put a file in place whole: write it under a name that is ignored (starting with `.` or `_`, or
ending in `.tmp`) or in another directory, then rename it. A file is read as it was when its epoch was
planned; what is appended later is not seen.
Always true: a file's name is noted in the commit that covers it, so it is read once however often the job
restarts; an epoch reads exactly the files of its plan, or fails.
"""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import DefinitionError, InputVanished
from holdfast.io.contract import Json, Slice
from holdfast.storage.places import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.storage.contract import Storage

SLICE_FILES_MAX = 1_000
_SAMPLE_BYTES = 64 * 1024
_FORMATS = ("json", "csv", "parquet")
_SPARK_SCHEMES = {"s3": "s3a"}
"""Hadoop's name for a scheme, where it differs from ours."""


class FileSource:
    """JSON lines, CSV or Parquet files directly in `path`: a directory, a mount, or `s3://`, `gs://`,
    `az://`.

    `pattern` selects names (`*.json`). `options` go to Spark's reader (`header`, `sep`, ...). Files found
    together are read in the order of their modification time, then name. `max_rows` of an epoch is kept
    approximately: whole files, at least one.

    Rows that do not parse fail the epoch (`mode="FAILFAST"`), because Spark's own default turns them into
    nulls in silence; say `mode="PERMISSIVE"` or `"DROPMALFORMED"` to accept that. In object storage only a
    file's size shows that it was changed.
    """

    replayable: Final = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str,
        schema: str,
        pattern: str = "*",
        mode: str = "FAILFAST",
        options: Mapping[str, str] | None = None,
    ) -> None:
        if format not in _FORMATS:
            raise DefinitionError(
                f"FileSource cannot read format {format!r}; use one of {', '.join(_FORMATS)}"
            )
        self.path: Final = os.fspath(path)
        self.format: Final = format
        self.schema: Final = schema
        self.pattern: Final = pattern
        self.mode: Final = mode
        self.options: Final = dict(options or {})

    def reader(self, notes: Sequence[Json]) -> FileReader:
        return FileReader(self, _open_directory(self.path), notes)


@dataclass(frozen=True, slots=True)
class _Found:
    """A file as it was when it was planned."""

    name: str
    size: int
    mtime_ns: int | None
    """None: this storage does not tell."""


class FileReader:
    """A position is the number of files read so far; `_read` holds their names in that order, so a position
    is also a prefix of it."""

    def __init__(self, source: FileSource, directory: _Directory, notes: Sequence[Json]) -> None:
        self._source = source
        self._directory = directory
        self._read: list[str] = list(notes)
        self._known: set[str] = set(notes)
        self._waiting: deque[_Found] = deque()
        """Seen in the last listing and not planned yet, in order."""

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        self._go_to(after or 0)
        if not self._waiting:
            self._waiting = self._discover()
        chosen = self._choose(max_rows)
        if not chosen:
            return None
        names = tuple(found.name for found in chosen)
        self._learn(names)
        detail = [[found.name, found.size, found.mtime_ns] for found in chosen]
        return Slice(after, len(self._read), detail=detail, notes=names)

    def exhausted(self, after: Json | None) -> bool:
        self._go_to(after or 0)
        self._waiting = self._waiting or self._discover()
        return not self._waiting

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        planned = [_Found(*entry) for entry in slice.detail]
        self._verify(planned)
        if (slice.start or 0) == len(self._read):
            self._learn(slice.notes)
        source = self._source
        # A session that ignores missing or corrupt files would drop rows in silence: overruled per read.
        strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
        if source.format != "parquet":
            strict["mode"] = source.mode
        if source.format == "csv" and source.options.get("header", "").lower() == "true":
            # Without it Spark takes columns by position, whatever the header says.
            strict["enforceSchema"] = "false"
        reader = (
            spark.read.schema(source.schema).format(source.format).options(**{**strict, **source.options})
        )
        return reader.load([_literal(self._directory.spark_path(found.name)) for found in planned])

    def lag(self, after: Json | None) -> int | None:
        return None

    def _go_to(self, position: int) -> None:
        if position == len(self._read):
            return
        assert position < len(self._read), (
            f"{self._source.path}: {position} files read, notes name {len(self._read)}"
        )
        self._known -= set(self._read[position:])
        del self._read[position:]
        self._waiting.clear()

    def _learn(self, names: Sequence[str]) -> None:
        self._read += names
        self._known |= set(names)

    def _discover(self) -> deque[_Found]:
        pattern, known = self._source.pattern, self._known
        new = self._directory.list(
            lambda name: _visible(name) and name not in known and fnmatchcase(name, pattern)
        )
        return deque(sorted(new, key=lambda found: (found.mtime_ns or 0, found.name)))

    def _choose(self, max_rows: int | None) -> list[_Found]:
        """Take the files of the next slice from those waiting."""
        chosen: list[_Found] = []
        rows = 0
        while self._waiting and len(chosen) < SLICE_FILES_MAX:
            found = self._directory.refreshed(self._waiting[0])
            if found is not None:
                rows += 0 if max_rows is None else self._estimate(found)
                if chosen and max_rows is not None and rows > max_rows:
                    break
                chosen.append(found)
            self._waiting.popleft()
        return chosen

    def _estimate(self, found: _Found) -> int:
        """About how many rows a file has, from a glance at it."""
        if self._source.format == "parquet":
            tail = self._directory.read(found.name, max(0, found.size - _SAMPLE_BYTES), _SAMPLE_BYTES)
            try:
                # The footer is all that is looked at, so the end of the file will do for the file.
                return int(pq.read_metadata(pa.BufferReader(tail)).num_rows)
            except pa.ArrowInvalid:  # a footer longer than that, or no Parquet: Spark will tell
                return found.size
        sample = self._directory.read(found.name, 0, _SAMPLE_BYTES)
        return found.size * max(1, sample.count(b"\n")) // max(1, len(sample))

    def _verify(self, planned: Sequence[_Found]) -> None:
        for found in planned:
            now = self._directory.find(found.name)
            if now == found:
                continue
            what = "is gone" if now is None else f"was changed ({_difference(found, now)})"
            give_up = f"holdfast skip --file {shlex.quote(found.name)}"
            raise InputVanished(
                f"file {found.name!r} of source path {self._source.path} {what} after it was planned; "
                f"restore the file, or give it up on purpose with `{give_up}`"
            )


class _Directory(Protocol):
    """The few things that FileReader needs to know about a place with files."""

    def list(self, wanted: _Wanted) -> list[_Found]: ...
    def find(self, name: str) -> _Found | None: ...
    def refreshed(self, found: _Found) -> _Found | None: ...
    def read(self, name: str, offset: int, length: int) -> bytes: ...
    def spark_path(self, name: str) -> str: ...


class _Wanted(Protocol):
    def __call__(self, name: str) -> bool: ...


class _LocalDirectory:
    """A directory of this machine or a mount."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def list(self, wanted: _Wanted) -> list[_Found]:
        try:
            with os.scandir(self._path) as entries:
                # Only new names cost a stat: a poll of an old, full directory is just its listing.
                found = [self.find(entry.name) for entry in entries if wanted(entry.name) and entry.is_file()]
        except FileNotFoundError:
            return []
        return [file for file in found if file is not None]

    def find(self, name: str) -> _Found | None:
        try:
            status = os.stat(self._path / name)
        except FileNotFoundError:
            return None
        return _Found(name, status.st_size, status.st_mtime_ns)

    def refreshed(self, found: _Found) -> _Found | None:
        return self.find(found.name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with open(self._path / name, "rb") as file:
            file.seek(offset)
            return file.read(length)

    def spark_path(self, name: str) -> str:
        return f"file://{self._path / name}"


class _ObjectDirectory:
    """A prefix in object storage."""

    def __init__(self, url: str, storage: Storage) -> None:
        scheme, _, rest = url.rstrip("/").partition("://")
        self._spark_url = f"{_SPARK_SCHEMES.get(scheme, scheme)}://{rest}"
        self._storage = storage

    def list(self, wanted: _Wanted) -> list[_Found]:
        entries = self._storage.list("")
        return [_Found(name, size, None) for name, size in entries if "/" not in name and wanted(name)]

    def find(self, name: str) -> _Found | None:
        size = self._storage.size(name)
        return None if size is None else _Found(name, size, None)

    def refreshed(self, found: _Found) -> _Found | None:
        # A request per file would make planning slow; what changed since the listing shows in `frame`.
        return found

    def read(self, name: str, offset: int, length: int) -> bytes:
        return self._storage.get(name, offset, length)

    def spark_path(self, name: str) -> str:
        return f"{self._spark_url}/{name}"


def _open_directory(path: str) -> _Directory:
    storage = open_storage(path)
    local = storage.local_path("any")
    return _ObjectDirectory(path, storage) if local is None else _LocalDirectory(local.parent)


def _visible(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith(".tmp")


def _difference(planned: _Found, now: _Found) -> str:
    if planned.size != now.size:
        return f"size {planned.size} then, {now.size} now"
    return f"modified at {planned.mtime_ns} ns then, {now.mtime_ns} ns now"


def _literal(path: str) -> str:
    """A path as Spark's reader takes it literally: it expands glob characters."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in path)
