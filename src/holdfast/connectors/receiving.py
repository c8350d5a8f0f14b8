"""Sources that cannot be read again: what comes in is logged first, and read from the log.

A receiver runs in a thread of the driver. It hands on what it was sent, and acknowledges to the sender what
is durable in the log; epochs read the log. A batch that is in the log twice, because its writer could not
know that the first one counted, is read once: a writer's turns grow, and one at or below the newest that was
read is a repetition.
Never here: how the log is stored (see `DurableLog`), or when an epoch is planned.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from holdfast.connectors.contract import Arrived, DurableLog, Json, LogBatch, MalformedRow, Sifted, Slice
from holdfast.connectors.received_rows import RAW_DDL, RowForm
from holdfast.errors import InputVanished, RetryableError, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20
"""A batch ends with so many rows or bytes, about. It is a write that is waited for: with few rows in each, a
fast sender would wait for the disk."""
BATCH_SECONDS = 0.25
"""A batch ends so long after its first row came, however the next ones come."""
LINGER_SECONDS = 0.05
"""A batch ends when nothing has come for so long."""
UNREAD_BATCHES_MAX = 2_000
"""So many batches may wait in the log; then nothing more is taken from the sender until some were read."""
LOOK_MS = 1_000
"""How often a log is looked at for what other processes have appended."""
SLICE_ROWS_MAX = 250_000
WRITERS_KEPT = 64
"""Of so many writers it is remembered what was read of them."""
WAIT_SECONDS_MAX = 10.0

Deliver = Callable[[pa.RecordBatch], None]
Room = Callable[[], None]
"""Comes back when the log has room for another batch, or the run ends."""


class Receiver(Protocol):
    """Takes what a system sends, in a thread of its own."""

    def receive(self, deliver: Deliver, room: Room, stopped: threading.Event) -> None:
        """Connect, and until `stopped`: take rows, `deliver` them, then acknowledge them, then wait for
        `room` (not sooner: a connection may end meanwhile, and what was not acknowledged comes again). What
        `deliver` raises is to end this, with nothing acknowledged. Called again, after a wait that grows,
        where it raised or returned."""


class Filling:
    """How full the next batch is."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._begun = now, 0.0
        self._rows = self._bytes = 0

    def add(self, rows: int, bytes: int) -> None:
        if not self._rows:
            self._begun = self._now()
        self._rows += rows
        self._bytes += bytes

    def ends(self) -> bool:
        """Whether it is to be delivered, though more may come at once."""
        full = self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES
        return full or (self._rows > 0 and self._now() - self._begun >= BATCH_SECONDS)

    def clear(self) -> None:
        self._rows = self._bytes = 0


class ReceivingReader:
    """A position is {"batch": the newest batch read, "turns": {writer: [newest turn, its batch]}}."""

    def __init__(self, log: DurableLog, form: RowForm, receiver: Receiver) -> None:
        self._log, self._form, self._receiver = log, form, receiver
        self._stopped, self._moved = threading.Event(), threading.Condition()
        self._left = threading.Event()
        """Set where the thread did not come back in time: who has the log now may not see what it appends."""
        self._thread: threading.Thread | None = None
        self._looked_ms: int | None = None
        self._read = self._end = self._appended = 0
        """Batches that were planned, up to which at most, and the newest that was received here."""
        self._trouble = ""

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        position = after or {"batch": 0, "turns": {}}
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < LOOK_MS:
            self._log.look()
            self._looked_ms = now_ms
        self._go_on(position["batch"])
        return next_slice(after, self._log.after(position["batch"]), max_rows, self._end)

    def exhausted(self, after: Json | None) -> bool:
        return False

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        if end is None:
            self._log.look()
            position = after or {"batch": 0, "turns": {}}
            left = next_slice(after, self._log.after(position["batch"]), sys.maxsize)
            end = position if left is None else left.end
        self._end = end["batch"] or -1
        return end

    def lag(self, after: Json | None) -> int | None:
        return sum(batch.rows for batch in self._log.after((after or {"batch": 0})["batch"]))

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        """By the times when batches were logged."""
        wanted = set(slice.detail)
        batches = self._log.after(slice.detail[0] - 1)
        return [
            Arrived(batch.rows, batch.received_ms, batch.received_ms)
            for batch in batches
            if batch.number in wanted and batch.received_ms
        ]

    def follow(self, slice: Slice) -> None:
        """Everything that another member has planned by is in the position; but what it has received itself,
        and planned at once, may be news here."""
        self._looked_ms = None

    def health(self) -> str:
        return self._trouble

    def released(self, position: Json) -> None:
        self._log.trim(position["batch"])

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._form.strict(self._raw(spark, slice))

    def sifted(self, spark: SparkSession, slice: Slice) -> Sifted:
        return self._form.sifted(self._raw(spark, slice))

    def malformed(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._form.letters(self._raw(spark, slice))

    def first_malformed(self, spark: SparkSession, slice: Slice) -> MalformedRow | None:
        return self._form.first_letter(self._raw(spark, slice))

    def close(self) -> None:
        self._stopped.set()
        with self._moved:
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join(WAIT_SECONDS_MAX)
            if self._thread.is_alive():
                self._left.set()

    def _raw(self, spark: SparkSession, slice: Slice) -> DataFrame:
        if self._looked_ms is None:
            self._log.look()
        wanted: list[int] = slice.detail
        there = {batch.number for batch in self._log.after(wanted[0] - 1)}
        if missing := [number for number in wanted if number not in there]:
            raise InputVanished(
                f"the log no longer holds batch {missing[0]}, which was planned to be read; bring it back "
                "from a copy of the storage, or go back to an older commit"
            )
        tasks = spark.range(0, len(wanted), 1, min(len(wanted), _tasks(slice.rows or 0)))
        return tasks.mapInArrow(partial(read_batches, self._log.loader(), wanted), RAW_DDL)

    def _go_on(self, read: int) -> None:
        with self._moved:
            self._read = read
            self._moved.notify_all()
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._receive, name="holdfast-receiver", daemon=True)
            self._thread.start()

    def _receive(self) -> None:
        wait = 0.1
        while not self._stopped.is_set():
            try:
                self._receiver.receive(self._deliver, self._room, self._stopped)
                wait = 0.1
            # Whatever it is: the thread goes on, and a person is told.
            except Exception as failure:
                self._trouble = f"reconnecting after: {one_line(failure)}"
            self._stopped.wait(wait)
            wait = min(wait * 2, WAIT_SECONDS_MAX)

    def _deliver(self, rows: pa.RecordBatch) -> None:
        self._appended = self._log.append(rows).number
        if self._left.is_set():
            raise RetryableError("the run has ended meanwhile; what was sent is sent again")
        self._trouble = ""

    def _room(self) -> None:
        with self._moved:
            self._moved.wait_for(
                lambda: self._stopped.is_set() or self._appended - self._read <= UNREAD_BATCHES_MAX
            )


def next_slice(
    after: Json | None, batches: Sequence[LogBatch], max_rows: int | None, end: int = 0
) -> Slice | None:
    """The slice of the batches that follow a position; none beyond `end`, if that is not 0. About `max_rows`:
    batches are read whole. Pure."""
    left = SLICE_ROWS_MAX if max_rows is None else max_rows
    turns: dict[str, list[int]] = dict((after or {"turns": {}})["turns"])
    taken: list[int] = []
    rows, through = 0, 0
    for batch in batches:
        if (taken and rows + batch.rows > left) or (end and batch.number > end):
            break
        if batch.turn > turns.get(batch.writer, [0, 0])[0]:
            taken.append(batch.number)
            rows += batch.rows
            turns[batch.writer] = [batch.turn, batch.number]
        through = batch.number
    if not taken:
        return None
    newest = sorted(turns.items(), key=lambda each: each[1][1])[-WRITERS_KEPT:]
    return Slice(after, {"batch": through, "turns": dict(newest)}, rows=rows, detail=taken)


def read_batches(
    load: Callable[[int], pa.RecordBatch], numbers: Sequence[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Inside a task: the rows of the batches that its rows number."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield load(numbers[number])


def _tasks(rows: int) -> int:
    return max(1, rows // 10_000)
