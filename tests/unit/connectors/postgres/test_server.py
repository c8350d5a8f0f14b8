"""A connection that nothing is heard on is broken off, and no other; settings in a dsn."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.connectors.postgres.server import PostgresServer, Silence
from holdfast.errors import DefinitionError


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


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {}),
        ("-c search_path=shop", {"search_path": "shop"}),
        (r" --lock-timeout=5s  -csearch_path=a,\ b\\c ", {"lock_timeout": "5s", "search_path": r"a, b\c"}),
    ],
)
def test_options_of_a_dsn_are_settings(options: str, settings: dict[str, str]) -> None:
    escaped = options.replace("\\", r"\\")
    assert PostgresServer(f"host=127.0.0.1 options='{escaped}'")._given == settings
    assert PostgresServer(f"postgresql://127.0.0.1/?options={quote(options)}")._given == settings


@pytest.mark.parametrize("options", ["-S 5MB", "search_path=shop", "-c search_path=a -f s", "-c search_path"])
def test_options_of_a_dsn_that_are_something_else_are_refused(options: str) -> None:
    with pytest.raises(DefinitionError, match="are not settings alone; write each of them as -c name=value"):
        PostgresServer(f"postgresql://127.0.0.1/?options={quote(options)}").connect("a test")
