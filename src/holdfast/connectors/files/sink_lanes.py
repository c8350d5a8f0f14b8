"""Many files per epoch in a directory, written by Spark's tasks, that any plain reader can read.

    out/<column=value/><uid>-<epoch, 12 digits>-<lane, 2>-<first row, 12>.<ext>    rows of one lane
    out/_holdfast-<uid>                                 whose files these are, and how rows are cut
    out/_holdfast/<uid>/lanes/<lane>/<epoch>-<rows>     a mark: so far the lane is shown; the newest counts

Rows of a lane are cut by number alone, as the owner's record says for good: the same rows are in the file of
one name, whoever writes it and however often. So a file that is there is this file, and creating it if absent
is all that two writers need. The mark follows when the files of a cut are there: these are written at the
same time, while the next cut is loaded and encoded, because storage is mostly waited for.

Always true: a reader sees whole files of committed epochs only; a mark names nothing that was not shown.
Not promised: that a file which was taken away before its mark was there stays away.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa

from holdfast.connectors.files.sink_formats import encode
from holdfast.connectors.files.sink_owner import MARKS, cut_of, damaged, own
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result, continues
from holdfast.connectors.partitions import partitions
from holdfast.connectors.reaching import reaching
from holdfast.errors import DefinitionError, ObjectMissing, Unavailable, first_line
from holdfast.storage.checksums import checksum
from holdfast.storage.urls import open_storage

FILE_ROWS = 1_000_000
"""Rows of a file at most, unless the sink says otherwise."""
VALUE_CHARS_MAX = 150
"""A longer value of a partition column is cut in the name of its directory, and ends in its checksum there:
names of files have an end."""
CUT_CHARS = 12
PUTS_AT_ONCE = 8
"""How many small objects or files of one cut are on their way to storage at a time."""
NULL = "__HIVE_DEFAULT_PARTITION__"
_LIKE_CUT = re.compile("~[0-9a-f]{32}$")


@dataclass(frozen=True)
class FileLanes:
    """The lanes of a FileSink, as a plain value."""

    path: str
    format: str
    job: str
    uid: str
    max_file_rows: int
    partition_by: tuple[str, ...]

    @property
    def cut(self) -> dict[str, Any]:
        """What decides which rows are in which file."""
        by = {"partition_by": list(self.partition_by)} if self.partition_by else {}
        return {"format": self.format, "max_file_rows": self.max_file_rows, **by}

    def open(self, term: int) -> OpenFileLanes:
        return OpenFileLanes(self)


@dataclass(frozen=True)
class _Cut:
    """Rows of a lane from `first` up to `end`, as files: their names and bytes."""

    first: int
    end: int
    files: list[tuple[str, bytes]]


class OpenFileLanes:
    def __init__(self, lanes: FileLanes) -> None:
        self._lanes, self._storage = lanes, open_storage(lanes.path)
        self._marks = f"{MARKS}/{lanes.uid}/lanes/"
        self._place = f"sink path {lanes.path}"

    def begin(self, through: int) -> None:
        with reaching(self._place):
            own(self._storage, self._lanes.job, self._lanes.uid, self._lanes.cut)
            there = self._newest(self._names(""))
            _each(
                lambda lane: self._put(lane, LaneMark(through)),
                [lane for lane in range(LANES) if lane not in there],
            )

    def marks(self) -> Mapping[int, LaneMark]:
        with reaching(self._place):
            cut_of(self._storage, self._lanes.job, self._lanes.uid, self._lanes.cut)
            return {lane: self._read(lane, mark) for lane, mark in self._newest(self._names("")).items()}

    def write(self, rows: LaneRows) -> Result:
        try:
            return self._written(rows)
        except Unavailable as away:
            return Result(Outcome.UNAVAILABLE, reason=first_line(away))
        except DefinitionError as refusal:
            return Result(Outcome.REFUSED, reason=first_line(refusal))

    def close(self) -> None:
        pass

    def _written(self, rows: LaneRows) -> Result:
        with reaching(self._place):
            names = self._names(f"{rows.lane:02d}/")
            there = self._newest(names).get(rows.lane)
            mark = None if there is None else self._read(rows.lane, there)
            start = continues(mark, rows)
            if isinstance(start, Outcome):
                return Result(start, mark, f"its mark is {mark}")
            # Now, and not as soon as there is a newer mark: a listing made meanwhile shows one of the two.
            self._storage.delete([name for name in names if mark and name < self._mark(rows.lane, mark)])
            # Where the marks are, so is the record, and it may be another one than when the run began.
            cut_of(self._storage, self._lanes.job, self._lanes.uid, self._lanes.cut)
        done, stem = mark, f"{self._lanes.uid}-{rows.epoch:012d}-{rows.lane:02d}"
        with contextlib.closing(_ahead(self._cuts(rows, start, stem))) as cuts:
            # Not around the loop: the rows come from the checkpoint.
            for cut in cuts:
                with reaching(self._place):
                    found = self._shown(rows, cut)
                if found is not None:
                    return found
                done = LaneMark(rows.epoch, cut.end, rows.input)
        return Result(Outcome.WRITTEN, done)

    def _shown(self, rows: LaneRows, cut: _Cut) -> Result | None:
        """Show the rows of a cut. With a result: others are at this lane, and they were not shown here."""
        # Loading may have taken any time: what others have shown meanwhile, and a reader may have taken
        # away, does not come again.
        now = self._newest(self._names(f"{rows.lane:02d}/")).get(rows.lane)
        if now is None or now > LaneMark(rows.epoch, cut.first):
            return Result(Outcome.ALREADY if now and now >= rows.end else Outcome.BUSY, now, "others write")
        # EXISTS: the rows of this name are there.
        _each(lambda file: self._storage.put_new(*file), cut.files)
        self._put(rows.lane, LaneMark(rows.epoch, cut.end, rows.input))
        return None

    def _cuts(self, rows: LaneRows, start: int, stem: str) -> Iterator[_Cut]:
        lanes = self._lanes
        for first, table in _chunks(rows, start, lanes.max_file_rows):
            end = f"{stem}-{first:012d}.{lanes.format}"
            files = [
                (f"{directory}{end}", encode(lanes.format, [part]))
                for directory, part in _by_directory(table, lanes.partition_by)
            ]
            yield _Cut(first, first + table.num_rows, files)

    def _names(self, below: str) -> list[str]:
        return [entry.name for entry in self._storage.list(f"{self._marks}{below}")]

    def _newest(self, names: Sequence[str]) -> dict[int, LaneMark]:
        found: dict[int, LaneMark] = {}
        for name in names:
            lane, _, at = name.removeprefix(self._marks).partition("/")
            epoch, _, rows = at.partition("-")
            mark = LaneMark(int(epoch), int(rows))
            found[int(lane)] = max(mark, found.get(int(lane), mark))
        return found

    def _read(self, lane: int, mark: LaneMark) -> LaneMark:
        name = self._mark(lane, mark)
        try:
            return LaneMark(mark.epoch, mark.rows, json.loads(self._storage.get(name))["input"])
        except ObjectMissing:
            # Swept by a writer that is further.
            return self._newest(self._names(f"{lane:02d}/")).get(lane, mark)
        except (ValueError, KeyError, TypeError) as cause:
            raise damaged(self._storage, name, self._lanes.uid) from cause

    def _put(self, lane: int, mark: LaneMark) -> None:
        self._storage.put_new(self._mark(lane, mark), json.dumps({"input": mark.input}).encode())

    def _mark(self, lane: int, mark: LaneMark) -> str:
        return f"{self._marks}{lane:02d}/{mark.epoch:012d}-{mark.rows:012d}"


_Item = TypeVar("_Item")


def _each(do: Callable[[_Item], object], items: Sequence[_Item]) -> None:
    """Several at a time; comes back when none is under way any more. Raises what the first of them did that
    failed."""
    if len(items) < 2:
        for item in items:
            do(item)
        return
    with ThreadPoolExecutor(min(len(items), PUTS_AT_ONCE)) as pool:
        list(pool.map(do, items))


def _ahead(items: Iterator[_Item]) -> Generator[_Item]:
    """The same items, each made while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def _chunks(rows: LaneRows, start: int, most: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows from `start` on, cut at every multiple of `most`, each with the number of its first row."""
    waiting: list[pa.Table] = []
    first, count = start, 0
    for table in rows.load(start):
        while table.num_rows:
            taken = table.slice(0, most - (first + count) % most)
            table = table.slice(taken.num_rows)
            waiting.append(taken)
            count += taken.num_rows
            if (first + count) % most == 0:
                yield first, pa.concat_tables(waiting)
                waiting, first, count = [], first + count, 0
    if waiting:
        yield first, pa.concat_tables(waiting)


def _by_directory(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    for values, part in partitions(table, columns):
        yield "".join(f"{quote(name, safe='')}={_segment(text)}/" for name, text in values.items()), part


def _segment(text: str | None) -> str:
    """A value as a part of a path. Two values never have the same: rows of the second would be taken for
    shown."""
    if text is None:
        return NULL
    quoted = quote(text, safe=" ")
    if len(quoted) > VALUE_CHARS_MAX:
        return f"{quote(text[:CUT_CHARS], safe=' ')}~{checksum(text.encode())}"
    if quoted == NULL or _LIKE_CUT.search(quoted):
        # A text that looks like the name of no text, or of a longer one.
        return quoted.replace("_", "%5F", 1) if quoted == NULL else quoted.replace("~", "%7E")
    return quoted
