"""Files that appear in a directory, each read once.

A writer must put a file in place whole: write it under a name that is passed over (see locations) or in
another directory, then rename it. A file is read as it was when its epoch was planned; one that changes
before the epoch is committed fails it, and what is appended later is not seen, but said.
Always true: a file's name is noted in the commit that covers it, so it is read once however often the job
restarts; an epoch reads exactly the files of its plan, or fails; a file that is not read is said; a row that
does not fit the schema fails the epoch or is set aside, unless the user chose a `mode`.
"""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.contract import Arrived, Json, MalformedRow, Pieces, Sifted, Slice, Waiting
from holdfast.connectors.files.extents import TASKS_WANTED, dealt, pieces
from holdfast.connectors.files.locations import Directory, Found, is_final, open_directory
from holdfast.connectors.files.object_files import ParquetPieces
from holdfast.connectors.files.planned_files import ReadNames
from holdfast.connectors.files.sampling import SAMPLE_BYTES, columns_in, has_header, option
from holdfast.connectors.files.sifting import FileColumns, Sifter, is_plain, spark_schema
from holdfast.connectors.files.source_notices import ColumnNews, FileNews
from holdfast.errors import DefinitionError, InputVanished
from holdfast.storage.contract import is_object_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_FILES_MAX = 1_000
LOOK_MS = 30_000
"""How old a listing may be while files of it still wait: so old is what `waiting` tells at most."""
WATCHED_MAX = 32
"""How many of the files planned last are watched for what is appended to them."""
CUT_BYTES = 1 << 20
"""Where Python reads columns, files are cut in pieces of so much at least: to begin with one costs little."""
_UNLIKE_ARROW = {
    "spark.sql.caseSensitive": ("TRUE",),
    "spark.sql.parquet.datetimeRebaseModeInRead": ("LEGACY",),
    "spark.sql.parquet.int96RebaseModeInRead": ("LEGACY",),
}
"""Settings of a session, and the values with which Spark reads Parquet otherwise than Arrow does."""
_FORMATS = ("json", "csv", "parquet")
_MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")


class FileSource:
    """JSON lines, CSV or Parquet files directly in `path`: a directory, a mount, or `s3://`, `gs://`,
    `az://`.

    `pattern` selects names (`*.json`). `options` go to Spark's reader (`header`, `sep`, ...). Files found
    together are read in the order of their modification time, then name. `max_rows` of an epoch is kept
    approximately: whole files, at least one. Subdirectories are not read. A directory that does not exist
    is an error at the start.

    A row that cannot be parsed, or has a value of another type than declared, fails the epoch or is set
    aside, as `on_error=` of the job's source says. Spark's own default turns such values into nulls in
    silence; say `mode="PERMISSIVE"` or `"DROPMALFORMED"` to accept that. A column that is missing is null;
    one that is not declared is not read, but said. CSV files with a header are read by its names. In object
    storage a plan knows only a file's size; while it is read, its tag tells that it was changed too. Files
    there are read by tasks, with the credentials of the environment: Spark needs no jar and no settings.
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
        if mode.upper() not in _MODES:
            raise DefinitionError(f"FileSource has no mode {mode!r}; use one of {', '.join(_MODES)}")
        for name in ("mode", "columnNameOfCorruptRecord"):
            if option(options or {}, name):
                raise DefinitionError(
                    f"options={{{name!r}: ...}} would change which rows are malformed; give mode=... instead"
                )
        in_bucket = "://" in os.fspath(path) and not os.fspath(path).startswith("file://")
        if in_bucket and format == "csv" and option(options or {}, "multiLine").lower() == "true":
            raise DefinitionError(
                f"source path {os.fspath(path)}: CSV rows of several lines (multiLine) cannot be read from a "
                "bucket; write such rows as JSON or Parquet, or read them from a directory or a mount"
            )
        self.path: Final = os.fspath(path)
        self.format: Final = format
        self.schema: Final = schema
        self.pattern: Final = pattern
        self.mode: Final = mode.upper()
        self.options: Final = dict(options or {})

    @property
    def sifts(self) -> bool:
        return self.format != "parquet" and self.mode == "FAILFAST"

    def check(self) -> None:
        open_directory(self.path).check()

    def reader(self, notes: Sequence[Json]) -> FileReader:
        return FileReader(self, open_directory(self.path), notes)


class FileReader:
    """A position is the number of files planned so far."""

    def __init__(self, source: FileSource, directory: Directory, notes: Sequence[Json]) -> None:
        self._source, self._directory = source, directory
        self._read = ReadNames(notes)
        self._waiting: deque[Found] = deque()
        """Seen in the last listing and not planned yet, in order."""
        self._listed_ms: int | None = None
        self._end: int | None = None
        self._watched: dict[str, Found] = {}
        """Of the files planned last, how they were then."""
        self._looks: dict[tuple[int, int], list[Found]] = {}
        """How the files of a slice were when `frame` looked, until it is verified."""
        self._news = FileNews(source.path, source.pattern)
        self._columns: dict[str, FileColumns] = {}
        """Of planned files, as a glance showed them, until they are verified."""
        self._arrow: pa.Schema | None = None
        """The declared columns as Spark hands them to Python; None: not asked yet."""
        self._column_news: ColumnNews | None = None
        """None: no row was read yet."""

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        self._look(after or 0, now_ms)
        chosen, rows = self._choose(max_rows)
        if not chosen:
            return None
        names = tuple(found.name for found in chosen)
        notes, replaces = self._read.learn(names)
        self._watch(chosen)
        detail = [[found.name, found.size, found.mtime_ns] for found in chosen]
        return Slice(after, self._read.position, rows, detail, tuple(notes), replaces)

    def follow(self, slice: Slice) -> None:
        planned = [Found(*entry) for entry in slice.detail]
        if self._read.go_to(slice.start or 0):
            names = {found.name for found in planned}
            self._waiting = deque(found for found in self._waiting if found.name not in names)
        else:
            # What was planned here and is not in the slice is to be found again.
            self._waiting.clear()
            self._listed_ms = None
        self._read.follow(slice)
        self._watch(planned)

    def exhausted(self, after: Json | None) -> bool:
        if self._listed_ms is None or not self._waiting:
            self._look(after or 0, self._listed_ms or 0)
        return not self._waiting

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        self._listed_ms = None
        self._look(after or 0, now_ms)
        self._end = self._read.position + len(self._waiting) if end is None else end
        return self._end

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        sifter, mode = self._sifter(spark, slice), self._source.mode
        return sifter.strict() if mode == "FAILFAST" else sifter.lenient(mode)

    def pieces(self, spark: SparkSession, slice: Slice) -> Pieces | None:
        source, sizes = self._source, {name: size for name, size, _ in slice.detail}
        # What Spark alone knows: its options, types of its own, names that storage would refuse.
        if source.format != "parquet" or source.options or not all(map(is_object_name, sizes)):
            return None
        if any(str(spark.conf.get(name)).upper() in unlike for name, unlike in _UNLIKE_ARROW.items()):
            return None
        declared = spark_schema(source.schema)
        if not all(field.nullable and is_plain(field.dataType) for field in declared):
            return None
        self._sifter(spark, slice)
        if self._arrow is None:
            self._arrow = spark.createDataFrame([], declared).toArrow().schema
        cut = max(CUT_BYTES, sum(sizes.values()) // TASKS_WANTED)
        extents = [piece for name, size in sizes.items() for piece in pieces(name, size, cut)]
        tasks = dealt(extents, sizes, least=CUT_BYTES)
        return Pieces(len(tasks), slice.rows, ParquetPieces(self._directory.url, self._arrow, tasks))

    def sifted(self, spark: SparkSession, slice: Slice) -> Sifted:
        return self._sifter(spark, slice).sifted()

    def malformed(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._sifter(spark, slice).letters(self._prefix)

    def first_malformed(self, spark: SparkSession, slice: Slice) -> MalformedRow | None:
        for found in self.malformed(spark, slice).orderBy("file", "line").limit(1).collect():
            name = found["file"].removeprefix(self._prefix)
            return MalformedRow(found["file"], name, found["line"], found["row"], found["reason"])
        return None

    def verify(self, slice: Slice) -> None:
        planned = [Found(*entry) for entry in slice.detail]
        self._compare(self._looks.pop((slice.start or 0, slice.end), planned))
        for found in planned:
            self._columns.pop(found.name, None)

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        """By the times when the files were modified, as the plan has them."""
        found = [Found(*entry) for entry in slice.detail]
        return [
            Arrived(each.size, each.mtime_ns / 1e6, each.mtime_ns / 1e6)
            for each in found
            if each.mtime_ns is not None
        ]

    def undeclared(self) -> dict[str, str]:
        return dict(self._column_news.undeclared) if self._column_news is not None else {}

    def lag(self, after: Json | None) -> int | None:
        return None

    def waiting(self, after: Json | None) -> Waiting | None:
        if self._listed_ms is None:
            return None
        files = len(self._waiting) + len(self._news.unreadable)
        return Waiting(files, sum(found.size for found in self._waiting))

    def news(self) -> Sequence[str]:
        return self._news.taken() + (self._column_news.taken() if self._column_news is not None else [])

    @property
    def _prefix(self) -> str:
        return f"{self._source.path.rstrip('/')}/"

    def _sifter(self, spark: SparkSession, slice: Slice) -> Sifter:
        """The rows of a slice, once its files are seen to be as they were planned."""
        planned = [Found(*entry) for entry in slice.detail]
        key = (slice.start or 0, slice.end)
        now = self._compare(self._looks.get(key, planned))
        self._looks.setdefault(key, now)
        source, schema = self._source, spark_schema(self._source.schema)
        if self._column_news is None:
            complete = source.format == "parquet" or has_header(source.format, source.options)
            self._column_news = ColumnNews(source.path, schema.names, complete)
        files = {found.name: self._glance(found) for found in planned}
        usable = {name: self._column_news.look(name, columns) for name, columns in files.items()}
        frames = self._directory.frames(spark, source.format, source.options, planned)
        return Sifter(frames, source.format, schema, source.options, usable)

    def _glance(self, found: Found) -> FileColumns:
        """The columns of a file, as far as a glance tells them."""
        if found.name not in self._columns:
            self._columns[found.name] = self._columns_in(found, self._sample(found))
        return self._columns[found.name]

    def _sample(self, found: Found) -> bytes:
        start = max(0, found.size - SAMPLE_BYTES) if self._source.format == "parquet" else 0
        return self._directory.read(found.name, start, SAMPLE_BYTES)

    def _columns_in(self, found: Found, sample: bytes) -> FileColumns:
        return columns_in(self._source.format, self._source.options, found.name, sample)

    def _look(self, position: int, now_ms: int) -> None:
        """Be at this position, and know what waits there."""
        if not self._read.go_to(position):
            self._waiting.clear()
            self._listed_ms = None
        listed_ms = self._listed_ms
        if self._waiting and listed_ms is not None and now_ms - listed_ms < LOOK_MS:
            return
        self._waiting = self._discover(now_ms)
        self._listed_ms = now_ms

    def _discover(self, now_ms: int) -> deque[Found]:
        pattern, read, readable = self._source.pattern, self._read, self._directory.readable
        names, known, unreadable = read.known, 0, list[str]()
        seen: list[str] | None = [] if read.looking else None

        def wanted(name: str) -> bool:
            nonlocal known
            if name in names:
                known += 1
                if seen is not None:
                    seen.append(name)
                return False
            if not is_final(name) or not fnmatchcase(name, pattern):
                return False
            if not readable(name):
                unreadable.append(name)
                return False
            return True

        listing = self._directory.list(wanted, self._watched)
        for then, _ in listing.changed:
            del self._watched[then.name]
        self._news.look(listing, known, unreadable)
        if listing.new:
            read.looked(known, seen, now_ms)
        return deque(sorted(listing.new, key=lambda found: (found.mtime_ns or 0, found.name)))

    def _choose(self, max_rows: int | None) -> tuple[list[Found], int | None]:
        """Take the files of the next slice from those waiting. With it: how many rows they have, if a glance
        at each tells that."""
        most = SLICE_FILES_MAX
        if self._end is not None:
            most = min(most, self._end - self._read.position)
        chosen: list[Found] = []
        rows, exact, seen = 0, max_rows is not None, 0
        for waiting in self._waiting:
            if len(chosen) >= most:
                break
            found = self._directory.refreshed(waiting)
            if found is not None and max_rows is not None:
                more, certain = self._estimate(found)
                if chosen and rows + more > max_rows:
                    break
                rows, exact = rows + more, exact and certain
            if found is not None:
                chosen.append(found)
            seen += 1
        # Now that nothing can fail any more: a place that goes away in between keeps all of them waiting.
        for _ in range(seen):
            self._waiting.popleft()
        return chosen, rows if exact and rows else None

    def _estimate(self, found: Found) -> tuple[int, bool]:
        """About how many rows a file has, from a glance at it, and whether it has just as many."""
        sample = self._sample(found)
        self._columns[found.name] = self._columns_in(found, sample)
        if self._source.format == "parquet":
            try:
                # The footer is all that is looked at, so the end of the file will do for the file.
                return int(pq.read_metadata(pa.BufferReader(sample)).num_rows), True
            except (pa.ArrowException, OSError):  # a footer longer than that, or no Parquet: Spark will tell
                return found.size, False
        return found.size * max(1, sample.count(b"\n")) // max(1, len(sample)), False

    def _watch(self, planned: Sequence[Found]) -> None:
        self._watched |= {found.name: found for found in planned[-WATCHED_MAX:]}
        while len(self._watched) > WATCHED_MAX:
            del self._watched[next(iter(self._watched))]

    def _compare(self, then: Sequence[Found]) -> list[Found]:
        """The files as they are now. InputVanished: they are not as they were."""
        found = []
        for was in then:
            now = self._directory.find(was.name)
            if now is None or not was.is_same(now):
                what = "is gone" if now is None else f"was changed ({_difference(was, now)})"
                give_up = f"holdfast skip --file {shlex.quote(was.name)} --checkpoint ..."
                raise InputVanished(
                    f"file {was.name!r} of source path {self._source.path} {what} after it was planned; "
                    f"restore the file, or give it up on purpose with `{give_up}`"
                )
            found.append(now)
        return found


def _difference(then: Found, now: Found) -> str:
    if then.size != now.size:
        return f"size {then.size} then, {now.size} now"
    if then.mtime_ns is not None and now.mtime_ns is not None and then.mtime_ns != now.mtime_ns:
        return f"modified at {_moment(then.mtime_ns)} then, {_moment(now.mtime_ns)} now"
    return "another file of the same size is in its place"


def _moment(ns: int) -> str:
    """A time of a file, to the nanosecond: two may differ by little."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
