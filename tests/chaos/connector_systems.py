"""The systems that storms rage over: real servers behind a cable, started again where they were killed, and
what they show in the end, read with no Holdfast.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
import pyarrow.parquet as pq
import redis
from deltalake import DeltaTable
from psycopg.rows import dict_row
from pyiceberg.catalog import load_catalog

from tests.chaos.checker import Row
from tests.services.cable import Cable
from tests.services.kafka_broker import KafkaBroker
from tests.services.servers import USER, PostgresDirectory, Server, free_port, redis_server

COLUMNS = {
    "event": "bigint", "key": "bigint", "seq": "bigint", "total": "bigint", "mark": "text",
    "before": "text", "bucket": "bigint", "pad": "text",
}  # fmt: skip
"""Those of the ledger, as Postgres has them."""
END_OF_TRANSACTION = b"\x00\x1a\x00\x01\x00\x00\x00"
"""How a request to Kafka to end one begins: its number, its version, the first bytes of a small count."""
PARTITIONS = 2
CAN_MOUNT = os.getuid() == 0
"""Whether there can be a disk that gets full."""


class System:
    """One system, as a context. The job reaches it by `at`, through the cable if there is one."""

    name: str
    """That of its sink, in `connector_jobs.SINKS`."""
    exactly_once = True
    latest = False
    """Whether it shows the newest row of each key, and not all of them."""
    ordered = False
    """Whether rows of a key are read in the order they were written."""
    asks = b""
    """What a request holds that writes rows for good."""
    at: dict[str, Any]
    cable: Cable

    def __enter__(self) -> Self:
        with ExitStack() as made:
            self._made = made
            self.start()
            self._made = made.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def start(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        """Kill it and start it again, on the same files."""
        raise NotImplementedError

    def fill(self) -> None:
        """Leave it no room."""
        raise NotImplementedError

    def make_room(self) -> None:
        raise NotImplementedError

    def rows(self) -> list[Row]:
        raise NotImplementedError

    def directory(self) -> Path:
        """A new one, which anyone may look into."""
        made = Path(self._made.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-storm-")))
        made.chmod(0o755)
        return made

    def cabled(self, server: Server) -> str:
        """The way to a server, by a cable."""
        port = urlsplit(server.url).port
        assert port is not None
        self.cable = self._made.enter_context(Cable(port))
        return server.url.replace(f":{port}/", f":{self.cable.port}/")


class Restartable:
    """A server that is started by a context, killed, and started by the next one."""

    def __init__(self, running: Callable[[], AbstractContextManager[Server]]) -> None:
        self._running = running
        self.start()

    def start(self) -> None:
        self._context = self._running()
        self.server = self._context.__enter__()

    def kill(self) -> None:
        """With everything that it has started, in its own group or not."""
        with contextlib.suppress(ProcessLookupError):
            self.server.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.process.pid, signal.SIGKILL)
        self._context.__exit__(None, None, None)


class SmallDisk:
    """A file system of its own that gets full: memory, mounted by root. A context."""

    def __init__(self, path: Path, megabytes: int = 32) -> None:
        self.path, self._size = path, f"size={megabytes}m"

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", self._size, "none", str(self.path)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def fill(self) -> None:
        """To the last byte."""
        with (self.path / "ballast").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 12))

    def make_room(self) -> None:
        (self.path / "ballast").unlink()


class Postgres(System):
    """A table, on a disk of its own where that can be made."""

    name = "postgres"
    asks = b"COMMIT\0"
    constraint = ""

    def start(self) -> None:
        directory = self._made.enter_context(PostgresDirectory())
        place = ""
        if CAN_MOUNT:
            self._disk = self._made.enter_context(SmallDisk(directory.path / "small"))
            space = self._disk.path / "space"
            space.mkdir()
            found = pwd.getpwnam(USER)
            os.chown(space, found.pw_uid, found.pw_gid)
            place = "TABLESPACE small"
        self._server = Restartable(directory.running)
        self._made.callback(lambda: self._server.kill())
        self._url, self.at = directory.url, {"url": self.cabled(self._server.server)}
        columns = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
        with psycopg.connect(self._url, autocommit=True) as db:
            if place:
                db.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
            db.execute(f"CREATE TABLE ledger ({columns}{self.constraint}) {place}")

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def fill(self) -> None:
        self._disk.fill()

    def make_room(self) -> None:
        self._disk.make_room()

    def rows(self) -> list[Row]:
        with psycopg.connect(self._url, row_factory=dict_row) as db:
            return db.execute("SELECT * FROM ledger").fetchall()


class PostgresUpsert(Postgres):
    name = "postgres-upsert"
    latest = True
    constraint = ', PRIMARY KEY ("key")'


class RedisStream(System):
    """Full is a Redis that has reached its `maxmemory`, and drops nothing."""

    name = "redis-stream"
    ordered = True
    asks = b"EVAL"

    def start(self) -> None:
        self._server = Restartable(partial(redis_server, directory=self.directory(), port=free_port()))
        self._made.callback(lambda: self._server.kill())
        self._client = self._made.enter_context(redis.Redis.from_url(self._server.server.url))
        self.at = {"url": self.cabled(self._server.server)}

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def fill(self) -> None:
        self._client.config_set("maxmemory", "1")

    def make_room(self) -> None:
        self._client.config_set("maxmemory", "0")

    def rows(self) -> list[Row]:
        return [_typed(entry) for _, entry in self._client.xrange("ledger")]


class RedisHash(RedisStream):
    name = "redis-hash"
    latest = True

    def rows(self) -> list[Row]:
        keys = [key for key in self._client.scan_iter("ledger:*") if not key.startswith(b"ledger:holdfast:")]
        return [_typed(self._client.hgetall(key)) for key in keys]


class Kafka(System):
    """A topic of two partitions, read as those do who do not look at what was not committed."""

    name = "kafka"
    ordered = True
    asks = END_OF_TRANSACTION

    def start(self) -> None:
        self._broker = KafkaBroker(self.directory())
        self._made.callback(self._broker.kill)
        self._broker.start()
        self._broker.make("ledger", PARTITIONS)
        self.cable = self._made.enter_context(self._broker.cable())
        self.at = {"servers": self.cable.hosts}

    def restart(self) -> None:
        self._broker.kill()
        self._broker.start()

    def rows(self) -> list[Row]:
        return [json.loads(message.value()) for message in self._broker.committed("ledger", PARTITIONS)]


class Files(System):
    """Many files per epoch, in directories by bucket."""

    name = "files"

    def start(self) -> None:
        path = self.directory() / "small"
        if CAN_MOUNT:
            self._disk = self._made.enter_context(SmallDisk(path))
        self.at = {"path": str(path / "out")}

    def fill(self) -> None:
        self._disk.fill()

    def make_room(self) -> None:
        self._disk.make_room()

    def rows(self) -> list[Row]:
        return _rows_of_files(Path(self.at["path"]))


class Delta(Files):
    name = "delta"

    def rows(self) -> list[Row]:
        rows: list[Row] = DeltaTable(self.at["path"]).to_pyarrow_table().to_pylist()
        return rows


class Iceberg(Files):
    name = "iceberg"

    def start(self) -> None:
        super().start()
        place = Path(self.at["path"])
        place.mkdir()
        self.at = {
            "py-catalog-impl": "tests.contract.sqlite_catalog.SqliteCatalog",
            "uri": str(place / "catalog"),
            "warehouse": str(place / "warehouse"),
        }

    def rows(self) -> list[Row]:
        table = load_catalog("default", **self.at).load_table("db.ledger")
        rows: list[Row] = table.scan().to_arrow().to_pylist()
        return rows


class Foreach(Files):
    """A function of the user's that has Spark write files: it cannot know an epoch again."""

    name = "foreach"
    exactly_once = False


class Lines(System):
    """A server of our own that takes lines: it says how many it has, once it has them for good."""

    name = "socket"
    exactly_once = False
    asks = b'"event"'

    def start(self) -> None:
        self._taken: list[bytes] = []
        self._port = 0
        self._listen()
        self._made.callback(lambda: self._end())
        self.cable = self._made.enter_context(Cable(self._port))
        self.at = {"port": self.cable.port}

    def restart(self) -> None:
        self._end()
        self._listen()

    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self._taken]

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def _end(self) -> None:
        # A thread that waits in one of them would keep it open.
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.endswith(b"\n"):
                    self._taken.append(line)
                    connection.sendall(b"%d\n" % number)


def _typed(entry: dict[bytes, bytes]) -> Row:
    """What a Redis has, with the types of the ledger."""
    texts = {name.decode(): value.decode() for name, value in entry.items()}
    return {name: int(text) if COLUMNS[name] == "bigint" else text for name, text in texts.items()}


def _rows_of_files(directory: Path) -> list[Row]:
    """As a plain reader finds them: below names with `_` or `.` there is nothing for it."""
    return [row for path in _plain(directory) if path.suffix == ".parquet" for row in _read(path)]


def _plain(directory: Path) -> Iterable[Path]:
    for path in directory.iterdir():
        if not path.name.startswith(("_", ".")):
            yield from _plain(path) if path.is_dir() else (path,)


def _read(path: Path) -> list[Row]:
    named = dict(part.split("=") for part in path.parts if "=" in part)
    rows = pq.ParquetFile(path).read().to_pylist()
    return [{**row, **{name: int(value) for name, value in named.items()}} for row in rows]
