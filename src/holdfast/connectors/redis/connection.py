"""A Redis server and how it is reached: the one place of this connector that knows its client library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import DefinitionError, MachineError, Unavailable
from holdfast.secret import Secret, refuse_password_in

_clients: dict[RedisServer, Any] = {}


@dataclass(frozen=True)
class RedisServer:
    """Where a server is, and who asks. Crosses to Spark's tasks as it is; a password crosses as its name."""

    url: str
    username: str | None = None
    password: Secret | None = None
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        refuse_password_in(self.url, "url")
        if urlsplit(self.url).scheme not in ("redis", "rediss", "unix"):
            raise DefinitionError(
                f"url={self.url!r} is no address of a Redis; write redis://HOST:PORT/DATABASE"
            )

    def ask(self, *command: Any) -> Any:
        """The answer to one command. Unavailable: the server cannot be reached, or will not answer now. Other
        refusals of the server come as its client raises them."""
        redis = library()
        client = _clients.get(self)
        if client is None:
            client = _clients[self] = redis.Redis.from_url(
                self.url, username=self.username, password=self.password and self.password.resolve(),
                socket_timeout=self.timeout_seconds, socket_connect_timeout=self.timeout_seconds,
            )  # fmt: skip
        try:
            return client.execute_command(*command)
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError) as cause:
            raise Unavailable(
                f"Redis at {self.url} cannot be used now: {cause}; see that it runs and can be reached"
            ) from cause


def library() -> Any:
    """The client library. MachineError: it is not installed."""
    try:
        import redis
    except ImportError as cause:
        raise MachineError(
            "connectors for Redis need the package redis; install it: pip install 'holdfast[redis]'"
        ) from cause
    return redis
