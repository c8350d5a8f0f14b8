"""Lines over TCP into a log, and rows to a server that says what it has taken."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.connectors import receiving, sockets
from holdfast.connectors.contract import StagedPart
from holdfast.errors import StorageError, Unavailable
from holdfast.graph.guarantees import Guarantee, statements
from holdfast.storage.local_directory import LocalStorage
from tests.services.line_server import LineServer
from tests.services.logged import WANTED_OF_A_LOG, kept_by
from tests.services.servers import free_port


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def logged(log: ReceivedLog) -> list[str]:
    log.look()
    load = log.loader()
    fields = [field for batch in log.after(0) for field in load(batch.number).column("fields").to_pylist()]
    return [dict(each)["value"].decode() for each in fields]


def received(server: LineServer, log: ReceivedLog, done: Callable[[], Any]) -> None:
    source = hf.SocketSource("127.0.0.1", server.port, acknowledged=True)
    reader: Any = source.logged_reader([], log)
    try:
        reader.next(None, None, 0)
        until(done)
    finally:
        reader.close()


def test_lines_are_acknowledged_when_they_are_logged(tmp_path: Path) -> None:
    server, log = LineServer(["a", "b", "ü"]), ReceivedLog(LocalStorage(tmp_path), "s", "w")
    received(server, log, lambda: server.safe == 3)
    assert logged(log) == ["a", "b", "ü"]
    server.close()


def test_it_keeps_what_is_promised_of_a_source(tmp_path: Path) -> None:
    server = LineServer(["1"])

    def received() -> None:
        for number in range(2, 8):
            until(lambda: server.safe == len(server.lines))
            server.lines.append(str(number))
        until(lambda: server.safe == len(server.lines))

    source = hf.SocketSource("127.0.0.1", server.port, acknowledged=True)
    assert kept_by(source, tmp_path, received) >= WANTED_OF_A_LOG
    server.close()


def test_lines_of_a_connection_that_broke_are_sent_again(tmp_path: Path) -> None:
    server, log = LineServer(["a", "b"], breaks=2), ReceivedLog(LocalStorage(tmp_path), "s", "w")
    received(server, log, lambda: server.safe == 2)
    assert set(logged(log)) == {"a", "b"}
    assert logged(log)[-2:] == ["a", "b"]
    server.close()


def test_lines_that_are_logged_are_acknowledged_though_no_more_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may end before the job has read enough: lines without an answer come again."""
    monkeypatch.setattr(receiving, "UNREAD_BATCHES_MAX", 0)
    server, log = LineServer(["a"]), ReceivedLog(LocalStorage(tmp_path), "s", "w")
    received(server, log, lambda: server.safe == 1)
    server.close()


def test_lines_that_could_not_be_logged_are_not_acknowledged(tmp_path: Path) -> None:
    class Failing(ReceivedLog):
        def append(self, rows: Any) -> Any:
            raise StorageError("the disk is full")

    server = LineServer(["a"])
    received(server, Failing(LocalStorage(tmp_path), "s", "w"), lambda: server.connections > 2)
    assert server.safe == 0
    server.close()


def test_a_server_that_is_not_there_at_the_start_is_waited_for_and_said(tmp_path: Path) -> None:
    log, port = ReceivedLog(LocalStorage(tmp_path), "s", "w"), free_port()
    reader: Any = hf.SocketSource("127.0.0.1", port, acknowledged=True).logged_reader([], log)
    try:
        assert reader.next(None, None, 0) is None
        until(lambda: "reconnecting after" in reader.health())
        assert f"127.0.0.1:{port}" in reader.health()
        server = LineServer(["a"], port=port)
        until(lambda: server.safe == 1)
        assert reader.health() == ""
        server.close()
    finally:
        reader.close()
    assert logged(log) == ["a"]


def test_a_line_without_an_end_is_named_and_nothing_of_it_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "LINE_BYTES_MAX", 1_000)
    server, log = LineServer(["a", "x" * 2_000_000]), ReceivedLog(LocalStorage(tmp_path), "s", "w")
    reader: Any = hf.SocketSource("127.0.0.1", server.port, acknowledged=True).logged_reader([], log)
    try:
        reader.next(None, None, 0)
        until(lambda: "sent a line of more than 1000 bytes" in reader.health())
    finally:
        reader.close()
        server.close()
    assert set(logged(log)) <= {"a"}


def test_what_a_socket_gives_is_said() -> None:
    def of(acknowledged: bool) -> Guarantee:
        job = hf.Job("lines")
        source = hf.SocketSource("127.0.0.1", 1, acknowledged=acknowledged)
        job.source(source, uid="in").sink(hf.MemorySink(), uid="out")
        return statements(job.graph(), Guarantee.EXACTLY_ONCE)[0].guarantee

    assert (of(True), of(False)) == (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE)


def test_lines_with_an_id_count_once_behind_drop_duplicates_by_it() -> None:
    def of(acknowledged: bool, by: str) -> list[Guarantee]:
        job = hf.Job("lines")
        source = hf.SocketSource(
            "127.0.0.1", 1, schema="id string, n long", format="json", acknowledged=acknowledged,
            id_column="id",
        )  # fmt: skip
        once = job.source(source, uid="in").drop_duplicates(by=by, uid="once")
        once.sink(hf.MemorySink(), uid="out")
        return [each.guarantee for each in statements(job.graph(), Guarantee.EXACTLY_ONCE)]

    assert of(True, "id") == [Guarantee.EXACTLY_ONCE] * 2
    assert of(True, "n") == [Guarantee.AT_LEAST_ONCE] * 2
    assert of(False, "id") == [Guarantee.AT_MOST_ONCE] * 2


def rows(*numbers: int) -> list[StagedPart]:
    return [StagedPart(0, len(numbers), lambda: pa.table({"n": list(numbers)}))]


@pytest.mark.parametrize("taken", [2, 1])
def test_an_epoch_is_shown_when_all_its_lines_were_taken(taken: int) -> None:
    listener, lines = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def take() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as sent:
            lines.extend(sent.readline() for _ in range(2))
            connection.sendall(b"%d\n" % taken)

    thread = threading.Thread(target=take)
    thread.start()
    publisher = hf.SocketSink("127.0.0.1", listener.getsockname()[1]).publisher("job", "out")
    if taken == 2:
        publisher.publish(1, rows(1, 2))
    else:
        with pytest.raises(Unavailable, match="taken 1 of 2 lines"):
            publisher.publish(1, rows(1, 2))
    thread.join()
    listener.close()
    assert lines == [b'{"n":1}\n', b'{"n":2}\n']


def test_a_server_that_answers_every_line_is_heard_while_more_are_sent() -> None:
    """It stops to read where its answers do not get through, and its buffers are small here."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    count = 300_000

    def take() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as received:
            for number, _ in zip(range(1, count + 1), received, strict=False):
                connection.sendall(b"%012d\n" % number)

    thread = threading.Thread(target=take)
    thread.start()
    publisher = hf.SocketSink("127.0.0.1", listener.getsockname()[1], timeout_seconds=5).publisher("j", "out")
    publisher.publish(1, rows(*range(count)))
    thread.join()
    listener.close()


def test_a_server_whose_answer_has_no_end_is_unavailable() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(b"1" * 10_000)

    thread = threading.Thread(target=take)
    thread.start()
    with pytest.raises(Unavailable, match="answered b'1111"):
        hf.SocketSink("127.0.0.1", listener.getsockname()[1]).publisher("job", "out").publish(1, rows(1))
    thread.join()
    listener.close()


def test_nobody_who_listens_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="failed"):
        hf.SocketSink("127.0.0.1", free_port()).publisher("job", "out").publish(1, rows(1))
