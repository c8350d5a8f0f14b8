"""One file per committed epoch in a directory that any plain reader can read, and whose files may be taken
away at any time. (Many files per epoch: see sink_lanes.)

    out/<uid>-<epoch, 12 digits>.<ext>    the rows of one epoch
    out/_holdfast-<uid>                   whose files these are: a second job with the same uid is refused
    out/_holdfast/<uid>/<epoch>           a mark: this epoch and all before it are shown; the newest counts
    out/_holdfast/<uid>/<epoch>-<name>    rows that are about to be shown (on a file system)

(Plain readers pass over names with `_`, and globs such as `*.json` over these.)

On a file system rows are written aside, the mark is created if absent and names them, and one rename shows
them. So a mark whose rows are still aside is an epoch that is not shown yet, and one whose rows are not there
is an epoch that is, also when a consumer has taken the file. An object store cannot rename: there the file is
created if absent and the mark follows, so a file that is taken away before its mark is there may come again
after a crash at that very moment. An epoch with its mark is never written again.

Always true: a reader of the directory sees whole committed epochs only; of several publishers of an epoch one
shows it, once, however long another one was paused; marks never go back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.connectors.contract import Mark, StagedPart
from holdfast.connectors.files.sink_formats import FORMATS, check_columns, encode
from holdfast.connectors.files.sink_lanes import FILE_ROWS, FileLanes
from holdfast.connectors.files.sink_owner import MARKS, cut_of, damaged, own, owner_name
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.partitions import check_partition_columns
from holdfast.connectors.reaching import reaching
from holdfast.errors import DefinitionError, ObjectMissing, RestoreError, RetryableError, Unavailable
from holdfast.storage import draft_names
from holdfast.storage.contract import Put
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.typed_json import from_json
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.connectors.lanes import Atomic
    from holdfast.storage.contract import Storage


class FileSink:
    """Parquet, JSON lines or CSV (with a header) files in `path`: a directory, a mount, or `s3://`, `gs://`,
    `az://`.

    An epoch is one file, made in the driver's memory. With `max_file_rows` it is many, of at most so many
    rows each, written by Spark's tasks; with `partition_by` (columns of text, whole numbers or booleans) they
    are in directories `column=value/`, and have at most 1,000,000 rows unless said. Either counts for good
    for a directory and a uid. JSON and CSV hold decimals as text, binary as base64,
    dates, times and intervals as ISO 8601 of any year, NaN and the infinities by name. A map is a JSON
    object, or an array of `{"key": ..., "value": ...}` where its keys are nested. Bytes in text that are not
    UTF-8 are shown as U+FFFD. CSV cannot hold nested columns: such a job is refused before it runs.
    """

    exactly_once: Final = True

    shared: Final = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str,
        max_file_rows: int | None = None,
        partition_by: Sequence[str] = (),
    ) -> None:
        if format not in FORMATS:
            raise DefinitionError(f"FileSink cannot write format {format!r}; use one of {', '.join(FORMATS)}")
        if max_file_rows is not None and max_file_rows < 1:
            raise DefinitionError(
                f"max_file_rows={max_file_rows}: a file has at least one row; give 1 or more"
            )
        if partition_by and max_file_rows is None:
            max_file_rows = FILE_ROWS
        self.path: Final = os.fspath(path)
        self.format: Final = format
        self.max_file_rows: Final = max_file_rows
        self.partition_by: Final = tuple(partition_by)

    def check_schema(self, schema: pa.Schema) -> None:
        check_columns(self.format, schema)
        check_partition_columns("files", schema, self.partition_by)

    def check(self) -> None:
        # One that is away is waited for by the run.
        with suppress(Unavailable), reaching(f"sink path {self.path}"):
            open_storage(self.path).list(f"{MARKS}/")

    @property
    def atomic(self) -> Atomic:
        return "epoch" if self.max_file_rows is None else "chunk"

    def lane_writer(self, job: str, uid: str) -> FileLanes | None:
        if self.max_file_rows is None:
            return None
        return FileLanes(self.path, self.format, job, uid, self.max_file_rows, self.partition_by)

    def publisher(self, job: str, uid: str) -> FilePublisher | LanePublisher:
        if (writer := self.lane_writer(job, uid)) is not None:
            return LanePublisher(writer)
        with reaching(f"sink path {self.path}"):
            storage = open_storage(self.path)
            cut_of(storage, job, uid, None)
        return FilePublisher(storage, job, uid, self.format)


class _Shown(msgspec.Struct, frozen=True):
    """What a mark holds: `input` of the epoch's parts, its `file`, and where its rows were put `aside` before
    (empty: nowhere). All empty: nothing was shown here up to this epoch, nor is it to be."""

    epoch: int
    input: str
    file: str
    aside: str = ""


class FilePublisher:
    def __init__(self, storage: Storage, job: str, uid: str, format: str) -> None:
        self._storage, self._job, self._uid = storage, job, uid
        self._format, self._place = format, f"sink path {storage.url}"
        self._encode = partial(encode, format)
        self._marks = f"{MARKS}/{uid}/"
        self._known = 0
        """The newest mark that this publisher has made or was told of."""

    def mark(self) -> Mark | None:
        with reaching(self._place):
            for epoch in sorted(self._marked(), reverse=True):
                if (shown := self._read(epoch)) is not None:
                    self._show(shown)
                    self._known = epoch
                    return Mark(epoch, shown.input)
            newest = self._newest_file()
            owned = newest or self._storage.size(owner_name(self._uid)) is not None
            return Mark(newest) if owned else None

    def begin(self, through: int) -> None:
        with reaching(self._place):
            own(self._storage, self._job, self._uid, None)
            if through > max(self._marked(), default=0):
                self._put(_Shown(through, "", ""))

    def published_through(self) -> int:
        mark = self.mark()
        return mark.epoch if mark else 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        tables = [part.load() for part in sorted(parts, key=lambda part: part.part) if part.rows]
        if not tables:
            return
        with reaching(self._place):
            if self._is_past(epoch):
                return
            shown = _Shown(epoch, parts[0].input, f"{self._uid}-{epoch:012d}.{self._format}")
            data = self._encode(tables)
            if isinstance(self._storage, LocalStorage):
                self._decide(self._storage, shown, data)
            else:
                self._create(shown, data)
        self._known = epoch

    def close(self) -> None:
        pass

    def _decide(self, storage: LocalStorage, shown: _Shown, data: bytes) -> None:
        aside = f"{self._mark(shown.epoch)}-{draft_names.new_name()}"
        storage.put(aside, data)
        ours = msgspec.structs.replace(shown, aside=aside)
        decided = self._put(ours)
        if decided != ours:
            # Another publisher came first: what it decided to show counts, and may not be shown yet.
            storage.delete([aside])
            if decided is not None:
                self._show(decided)
        elif max(self._marked(), default=0) > shown.epoch:
            # The name was free because the mark was swept: others are past this epoch, and we were paused.
            storage.delete([aside, self._mark(shown.epoch)])
        else:
            self._show(ours)

    def _create(self, shown: _Shown, data: bytes) -> None:
        """Where nothing can be renamed: the file, unless it is there in whatever format, then its mark."""
        if (found := self._read(shown.epoch)) is not None:
            self._refuse_other_rows(found, shown)
            return
        stem = shown.file.removesuffix(self._format)
        if not any(self._storage.size(f"{stem}{format}") is not None for format in FORMATS):
            # EXISTS means that it is published already: the same committed epoch gives the same rows.
            self._storage.put_new(shown.file, data)
        self._put(shown)
        if max(self._marked(), default=0) > shown.epoch:
            # Others are past this epoch, and we were paused. Its file stays: they may have found it there
            # and rely on it. One that was taken away meanwhile is there again.
            self._storage.delete([self._mark(shown.epoch)])

    def _is_past(self, epoch: int) -> bool:
        """Whether the epoch was shown before. RetryableError: another publisher is past it, and whether that
        one has the same rows is found by asking again."""
        newest = self._swept()
        if newest > max(epoch, self._known):
            raise RetryableError(
                f"sink {self._uid!r}: another run has shown epoch {newest} in {self._storage.url} while this "
                f"one was about to show epoch {epoch}; it is asked again what it shows"
            )
        return newest > epoch

    def _put(self, shown: _Shown) -> _Shown | None:
        """Create the mark of an epoch; gives the one that is there then. None: others are past it."""
        if self._storage.put_new(self._mark(shown.epoch), msgspec.json.encode(shown)) is Put.CREATED:
            return shown
        found = self._read(shown.epoch)
        if found is not None:
            self._refuse_other_rows(found, shown)
        return found

    def _refuse_other_rows(self, found: _Shown, shown: _Shown) -> None:
        if "" not in (found.input, shown.input) and found.input != shown.input:
            raise RestoreError(
                f"sink {self._uid!r}: {self._storage.url} shows epoch {shown.epoch} made of other rows than "
                "this checkpoint has: another copy of the checkpoint writes there; stop one of the two, and "
                "give it a directory of its own"
            )

    def _read(self, epoch: int) -> _Shown | None:
        name = self._mark(epoch)
        try:
            return from_json(self._storage.get(name), _Shown)
        except ObjectMissing:
            return None
        except msgspec.DecodeError as cause:
            raise damaged(self._storage, name, self._uid) from cause

    def _show(self, shown: _Shown) -> None:
        """Give the rows that a mark names their name, unless that is done."""
        if shown.aside and isinstance(self._storage, LocalStorage):
            self._storage.move(shown.aside, shown.file)

    def _swept(self) -> int:
        """The newest epoch that is marked, or 0. What earlier ones left is removed: now, and not as soon as
        there is a newer mark, so that a listing made meanwhile shows one of the two."""
        names = [entry.name for entry in self._storage.list(self._marks)]
        newest = max(self._epochs(names), default=0)
        self._storage.delete([name for name in names if name < self._mark(newest)])
        return newest

    def _marked(self) -> list[int]:
        return self._epochs([entry.name for entry in self._storage.list(self._marks)])

    def _epochs(self, names: list[str]) -> list[int]:
        ends = (name.removeprefix(self._marks) for name in names)
        return [int(end) for end in ends if end.isdecimal()]

    def _newest_file(self) -> int:
        """The newest epoch shown in a directory of an earlier Holdfast, which left no marks."""
        name = re.compile(rf"{re.escape(self._uid)}-(\d{{12}})\.({'|'.join(FORMATS)})")
        matches = (name.fullmatch(entry.name) for entry in self._storage.list(""))
        return max((int(match[1]) for match in matches if match), default=0)

    def _mark(self, epoch: int) -> str:
        return f"{self._marks}{epoch:012d}"
