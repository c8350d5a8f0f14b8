"""Messages of a RabbitMQ queue: logged, then acknowledged, and read from the log."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.connectors.contract import DurableLog, Json, SourceReader
from holdfast.connectors.rabbitmq.connection import RabbitServer
from holdfast.connectors.received_rows import RowForm, raw_rows
from holdfast.connectors.receiving import (
    BATCH_ROWS,
    LINGER_SECONDS,
    Deliver,
    Filling,
    ReceivingReader,
    Room,
)
from holdfast.errors import DefinitionError, Unavailable
from holdfast.secret import Secret


class RabbitSource:
    """Messages of one queue, which exists already. A message is taken from the queue when it is durable in
    the checkpoint, not before; from there on it is read like any other source, again and again.

    With `format="json"` a message's body is JSON of the columns of `schema`. With `format="fields"` the body
    is the column `value` (string or binary). `id_column` names a string column that gets the message id,
    which the sender has set. A message may be delivered again: after a crash between its logging and its
    acknowledgement, and whenever its sender repeats it. `stream.drop_duplicates(by=ID)` right after the
    source lets each id pass once; without that the source is at least once.

        hf.RabbitSource("amqp://127.0.0.1:5672/%2F", "orders", schema="id string, user string, amount long",
                        id_column="id")
    """

    replayable: Final = True
    sifts: Final = True
    repeats: Final = (
        "a message that was logged and not yet acknowledged when the driver, the server or the connection "
        "failed is delivered again"
    )

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        schema: str,
        format: str = "json",
        id_column: str | None = None,
        username: str | None = None,
        password: Secret | None = None,
        prefetch: int = 2 * BATCH_ROWS,
        timeout_seconds: float = 10.0,
    ) -> None:
        if not queue or prefetch < 1:
            raise DefinitionError(
                f"queue={queue!r}, prefetch={prefetch} receives nothing; name a queue, and some messages"
            )
        self.schema: Final = schema
        self.told_apart_by: Final = id_column
        self._form = RowForm(schema, format, told={} if id_column is None else {id_column: "id"})
        self._receiver = RabbitReceiver(
            RabbitServer(url, username, password, timeout_seconds), queue, prefetch
        )

    def check(self) -> None:
        """Whether the queue is there for who asks. A server that is away is waited for."""
        with suppress(Unavailable), self._receiver.server.channel() as channel:
            channel.queue_declare(self._receiver.queue, passive=True)

    def reader(self, notes: Sequence[Json]) -> SourceReader:
        raise DefinitionError("a RabbitSource is read by way of a log; it is opened by logged_reader")

    def logged_reader(self, notes: Sequence[Json], log: DurableLog) -> SourceReader:
        return ReceivingReader(log, self._form, self._receiver)


@dataclass(frozen=True)
class RabbitReceiver:
    server: RabbitServer
    queue: str
    prefetch: int

    def receive(self, deliver: Deliver, room: Room, stopped: threading.Event) -> None:
        with self.server.channel() as channel:
            channel.queue_declare(self.queue, passive=True)
            channel.basic_qos(prefetch_count=self.prefetch)
            waiting: list[Any] = []
            filling = Filling()
            for message in channel.consume(self.queue, inactivity_timeout=LINGER_SECONDS):
                if message[0] is not None:
                    waiting.append(message)
                    filling.add(1, len(message[2]))
                # More than are prefetched do not come before these are acknowledged.
                complete = message[0] is None or len(waiting) >= self.prefetch or filling.ends()
                if waiting and complete:
                    deliver(raw_rows(self.queue, [self._row(*each) for each in waiting]))
                    # Durable by now, and not before.
                    channel.basic_ack(waiting[-1][0].delivery_tag, multiple=True)
                    waiting = []
                    filling.clear()
                    room()
                if stopped.is_set():
                    # What is waiting was not acknowledged: the server delivers it again.
                    return

    def _row(self, method: Any, properties: Any, body: bytes) -> tuple[str, str | None, dict[str, bytes]]:
        # Some clients send an empty id where none was given: it names no message.
        id = properties.message_id or None
        if isinstance(id, bytes):
            # It is no UTF-8, and the library leaves it as it is: other bytes are another text.
            id = id.decode(errors="backslashreplace")
        return f"message {id or method.delivery_tag} of {self.queue}", id, {"value": body}
