"""A connection that nothing is heard on is broken off, and no other."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from holdfast.connectors.postgres.server import Silence


class Connection:
    """One end of a cable."""

    def __init__(self) -> None:
        self.cable, self.other = socket.socketpair()

    def fileno(self) -> int:
        return self.cable.fileno()

    @property
    def is_whole(self) -> bool:
        self.other.setblocking(False)
        try:
            return bool(self.other.recv(1))
        except BlockingIOError:
            return True


@pytest.fixture
def connection() -> Any:
    made = Connection()
    yield made
    made.cable.close()
    made.other.close()


def test_an_end_that_comes_while_something_is_heard_is_not_missed(connection: Any) -> None:
    """Whoever watched on would break the connection off later, in the hands of someone else."""
    silence = Silence(connection, 0.01)
    clear = silence._heard.clear

    def cleared_while_it_ends() -> None:
        silence.__exit__()
        clear()

    silence._heard.clear = cleared_while_it_ends  # type: ignore[method-assign]
    silence.heard()
    silence._watch()
    assert connection.is_whole


def test_silence_breaks_a_connection_off(connection: Any) -> None:
    Silence(connection, 0.01)._watch()
    assert not connection.is_whole
