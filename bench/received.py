"""How many rows per second are received, logged and acknowledged, from a socket and from RabbitMQ?

    python -m bench.received [ROWS] [ROUNDS]

The source's own receiver takes everything from a server on loopback and appends it to a log in a directory;
measured is the time until the server knows that all of it is durable. Beside it the same without a log: lines
that are read and split, messages that are consumed and acknowledged by the client library.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika

from bench.turns import Turns, machine
from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.connectors.rabbitmq.connection import RabbitServer
from holdfast.connectors.rabbitmq.source import RabbitReceiver
from holdfast.connectors.receiving import BATCH_ROWS, Deliver
from holdfast.connectors.sockets import LineReceiver, Peer
from holdfast.storage.local_directory import LocalStorage
from tests.services.servers import rabbitmq_server

QUEUE = "bench"
ACKNOWLEDGE_EVERY = 1_000


def row(number: int) -> bytes:
    return b'{"n": %d, "user": "user number %d", "amount": %d}' % (number, number % 1_000, number * 7 % 997)


@contextlib.contextmanager
def line_server(rows: int) -> Iterator[tuple[int, Callable[[], None]]]:
    """Sends all lines to whoever connects. Its port, and a wait until they were acknowledged."""
    lines = b"".join(row(number) + b"\n" for number in range(rows))
    safe = threading.Event()

    def acknowledged(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as answers:
            if any(int(answer) == rows for answer in answers):
                safe.set()

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=acknowledged, args=(connection,), daemon=True).start()
                connection.sendall(lines)

    def wait() -> None:
        safe.wait()
        safe.clear()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], wait


def plain_lines(port: int, rows: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        rest, count = b"", 0
        while count < rows:
            *lines, rest = (rest + connection.recv(1 << 16)).split(b"\n")
            count += len(lines)
        connection.sendall(b"%d\n" % count)


def counted(log: ReceivedLog, rows: int, stopped: threading.Event) -> Deliver:
    """Appends to the log, and stops the receiver after the last row."""
    left = rows

    def deliver(batch: Any) -> None:
        nonlocal left
        log.append(batch)
        left -= batch.num_rows
        if not left:
            stopped.set()

    return deliver


def fill_queue(url: str, rows: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True)
        for number in range(rows):
            properties = pika.BasicProperties(message_id=str(number), delivery_mode=2)
            channel.basic_publish("", QUEUE, row(number), properties)


def plain_messages(url: str, rows: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2 * ACKNOWLEDGE_EVERY)
        for number, (method, _, _) in enumerate(channel.consume(QUEUE), start=1):
            if number % ACKNOWLEDGE_EVERY == 0 or number == rows:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if number == rows:
                break


def main(rows: int, rounds: int) -> None:
    print(machine())
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory,
        line_server(rows) as (port, acknowledged),
        rabbitmq_server() as rabbit,
    ):

        def log() -> ReceivedLog:
            return ReceivedLog(LocalStorage(directory), uuid.uuid4().hex, "bench")

        def logged_lines() -> None:
            stopped = threading.Event()
            receiver = LineReceiver(Peer("127.0.0.1", port, 10.0), acknowledged=True)
            receiver.receive(counted(log(), rows, stopped), lambda: None, stopped)
            acknowledged()

        def lines() -> None:
            plain_lines(port, rows)
            acknowledged()

        def logged_messages() -> None:
            stopped = threading.Event()
            receiver = RabbitReceiver(RabbitServer(rabbit.url), QUEUE, 2 * BATCH_ROWS)
            receiver.receive(counted(log(), rows, stopped), lambda: None, stopped)

        sockets = Turns({"lines, read": lines, "lines, logged": logged_lines})
        sockets.take(rounds)
        sockets.show(rows, "lines, read")
        messages = Turns(
            {
                "messages, consumed": lambda: plain_messages(rabbit.url, rows),
                "messages, logged": logged_messages,
            },
            before=lambda name: fill_queue(rabbit.url, rows),
        )
        messages.take(rounds)
        messages.show(rows, "messages, consumed")


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*[*given, *[100_000, 5][len(given) :]])
