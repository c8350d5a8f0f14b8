"""What a refusal of a Redis server means, by its words."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ReadOnlyError, ResponseError

from holdfast.connectors.redis import connection
from holdfast.connectors.redis.connection import RedisServer
from holdfast.errors import Unavailable

IN_SCRIPT = "Error running script (call to f_1c5e): @user_script:14: @user_script: 14: "
"""What Redis 6 says before the words of the command that failed."""


class Refusing:
    """A client whose server refuses whatever is asked of it."""

    def __init__(self, refusal: Exception) -> None:
        self._refusal = refusal

    def execute_command(self, *command: Any) -> None:
        raise self._refusal


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    monkeypatch.setattr(connection, "_clients", {})
    return RedisServer("redis://redis.example:6379/0")


@pytest.mark.parametrize(
    "refusal",
    [
        ReadOnlyError("You can't write against a read only replica."),
        ResponseError(f"{IN_SCRIPT}-READONLY You can't write against a read only replica."),
        ResponseError("READONLY You can't write against a read only replica. script: 1c5e, on line 14"),
        ResponseError(f"{IN_SCRIPT}-OOM command not allowed when used memory > 'maxmemory'."),
        ResponseError("MISCONF Redis is configured to save RDB snapshots, but cannot"),
    ],
)
def test_a_refusal_that_passes_is_an_outage(server: RedisServer, refusal: Exception) -> None:
    connection._clients[server] = Refusing(refusal)
    with pytest.raises(Unavailable, match=r"Redis at redis://redis\.example:6379/0 cannot be used now"):
        server.ask("EVAL", "return 1", 0)


def test_a_refusal_that_stays_is_none(server: RedisServer) -> None:
    connection._clients[server] = Refusing(ResponseError("WRONGTYPE Operation against a key; READONLY is no"))
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        server.ask("EVAL", "return 1", 0)
