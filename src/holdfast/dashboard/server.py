"""The control API on a port: a web server in a thread of the driver's process.

    with serve(handle, port=8080) as server:
        print(server.url)

Always true: nothing but loopback is listened on without a token; the port is bound before `serve` returns.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from holdfast.clock import Clock, SystemClock
from holdfast.dashboard.api import Api, Served, application, is_loopback
from holdfast.dashboard.metrics import Metrics
from holdfast.errors import DefinitionError, RetryableError

START_SECONDS = 30.0
CLOSE_SECONDS = 5
"""How long open requests may take to end when the server closes."""
BACKLOG = 128
TOKEN_CHARS_MIN = 8


class Server:
    """A running server. `close` ends it; so does the end of its `with` block."""

    def __init__(
        self, server: uvicorn.Server, handlers: Sequence[Api], listening: socket.socket, host: str
    ) -> None:
        self._server, self._handlers = server, handlers
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{listening.getsockname()[1]}"
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, name="holdfast-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening, let open requests end, and wait for that."""
        self._server.should_exit = True
        self._thread.join(CLOSE_SECONDS + 5)
        for each in self._handlers:
            each.close()

    def wait_until_started(self, clock: Clock) -> None:
        deadline = clock.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or clock.monotonic() > deadline:
                raise RetryableError(f"the control server at {self.url} did not start; try again")
            clock.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Listening:
    """A port that is taken, and not answered yet."""

    socket: socket.socket
    host: str
    token: str | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def serve(self, handle: Served) -> Server:
        """Answer the control API of a running job here."""
        handlers = _api(handle)
        return self._serve(application(handlers, self.token), [handlers])

    def serve_all(self, handles: Mapping[str, Served]) -> Server:
        """Answer the control API of the jobs of a node: of one at `/`, of several below `/jobs/NAME`."""
        if len(handles) == 1:
            return self.serve(*handles.values())
        handlers = {name: _api(handle) for name, handle in handles.items()}
        return self._serve(application(handlers, self.token), list(handlers.values()))

    def _serve(self, answering: ASGIApp, handlers: Sequence[Api]) -> Server:
        config = uvicorn.Config(
            answering,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        server = Server(uvicorn.Server(config), handlers, self.socket, self.host)
        server.wait_until_started(SystemClock())
        return server


def _api(handle: Served) -> Api:
    clock = SystemClock()
    metrics = Metrics(handle.status().job, clock)
    handle.listen(metrics.observe)
    return Api(handle, metrics, clock)


def serve(handle: Served, host: str = "127.0.0.1", port: int = 8080, token: str | None = None) -> Server:
    """Answer the control API of a running job at `http://host:port`; port 0 takes a free one.

    DefinitionError: a host that others can reach without a token, a token too short to be one, or a port
    that cannot be had.
    """
    return listen(host, port, token).serve(handle)


def listen(host: str, port: int, token: str | None) -> Listening:
    """Take the port, before there is a job to answer for. Raises as `serve` does."""
    if token is None and not is_loopback(host):
        raise DefinitionError(
            f"{host!r} can be reached by others, who could stop the job; give a token, or use 127.0.0.1"
        )
    if token is not None and (len(token) < TOKEN_CHARS_MIN or not token.isascii() or not token.isprintable()):
        raise DefinitionError(
            f"that is no token; use at least {TOKEN_CHARS_MIN} printable ASCII characters, chosen by chance"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return Listening(socket.create_server((host, port), family=family, backlog=BACKLOG), host, token)
    except (OSError, OverflowError) as cause:
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause
        raise DefinitionError(f"{host}:{port} cannot be listened on ({why}); choose another") from cause
