"""What a source has received and cannot read again: a log of batches, one for each such source.

    log/UID/000000000007            a batch: who wrote it, which of its turns it is, and rows as Arrow
    log/UID/floor/000000000004      batches up to this number do not count any more

Always true: batches are numbered without a gap, and each is written if absent, so every process sees the same
log; a batch counts whoever wrote it. The floor is raised before anything at or below it is deleted: a writer
that slept meanwhile, and finds a number free that was used and deleted, sees the floor above it and appends
again. What `append` returned is durable, above the floor, and will be read.
Never here: which batches an epoch reads, and what is a repetition (see connectors.receiving).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pyarrow as pa

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal_bytes, unseal_bytes
from holdfast.checkpoint.store.write_once import write_once
from holdfast.clock import Clock, SystemClock
from holdfast.connectors.contract import LogBatch
from holdfast.errors import CorruptionError, InputVanished, ObjectMissing
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

KIND, FLOOR_KIND = "received", "log-floor"


class _Header(msgspec.Struct, frozen=True):
    writer: str
    turn: int
    rows: int
    received_ms: int = 0
    """When it was appended; 0: by a version that did not say."""


class ReceivedLog:
    """The log of one source, as one process appends to it and reads it. `writer` is a fresh random name."""

    def __init__(self, storage: Storage, source: str, writer: str, clock: Clock | None = None) -> None:
        self._storage, self._source, self._writer = storage, source, writer
        self._clock = clock or SystemClock()
        self._turn = 0
        self._known: dict[int, LogBatch] = {}
        self._floor = self._end = 0
        """The end: without a gap, every batch above the floor up to here is known to be durable."""
        self._appending, self._knowing = threading.Lock(), threading.Lock()

    def append(self, rows: pa.RecordBatch) -> LogBatch:
        with self._appending:
            if not self._end:
                self.look()
            self._turn += 1
            data = packed(self._writer, self._turn, rows, self._clock.now_ms())
            number = max(self._end, self._floor) + 1
            while True:
                batch, _ = unpacked(write_once(self._storage, self._name(number), data), number)
                if (batch.writer, batch.turn) != (self._writer, self._turn):
                    # Another's, which counts; or ours, of which we were never told.
                    self._learn(batch)
                elif self._read_floor() < number:
                    self._learn(batch)
                    return batch
                number = max(number, self._floor) + 1

    def look(self) -> None:
        found = [entry.name for entry in self._storage.list(names.log_of(self._source))]
        floors = [name for name in found if name.startswith(names.log_floors_of(self._source))]
        self._raise_floor(max((_number(name) for name in floors), default=0))
        numbers = sorted(_number(name) for name in found if name not in floors)
        for number in numbers:
            end = max(self._end, self._floor)
            if number > end + 1:
                self._refuse_gap(end + 1, number)
                return
            if number == end + 1:
                try:
                    batch, _ = unpacked(self._storage.get(self._name(number)), number)
                except ObjectMissing:
                    # Trimmed since the listing, and the floor tells; or gone.
                    if self._read_floor() < number:
                        raise
                    continue
                self._learn(batch)

    def after(self, number: int) -> Sequence[LogBatch]:
        with self._knowing:
            if number > max(self._end, self._floor):
                raise InputVanished(
                    f"the log of source {self._source!r} in {self._storage.url} ends with batch "
                    f"{max(self._end, self._floor)}, and {number} of its batches were read: it was lost, or "
                    "this is another place; bring log/ back from a copy, or give the source another uid"
                )
            if number < self._floor:
                raise InputVanished(
                    f"the log of source {self._source!r} in {self._storage.url} holds nothing up to batch "
                    f"{self._floor} any more, and it was read up to {number}; go on from a newer commit"
                )
            return [self._known[each] for each in range(number + 1, self._end + 1) if each in self._known]

    def loader(self) -> Callable[[int], pa.RecordBatch]:
        return partial(load_batch, self._storage.url, self._source)

    def trim(self, through: int) -> None:
        if through <= self._floor or through > self._end:
            return
        write_once(self._storage, names.log_floor(self._source, through), seal_bytes(FLOOR_KIND, b""))
        self._raise_floor(through)
        found = [entry.name for entry in self._storage.list(names.log_of(self._source))]
        floor = names.log_floor(self._source, through)
        self._storage.delete([name for name in found if _number(name) <= through and name != floor])

    def _name(self, number: int) -> str:
        return names.log_batch(self._source, number)

    def _read_floor(self) -> int:
        floors = self._storage.list(names.log_floors_of(self._source))
        self._raise_floor(max((_number(entry.name) for entry in floors), default=0))
        return self._floor

    def _raise_floor(self, floor: int) -> None:
        with self._knowing:
            self._floor = max(self._floor, floor)
            self._end = max(self._end, self._floor)
            self._known = {number: batch for number, batch in self._known.items() if number > self._floor}

    def _learn(self, batch: LogBatch) -> None:
        with self._knowing:
            if batch.number > self._floor:
                self._known[batch.number] = batch
            if batch.number == self._end + 1:
                self._end = batch.number

    def _refuse_gap(self, missing: int, seen: int) -> None:
        """A listing need not show what is written while it runs: whether a batch is gone is looked up again,
        now that one after it is known to be there."""
        name = self._name(missing)
        there = any(entry.name == name for entry in self._storage.list(name))
        if not there and self._read_floor() < missing:
            raise CorruptionError(
                f"{name} is missing in {self._storage.url}, and batch {seen} after it is there; restore it "
                "from a copy of the storage, or give the source another uid to begin with a new log"
            )


def packed(writer: str, turn: int, rows: pa.RecordBatch, received_ms: int) -> bytes:
    """A batch as it is stored: a line of JSON, then Arrow's stream format, in the wrapping of records."""
    header = msgspec.json.encode(_Header(writer, turn, rows.num_rows, received_ms))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return seal_bytes(KIND, header + b"\n" + sink.getvalue().to_pybytes())


def unpacked(data: bytes, number: int, name: str = "") -> tuple[LogBatch, pa.RecordBatch]:
    """What `packed` was given. CorruptionError."""
    name = name or f"batch {number} of a log"
    line, _, body = unseal_bytes(KIND, data, name).partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
        with pa.ipc.open_stream(body) as stream:
            rows = stream.read_next_batch()
    except (msgspec.DecodeError, pa.ArrowInvalid, StopIteration) as cause:
        raise CorruptionError(f"{name} does not read as a batch ({cause}); restore it from a copy") from cause
    return LogBatch(number, header.writer, header.turn, header.rows, header.received_ms), rows


def load_batch(url: str, source: str, number: int) -> pa.RecordBatch:
    """Inside a task as well: the rows of a batch."""
    name = names.log_batch(source, number)
    return unpacked(open_storage(url).get(name), number, name)[1]


def _number(name: str) -> int:
    digits = name.rpartition("/")[2]
    return int(digits) if digits.isdecimal() else 0
