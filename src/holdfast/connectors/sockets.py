"""Lines over TCP: received from a server, and sent to one.

Both connect to HOST:PORT. In the acknowledged protocol whoever takes lines answers, on the same connection,
with a line that holds a number: so many lines of this connection are safe. What was sent and not yet
acknowledged when the connection ended is sent again on the next one.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from holdfast.connectors.columns_as_text import check_json_names, json_rows
from holdfast.connectors.contract import DurableLog, Json, SourceReader, StagedPart
from holdfast.connectors.received_rows import RowForm, raw_rows
from holdfast.connectors.receiving import BATCH_ROWS, Deliver, ReceivingReader
from holdfast.errors import DefinitionError, Unavailable

LINGER_SECONDS = 0.05
"""A batch ends when nothing has come for so long."""
LINE_BYTES_MAX = 16 << 20
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Peer:
    """Who is connected to."""

    host: str
    port: int
    timeout_seconds: float

    @contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """Unavailable: it cannot be reached, or the connection ended."""
        try:
            with socket.create_connection((self.host, self.port), self.timeout_seconds) as connection:
                yield connection
        except OSError as cause:
            raise Unavailable(
                f"the connection to {self} failed: {cause}; see that it listens there and answers"
            ) from cause

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class SocketSource:
    """Lines that a server at HOST:PORT sends. Each is logged in the checkpoint, and read from there.

    A line is the column `value` (string or binary), or with `format="json"` a JSON object of the columns of
    `schema`. With `acknowledged=True` the server is told how many lines of the connection are durable, and
    sends the others again after a break: at least once. Without it, lines that were under way when the
    connection, the driver or the server ended are lost: at most once.
    """

    replayable: Final = True
    sifts: Final = True
    told_apart_by: Final = None

    def __init__(
        self,
        host: str,
        port: int,
        *,
        schema: str = "value string",
        format: str = "fields",
        acknowledged: bool = False,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.schema: Final = schema
        self.misses: Final = (
            None if acknowledged else "lines that were under way when the connection ended are lost"
        )
        self.repeats: Final = (
            "lines that were logged and not yet acknowledged when the connection ended are sent again"
            if acknowledged
            else ""
        )
        self._form = RowForm(schema, format)
        self._receiver = LineReceiver(Peer(host, port, timeout_seconds), acknowledged)

    def reader(self, notes: Sequence[Json]) -> SourceReader:
        raise DefinitionError("a SocketSource is read by way of a log; it is opened by logged_reader")

    def logged_reader(self, notes: Sequence[Json], log: DurableLog) -> SourceReader:
        return ReceivingReader(log, self._form, self._receiver)


@dataclass(frozen=True)
class LineReceiver:
    peer: Peer
    acknowledged: bool

    def receive(self, deliver: Deliver, stopped: threading.Event) -> None:
        with self.peer.connection() as connection:
            connection.settimeout(LINGER_SECONDS)
            rest, lines, safe = b"", list[bytes](), 0
            while not stopped.is_set():
                try:
                    chunk = connection.recv(CHUNK_BYTES)
                    quiet, ended = False, not chunk
                except TimeoutError:
                    chunk, quiet, ended = b"", True, False
                *whole, rest = (rest + chunk).split(b"\n")
                lines += whole
                if len(rest) > LINE_BYTES_MAX:
                    raise Unavailable(f"{self.peer} sent a line of more than {LINE_BYTES_MAX} bytes; end it")
                while len(lines) >= BATCH_ROWS or (lines and (quiet or ended)):
                    batch, lines = lines[:BATCH_ROWS], lines[BATCH_ROWS:]
                    deliver(self._rows(batch, safe))
                    safe += len(batch)
                    if self.acknowledged:
                        # Durable by now, and not before.
                        connection.sendall(b"%d\n" % safe)
                if ended:
                    # A line without an end may be half of one: its sender has it still, or it is lost.
                    return

    def _rows(self, lines: Sequence[bytes], before: int) -> pa.RecordBatch:
        return raw_rows(
            str(self.peer),
            [
                (f"line {before + number} from {self.peer}", None, {"value": line.removesuffix(b"\r")})
                for number, line in enumerate(lines, start=1)
            ],
        )


class SocketSink:
    """Sends each row as a line of JSON to a server at HOST:PORT, which answers how many lines of the
    connection it has taken for good. An epoch is shown when all its lines are. At least once: one that was
    interrupted is sent again, whole.
    """

    exactly_once: Final = False

    def __init__(self, host: str, port: int, *, timeout_seconds: float = 10.0) -> None:
        self._peer = Peer(host, port, timeout_seconds)

    def check_schema(self, schema: pa.Schema) -> None:
        check_json_names(schema)

    def publisher(self, job: str, uid: str) -> SocketPublisher:
        return SocketPublisher(self._peer)


class SocketPublisher:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def published_through(self) -> int:
        return 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        wanted = sum(part.rows for part in parts)
        if not wanted:
            return
        with self._peer.connection() as connection, connection.makefile("rb") as answers:
            for part in parts:
                for line in json_rows(part.load()):
                    connection.sendall(line + b"\n")
            taken = 0
            while taken < wanted:
                answer = answers.readline().strip()
                if not answer.isdigit():
                    raise Unavailable(
                        f"{self._peer} has taken {taken} of {wanted} lines and answered {answer[:40]!r}; let "
                        "it answer with the number of lines that it has taken for good"
                    )
                taken = int(answer)

    def close(self) -> None:
        pass
