"""A server of lines that is told which are safe, and sends the others again on the next connection."""

from __future__ import annotations

import contextlib
import socket
import threading


class LineServer:
    """`lines` may grow at any time. With `breaks`, that many connections end right after their lines were
    sent, before an answer is read. `port`: 0 for any that is free. `safe`: how many lines are not sent."""

    def __init__(self, lines: list[str], breaks: int = 0, port: int = 0, safe: int = 0) -> None:
        self.lines, self.safe, self.breaks, self.connections = lines, safe, breaks, 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Whoever waits there for a connection would keep the port.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                with contextlib.suppress(OSError), connection:
                    self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        began = sent = self.safe
        connection.settimeout(0.05)
        answers = b""
        while True:
            for line in self.lines[sent:]:
                connection.sendall(f"{line}\n".encode())
                sent += 1
            if self.breaks and sent > began:
                self.breaks -= 1
                return
            with contextlib.suppress(TimeoutError):
                piece = connection.recv(4096)
                if not piece:
                    return
                *whole, answers = (answers + piece).split(b"\n")
                if whole:
                    self.safe = began + int(whole[-1])
