"""A server behind a cable that can be cut: connections go through here, and are held up or broken."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum

CHUNK_BYTES = 1 << 16


class _State(Enum):
    WHOLE = "whole"
    CUT = "cut"
    REFUSING = "refusing"


class Cable:
    """Passes bytes to and from a server on this machine, from its making on. May be used as a context."""

    def __init__(self, server_port: int, port: int = 0) -> None:
        """`port`: where clients come in. 0: any that is free."""
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._state = _State.WHOLE
        self._changed = threading.Condition()
        self._open: list[socket.socket] = []
        self._lost: set[socket.socket] = set()
        """Servers whose answers do not arrive."""
        self.requests = 0
        """Pieces that clients sent, whatever became of them; and connections that were refused."""
        self.break_every = 0
        """After every so many pieces of clients, all connections are broken. 0: none."""
        self.swallow = 0
        """How many of the next connections are taken and never answered."""
        self.lose_answers_to = b""
        """What the server says to a piece with these bytes in it, and after it, is lost. Empty: nothing."""
        self.answers_lost = 0
        """How often that has happened."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Nothing passes any more, and neither end is told."""
        self._become(_State.CUT)

    def refuse(self) -> None:
        """Connections are broken, and new ones closed at once."""
        self._become(_State.REFUSING)

    def restore(self) -> None:
        """Everything passes, and what was held up."""
        self._become(_State.WHOLE)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Whoever waits there for a connection would keep the port.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.refuse()

    def _become(self, state: _State) -> None:
        with self._changed:
            self._state = state
            if state is _State.REFUSING:
                self._break_all()
            self._changed.notify_all()

    def _break_all(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.CUT)
            if self.swallow:
                self.swallow -= 1
                self._open.append(client)
                return
            try:
                if self._state is _State.REFUSING:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                self.requests += 1
                client.close()
                return
            self._open += [client, server]
        threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()
        self._pass(client, server, True)

    def _pass(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        """Until one end closes: then the other is told."""
        with contextlib.suppress(OSError), source:
            while piece := source.recv(CHUNK_BYTES):
                with self._changed:
                    self.requests += asking
                    self._changed.wait_for(lambda: self._state is not _State.CUT)
                    if asking and self.break_every and self.requests % self.break_every == 0:
                        self._break_all()
                    if asking and self.lose_answers_to and self.lose_answers_to in piece:
                        self._lost.add(target)
                        self.answers_lost += 1
                    if source in self._lost:
                        continue
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
