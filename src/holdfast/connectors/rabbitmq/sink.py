"""Rows as messages to RabbitMQ: each confirmed by the server, at least once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from holdfast.connectors.columns_as_text import check_json_names, json_rows
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.rabbitmq.connection import RabbitServer, library
from holdfast.errors import SinkFailed, Unavailable
from holdfast.secret import Secret

NAME_CHARS_MAX = 160


class RabbitSink:
    """Publishes each row as a persistent message of JSON, and waits until the server has confirmed it. A
    message that no queue takes fails the epoch. At least once: an epoch that was interrupted is published
    again. Every message has an id, JOB/UID/EPOCH/PART/ROW/DIGEST, which is the same for the same row in the
    same place of an epoch, and never for another row; consumers tell repetitions apart by it, as
    `RabbitSource(id_column=)` with `drop_duplicates` does.
    """

    exactly_once: Final = False

    def __init__(
        self,
        url: str,
        routing_key: str,
        *,
        exchange: str = "",
        username: str | None = None,
        password: Secret | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.routing_key: Final = routing_key
        self.exchange: Final = exchange
        self._server = RabbitServer(url, username, password, timeout_seconds)

    def check_schema(self, schema: pa.Schema) -> None:
        check_json_names(schema)

    def check(self) -> None:
        """Whether the exchange, or without one the queue, is there. A server that is away is waited for."""
        with suppress(Unavailable), self._server.channel() as channel:
            if self.exchange:
                channel.exchange_declare(self.exchange, passive=True)
            else:
                channel.queue_declare(self.routing_key, passive=True)

    def publisher(self, job: str, uid: str) -> RabbitPublisher:
        return RabbitPublisher(self, self._server, _named(f"{job}/{uid}"))


def _named(sink: str) -> str:
    """How ids of messages begin. An id has 255 bytes at most."""
    if len(sink) <= NAME_CHARS_MAX:
        return sink
    return f"{sink[: NAME_CHARS_MAX - 33]}-{hashlib.blake2b(sink.encode(), digest_size=16).hexdigest()}"


class RabbitPublisher:
    def __init__(self, sink: RabbitSink, server: RabbitServer, name: str) -> None:
        self._sink, self._server, self._name = sink, server, name

    def published_through(self) -> int:
        return 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if not any(part.rows for part in parts):
            return
        with self._server.channel() as channel:
            channel.confirm_delivery()
            for part in parts:
                for number, line in enumerate(json_rows(part.load())):
                    # An epoch that was shown before its commit may have other rows when it is run again.
                    digest = hashlib.blake2b(line, digest_size=8).hexdigest()
                    self._send(channel, line, f"{self._name}/{epoch}/{part.part}/{number}/{digest}")

    def _send(self, channel: Any, line: bytes, id: str) -> None:
        pika = library()
        properties = pika.BasicProperties(
            message_id=id, delivery_mode=pika.DeliveryMode.Persistent.value, content_type="application/json"
        )
        try:
            channel.basic_publish(
                self._sink.exchange, self._sink.routing_key, line, properties, mandatory=True
            )
        except (pika.exceptions.UnroutableError, pika.exceptions.NackError) as cause:
            raise SinkFailed(
                f"no queue took message {id} for {self._sink.routing_key!r} of exchange "
                f"{self._sink.exchange!r}; declare and bind one that has room"
            ) from cause

    def close(self) -> None:
        pass
