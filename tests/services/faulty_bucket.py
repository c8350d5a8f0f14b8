"""The way to an S3 server on which requests are throttled, and answers come late or never."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_OF_THE_CONNECTION = {"connection", "transfer-encoding", "keep-alive", "server", "date"}


class Fault(Enum):
    NONE = "none"
    THROTTLED = "503 SlowDown, nothing is done"
    LOST = "done, and the connection breaks before the answer"
    HELD = "done, and the answer comes when it is released"


@dataclass(frozen=True)
class Request:
    number: int
    """Counts the requests of its method and place, from 1."""
    method: str
    path: str

    def is_put_below(self, place: str) -> bool:
        return self.method == "PUT" and f"/{place}/" in self.path


class FaultyBucket:
    """Passes requests to a server on this machine, as `decide` says of each. Use as a context."""

    def __init__(self, server_port: int) -> None:
        self.decide: Callable[[Request], Fault] = lambda request: Fault.NONE
        self.struck: list[tuple[Fault, str]] = []
        """What was done to which path."""
        self._counts: dict[tuple[str, str], int] = {}
        self._lock, self._released = threading.Lock(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, server_port))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def release(self) -> None:
        """Let go of the answers that are held."""
        self._released.set()

    def wait_for_release(self) -> None:
        self._released.wait()

    def asked(self, method: str, path: str) -> Fault:
        with self._lock:
            place = path.partition("?")[0].strip("/").split("/")
            key = (method, place[1] if len(place) > 1 else "")
            self._counts[key] = self._counts.get(key, 0) + 1
            fault = self.decide(Request(self._counts[key], method, path))
            if fault is not Fault.NONE:
                self.struck.append((fault, path))
            return fault


def _handler(bucket: FaultyBucket, server_port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = bucket.asked(self.command, self.path)
            if fault is Fault.THROTTLED:
                self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
                return
            status, headers, data = self._forwarded(body)
            if fault is Fault.LOST:
                self.close_connection = True
                return
            if fault is Fault.HELD:
                bucket.wait_for_release()
            with contextlib.suppress(OSError):  # it did not wait for it
                self._answer(status, headers, data)

        def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            server = HTTPConnection("127.0.0.1", server_port)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            server.request(self.command, self.path, body, headers)
            answer = server.getresponse()
            data = answer.read()
            server.close()
            return answer.status, answer.getheaders(), data

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response(status)
            kept = [(name, value) for name, value in headers if name.lower() not in _OF_THE_CONNECTION]
            for name, value in kept:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in kept):
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
