"""A Redis server and how it is reached: the one place of this connector that knows its client library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import DefinitionError, MachineError, Unavailable, one_line
from holdfast.secret import Secret, refuse_password_in, refuse_text

_clients: dict[RedisServer, Any] = {}

_PASSING = re.compile(
    r"(?:^|: -)(?:OOM|LOADING|BUSY|MISCONF|READONLY|NOREPLICAS|CLUSTERDOWN|MASTERDOWN|TRYAGAIN)\b"
)
"""How refusals begin that pass (inside a script of Redis 6: after its own words): memory or disk that is
full, a server that starts, is busy or is no master now, a cluster that is not whole."""


class SlotElsewhere(Unavailable):
    """A node of a cluster was asked for a key that another one has."""


@dataclass(frozen=True)
class RedisServer:
    """Where a server is, and who asks. Crosses to Spark's tasks as it is; a password crosses as its name."""

    url: str
    username: str | None = None
    password: Secret | None = None
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        refuse_password_in(self.url, "url")
        refuse_text(self.password, "password")
        if urlsplit(self.url).scheme not in ("redis", "rediss", "unix"):
            raise DefinitionError(
                f"url={self.url!r} is no address of a Redis; write redis://HOST:PORT/DATABASE"
            )

    def ask(self, *command: Any) -> Any:
        """The answer to one command. Unavailable: the server cannot be reached, or will not answer now.
        DefinitionError: it lets nobody in with this password, or refuses this user the command. Other
        refusals of the server come as its client raises them."""
        redis = library()
        try:
            return self._client().execute_command(*command)
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as cause:
            raise DefinitionError(
                f"Redis at {self.url} refuses {self.username or 'the default user'}: {self._hidden(cause)}; "
                "correct username, password or the rights of the user"
            ) from None
        except redis.exceptions.AskError as cause:
            # MOVED as well. The node that is named has the slot, or is being given it.
            raise SlotElsewhere(
                f"Redis at {self.url} is a node of a cluster that no longer has the slot of this key; give "
                f"the url of the node that has it: {self._hidden(cause)}"
            ) from None
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError) as cause:
            raise self._unavailable(cause) from None
        except redis.ResponseError as cause:
            # Of some refusals the client makes a class, and takes the first word away.
            known = redis.exceptions
            passing = known.OutOfMemoryError, known.ClusterDownError, known.TryAgainError
            if isinstance(cause, passing) or _PASSING.search(str(cause)):
                raise self._unavailable(cause) from None
            raise

    def _client(self) -> Any:
        client = _clients.get(self)
        if client is None:
            client = _clients[self] = library().Redis.from_url(
                self.url, credential_provider=credentials(self.username, self.password),
                socket_timeout=self.timeout_seconds, socket_connect_timeout=self.timeout_seconds,
            )  # fmt: skip
        return client

    def _unavailable(self, cause: Exception) -> Unavailable:
        return Unavailable(
            f"Redis at {self.url} cannot be used now: {self._hidden(cause)}; see that it runs and can be "
            "reached"
        )

    def _hidden(self, cause: Exception) -> str:
        text = one_line(cause)
        return text if self.password is None else self.password.hide_in(text)


def credentials(username: str | None, password: Secret | None) -> Any:
    """Who asks, for every connection anew: a password that was rotated is used by the next one. It is no
    setting of the client, which shows its settings to whoever prints it. None: nobody in particular."""
    return None if password is None else _provider_class()(username, password)


@cache
def _provider_class() -> Any:
    class Referenced(library().CredentialProvider):  # type: ignore[misc]
        def __init__(self, username: str | None, password: Secret) -> None:
            self._username, self._password = username, password

        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            value = self._password.resolve()
            return (value,) if self._username is None else (self._username, value)

    return Referenced


def library() -> Any:
    """The client library. MachineError: it is not installed."""
    try:
        import redis
    except ImportError as cause:
        raise MachineError(
            "connectors for Redis need the package redis; install it: pip install 'holdfast[redis]'"
        ) from cause
    return redis
