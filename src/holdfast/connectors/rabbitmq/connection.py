"""A RabbitMQ server and how it is reached: the one place of this connector that knows its client library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import DefinitionError, MachineError, Unavailable, one_line
from holdfast.secret import Secret, refuse_password_in


@dataclass(frozen=True)
class RabbitServer:
    """Where a server is, and who asks."""

    url: str
    username: str | None = None
    password: Secret | None = None
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        refuse_password_in(self.url, "url")
        if urlsplit(self.url).scheme not in ("amqp", "amqps"):
            raise DefinitionError(
                f"url={self.url!r} is no address of a RabbitMQ; write amqp://HOST:PORT/VIRTUAL-HOST"
            )

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of a connection of its own. Unavailable: the server cannot be reached, or refuses."""
        pika = library()
        try:
            connection = pika.BlockingConnection(self._parameters(pika))
        except (pika.exceptions.AMQPError, OSError) as cause:
            raise self._unavailable(cause) from cause
        try:
            yield connection.channel()
        except pika.exceptions.AMQPError as cause:
            raise self._unavailable(cause) from cause
        finally:
            with suppress(pika.exceptions.AMQPError, OSError):
                connection.close()

    def _parameters(self, pika: Any) -> Any:
        parameters = pika.URLParameters(self.url)
        if self.username is not None:
            secret = self.password.resolve() if self.password is not None else ""
            parameters.credentials = pika.PlainCredentials(self.username, secret)
        parameters.socket_timeout = parameters.stack_timeout = self.timeout_seconds
        parameters.blocked_connection_timeout = self.timeout_seconds
        return parameters

    def _unavailable(self, cause: Exception) -> Unavailable:
        text = one_line(cause)
        if self.password is not None:
            text = self.password.hide_in(text)
        return Unavailable(
            f"RabbitMQ at {self.url} cannot be used now: {type(cause).__name__}: {text}; see that it runs, "
            "can be reached, and has what is asked for"
        )


def library() -> Any:
    """The client library. MachineError: it is not installed."""
    try:
        import pika
    except ImportError as cause:
        raise MachineError(
            "connectors for RabbitMQ need the package pika; install it: pip install 'holdfast[rabbitmq]'"
        ) from cause
    return pika
