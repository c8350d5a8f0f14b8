"""Jobs over sources that cannot be read again: logged in the checkpoint, read from there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.cli.load_job import load_job
from holdfast.connectors.received_rows import raw_rows
from holdfast.storage.local_directory import LocalStorage
from tests.services.line_server import LineServer
from tests.services.servers import free_port, rabbitmq_server

EXAMPLES = Path(__file__).parents[2] / "examples"


def shown(directory: Path) -> dict[str, int]:
    """The newest number of each key."""
    rows = [json.loads(line) for file in sorted(directory.glob("*.json")) for line in file.open()]
    return {str(row.get("value", row.get("user"))): row.get("times", row.get("amount")) for row in rows}


def run_until(job: hf.Job, spark: SparkSession, place: Path, done: Callable[[], Any], **options: Any) -> None:
    handle = job.start(place / "ck", spark=spark, working_dir=place / "working", **options)
    try:
        end = time.monotonic() + 240
        while not done():
            assert time.monotonic() < end, handle.status()
            time.sleep(0.1)
    finally:
        handle.stop()
        handle.wait(240)


def test_lines_of_a_socket_go_on_after_a_restart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LineServer(["a", "b", "a"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORDS_PORT", str(server.port))
    out = tmp_path / "out" / "socket-words"
    for more, wanted in (([], {"a": 2, "b": 1}), (["b", "c"], {"a": 2, "b": 2, "c": 1})):
        server.lines += more
        job = load_job(EXAMPLES / "socket_words.py")
        run_until(job, spark, tmp_path, lambda w=wanted: shown(out) == w, guarantee="at-least-once")
    assert server.safe == 5
    server.close()


def test_lines_that_do_not_fit_are_named_or_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    log = ReceivedLog(LocalStorage(tmp_path), "lines", "w")
    lines = [b'{"n": 1}', b"nonsense", b'{"n": "x"}', b'{"n": 2}']
    log.append(
        raw_rows("peer", [(f"line {n} from peer", None, {"value": line}) for n, line in enumerate(lines)])
    )
    # Nobody listens there: what was logged is read all the same.
    source = hf.SocketSource("127.0.0.1", free_port(), schema="n long", format="json")
    reader: Any = source.logged_reader([], log)
    try:
        slice = reader.next(None, None, 0)
        found = reader.first_malformed(spark, slice)
        assert (found.file, found.row) == ("line 1 from peer", "nonsense")
        assert sorted(row.n for row in reader.sifted(spark, slice).rows.collect()) == [1, 2]
        letters = sorted((row["file"], row["row"]) for row in reader.malformed(spark, slice).collect())
        assert letters == [("line 1 from peer", "nonsense"), ("line 2 from peer", '{"n": "x"}')]
    finally:
        reader.close()


def test_messages_of_a_queue_that_come_again_count_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with rabbitmq_server() as server:
        monkeypatch.setenv("RABBIT_URL", server.url)
        with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            for id, user, amount in [(1, "anna", 5), (2, "ben", 1), (1, "anna", 5), (3, "anna", 7)]:
                body = json.dumps({"user": user, "amount": amount}).encode()
                channel.basic_publish("", "orders", body, pika.BasicProperties(message_id=str(id)))
        out = tmp_path / "out" / "rabbit-orders"
        job = load_job(EXAMPLES / "rabbit_orders.py")
        run_until(job, spark, tmp_path, lambda: shown(out) == {"anna": 12, "ben": 1})
