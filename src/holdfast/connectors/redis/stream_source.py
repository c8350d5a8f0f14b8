"""Entries of Redis streams, read by position: no consumer group, nothing acknowledged, nothing kept in Redis.

A position holds, for each stream, the id of the newest entry that was read and a digest of it. Ids grow and
entries never change, so the entries after one id up to another are the same each time, as long as they are
all there. Whether they are is asked before Spark reads and again before the commit: the entry at the position
must be there and be that entry, and a range must have as many entries as it had when it was planned.
Needs Redis 6.2 or newer; one server, or one that stands for a cluster's slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.connectors.contract import Arrived, Json, MalformedRow, Sifted, Slice
from holdfast.connectors.received_rows import RAW_DDL, RowForm, raw_rows
from holdfast.connectors.redis.connection import RedisServer, library
from holdfast.errors import DefinitionError, InputVanished, Unavailable, one_line
from holdfast.secret import Secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_ROWS_MAX = 250_000
"""Entries of a slice when no limit is given."""
RANGE_ROWS = 10_000
"""Entries that one task reads."""
PAGE_ROWS = 1_000
"""Entries that the server is asked for at once: it answers nobody else meanwhile."""

_LAST_OF = """
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
if #found == 0 then return {0, ''} end
return {#found, found[#found][1]}
"""
"""How many entries a page has, and the id of its last one: the entries themselves stay in the server."""

Range = list[Any]
"""[stream, the id before it ('' at the beginning), the id of its last entry, entries]."""


class RedisStreamSource:
    """Entries of one stream or several, from the oldest that is there when the job first runs.

    `schema` names the columns. With `format="fields"` each is the field of its name, as text that is cast to
    the column's type; with `format="json"` all are in the JSON of one field (`json_field`). A field that an
    entry lacks is null. `id_column` and `stream_column` name columns (of type string) that get the entry's id
    and its stream; with a stream column, event time waits for the slowest stream. `trim=True`: entries that
    nothing retained needs any more are removed from the streams, up to the newest of them.

        hf.RedisStreamSource("redis://127.0.0.1:6379/0", "orders", schema="user string, amount long")
    """

    replayable: Final = True

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        *,
        schema: str,
        format: str = "fields",
        json_field: str = "value",
        id_column: str | None = None,
        stream_column: str | None = None,
        username: str | None = None,
        password: Secret | None = None,
        trim: bool = False,
        timeout_seconds: float = 10.0,
    ) -> None:
        names = [streams] if isinstance(streams, str) else list(streams)
        if not names or len(set(names)) < len(names):
            raise DefinitionError(f"streams={streams!r} does not name each of at least one stream once")
        told = {id_column: "id", stream_column: "origin"}
        self.streams: Final = tuple(names)
        self.schema: Final = schema
        self.trim: Final = trim
        self._server = RedisServer(url, username, password, timeout_seconds)
        self._form = RowForm(
            schema, format, json_field, {name: what for name, what in told.items() if name is not None}
        )
        if stream_column is not None:
            self.partition_column = stream_column

    @property
    def sifts(self) -> bool:
        return True

    def check(self) -> None:
        """Whether each is a stream, or not there yet, for who asks. A server that is away is waited for."""
        try:
            for stream in self.streams:
                _asked(self._server, stream, "XLEN", stream)
        except Unavailable:
            return

    def reader(self, notes: Sequence[Json]) -> RedisStreamReader:
        return RedisStreamReader(self.streams, self._server, self._form, self.trim)


class RedisStreamReader:
    """A position is {stream: [id, digest]}, with each stream that anything was read of."""

    def __init__(self, streams: Sequence[str], server: RedisServer, form: RowForm, trim: bool) -> None:
        self._streams, self._server, self._form, self._trim = streams, server, form, trim
        self._end: dict[str, str] | None = None

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        position: dict[str, list[str]] = dict(after or {})
        for stream in self._streams:
            self._hold_there(stream, position.get(stream))
        left = SLICE_ROWS_MAX if max_rows is None else max_rows
        ranges: list[Range] = []
        # The stream that is furthest behind first, where there is not room for all.
        order = sorted(self._streams, key=lambda stream: _number(position.get(stream, ["0-0"])[0]))
        for number, stream in enumerate(order):
            share = -(-left // (len(order) - number))
            found = self._ranges(stream, position.get(stream, [""])[0], share)
            ranges += found
            left -= sum(rows for *_, rows in found)
        if not ranges:
            return None
        ends = {stream: end for stream, _, end, _ in ranges}
        position |= {stream: [end, self._digest(stream, end)] for stream, end in ends.items()}
        rows = sum(rows for *_, rows in ranges)
        waiting = {stream: stream in ends or self._has_more(stream, position) for stream in self._streams}
        return Slice(after, position, rows=rows, detail={"ranges": ranges, "waiting": waiting})

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        if end is None:
            there = {stream: self._newest(stream) for stream in self._streams}
            end = dict(after or {})
            end |= {stream: [id, self._digest(stream, id)] for stream, id in there.items() if id}
        self._end = {stream: id for stream, (id, _) in end.items()}
        return end

    def exhausted(self, after: Json | None) -> bool:
        return not any(self._has_more(stream, after or {}) for stream in self._streams)

    def lag(self, after: Json | None) -> int | None:
        """Redis counts no entries after an id: known only where nothing was read, or everything."""
        waiting = [stream for stream in self._streams if self._has_more(stream, after or {})]
        if any(stream in (after or {}) for stream in waiting):
            return None
        return sum(int(_asked(self._server, stream, "XLEN", stream)) for stream in waiting)

    def partitions(self, slice: Slice) -> Mapping[str, bool]:
        waiting: dict[str, bool] = slice.detail["waiting"]
        return waiting

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._form.strict(self._raw(spark, slice))

    def sifted(self, spark: SparkSession, slice: Slice) -> Sifted:
        return self._form.sifted(self._raw(spark, slice))

    def malformed(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._form.letters(self._raw(spark, slice))

    def first_malformed(self, spark: SparkSession, slice: Slice) -> MalformedRow | None:
        return self._form.first_letter(self._raw(spark, slice))

    def verify(self, slice: Slice) -> None:
        for position in (slice.start or {}, slice.end):
            for stream in {each[0] for each in slice.detail["ranges"]}:
                self._hold_there(stream, position.get(stream))
        for stream, before, end, rows in slice.detail["ranges"]:
            pages = list(self._pages(stream, before, end, rows + 1))
            if sum(count for count, _ in pages) != rows or pages[-1][1] != end:
                raise self._vanished(stream, f"some of the {rows} entries after {before or 'the start'}", end)

    def released(self, position: Json) -> None:
        """Entries before these ids are needed by nothing. Those at them stay: they prove the place."""
        if self._trim:
            for stream, (id, _) in position.items():
                _asked(self._server, stream, "XTRIM", stream, "MINID", "=", id)

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        """By the ids, as Redis gives them: they begin with the time. The first range of a stream counts as of
        its last entry: the id before it may be of long before."""
        found: list[Arrived] = []
        begun: set[str] = set()
        for stream, before, end, rows in slice.detail["ranges"]:
            last_ms = _number(end)[0]
            found.append(Arrived(rows, _number(before)[0] if stream in begun else last_ms, last_ms))
            begun.add(stream)
        return found

    def _raw(self, spark: SparkSession, slice: Slice) -> DataFrame:
        self.verify(slice)
        ranges = slice.detail["ranges"]
        tasks = spark.range(0, len(ranges), 1, len(ranges))
        return tasks.mapInArrow(partial(read_ranges, self._server, ranges), RAW_DDL)

    def _ranges(self, stream: str, before: str, most: int) -> list[Range]:
        """What follows `before`, in ranges; not beyond the end that was fixed."""
        end = "+" if self._end is None else self._end.get(stream, "")
        if not end or (end != "+" and _number(before or "0-0") >= _number(end)):
            return []
        ranges: list[Range] = []
        for count, last in self._pages(stream, before, end, most):
            if ranges and ranges[-1][3] + count <= RANGE_ROWS:
                ranges[-1][2:] = [last, ranges[-1][3] + count]
            else:
                ranges.append([stream, ranges[-1][2] if ranges else before, last, count])
        return ranges

    def _pages(self, stream: str, before: str, end: str, most: int) -> Iterator[tuple[int, str]]:
        """At most `most` entries after an id, up to another: of each page how many, and the last id."""
        while most > 0:
            first, asked = f"({before}" if before else "-", min(PAGE_ROWS, most)
            count, last = _asked(self._server, stream, "EVAL", _LAST_OF, 1, stream, first, end, asked)
            if count:
                before = last.decode()
                yield count, before
            if count < asked:
                return
            most -= count

    def _newest(self, stream: str) -> str:
        found = _asked(self._server, stream, "XREVRANGE", stream, "+", "-", "COUNT", 1)
        newest: str = found[0][0].decode() if found else ""
        return newest

    def _has_more(self, stream: str, position: Mapping[str, list[str]]) -> bool:
        newest = self._newest(stream)
        return bool(newest) and _number(newest) > _number(position.get(stream, ["0-0"])[0])

    def _digest(self, stream: str, id: str) -> str:
        """Of the entry with this id; '' if there is none."""
        found = _asked(self._server, stream, "XRANGE", stream, id, id)
        return _digest_of(found[0]) if found else ""

    def _hold_there(self, stream: str, at: list[str] | None) -> None:
        if at is not None and self._digest(stream, at[0]) != at[1]:
            raise self._vanished(stream, f"entry {at[0]}, up to which it was read", at[0])

    def _vanished(self, stream: str, what: str, id: str) -> InputVanished:
        oldest = _asked(self._server, stream, "XRANGE", stream, "-", "+", "COUNT", 1)
        there = f"the oldest entry there now is {oldest[0][0].decode()}" if oldest else "it is empty now"
        return InputVanished(
            f"the stream {stream!r} of {self._server.url} no longer has {what}: it was trimmed, or made "
            f"again, or its server went back, and entries around {id} may be lost ({there}); bring them back "
            "(a copy of the server), or give the source another uid: it then begins with the oldest entry "
            "that is there"
        )


def _asked(server: RedisServer, stream: str, *command: Any) -> Any:
    """What the server answers about a stream. DefinitionError: there is something else of that name."""
    try:
        return server.ask(*command)
    except library().ResponseError as refusal:
        raise DefinitionError(
            f"Redis at {server.url} does not give stream {stream!r}: {one_line(refusal)}; name a stream, or "
            "remove what has its name"
        ) from None


def read_ranges(
    server: RedisServer, ranges: Sequence[Range], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Inside a task: the entries of the ranges that its rows number."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from _read_range(server, *ranges[number])


def _read_range(
    server: RedisServer, stream: str, before: str, end: str, rows: int
) -> Iterator[pa.RecordBatch]:
    left = rows
    while left > 0:
        first = f"({before}" if before else "-"
        entries = server.ask("XRANGE", stream, first, end, "COUNT", min(PAGE_ROWS, left))
        if not entries:
            # The driver looks before every attempt, and will name what is gone.
            raise RuntimeError(f"entries of {stream} up to {end} went away while they were read")
        before, left = entries[-1][0].decode(), left - len(entries)
        yield _batch(stream, entries)


def _batch(stream: str, entries: Sequence[Any]) -> pa.RecordBatch:
    rows = []
    for id, fields in entries:
        named = {name.decode(errors="replace"): value for name, value in fields.items()}
        rows.append((f"entry {id.decode()} of {stream}", id.decode(), named))
    return raw_rows(stream, rows)


def _digest_of(entry: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, value in entry[1].items():
        for piece in (name, value):
            digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.hexdigest()


def _number(id: str) -> tuple[int, int]:
    """An id as what it is compared by."""
    time, _, count = id.partition("-")
    return int(time), int(count or 0)
