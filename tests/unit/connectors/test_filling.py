"""When what is received becomes a batch of the log."""

from __future__ import annotations

import socket
import threading

import pyarrow as pa

from holdfast.connectors.receiving import BATCH_BYTES, BATCH_ROWS, BATCH_SECONDS, LINGER_SECONDS, Filling
from holdfast.connectors.sockets import LineReceiver, Peer

LINES_MAX = 5_000
"""Of a sender that never pauses for long: fewer than fill a batch."""


def test_a_batch_ends_when_it_is_full_or_old() -> None:
    now = [5.0]
    filling = Filling(lambda: now[0])
    filling.add(BATCH_ROWS - 1, BATCH_BYTES - 1)
    assert not filling.ends()
    filling.add(1, 0)
    assert filling.ends(), "so many rows"
    filling.clear()
    filling.add(1, BATCH_BYTES)
    assert filling.ends(), "so many bytes"
    filling.clear()
    now[0] += 100.0
    assert not filling.ends(), "nothing is in it"
    filling.add(1, 1)
    now[0] += BATCH_SECONDS
    filling.add(1, 1)
    assert filling.ends(), "its first row is old, though one came just now"


def test_lines_that_never_pause_are_logged_before_they_fill_a_batch() -> None:
    delivered: list[int] = []
    stopped = threading.Event()

    def deliver(rows: pa.RecordBatch) -> None:
        delivered.append(rows.num_rows)
        stopped.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = Peer("127.0.0.1", listener.getsockname()[1], 10.0)
        receiving = threading.Thread(
            target=LineReceiver(peer, acknowledged=False).receive, args=(deliver, lambda: None, stopped)
        )
        receiving.start()
        connection, _ = listener.accept()
        with connection:
            for _ in range(LINES_MAX):
                connection.sendall(b"a line\n")
                if stopped.wait(LINGER_SECONDS / 10):
                    break
        receiving.join()
    assert delivered
    assert sum(delivered) < LINES_MAX, "it ended by its age, not by the end of the connection"
