"""One transactional producer: whoever has it last may write its lane.

Always true: a producer that was not told that its transaction is over is never used again: the next one, made
anew, ends what it left, and sees what became of it. Nothing waits without end: the library's calls have
time-outs, and what they wait for has to move.
Never here: what a mark means (see lane_writer).
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any

from holdfast.connectors.kafka.client import Connection, Refused, Troubles, confluent
from holdfast.connectors.kafka.messages import Messages
from holdfast.connectors.lanes import LaneMark, Outcome
from holdfast.errors import one_line

SLICE_SECONDS = 0.5
POLLED_EVERY = 10_000
"""Messages between two looks at what the library has to say."""
ABORT_SECONDS = 3.0
CAUSE_SECONDS = 0.1
CAUSES_MAX = 4
PROPAGATION_MS = 5_000
"""How long a topic that the cluster does not know is waited for."""
_QUIET = logging.Logger("holdfast.kafka", logging.CRITICAL + 1)
"""What matters in the log lines of the library comes as errors, too."""


class NotWritten(Exception):
    """Why a transaction did not come to its end, as a result has it."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome, self.reason = outcome, reason

    def __str__(self) -> str:
        return self.reason


class LaneProducer:
    """`mark`: the mark of the lane, as its newest transaction left it; read by whoever makes the producer."""

    def __init__(
        self, connection: Connection, transactional_id: str, transaction_seconds: float, seconds: float
    ) -> None:
        """Connects to nothing yet. DefinitionError: the options are not those of a producer."""
        self.mark: LaneMark | None = None
        self._connection, self._id = connection, transactional_id
        self._transaction_seconds, self._seconds = transaction_seconds, seconds
        self._troubles = Troubles(connection)
        self._failed: tuple[Any, Any] | None = None
        self._producer: Any = new_producer(
            connection, transactional_id, transaction_seconds, self._troubles, self._delivered
        )

    def take(self) -> None:
        """Become the one who writes: others with this id are fenced, and what they left open is ended.
        NotWritten: it did not work."""
        kafka, give_up = confluent(), time.monotonic() + self._seconds
        while True:
            try:
                self._producer.init_transactions(SLICE_SECONDS)
                return
            except kafka.KafkaException as error:
                self._hear()
                problem = error.args[0]
                if not problem.retriable() or time.monotonic() > give_up:
                    raise self._not_written(problem) from error

    def send(
        self, topic: str, messages: Messages, mark_topic: str, lane: int, mark: tuple[bytes, bytes]
    ) -> None:
        """All messages and the mark (key and value), in one transaction. NotWritten: nothing of it is shown;
        or, where that is UNAVAILABLE or FENCED, this is not known."""
        kafka, pace = confluent(), _Pace(self._producer, self._transaction_seconds, self._seconds)
        try:
            self._producer.begin_transaction()
            # First, so that its partition tells from the beginning that a transaction is open.
            self._producer.produce(mark_topic, mark[1], mark[0], lane)
            pace.sent += 1
            self._send(topic, messages, pace)
            while self._producer.flush(SLICE_SECONDS):
                self._look(messages, pace)
            self._raise_failed(messages, pace)
            self._producer.commit_transaction(self._seconds)
        except (kafka.KafkaException, SystemError) as error:
            cause = self._cause(error)
            self._hear()
            self._raise_failed(messages, pace)
            raise self._not_written(cause) from error

    def close(self) -> None:
        """Let go. What is open is ended by the next producer of this id, or by the cluster in time."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

    def _send(self, topic: str, messages: Messages, pace: _Pace) -> None:
        kafka, produce = confluent(), self._producer.produce
        for number, (key, value, headers, at) in enumerate(messages.in_tuples()):
            while True:
                try:
                    produce(topic, value, key, timestamp=at, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(SLICE_SECONDS)
                    self._look(messages, pace)
                except kafka.KafkaException as error:
                    if error.args[0].code() != kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                        raise
                    self._abort()
                    raise self._too_large(messages, number, "message.max.bytes in options") from error
            pace.sent += 1
            if number % POLLED_EVERY == 0:
                self._producer.poll(0)
                self._look(messages, pace)

    def _look(self, messages: Messages, pace: _Pace) -> None:
        """Raise what keeps the transaction from its end."""
        self._raise_failed(messages, pace)
        self._raise_refusal()
        if pace.is_stalled():
            # It has no answer to wait for, and knows why: that it raises.
            self._producer.commit_transaction(CAUSE_SECONDS)
        if pace.is_over():
            raise self._too_many(messages, pace)

    def _too_many(self, messages: Messages, pace: _Pace) -> NotWritten:
        return NotWritten(
            Outcome.REFUSED,
            f"{len(messages)} rows are too many for one transaction: {pace.arrived} arrived in "
            f"{pace.seconds:.0f} s; give KafkaSink more transaction_seconds (the cluster allows "
            "transaction.max.timeout.ms), or the job smaller epochs",
        )

    def _raise_failed(self, messages: Messages, pace: _Pace) -> None:
        """For a message that was refused: nothing else of the transaction went wrong, and it is ended."""
        kafka = confluent()
        if self._failed is None:
            return
        (error, message), self._failed = self._failed, None
        code = error.code()
        if code == kafka.KafkaError._MSG_TIMED_OUT and not pace.is_stalled():
            # It has waited for as long as a transaction may take, behind others that went on arriving.
            raise self._too_many(messages, pace)
        why = self._not_written(error)
        if code == kafka.KafkaError.MSG_SIZE_TOO_LARGE:
            why = self._too_large(
                messages, messages.largest, f"max.message.bytes of topic {message.topic()!r}"
            )
        elif code in (kafka.KafkaError.INVALID_RECORD, kafka.KafkaError.INVALID_TIMESTAMP):
            row = messages.values.index(message.value()) if message.value() in messages.values else 0
            why = NotWritten(
                Outcome.REFUSED, f"topic {message.topic()!r} refuses row {row} of the lane: {error.str()}"
            )
        elif code in (kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError._UNKNOWN_TOPIC):
            why = NotWritten(
                Outcome.REFUSED,
                f"there is no topic {message.topic()!r} any more; make it again",
            )
        if why.outcome is Outcome.REFUSED:
            self._abort()
        raise why

    def _too_large(self, messages: Messages, row: int, limit: str) -> NotWritten:
        return NotWritten(
            Outcome.REFUSED,
            f"row {row} of the lane has {messages.size(row)} bytes, which is more than one message may have; "
            f"raise {limit}, or leave the row out",
        )

    def _abort(self) -> None:
        """So that readers are not held up by what will never be. Of no consequence if it does not work."""
        with suppress(confluent().KafkaException, SystemError):
            self._producer.abort_transaction(ABORT_SECONDS)

    def _cause(self, error: Exception) -> Any:
        """What the library has against a transaction. A producer that is in a wrong state says so, and in its
        commit why. One that was fenced while a callback was due raises a SystemError, or nothing sensible."""
        kafka = confluent()
        for _ in range(CAUSES_MAX):
            found = error.args[0] if isinstance(error, kafka.KafkaException) else None
            if found is not None and found.code() not in (kafka.KafkaError._STATE, kafka.KafkaError._FATAL):
                return found
            try:
                self._producer.commit_transaction(CAUSE_SECONDS)
            except (kafka.KafkaException, SystemError) as real:
                error = real
        return kafka.KafkaError(kafka.KafkaError._STATE, one_line(error))

    def _not_written(self, error: Any) -> NotWritten:
        kafka = confluent()
        code, said = error.code(), self._connection.without_secrets(error.str())
        fenced = (
            kafka.KafkaError._FENCED, kafka.KafkaError.PRODUCER_FENCED,
            kafka.KafkaError.INVALID_PRODUCER_EPOCH, kafka.KafkaError.INVALID_PRODUCER_ID_MAPPING,
        )  # fmt: skip
        denied = (
            kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )  # fmt: skip
        if code in fenced:
            return NotWritten(Outcome.FENCED, f"another writer has transactional id {self._id} now")
        if code in denied:
            return NotWritten(
                Outcome.REFUSED,
                f"Kafka at {self._connection.servers} does not let this user write ({said}); grant it the "
                f"topics and transactional id {self._id}",
            )
        if code == kafka.KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return NotWritten(
                Outcome.REFUSED,
                f"transaction_seconds={self._transaction_seconds:g} is more than the cluster allows "
                "(transaction.max.timeout.ms); give less",
            )
        return NotWritten(Outcome.UNAVAILABLE, str(self._troubles.unavailable("a transaction", said)))

    def _hear(self) -> None:
        """Let the library tell what happened on its way, and raise a refusal."""
        # What is fatal it raises here, too: that is known already.
        with suppress(confluent().KafkaException, SystemError):
            self._producer.poll(0)
        self._raise_refusal()

    def _raise_refusal(self) -> None:
        try:
            self._troubles.raise_refusal()
        except Refused as refusal:
            raise NotWritten(Outcome.REFUSED, one_line(refusal)) from refusal

    def _delivered(self, error: Any, message: Any) -> None:
        """Called by the library for messages that failed. Those that failed because others did say less."""
        kafka = confluent()
        followers = (
            kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT,
            kafka.KafkaError._INVALID_DIFFERENT_RECORD,
        )  # fmt: skip
        if error is not None and self._failed is None and error.code() not in followers:
            self._failed = error, message


class _Pace:
    """Whether a transaction still moves, and whether there is time for it."""

    def __init__(self, producer: Any, transaction_seconds: float, silence_seconds: float) -> None:
        self._producer, self._silence = producer, silence_seconds
        # Before the cluster ends it, and says of it only that it is over.
        self.seconds = transaction_seconds * 0.9
        self._end = time.monotonic() + self.seconds
        self.sent = self.arrived = 0
        self._moved = time.monotonic()

    def is_stalled(self) -> bool:
        """Nothing has arrived for so long that something is wrong."""
        arrived = self.sent - len(self._producer)
        if arrived > self.arrived:
            self.arrived, self._moved = arrived, time.monotonic()
        return time.monotonic() - self._moved > min(self._silence, self.seconds)

    def is_over(self) -> bool:
        return time.monotonic() > self._end


def new_producer(
    connection: Connection,
    transactional_id: str,
    transaction_seconds: float,
    troubles: Troubles,
    delivered: Any,
) -> Any:
    def made(settings: dict[str, Any]) -> Any:
        own = {
            "topic.metadata.propagation.max.ms": PROPAGATION_MS, "delivery.report.only.error": True,
            "on_delivery": delivered,
        }  # fmt: skip
        # Keys go where the Java clients, and what is built on them, have them.
        return confluent().Producer({"partitioner": "murmur2_random", **settings, **own}, logger=_QUIET)

    return connection.client(
        made,
        troubles,
        transactional_id=transactional_id,
        transaction_timeout_ms=int(transaction_seconds * 1000),
    )
