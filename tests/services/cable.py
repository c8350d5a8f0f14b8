"""A connection that can be cut: a TCP proxy on loopback, between a process and a server."""

from __future__ import annotations

import select
import socket
import threading
import time


class Cable:
    """A TCP proxy on loopback; while it is cut, nothing passes, and neither end is told."""

    def __init__(self, port: int) -> None:
        self._target, self._cut, self._closed = port, threading.Event(), threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        self._closed.set()
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near:
            while self._cut.is_set() and not self._closed.is_set():
                time.sleep(0.02)
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                return
            with far:
                self._pass(near, far)

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        while not self._closed.is_set():
            if self._cut.is_set():
                time.sleep(0.02)
                continue
            for ready in select.select([near, far], [], [], 0.05)[0]:
                try:
                    data = ready.recv(65_536)
                    if not data:
                        return
                    (far if ready is near else near).sendall(data)
                except OSError:
                    return
