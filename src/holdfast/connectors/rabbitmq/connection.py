"""A RabbitMQ server and how it is reached: the one place of this connector that knows its client library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import DefinitionError, HoldfastError, MachineError, Unavailable, one_line
from holdfast.secret import Secret, refuse_password_in, refuse_text

_REFUSALS = frozenset({311, 403, 404, 406, 530})
"""Codes by which a server closes a channel or a connection for good: content too large, access refused, not
found, a precondition (a message larger than it takes, too), a virtual host that is not allowed."""
_MISSING = re.compile("NOT_FOUND|not found")
_SAID_AT_THE_DOOR = re.compile(r"ConnectionClosedByBroker: \((\d+)\)")
"""The library takes every connection that ends during the login for a refusal. Only where the server has said
why it is one: others were broken by whatever breaks connections."""


@dataclass(frozen=True)
class RabbitServer:
    """Where a server is, and who asks."""

    url: str
    username: str | None = None
    password: Secret | None = None
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        refuse_password_in(self.url, "url")
        refuse_text(self.password, "password")
        if urlsplit(self.url).scheme not in ("amqp", "amqps"):
            raise DefinitionError(
                f"url={self.url!r} is no address of a RabbitMQ; write amqp://HOST:PORT/VIRTUAL-HOST"
            )

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of a connection of its own. Unavailable: the server cannot be reached. DefinitionError:
        it lets nobody in with this password, or refuses what is asked for until a person sees to it."""
        pika = library()
        try:
            connection = pika.BlockingConnection(self._parameters(pika))
        except (pika.exceptions.AMQPError, OSError) as cause:
            raise self._told(cause) from None
        try:
            yield connection.channel()
        except pika.exceptions.AMQPError as cause:
            raise self._told(cause) from None
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

    def _told(self, cause: Exception) -> HoldfastError:
        text, known = f"{type(cause).__name__}: {one_line(cause)}", library().exceptions
        if self.password is not None:
            text = self.password.hide_in(text)
        code = getattr(cause, "reply_code", 0)
        if isinstance(cause, known.ProbableAuthenticationError | known.ProbableAccessDeniedError):
            said = _SAID_AT_THE_DOOR.search(str(cause))
            code = int(said[1]) if said is not None else 0
        if code in _REFUSALS and _MISSING.search(text):
            return DefinitionError(
                f"RabbitMQ at {self.url} does not have what is asked for: {text}; create it, or correct the "
                "name"
            )
        if code in _REFUSALS or isinstance(cause, known.ShortStringTooLong):
            return DefinitionError(
                f"RabbitMQ at {self.url} refuses {self.username or 'the user of the url'}: {text}; correct "
                "the password, the rights of the user or what is sent"
            )
        return Unavailable(
            f"RabbitMQ at {self.url} cannot be used now: {text}; see that it runs and can be reached"
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
