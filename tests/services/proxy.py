"""A server seen through a bad network: connections go through here, and are refused, held up or cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum

CHUNK_BYTES = 1 << 16


class Weather(Enum):
    FAIR = "fair"
    REFUSED = "refused"
    """New connections are closed at once, and those there are are cut."""
    SILENT = "silent"
    """Nothing is passed on."""


class Proxy:
    """Passes bytes to and from a server on this machine. Use as a context."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._weather = Weather.FAIR
        self._changed = threading.Condition()
        self._open: list[socket.socket] = []
        self._closed = False
        self.requests = 0
        """Pieces that clients sent, whatever became of them; and connections that were refused."""
        self.cut_every = 0
        """In fair weather, every so many pieces of a client's a connection is cut. 0: none."""

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        self.turn(Weather.REFUSED)

    def turn(self, weather: Weather) -> None:
        with self._changed:
            self._weather = weather
            if weather is Weather.REFUSED:
                self._cut()
            self._changed.notify_all()

    def _cut(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._weather is Weather.REFUSED:
                    self.requests += 1
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        with contextlib.suppress(OSError), source:
            while piece := source.recv(CHUNK_BYTES):
                with self._changed:
                    self.requests += asking
                    self._changed.wait_for(lambda: self._weather is not Weather.SILENT)
                    if asking and self.cut_every and self.requests % self.cut_every == 0:
                        self._cut()
                target.sendall(piece)
