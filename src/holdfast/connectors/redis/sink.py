"""Rows in Redis, each once: hashes, JSON under a key, or entries of a stream.

A chunk of rows and the mark of its lane are one script, which the server runs whole: nobody sees a part of
it, and the append-only file holds all of it or nothing. Scripts do not roll back, so everything that could
refuse a row is looked at before the first is written: where the mark is, of which type each key is, and, by
writing the mark as it is, whether there is memory and the right to move it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from holdfast.connectors.columns_as_text import check_json_names, json_rows, plain_texts
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import LANES, Atomic, LaneMark, LaneRows, Outcome, Result
from holdfast.connectors.redis.connection import RedisServer, SlotElsewhere, library
from holdfast.errors import DefinitionError, Unavailable, one_line
from holdfast.secret import Secret

CHUNK_ROWS = 500
"""Rows that one script writes: the server answers nobody else meanwhile."""
CHUNK_BYTES = 4 << 20
"""A chunk is full with so many bytes, too: rows may be large."""
COLUMNS_MAX = 3_500
"""Of hashes and streams: a script hands no more than about 8,000 values to a command."""
VALUE_BYTES_MAX = 512 << 20
"""What a server takes as one value, unless its setting (proto-max-bulk-len, from 1 MiB on) says otherwise."""

_WRITE = """
local mark = redis.call('HGET', KEYS[1], ARGV[1])
if not mark then return {'went back', ''} end
local at, done, input = string.match(mark, '^(%d+) (%d+) (.*)$')
at, done = tonumber(at), tonumber(done)
local before_epoch, before_rows, epoch = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local start, stop, rows = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
if at < before_epoch or (at == before_epoch and done < before_rows) then return {'went back', mark} end
if at > epoch then return {'already there', mark} end
if at < epoch then
  done = 0
elseif (input ~= ARGV[8] and input ~= '' and ARGV[8] ~= '') or done > rows then
  return {'other rows', mark}
elseif done == rows then
  return {'already there', mark}
end
if done ~= start then return {'moved', tostring(done)} end
local wanted = ARGV[9]
local place = 10
while place < #ARGV do
  local type = redis.call('TYPE', ARGV[place])['ok']
  if type ~= 'none' and type ~= wanted then return {'refused', ARGV[place] .. ' is a ' .. type} end
  if ARGV[place] == KEYS[1] then return {'refused', ARGV[place] .. ' has the marks'} end
  place = place + 2 + tonumber(ARGV[place + 1])
end
redis.call('HSET', KEYS[1], ARGV[1], mark)
place = 10
while place < #ARGV do
  local key, count = ARGV[place], tonumber(ARGV[place + 1])
  local values = {}
  for i = 1, count do values[i] = ARGV[place + 1 + i] end
  if wanted == 'hash' then
    redis.call('DEL', key)
    redis.call('HSET', key, unpack(values))
  elseif wanted == 'string' then
    redis.call('SET', key, values[1])
  else
    redis.call('XADD', key, '*', unpack(values))
  end
  place = place + 2 + count
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[4] .. ' ' .. ARGV[6] .. ' ' .. ARGV[8])
return {'written', ''}
"""

Form = Literal["hash", "json", "stream"]
_TYPES: Final = {"hash": "hash", "json": "string", "stream": "stream"}


class RedisSink:
    """Rows under keys that begin with `prefix`, exactly once.

    `form="hash"`: a hash for each row, PREFIX:KEY, whose fields are the columns; the newest row of a key
    replaces the one before it, and a null is a field that is not there. `form="json"`: the same, as JSON in a
    string. `key` names the columns of the key: they have to contain those of the operator before, so that
    rows of one key keep their order. `form="stream"`: each row is an entry of the stream PREFIX.

    Marks are in the hash PREFIX:holdfast:JOB/UID, and must be kept as long as the rows. How durable rows and
    marks are is up to the server: with `appendfsync always` what was shown survives a power cut. A server
    that went back to an older state is noticed: what is still staged is shown again, or the run is refused.
    """

    exactly_once: Final = True
    atomic: Final[Atomic] = "chunk"
    shared: Final = True
    order_by: Final = None

    def __init__(
        self,
        url: str,
        prefix: str,
        *,
        form: Form = "hash",
        key: str | Sequence[str] = (),
        username: str | None = None,
        password: Secret | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        columns = (key,) if isinstance(key, str) else tuple(key)
        if form not in _TYPES or not prefix:
            raise DefinitionError(
                f"form={form!r}, prefix={prefix!r}: use 'hash', 'json' or 'stream', and give a prefix"
            )
        if bool(columns) is (form == "stream"):
            raise DefinitionError(f"key={key!r} does not go with form={form!r}: hashes and JSON have a key")
        self._server = RedisServer(url, username, password, timeout_seconds)
        self._prefix, self._form = prefix, form
        self.key: Final = columns

    def check_schema(self, schema: pa.Schema) -> None:
        check_json_names(schema)
        if self._form != "json" and len(schema.names) > COLUMNS_MAX:
            raise DefinitionError(
                f"the rows have {len(schema.names)} columns, and as {self._form} Redis takes {COLUMNS_MAX}; "
                "give form='json', or fewer columns"
            )
        if missing := [name for name in self.key if name not in schema.names]:
            raise DefinitionError(
                f"the rows have no column {missing[0]!r} to be the key in Redis; name one of {schema.names}"
            )

    def check(self) -> None:
        """A server that drops keys by itself would drop rows and marks. One that is away is waited for."""
        try:
            facts = self._server.ask("INFO")
        except Unavailable:
            return
        policy = str(facts.get("maxmemory_policy", ""))
        if policy.startswith("allkeys-"):
            raise DefinitionError(
                f"Redis at {self._server.url} has maxmemory-policy {policy}: it drops rows and marks when "
                "its memory is full; set noeviction, or one of the volatile policies"
            )
        if facts.get("cluster_enabled"):
            self._check_slot()

    def _check_slot(self) -> None:
        if not _has_tag(self._prefix):
            raise DefinitionError(
                f"Redis at {self._server.url} is of a cluster, and rows and marks have to be in one slot; "
                f"give a prefix with a hash tag, such as '{{{self._prefix.strip('{}')}}}'"
            )
        try:
            self._server.ask("EXISTS", self._prefix)
        except SlotElsewhere as elsewhere:
            raise DefinitionError(str(elsewhere)) from None
        except Unavailable:
            return

    def lane_writer(self, job: str, uid: str) -> RedisLaneWriter:
        marks = f"{self._prefix}:holdfast:{job}/{uid}"
        return RedisLaneWriter(self._server, self._prefix, self._form, self.key, marks)

    def publisher(self, job: str, uid: str) -> LanePublisher:
        return LanePublisher(self.lane_writer(job, uid))


@dataclass(frozen=True)
class RedisLaneWriter:
    server: RedisServer
    prefix: str
    form: Form
    key: tuple[str, ...]
    marks: str

    def open(self, term: int) -> RedisLanes:
        self.server.ask("PING")
        return RedisLanes(self)


class RedisLanes:
    def __init__(self, writer: RedisLaneWriter) -> None:
        self._writer, self._server = writer, writer.server

    def begin(self, through: int) -> None:
        for lane in range(LANES):
            self._server.ask("HSETNX", self._writer.marks, lane, f"{through} 0 ")

    def marks(self) -> Mapping[int, LaneMark]:
        found = self._server.ask("HGETALL", self._writer.marks)
        return {int(lane): _mark(text.decode()) for lane, text in found.items()}

    def write(self, rows: LaneRows) -> Result:
        encoded = [row for table in rows.load() for row in self._encoded(table)]
        start = 0
        try:
            if large := self._too_large(encoded):
                return Result(Outcome.REFUSED, reason=large)
            while True:
                end = _end_of_chunk(encoded, start)
                answer, told = self._chunk(rows, start, encoded[start:end])
                if answer == "moved":
                    start = int(told)
                elif answer == "written" and end < len(encoded):
                    start = end
                else:
                    return _result(answer, told, rows)
        except Unavailable as gone:
            return Result(Outcome.UNAVAILABLE, reason=one_line(gone))
        except library().ResponseError as refusal:
            return Result(Outcome.REFUSED, reason=one_line(refusal))

    def _too_large(self, encoded: Sequence[list[Any]]) -> str:
        """Which row has a value that the server never takes: it would close the connection instead of
        saying so. Empty: none."""
        size, number = max(((_largest(row), number) for number, row in enumerate(encoded)), default=(0, 0))
        if size < 1 << 20:
            return ""
        try:
            limit = int(self._server.ask("CONFIG GET", "proto-max-bulk-len")["proto-max-bulk-len"])
        except DefinitionError:
            limit = VALUE_BYTES_MAX  # It is not for everybody to ask for settings.
        if size <= limit:
            return ""
        key = encoded[number][0][:200].decode(errors="replace")
        return (
            f"row {number} of the lane, for key {key}, has a value of {size} bytes, and the server takes "
            f"{limit} (proto-max-bulk-len)"
        )

    def close(self) -> None:
        """Connections are the process's."""

    def _chunk(self, rows: LaneRows, start: int, chunk: Sequence[list[Any]]) -> tuple[str, str]:
        answer, told = self._server.ask(
            "EVAL", _WRITE, 1, self._writer.marks, rows.lane, rows.before.epoch, rows.before.rows, rows.epoch,
            start, start + len(chunk), rows.rows, rows.input, _TYPES[self._writer.form],
            *(value for row in chunk for value in row),
        )  # fmt: skip
        return answer.decode(), told.decode(errors="replace")

    def _encoded(self, table: pa.Table) -> list[list[Any]]:
        """Each row as the script takes it: its key, how many values follow, and these. As bytes: how
        many they are counts."""
        writer, prefix = self._writer, self._writer.prefix.encode()
        if writer.form == "json":
            keys = self._keys({name: _bytes(table[name]) for name in writer.key})
            return [[key, 1, text] for key, text in zip(keys, json_rows(table), strict=True)]
        texts = {name: _bytes(table[name]) for name in table.column_names}
        keys = self._keys(texts) if writer.key else [prefix] * table.num_rows
        rows = []
        for number, key in enumerate(keys):
            pairs = [
                (name.encode(), column[number])
                for name, column in texts.items()
                if column[number] is not None
            ]
            flat = [piece for pair in pairs or [(b"", b"")] for piece in pair]
            rows.append([key, len(flat), *flat])
        return rows

    def _keys(self, texts: Mapping[str, list[bytes | None]]) -> list[bytes]:
        parts = zip(*([_escaped(text) for text in texts[name]] for name in self._writer.key), strict=True)
        return [b":".join((self._writer.prefix.encode(), *each)) for each in parts]


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    texts: list[bytes | None] = plain_texts(column.combine_chunks()).cast(pa.large_binary()).to_pylist()
    return texts


def _escaped(text: bytes | None) -> bytes:
    """A part of a key: other texts give other keys, and null another one still."""
    return b"%null" if text is None else text.replace(b"%", b"%25").replace(b":", b"%3A")


def _has_tag(prefix: str) -> bool:
    """Whether all keys that begin so are in one slot of a cluster: by what is in the first braces, if that is
    anything."""
    tag, closed, _ = prefix.partition("{")[2].partition("}")
    return bool(tag and closed)


def _largest(row: list[Any]) -> int:
    """Of its values, in bytes."""
    return max(len(value) for value in row if not isinstance(value, int))


def _end_of_chunk(encoded: Sequence[list[Any]], start: int) -> int:
    """Behind the last row of the chunk that begins with row `start`; of one row at least."""
    size, end = 0, start
    while end < min(start + CHUNK_ROWS, len(encoded)):
        size += sum(len(value) for value in encoded[end] if not isinstance(value, int))
        if size > CHUNK_BYTES and end > start:
            break
        end += 1
    return end


def _mark(text: str) -> LaneMark:
    epoch, rows, input = text.split(" ", 2)
    return LaneMark(int(epoch), int(rows), input)


def _result(answer: str, told: str, rows: LaneRows) -> Result:
    outcome = Outcome(answer)
    if outcome is Outcome.WRITTEN:
        return Result(outcome, rows.end)
    if outcome is Outcome.ALREADY:
        return Result(outcome, _mark(told))
    if outcome is Outcome.REFUSED:
        return Result(outcome, reason=f"key {told}, and rows of this sink are kept otherwise")
    at = f"its mark is {told}" if told else "it has no mark"
    return Result(outcome, _mark(told) if told else None, f"of lane {rows.lane} {at}")
