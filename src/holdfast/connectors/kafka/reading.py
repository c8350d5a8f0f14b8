"""What runs inside Spark tasks: ranges of offsets become Arrow batches.

Always true: a range gives the rows of its offsets, or the task fails. A reader stops at the first offset or
end of partition at or past the end of its range: the last offsets may be markers of transactions, or rows
that were compacted away, and never come.
Never here: a guess about what is missing. Offsets that are gone are InputVanished (auto.offset.reset=error).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.connectors.kafka.client import Connection, Troubles, confluent, not_allowed
from holdfast.connectors.kafka.positions import UNCHECKED, Range
from holdfast.connectors.kafka.times import ReadTimes, times_of
from holdfast.errors import InputVanished, Unavailable

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

BATCH_ROWS_MAX = 10_000
BATCH_BYTES = 8 << 20
FIRST_ROWS = 1_000
STALLED_SECONDS = 20.0
"""After so long without a row a task gives up: the wait is the driver's, which shows it."""
TUNED = {
    "check_crcs": True, "fetch_wait_max_ms": 20, "queued_min_messages": 100_000,
    "queued_max_messages_kbytes": 32 << 10, "fetch_message_max_bytes": 4 << 20, "fetch_queue_backoff_ms": 2,
}  # fmt: skip
"""How rows are fetched, unless options say otherwise. By default librdkafka waits a second before it fetches
more whenever its queue was full, which a task has emptied long before."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RAW = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS),
        ("timestamp", pa.timestamp("us", "UTC")), ("partition", pa.int32()), ("offset", pa.int64()),
        ("topic", pa.string()),
    ]
)  # fmt: skip

Decode = Callable[[list[bytes | None]], list[tuple[pa.Field, pa.Array]]]
"""From the values of a batch to the columns that take the place of `value`."""


@dataclass(frozen=True)
class RangesReader:
    """The body of a task: its number says which ranges it reads."""

    connection: Connection
    tasks: tuple[tuple[Range, ...], ...]
    decode: Decode | None = None
    times: Accumulator[ReadTimes] | None = None
    """Is told when the messages arrived."""

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for each in self.tasks[number]:
                    for messages in RangeConsumer(self.connection, each):
                        rows = batch_of(each, messages, self.decode)
                        if self.times is not None:
                            self.times.add(times_of(rows))
                        yield rows


class _Held(threading.local):
    """The consumer of this thread, kept for the next task of this worker: connecting takes longer than
    reading."""

    settings: dict[str, Any] | None = None
    consumer: Any = None
    troubles: Troubles | None = None

    def for_(self, connection: Connection) -> tuple[Any, Troubles]:
        own = {
            "group_id": "holdfast-unused", "enable_auto_commit": False, "enable_partition_eof": True,
            "enable_auto_offset_store": False, "auto_offset_reset": "error",
            "isolation_level": "read_committed",
            **{name: TUNED[name] for name in TUNED if name.replace("_", ".") not in connection.options},
        }  # fmt: skip
        settings = connection.settings(**own)
        if self.consumer is None or self.settings != settings:
            self.let_go()
            self.troubles = Troubles(connection)
            self.consumer = connection.client(confluent().Consumer, self.troubles, **own)
            self.settings = settings
        assert self.troubles is not None
        self.troubles.clear()
        return self.consumer, self.troubles

    def let_go(self) -> None:
        if self.consumer is not None:
            self.consumer.close()
        self.consumer = self.settings = None


_held = _Held()


class RangeConsumer:
    """The messages of one range, in lists."""

    def __init__(self, connection: Connection, range: Range) -> None:
        self._connection, self._range = connection, range

    def __iter__(self) -> Iterator[list[Any]]:
        kafka, wanted = confluent(), self._range
        if wanted.leader_epoch != UNCHECKED:
            # The library asks a broker about an epoch when it first hears of the partition's leader: one that
            # has read the partition before would not ask.
            _held.let_go()
        consumer, troubles = _held.for_(self._connection)
        try:
            consumer.assign(
                [
                    kafka.TopicPartition(
                        wanted.topic, wanted.number, wanted.first, leader_epoch=wanted.leader_epoch
                    )
                ]
            )
            yield from self._lists(consumer, troubles)
            consumer.unassign()
        except BaseException:
            # What it has fetched, and how it is placed, is not known: the next task begins anew.
            _held.let_go()
            raise

    def _lists(self, consumer: Any, troubles: Troubles) -> Iterator[list[Any]]:
        wanted, at, rows = self._range, self._range.first, FIRST_ROWS
        give_up = time.monotonic() + STALLED_SECONDS
        while at < wanted.end:
            got = consumer.consume(min(rows, wanted.end - at), 1.0)
            messages, over = self._sorted_out(got)
            if messages:
                at = messages[-1].offset() + 1
                size = sum(map(len, messages)) // len(messages) + 1
                rows = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // size))
                give_up = time.monotonic() + STALLED_SECONDS
                yield messages
            if over:
                return
            if not got:
                if (refusal := troubles.refusal) is not None:
                    # It let the driver in: the epoch is tried again, and the driver waits.
                    raise Unavailable(str(refusal))
                if time.monotonic() > give_up:
                    raise troubles.unavailable(f"offsets {at} to {wanted.end - 1} of {wanted.partition}")

    def _sorted_out(self, got: list[Any]) -> tuple[list[Any], bool]:
        """Those messages that are rows of the range, and whether it is over."""
        kafka, end = confluent(), self._range.end
        if not any(map(kafka.Message.error, got)):
            if not got or got[-1].offset() < end:
                return got, False
            return [message for message in got if message.offset() < end], True
        over, messages = False, []
        for message in got:
            error = message.error()
            if error is None:
                over = over or message.offset() >= end
                messages += [message] if message.offset() < end else []
            elif error.code() == kafka.KafkaError._PARTITION_EOF:
                over = over or message.offset() >= end
            else:
                raise self._failure(error)
        return messages, over

    def _failure(self, error: Any) -> Exception:
        kafka, wanted = confluent(), self._range
        said = self._connection.without_secrets(error.str())
        gone = (
            kafka.KafkaError._AUTO_OFFSET_RESET, kafka.KafkaError.OFFSET_OUT_OF_RANGE,
            kafka.KafkaError._LOG_TRUNCATION,
        )  # fmt: skip
        if error.code() in gone:
            return InputVanished(
                f"offsets {wanted.first} to {wanted.end - 1} of {wanted.partition} were planned, and they, "
                f"or rows before them, are not there any more: {said}; restore them, or go on without "
                "them: `holdfast skip --epoch ... --checkpoint ...`"
            )
        if error.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return Unavailable(str(not_allowed(self._connection, f"the rows of {wanted.partition}")))
        return Troubles(self._connection).unavailable(f"{wanted.partition}", said)


def batch_of(range: Range, messages: list[Any], decode: Decode | None) -> pa.RecordBatch:
    """Messages as rows. `value` as the decoder has it, or as bytes."""
    # Functions of the library mapped over all messages: nothing is interpreted for each of them.
    message, rows = confluent().Message, len(messages)
    values = list(map(message.value, messages))
    times = np.fromiter(map(itemgetter(1), map(message.timestamp, messages)), np.int64, rows)
    headers = list(map(message.headers, messages))
    told: list[tuple[pa.Field, pa.Array]] = [
        (RAW.field("key"), pa.array(list(map(message.key, messages)), pa.binary())),
        *(decode(values) if decode is not None else [(RAW.field("value"), pa.array(values, pa.binary()))]),
        (RAW.field("headers"), _headers(headers) if any(headers) else pa.nulls(rows, HEADERS)),
        # A message without a time has -1.
        (RAW.field("timestamp"), pa.array(times * 1000, mask=times < 0).cast(RAW.field("timestamp").type)),
        (RAW.field("partition"), pa.repeat(pa.scalar(range.number, pa.int32()), rows)),
        (RAW.field("offset"), pa.array(np.fromiter(map(message.offset, messages), np.int64, rows))),
        (RAW.field("topic"), pa.repeat(pa.scalar(range.topic), rows)),
    ]
    return pa.RecordBatch.from_arrays([array for _, array in told], schema=pa.schema([f for f, _ in told]))


def _headers(found: list[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    return pa.array(
        [None if each is None else [{"key": key, "value": value} for key, value in each] for each in found],
        HEADERS,
    )
