"""Lines over TCP: received from a server, and sent to one.

Both connect to HOST:PORT. In the acknowledged protocol whoever takes lines answers, on the same connection,
with a line that holds a number: so many lines of this connection are safe. What was sent and not yet
acknowledged when the connection ended is sent again on the next one.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa

from holdfast.connectors.columns_as_text import check_json_names, json_rows
from holdfast.connectors.contract import DurableLog, Json, SourceReader, StagedPart
from holdfast.connectors.received_rows import RowForm, raw_rows
from holdfast.connectors.receiving import LINGER_SECONDS, Deliver, Filling, ReceivingReader, Room
from holdfast.errors import DefinitionError, Unavailable

LINE_BYTES_MAX = 16 << 20
CHUNK_BYTES = 1 << 18
ANSWER_BYTES_MAX = 40
SENT_LINES = 1_000
"""Lines that are encoded at once, and sent before the next are."""


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

    `id_column` names the column that no two lines share and that a line keeps when it is sent again.
    `stream.drop_duplicates(by=ID)` right after the source then lets each line through once: exactly once.
    """

    replayable: Final = True
    sifts: Final = True

    def __init__(
        self,
        host: str,
        port: int,
        *,
        schema: str = "value string",
        format: str = "fields",
        acknowledged: bool = False,
        id_column: str | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.schema: Final = schema
        self.told_apart_by: Final = id_column
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

    def receive(self, deliver: Deliver, room: Room, stopped: threading.Event) -> None:
        with self.peer.connection() as connection:
            connection.settimeout(LINGER_SECONDS)
            rest, lines, safe, filling = b"", list[bytes](), 0, Filling()
            while not stopped.is_set():
                try:
                    chunk = connection.recv(CHUNK_BYTES)
                    quiet, ended = False, not chunk
                except TimeoutError:
                    chunk, quiet, ended = b"", True, False
                *whole, rest = (rest + chunk).split(b"\n")
                lines += whole
                filling.add(len(whole), len(chunk))
                if len(rest) > LINE_BYTES_MAX:
                    raise Unavailable(f"{self.peer} sent a line of more than {LINE_BYTES_MAX} bytes; end it")
                if lines and (quiet or ended or filling.ends()):
                    deliver(self._rows(lines, safe))
                    safe += len(lines)
                    lines = []
                    filling.clear()
                    if self.acknowledged:
                        # Durable by now, and not before.
                        connection.sendall(b"%d\n" % safe)
                    room()
                if ended:
                    # A line without an end may be half of one: its sender has it still, or it is lost.
                    return

    def _rows(self, lines: Sequence[bytes], before: int) -> pa.RecordBatch:
        peer = str(self.peer)
        return raw_rows(
            peer,
            [
                (f"line {number} from {peer}", None, {"value": line.removesuffix(b"\r")})
                for number, line in enumerate(lines, start=before + 1)
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
        lines = (line + b"\n" for part in parts for line in json_rows(part.load()))
        with self._peer.connection() as connection:
            self._send(connection, lines, wanted)

    def _send(self, connection: socket.socket, lines: Iterator[bytes], wanted: int) -> None:
        """Answers are read while lines are sent: who is not heard may stop to listen."""
        taken, answers, waiting, has_more = 0, b"", b"", True
        while taken < wanted:
            if not waiting and has_more:
                waiting = b"".join(islice(lines, SENT_LINES))
                has_more = bool(waiting)
            readable, writable, _ = select.select(
                [connection], [connection] if waiting else [], [], self._peer.timeout_seconds
            )
            if not readable and not writable:
                raise TimeoutError("timed out")
            if writable:
                waiting = waiting[connection.send(waiting) :]
            if readable:
                answers += connection.recv(CHUNK_BYTES) or b"\n"
                *whole, answers = answers.split(b"\n")
                endless = [answers] if len(answers) > ANSWER_BYTES_MAX else []
                for answer in (*whole, *endless):
                    if len(answer) > ANSWER_BYTES_MAX or not answer.strip().isdigit():
                        raise Unavailable(
                            f"{self._peer} has taken {taken} of {wanted} lines and answered "
                            f"{answer[:40]!r}; let it answer with the number of lines that it has taken for "
                            "good"
                        )
                    taken = int(answer)

    def close(self) -> None:
        pass
