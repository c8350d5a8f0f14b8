"""What is in files of a bucket: their lines, and the columns of Parquet. Runs in Spark tasks.

Lines are bytes as they are in the file (in UTF-8, whatever the file's own encoding is): Spark makes columns
of them, with the parsers that it has for files on a disk.
Never here: a guess at what a file is. One that cannot be read fails the task, and names the file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.files.extents import Extent
from holdfast.connectors.files.fitting import fitted
from holdfast.errors import HoldfastError, InputVanished
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from holdfast.storage.contract import Storage

BLOCK_BYTES = 8 << 20
"""What one request reads of a file."""
BATCH_BYTES = 4 << 20
BATCH_ROWS = 65_536
COMPRESSED = (".gz", ".bz2", ".deflate", ".zst", ".zstd")
UNREADABLE = (".snappy", ".lz4", ".lzo")
"""Hadoop's own forms of these."""

_LEGACY = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
_SPARK = b"org.apache.spark.version"
"""What Spark notes in a file. Before 3.1 it wrote dates in another calendar, and did not always say so."""

LINES = pa.schema([("file", pa.string()), ("line", pa.int64()), ("value", pa.binary())])
VALUES = pa.schema([("value", pa.binary())])
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class TextForm:
    """How the lines of a file become values. `placed`: with file and line."""

    encoding: str = "UTF-8"
    separator: bytes = b""
    """Between two lines; empty: a line break of any system."""
    whole: bool = False
    """A file is one value."""
    header: bool = False
    """The first line is none."""
    comment: bytes = b""
    """A line that begins so is none."""
    arrays: bool = False
    """A line that is a JSON array has several values."""
    blank: bool = False
    """Also a blank line is one."""
    placed: bool = False

    @property
    def cuts(self) -> bool:
        """Whether a file may be read in pieces."""
        return self.is_utf8 and not (self.separator or self.whole or self.placed)

    @property
    def is_utf8(self) -> bool:
        return self.encoding.lower().replace("-", "") == "utf8"


class ObjectFile(io.RawIOBase):
    """An object as a file that is read by ranges."""

    def __init__(self, storage: Storage, name: str) -> None:
        size = storage.size(name)
        if size is None:
            raise InputVanished(f"file {name!r} of source path {storage.url} is gone; restore the file")
        self._storage, self._name, self._size, self._at = storage, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = b""
        if self._at < self._size and len(buffer):
            data = self._storage.get(self._name, self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def text_rows(
    url: str, form: TextForm, tasks: Sequence[Sequence[Extent]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of a task under `mapInArrow`: the lines of the pieces whose number it is given."""
    for extent in _mine(tasks, batches):
        with _naming(extent.name, url):
            batch = _Batch(extent.name, form)
            for line, value in _values(open_storage(url), extent, form):
                if batch.add(line, value):
                    yield batch.taken()
            yield batch.taken()


def parquet_rows(
    url: str,
    schema: pa.Schema,
    file_column: str | None,
    tasks: Sequence[Sequence[Extent]],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The body of a task under `mapInArrow`: the declared columns of the row groups that begin in the pieces
    whose number it is given."""
    for extent in _mine(tasks, batches):
        with _naming(extent.name, url):
            yield from _columns_in(_parquet_file(url, extent.name), extent, schema, file_column)


@dataclass(frozen=True)
class ParquetPieces:
    """The declared columns of files, by the number of a piece."""

    url: str
    schema: pa.Schema
    pieces: Sequence[Sequence[Extent]]

    def __call__(self, number: int) -> Iterator[pa.RecordBatch]:
        for extent in self.pieces[number]:
            with _naming(extent.name, self.url):
                file = _parquet_file(self.url, extent.name)
                if _is_of_old_spark(file.metadata.metadata or {}):
                    raise ValueError("its dates may be of another calendar")
                wanted = {name.lower() for name in self.schema.names}
                for found in file.schema_arrow:
                    if found.name.lower() in wanted and _is_unlike_spark(found.type):
                        raise ValueError(f"column {found.name!r} is {found.type}, which Spark does not read")
                yield from _columns_in(file, extent, self.schema)


def _one_of(there: Sequence[str], wanted: str) -> str | None:
    """The column of this name, as Spark finds it. ValueError: there are several."""
    found = [name for name in there if name.lower() == wanted.lower()]
    if len(found) > 1:
        raise ValueError(f"columns {', '.join(map(repr, found))} differ in case alone")
    return found[0] if found else None


def _is_unlike_spark(type: pa.DataType) -> bool:
    """Whether Spark refuses a type whatever its values are, where Arrow reads those that fit."""
    if pa.types.is_nested(type):
        return any(_is_unlike_spark(type.field(number).type) for number in range(type.num_fields))
    in_ns = pa.types.is_timestamp(type) and type.unit == "ns"
    return bool(in_ns or pa.types.is_float16(type) or pa.types.is_null(type))


def _is_of_old_spark(notes: Mapping[bytes, bytes]) -> bool:
    version = notes.get(_SPARK, b"9.9").split(b".")
    numbers = [int(part) for part in version[:2] if part.isdigit()]
    return bool(_LEGACY & notes.keys()) or len(numbers) < 2 or numbers < [3, 1]


def _columns_in(
    file: pq.ParquetFile, extent: Extent, schema: pa.Schema, file_column: str | None = None
) -> Iterator[pa.RecordBatch]:
    groups = [group for group in range(file.num_row_groups) if _begins_in(file.metadata, group, extent)]
    there = file.schema_arrow.names
    names = {field.name: _one_of(there, field.name) for field in schema}
    wanted = [name for name in names.values() if name is not None]
    for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=wanted):
        columns = [
            _column(batch, names.get(field.name), field)
            if field.name != file_column
            else pa.array([quote(extent.name)] * batch.num_rows, pa.string())
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _parquet_file(url: str, name: str) -> pq.ParquetFile:
    storage = open_storage(url)
    path = storage.local_path(name)
    if path is None:
        bytes = pa.PythonFile(ObjectFile(storage, name), mode="r")
    else:
        try:
            # Not mapped: a file that is cut while it is read would end the process.
            bytes = pa.OSFile(str(path))
        except FileNotFoundError:
            raise InputVanished(
                f"file {name!r} of source path {storage.url} is gone; restore the file"
            ) from None
    return pq.ParquetFile(bytes, coerce_int96_timestamp_unit="us")


def _mine(tasks: Sequence[Sequence[Extent]], batches: Iterable[pa.RecordBatch]) -> Iterator[Extent]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from tasks[number]


@dataclass
class _naming:
    """Errors of a file's own say which file it was."""

    name: str
    url: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        if isinstance(cause, pa.ArrowException | ValueError | EOFError | zlib.error | OSError) and not (
            isinstance(cause, HoldfastError)
        ):
            raise ValueError(
                f"file {self.name!r} of source path {self.url} cannot be read: {cause}; correct the file, or "
                "give it up on purpose with `holdfast skip`"
            ) from cause


@dataclass
class _Batch:
    """Lines on their way."""

    name: str
    form: TextForm
    lines: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, line: int, value: bytes) -> bool:
        """Whether there are enough now."""
        self.lines.append(line)
        self.values.append(value)
        self.size += len(value)
        return self.size >= BATCH_BYTES or len(self.values) >= BATCH_ROWS

    def taken(self) -> pa.RecordBatch:
        values = pa.array(self.values, pa.binary())
        if self.form.placed:
            file = pa.array([quote(self.name)] * len(self.values), pa.string())
            lines = pa.array(self.lines, pa.int64())
            batch = pa.RecordBatch.from_arrays([file, lines, values], schema=LINES)
        else:
            batch = pa.RecordBatch.from_arrays([values], schema=VALUES)
        self.lines, self.values, self.size = [], [], 0
        return batch


def _values(storage: Storage, extent: Extent, form: TextForm) -> Iterator[tuple[int, bytes]]:
    """The values of a piece, each with its line, which counts from 1 where the piece is a whole file."""
    header = form.header and not extent.start
    for number, line in enumerate(_lines(storage, extent, form), 1):
        is_blank = not line.strip()
        if is_blank and not form.blank:
            continue
        if form.comment and line.startswith(form.comment):
            continue
        if header:
            header = False
        elif form.arrays and line.lstrip()[:1] == b"[":
            yield from ((number, element) for element in elements(line))
        else:
            yield number, line


def _lines(storage: Storage, extent: Extent, form: TextForm) -> Iterator[bytes]:
    stream = _opened(storage, extent.name, form)
    at = extent.start
    if at:
        # The line that began before it is another piece's, unless it ended just there.
        stream.seek(at - 1)
        at += len(stream.readline()) - 1
    else:
        start = stream.read(3)
        if start != b"\xef\xbb\xbf":
            stream.seek(0)
        else:
            at = 3
    if form.whole:
        yield stream.read()
        return
    if form.separator:
        *lines, last = stream.read().split(form.separator)
        yield from [*lines, last] if last else lines
        return
    while (extent.end is None or at < extent.end) and (line := stream.readline()):
        at += len(line)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if b"\r" in line:
            yield from line.split(b"\r")
        else:
            yield line


def _opened(storage: Storage, name: str, form: TextForm) -> BinaryIO:
    """A file's bytes, uncompressed and in UTF-8."""
    if name.endswith(UNREADABLE):
        raise ValueError(f"files in a bucket are read uncompressed or as {', '.join(COMPRESSED)}")
    stream: Any = io.BufferedReader(ObjectFile(storage, name), BLOCK_BYTES)
    if name.endswith(".gz"):
        stream = gzip.GzipFile(fileobj=stream)
    elif name.endswith(".bz2"):
        stream = bz2.BZ2File(stream)
    elif name.endswith(".deflate"):
        stream = io.BytesIO(zlib.decompress(stream.read()))
    elif name.endswith((".zst", ".zstd")):
        stream = io.BytesIO(pa.CompressedInputStream(stream, "zstd").read())
    if not form.is_utf8:
        stream = io.BytesIO(stream.read().decode(form.encoding, errors="replace").encode())
    return cast(BinaryIO, stream)


def elements(text: bytes) -> list[bytes]:
    """The elements of a JSON array, each as it is written; the text itself where it is no such array."""
    try:
        array = text.decode()
        found, at = list[str](), array.index("[") + 1
        at = _past_blanks(array, at)
        while array[at] != "]":
            _, end = _DECODER.raw_decode(array, at)
            found.append(array[at:end])
            at = _past_blanks(array, end)
            if array[at] == ",":
                at = _past_blanks(array, at + 1)
            elif array[at] != "]":
                return [text]
    except (ValueError, IndexError, RecursionError):
        return [text]
    return [text] if array[at + 1 :].strip() else [element.encode() for element in found]


def _past_blanks(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _begins_in(metadata: Any, group: int, extent: Extent) -> bool:
    column = metadata.row_group(group).column(0)
    offsets = (column.dictionary_page_offset, column.data_page_offset)
    begin = min(offset for offset in offsets if offset is not None)
    return extent.start <= begin and (extent.end is None or begin < extent.end)


def _column(batch: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
    if name is None:
        return pa.nulls(batch.num_rows, field.type)
    return fitted(batch.column(name), field.type, field.name)


def splittable(name: str, form: TextForm) -> bool:
    """Whether a file of this name may be read in pieces."""
    return form.cuts and not name.endswith(COMPRESSED)
