"""A queue of a real RabbitMQ into the log of a checkpoint, and rows to a queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.rabbitmq.connection import RabbitServer
from holdfast.connectors.rabbitmq.source import RabbitReceiver, RabbitSource
from holdfast.connectors.received_rows import raw_rows
from holdfast.connectors.receiving import ReceivingReader
from holdfast.errors import DefinitionError, SinkFailed, StorageError, Unavailable
from holdfast.graph.guarantees import Guarantee, statements
from holdfast.storage.local_directory import LocalStorage
from tests.services.cable import Cable
from tests.services.logged import WANTED_OF_A_LOG, kept_by
from tests.services.servers import Server, free_port, rabbitmq_server

SECONDS = 240.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with rabbitmq_server() as server:
        yield server


@pytest.fixture
def queue(server: Server, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        connection.channel().queue_declare(name, durable=True)
    return name


def send(server: Server, queue: str, *numbers: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in numbers:
            properties = pika.BasicProperties(message_id=f"m{number}", delivery_mode=2)
            channel.basic_publish("", queue, b'{"n": %d}' % number, properties)


def waiting(server: Server, queue: str) -> int:
    """Messages that nobody has taken for good."""
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def opened(url: str, queue: str, log: ReceivedLog) -> ReceivingReader:
    source = RabbitSource(url, queue, schema="n long, id string", id_column="id", timeout_seconds=5)
    reader = source.logged_reader([], log)
    assert isinstance(reader, ReceivingReader)
    return reader


def ids(log: ReceivedLog) -> list[str]:
    log.look()
    load = log.loader()
    return [id for batch in log.after(0) for id in load(batch.number).column("id").to_pylist()]


def test_messages_are_logged_then_acknowledged(server: Server, queue: str, tmp_path: Path) -> None:
    log = ReceivedLog(LocalStorage(tmp_path), "q", "w")
    reader = opened(server.url, queue, log)
    try:
        assert reader.next(None, None, 0) is None
        send(server, queue, *range(20))
        until(lambda: len(ids(log)) == 20)
        slice = reader.next(None, None, 0)
        assert slice is not None
        assert slice.rows == 20
    finally:
        reader.close()
    assert waiting(server, queue) == 0
    again = opened(server.url, queue, ReceivedLog(LocalStorage(tmp_path), "q", "w2"))
    assert again.next(None, None, 0) == slice, "another run plans the same from the log alone"
    again.close()


def test_it_keeps_what_is_promised_of_a_source(server: Server, queue: str, tmp_path: Path) -> None:
    log = ReceivedLog(LocalStorage(tmp_path), "in", "w")

    def received() -> None:
        for number in range(1, 8):
            send(server, queue, number)
            until(lambda wanted=number: len(ids(log)) == wanted)

    source = RabbitSource(server.url, queue, schema="n long, id string", id_column="id", timeout_seconds=5)
    assert kept_by(source, tmp_path, received) >= WANTED_OF_A_LOG


def test_what_was_not_logged_is_not_acknowledged(server: Server, queue: str, tmp_path: Path) -> None:
    class Failing(ReceivedLog):
        failures = 2

        def append(self, rows: Any) -> Any:
            if self.failures:
                self.failures -= 1
                raise StorageError("the disk is full")
            return super().append(rows)

    log = Failing(LocalStorage(tmp_path), "q", "w")
    reader = opened(server.url, queue, log)
    send(server, queue, 1, 2, 3)
    try:
        reader.next(None, None, 0)
        until(lambda: len(ids(log)) == 3)
    finally:
        reader.close()
    assert ids(log) == ["m1", "m2", "m3"]
    assert not log.failures


def test_a_crash_between_log_and_acknowledgement_repeats_messages_with_their_ids(
    server: Server, queue: str, tmp_path: Path
) -> None:
    """The driver dies when its batch is durable: the server gives the messages to the next one."""

    class Dying(ReceivedLog):
        died = threading.Event()

        def append(self, rows: Any) -> Any:
            batch = super().append(rows)
            self.died.set()
            raise StorageError(f"died after batch {batch.number}")

    send(server, queue, 1, 2)
    first = opened(server.url, queue, Dying(LocalStorage(tmp_path), "q", "w"))
    first.next(None, None, 0)
    assert Dying.died.wait(SECONDS)
    first.close()
    log = ReceivedLog(LocalStorage(tmp_path), "q", "w2")
    second = opened(server.url, queue, log)
    try:
        second.next(None, None, 0)
        until(lambda: len(ids(log)) >= 4)
    finally:
        second.close()
    assert set(ids(log)) == {"m1", "m2"}, "nothing is lost; drop_duplicates(by='id') leaves the copies out"
    assert waiting(server, queue) == 0


def test_a_connection_that_breaks_is_made_again(server: Server, queue: str, tmp_path: Path) -> None:
    port = urlsplit(server.url).port
    assert port is not None
    log = ReceivedLog(LocalStorage(tmp_path), "q", "w")
    with Cable(port) as cable:
        reader = opened(f"amqp://{cable.hosts}/%2F", queue, log)
        try:
            reader.next(None, None, 0)
            send(server, queue, 1)
            until(lambda: "m1" in ids(log))
            cable.refuse()
            until(lambda: "reconnecting" in reader.health())
            send(server, queue, 2)
            cable.restore()
            until(lambda: "m2" in ids(log))
        finally:
            reader.close()
    assert {*ids(log)} == {"m1", "m2"}


def rows(*numbers: int) -> list[StagedPart]:
    return [StagedPart(0, len(numbers), lambda: pa.table({"n": list(numbers)}))]


def test_rows_are_confirmed_messages_with_ids_that_stay_the_same(server: Server, queue: str) -> None:
    publisher = hf.RabbitSink(server.url, queue).publisher("job", "out")
    for _ in range(2):
        publisher.publish(7, rows(1, 2))
    publisher.publish(7, rows(3))
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        found = [connection.channel().basic_get(queue, auto_ack=True) for _ in range(5)]
    sent = [(properties.message_id.rpartition("/"), body) for _, properties, body in found]
    assert [(place, body) for (place, *_), body in sent] == [
        ("job/out/7/0/0", b'{"n":1}'), ("job/out/7/0/1", b'{"n":2}'),
        ("job/out/7/0/0", b'{"n":1}'), ("job/out/7/0/1", b'{"n":2}'),
        ("job/out/7/0/0", b'{"n":3}'),
    ]  # fmt: skip
    assert sent[:2] == sent[2:4]
    assert sent[4][0] != sent[0][0], "another row in the same place is not taken for it"


def test_an_empty_id_is_none() -> None:
    receiver = RabbitReceiver(RabbitServer("amqp://127.0.0.1:1/%2F"), "q", 1)
    for given in ("", None):
        properties = pika.BasicProperties(message_id=given)
        _, id, _ = receiver._row(pika.spec.Basic.Deliver(delivery_tag=3), properties, b"")
        assert id is None


def test_an_id_that_is_no_text_is_one_all_the_same_and_no_other() -> None:
    """A message with it would end every connection that it came by, for ever."""
    receiver = RabbitReceiver(RabbitServer("amqp://127.0.0.1:1/%2F"), "q", 1)
    rows = [
        receiver._row(pika.spec.Basic.Deliver(delivery_tag=3), pika.BasicProperties(message_id=given), b"")
        for given in (b"a\xff", b"a\xfe", "a")
    ]
    ids = raw_rows("q", rows).column("id").to_pylist()
    assert len(set(ids)) == 3


def test_ids_of_a_sink_with_long_names_fit_into_a_message(server: Server, queue: str) -> None:
    job = "j" * 150
    for uid in ("u" * 100, "u" * 99 + "v"):
        hf.RabbitSink(server.url, queue).publisher(job, uid).publish(1, rows(1))
    with RabbitServer(server.url).channel() as channel:
        sent = [channel.basic_get(queue, auto_ack=True)[1].message_id for _ in range(2)]
    assert len(set(sent)) == 2


def test_a_message_that_no_queue_takes_fails_the_epoch(server: Server) -> None:
    with pytest.raises(SinkFailed, match="no queue took message job/out/1/0/0"):
        hf.RabbitSink(server.url, "nowhere").publisher("job", "out").publish(1, rows(1))


def test_a_server_that_is_not_there_is_unavailable() -> None:
    sink = hf.RabbitSink(f"amqp://127.0.0.1:{free_port()}/%2F", "q")
    with pytest.raises(Unavailable, match="cannot be used now"):
        sink.publisher("job", "out").publish(1, rows(1))


def test_a_message_that_is_too_large_stops_the_sink_and_is_no_outage(server: Server, queue: str) -> None:
    """The server never takes it: to wait would be to wait for ever."""
    table = pa.table({"text": ["x" * 1_500_000]})
    publisher = hf.RabbitSink(server.url, queue).publisher("job", "out")
    with pytest.raises(DefinitionError, match="larger than configured max size"):
        publisher.publish(1, [StagedPart(0, 1, lambda: table)])
    assert waiting(server, queue) == 0


def places(url: str, queue: str, **who: Any) -> list[Any]:
    """A source and sinks of a queue."""
    source = hf.RabbitSource(url, queue, schema="n long", **who)
    return [source, hf.RabbitSink(url, queue, **who), hf.RabbitSink(url, "", exchange=queue, **who)]


def test_a_name_that_is_too_long_for_the_server_is_refused_and_not_waited_for(server: Server) -> None:
    with pytest.raises(DefinitionError, match="ShortStringTooLong"):
        hf.RabbitSink(server.url, "q" * 256).publisher("job", "out").publish(1, rows(1))


def test_what_is_not_there_is_refused_before_the_run(server: Server, queue: str) -> None:
    for place in places(server.url, "nowhere"):
        with pytest.raises(DefinitionError, match=r"does not have .*NOT_FOUND.*'nowhere'.*create it"):
            place.check()
    for place in places(server.url.replace("%2F", "nowhere"), queue):
        with pytest.raises(DefinitionError, match=r"does not have .*vhost nowhere not found'; create it"):
            place.check()
    source, sink, _ = places(server.url, queue)
    source.check()
    sink.check()


def test_a_wrong_password_is_refused_and_not_shown(
    server: Server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBIT_WRONG", "the-wrong-one-5581")
    for place in places(server.url, queue, username="guest", password=hf.Secret.env("RABBIT_WRONG")):
        with pytest.raises(DefinitionError, match=r"refuses guest: .*ACCESS_REFUSED") as refused:
            place.check()
        assert "5581" not in str(refused.value)


@pytest.mark.parametrize("pieces", [2, 3])
def test_a_connection_that_breaks_during_the_login_is_no_refusal(server: Server, pieces: int) -> None:
    """As the name is told, and as the virtual host is asked for."""
    port = urlsplit(server.url).port
    assert port is not None
    with Cable(port) as cable:
        cable.break_every = pieces
        with (
            pytest.raises(Unavailable, match="Probable"),
            RabbitServer(f"amqp://{cable.hosts}/%2F").channel(),
        ):
            pass


def test_a_server_that_is_away_when_the_run_starts_is_waited_for() -> None:
    for place in places(f"amqp://127.0.0.1:{free_port()}/%2F", "q"):
        place.check()


def test_rights_that_were_taken_away_are_named(server: Server, tmp_path: Path) -> None:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        connection.channel().queue_declare("sealed", durable=True)
        connection.channel().exchange_declare("sealed-exchange", durable=True)
    reader = opened(server.url, "sealed", ReceivedLog(LocalStorage(tmp_path), "q", "w"))
    try:
        reader.next(None, None, 0)
        until(lambda: "ACCESS_REFUSED" in reader.health())
    finally:
        reader.close()
    sink = hf.RabbitSink(server.url, "sealed", exchange="sealed-exchange")
    with pytest.raises(DefinitionError, match=r"ACCESS_REFUSED.*sealed-exchange"):
        sink.publisher("job", "out").publish(1, rows(1))


def test_a_queue_that_was_deleted_and_made_again_is_read_on(
    server: Server, queue: str, tmp_path: Path
) -> None:
    log = ReceivedLog(LocalStorage(tmp_path), "q", "w")
    reader = opened(server.url, queue, log)
    try:
        reader.next(None, None, 0)
        send(server, queue, 1)
        until(lambda: "m1" in ids(log))
        with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
            connection.channel().queue_delete(queue)
            until(lambda: "NOT_FOUND" in reader.health())
            connection.channel().queue_declare(queue, durable=True)
        send(server, queue, 2)
        until(lambda: "m2" in ids(log))
    finally:
        reader.close()
    assert reader.health() == ""


def test_only_with_de_duplication_right_after_it_is_it_exactly_once() -> None:
    def guarantees(id_column: str | None, once: bool) -> list[Guarantee]:
        job = hf.Job("rabbit")
        schema = "n long, id string"
        source = RabbitSource("amqp://127.0.0.1/%2F", "q", schema=schema, id_column=id_column)
        stream: Any = job.source(source, uid="q")
        if once:
            stream = stream.drop_duplicates(by="id", ttl="1d", uid="once")
        stream.sink(hf.MemorySink(), uid="out")
        return [each.guarantee for each in statements(job.graph(), Guarantee.EXACTLY_ONCE)]

    assert guarantees("id", True) == [Guarantee.EXACTLY_ONCE] * 2
    assert guarantees("id", False) == [Guarantee.AT_LEAST_ONCE] * 2
    assert guarantees(None, True) == [Guarantee.AT_LEAST_ONCE] * 2
