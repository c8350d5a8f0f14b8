"""Rows in Redis, each once: hashes, JSON under a key, or entries of a stream.

A chunk of rows and the mark of its lane are one script, which the server runs whole: nobody sees a part of
it, and the append-only file holds all of it or nothing. Scripts do not roll back, so everything that could
refuse a row is looked at before the first is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from holdfast.connectors.columns_as_text import check_json_names, json_rows, plain_texts
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import LANES, Atomic, LaneMark, LaneRows, Outcome, Result
from holdfast.connectors.redis.connection import RedisServer, library
from holdfast.errors import DefinitionError, Unavailable, one_line
from holdfast.secret import Secret

CHUNK_ROWS = 500
"""Rows that one script writes: it answers nobody else meanwhile."""

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
  place = place + 2 + tonumber(ARGV[place + 1])
end
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
        self._prefix, self._form, self._key = prefix, form, columns

    def check_schema(self, schema: pa.Schema) -> None:
        check_json_names(schema)
        if missing := [name for name in self._key if name not in schema.names]:
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
        if facts.get("cluster_enabled") and not ("{" in self._prefix and "}" in self._prefix):
            raise DefinitionError(
                f"Redis at {self._server.url} is of a cluster, and rows and marks have to be in one slot; "
                f"give a prefix with a hash tag, such as '{{{self._prefix}}}'"
            )

    def lane_writer(self, job: str, uid: str) -> RedisLaneWriter:
        marks = f"{self._prefix}:holdfast:{job}/{uid}"
        return RedisLaneWriter(self._server, self._prefix, self._form, self._key, marks)

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
            while True:
                answer, told = self._chunk(rows, start, encoded[start : start + CHUNK_ROWS])
                if answer == "moved":
                    start = int(told)
                elif answer == "written" and start + CHUNK_ROWS < len(encoded):
                    start += CHUNK_ROWS
                else:
                    return _result(answer, told, rows)
        except Unavailable as gone:
            return Result(Outcome.UNAVAILABLE, reason=one_line(gone))
        except library().ResponseError as refusal:
            if str(refusal).startswith(("OOM", "LOADING", "BUSY", "MISCONF", "NOREPLICAS", "CLUSTERDOWN")):
                return Result(Outcome.UNAVAILABLE, reason=one_line(refusal))
            return Result(Outcome.REFUSED, reason=one_line(refusal))

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
        """Each row as the script takes it: its key, how many values follow, and these."""
        writer = self._writer
        texts = {name: plain_texts(table[name].combine_chunks()).to_pylist() for name in table.column_names}
        keys = [writer.prefix] * table.num_rows
        if writer.key:
            parts = zip(*([_escaped(text) for text in texts[name]] for name in writer.key), strict=True)
            keys = [":".join((writer.prefix, *each)) for each in parts]
        if writer.form == "json":
            return [[key, 1, text] for key, text in zip(keys, json_rows(table), strict=True)]
        rows = []
        for number, key in enumerate(keys):
            pairs = [(name, column[number]) for name, column in texts.items() if column[number] is not None]
            flat = [piece for pair in pairs or [("", "")] for piece in pair]
            rows.append([key, len(flat), *flat])
        return rows


def _escaped(text: str | None) -> str:
    """A part of a key: other texts give other keys, and null another one still."""
    return "%null" if text is None else text.replace("%", "%25").replace(":", "%3A")


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
