"""A real S3 server on a free loopback port, with one bucket. Use as a context.

It is moto's, with one difference: requests are answered one after the other. moto looks whether an object is
there and then puts it, so that two threads may both create it; S3 does not let that happen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import BytesIO
from threading import Lock, Thread
from typing import Any, Self
from urllib.request import Request, urlopen

BUCKET = "holdfast-test"


class ObjectStore:
    """`open_requests`: after so many, that for the bucket included, it asks everyone who they are; None: it
    never does."""

    url = f"s3://{BUCKET}"

    def __init__(self, open_requests: int | None = None) -> None:
        self._settings = {} if open_requests is None else {"INITIAL_NO_AUTH_ACTION_COUNT": str(open_requests)}

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-u", __file__],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._settings},
        )
        try:
            assert self._server.stderr is not None
            self.port = next(filter(None, map(_announced, self._server.stderr)), 0)
            assert self.port, "the S3 server did not start; is moto[server] installed?"
            # It logs every request: unread, the pipe would fill up and stop it.
            Thread(target=self._server.stderr.read, daemon=True).start()
            urlopen(Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT"), timeout=10).close()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.wait()

    def environment(self, port: int) -> dict[str, str]:
        """What a process needs to reach it at `port`: its own, or that of a cable to it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }


def _announced(line: str) -> int:
    found = re.search(r"Running on http://127\.0\.0\.1:(\d+)", line)
    return int(found[1]) if found else 0


def _serve() -> None:
    from moto import server

    one_at_a_time, run = Lock(), server.run_simple

    def run_in_turn(host: str, port: int, app: Any, **options: Any) -> None:
        def in_turn(environ: dict[str, Any], start: Any) -> list[bytes]:
            # Before it is its turn: a sender may be cut off in the middle.
            sent, length = environ["wsgi.input"], int(environ.get("CONTENT_LENGTH") or 0)
            body = sent.read() if environ.get("wsgi.input_terminated") else sent.read(length)
            with one_at_a_time:
                return list(app({**environ, "wsgi.input": BytesIO(body)}, start))

        run(host, port, in_turn, **options)

    server.run_simple = run_in_turn
    server.main(["-H", "127.0.0.1", "-p", "0"])


if __name__ == "__main__":
    _serve()
