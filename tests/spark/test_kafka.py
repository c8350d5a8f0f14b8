"""Jobs that read Kafka: whole ones, on a real Spark and a real broker."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load_job import load_job
from holdfast.connectors import lane_publisher
from holdfast.connectors.kafka import client
from holdfast.runtime.epoch import outages
from holdfast.runtime.epoch.lane_jobs import LaneJobs
from tests.services.kafka_broker import PASSWORD, USER, KafkaBroker, kafka, topic

__all__ = ["kafka", "topic"]


class Totals(hf.KeyedFunction):
    """A running total per user."""

    output = "user string, total long"
    total = hf.ValueState("long", default=0)

    def process(self, row: hf.Row, ctx: hf.Context) -> Any:
        self.total.value += row.amount
        yield row.user, self.total.value


def row(user: str, amount: Any) -> bytes:
    return json.dumps({"user": user, "amount": amount}).encode()


def guarded_source(kafka: KafkaBroker, topic: str, secret: Path) -> hf.KafkaSource:
    options = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": hf.Secret.file(secret),
    }  # fmt: skip
    return hf.KafkaSource(
        kafka.guarded, topic, format="json", schema="user string not null, amount long", options=options
    )


def totals_job(source: hf.KafkaSource, good: hf.MemorySink, bad: hf.MemorySink) -> hf.Job:
    job = hf.Job("totals")
    rows = job.source(source, uid="events", on_error="dead-letter")
    rows.dead_letters().sink(bad, uid="bad")
    timed = rows.watermark("timestamp", delay="1s")
    users = timed.transform(lambda frame: frame.where("value is not null").select("value.*"))
    users.key_by("user").process(Totals(), uid="totals").sink(good, uid="good")
    return job


def test_a_job_goes_on_where_it_was_sets_bad_rows_aside_and_tells_no_secret(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    kafka.make(topic, partitions=2)
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    kafka.send(topic, [row("a", 1), row("b", "x"), None, b"{", row("a", 2)], partition=0)
    kafka.send(topic, [b'{"amount": 5}', row("b", 7), b""], partition=1)
    good, bad, said = hf.MemorySink(), hf.MemorySink(), []
    source = guarded_source(kafka, topic, tmp_path / "secret")
    job = totals_job(source, good, bad)
    told = job.start(tmp_path / "ck", spark=spark, until="exhausted", on_message=said.append).wait()
    assert sorted(good.rows())[-1] == ("b", 7)
    assert max(total for user, total in good.rows() if user == "a") == 3
    letters = {(file, line): (value, reason) for file, line, value, reason, _ in bad.rows()}
    assert letters == {
        (f"{topic}-0", 1): (row("b", "x").decode(), "column 'amount' is declared long, found \"x\""),
        (f"{topic}-0", 3): ("{", letters[f"{topic}-0", 3][1]),
        (f"{topic}-1", 0): ('{"amount": 5}', "column 'user' is declared not null and has no value"),
        (f"{topic}-1", 2): ("", letters[f"{topic}-1", 2][1]),
    }
    kafka.send(topic, [row("a", 10)], partition=1)
    later = job.start(tmp_path / "ck", spark=spark, until="exhausted", on_message=said.append).wait()
    assert ("a", 13) in good.rows()
    assert len(bad.rows()) == 4
    texts = [*said, repr(told), repr(later), repr(source), str(vars(source))]
    assert not [text for text in texts if PASSWORD in text]
    written = [path for path in (tmp_path / "ck").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()]


def test_plans_that_spark_shows_hold_no_secret(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.make(topic)
    (tmp_path / "secret").write_text(PASSWORD)
    kafka.send(topic, [row("a", 1)])
    reader = guarded_source(kafka, topic, tmp_path / "secret").reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    frame = reader.frame(spark, slice)
    frame.explain("extended")
    shown = capsys.readouterr().out
    assert "value" in shown
    assert PASSWORD not in shown
    assert [found.value.amount for found in frame.collect()] == [1]


def test_a_row_that_does_not_fit_ends_the_run_with_its_place(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    kafka.make(topic)
    kafka.send(topic, [row("a", 1), row("b", "x")])
    job = hf.Job("strict")
    source = hf.KafkaSource(kafka.servers, topic, format="json", schema="user string, amount long")
    # The job does not look at the value that is wrong.
    job.source(source, uid="events").transform(lambda frame: frame.select("key")).sink(
        hf.MemorySink(), uid="out"
    )
    where = rf"partition '{topic}-0', offset 1: column 'amount' is declared long, found \"x\".*skip --epoch 1"
    with pytest.raises(hf.MalformedInput, match=where):
        job.run(tmp_path / "ck", spark=spark, until="exhausted", restart=hf.NoRestart())


def test_a_value_of_several_objects_loses_none_in_silence(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    kafka.make(topic)
    two, more = row("a", 1) + row("b", 2), row("a", 1) + b" and more"
    fit = [b' {"user": "c", "x": NaN} \n', b"{'user': 'd', 'other': [{}, {}]}", None]
    kafka.send(topic, [two, more, *fit])
    source = hf.KafkaSource(kafka.servers, topic, format="json", schema="user string not null, x double")
    reader = source.reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    sifted = {found.offset: found.value for found in reader.sifted(spark, slice).rows.collect()}
    assert {offset: value and value.user for offset, value in sifted.items()} == {2: "c", 3: "d", 4: None}
    bad = {found.line: (found.row, found.reason) for found in reader.malformed(spark, slice).collect()}
    at = len(row("a", 1)) + 1
    assert bad == {
        0: (two.decode(), f"it is no JSON: Extra data at character {at}"),
        1: (more.decode(), f"it is no JSON: Extra data at character {at + 1}"),
    }
    job = hf.Job("strict")
    job.source(source, uid="events").sink(hf.MemorySink(), uid="out")
    where = f"partition '{topic}-0', offset 0: it is no JSON: Extra data"
    with pytest.raises(hf.MalformedInput, match=where):
        job.run(tmp_path / "ck", spark=spark, until="exhausted", restart=hf.NoRestart())


def test_avro_is_read_by_its_schema(spark: SparkSession, kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    fields = [{"name": "user", "type": "string"}, {"name": "n", "type": ["null", "long"]}]
    schema = {"type": "record", "name": "row", "fields": fields}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"user": "a", "n": 5})
    kafka.send(topic, [out.getvalue(), None, b"\xff"])
    source = hf.KafkaSource(kafka.servers, topic, format="avro", schema=json.dumps(schema))
    reader = source.reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    good = {found.offset: found.value for found in reader.sifted(spark, slice).rows.collect()}
    assert (good[0].user, good[0].n, good[1]) == ("a", 5, None)
    (bad,) = reader.malformed(spark, slice).collect()
    assert (bad.file, bad.line, bad.row) == (f"{topic}-0", 2, "FF")
    assert "no Avro of the schema" in bad.reason


def test_rows_are_written_once_by_the_driver_and_by_tasks(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_tasks: list[int] = []
    write = LaneJobs.__call__

    def watched(jobs: LaneJobs, waiting: Any) -> Any:
        by_tasks.append(waiting[0].epoch)
        return write(jobs, waiting)

    monkeypatch.setattr(LaneJobs, "__call__", watched)
    monkeypatch.setattr(lane_publisher, "ELSEWHERE_FROM_BYTES", 1 << 18)
    monkeypatch.setattr(lane_publisher, "HERE_BELOW_BYTES", 1 << 16)
    kafka.make(topic, partitions=2)
    rows = 0
    # Small epochs are written by the driver, large ones by tasks: each takes the lanes over from the other.
    for total, epoch in ((600, 300), (20_600, 20_000), (21_000, 400)):
        job = hf.Job("writes")
        columns = {"id": "id", "text": "cast(rnd as string)"}
        source = hf.GeneratorSource(columns, schema="id long, text string", total=total)
        job.source(source, uid="in").sink(hf.KafkaSink(kafka.servers, topic, key="id"), uid="out")
        job.run(
            tmp_path / "ck", spark=spark, until="exhausted", max_rows_per_epoch=epoch,
            working_dir=tmp_path / "working", restart=hf.NoRestart(),
        )  # fmt: skip
        rows = total
    ids = [json.loads(message.value())["id"] for message in kafka.committed(topic, partitions=2)]
    assert len(ids) == rows
    assert len(set(ids)) == rows
    assert by_tasks == [3]


def test_a_topic_that_was_made_again_ends_the_start_and_another_uid_goes_on(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    def run(total: int, uid: str) -> None:
        job = hf.Job("writes")
        source = hf.GeneratorSource({"id": "id"}, schema="id long", total=total)
        job.source(source, uid="in").sink(hf.KafkaSink(kafka.servers, topic), uid=uid)
        job.run(
            tmp_path / "ck", spark=spark, until="exhausted", max_rows_per_epoch=50,
            working_dir=tmp_path / "working", restart=hf.NoRestart(),
        )  # fmt: skip

    kafka.make(topic)
    run(100, "out")
    kafka.delete(topic)
    kafka.make(topic)
    with pytest.raises(hf.SinkWentBack, match="made again: the rows of epochs up to 2 that sink 'out'"):
        run(200, "out")
    assert kafka.committed(topic) == []
    run(200, "again")
    ids = [json.loads(message.value())["id"] for message in kafka.committed(topic)]
    assert sorted(ids) == list(range(100, 200))


def test_the_example(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_SERVERS", kafka.servers)
    kafka.make("orders")
    kafka.make("totals")
    kafka.send("orders", [row("anna", 5), row("ben", 1), b"no order", row("anna", 7)])
    job = load_job(Path(__file__).parents[2] / "examples" / "kafka_orders.py")
    job.run(tmp_path / "ck", spark=spark, until="exhausted")
    found = {message.key(): message.value() for message in kafka.committed("totals")}
    assert found == {
        b"anna": b'{"user":"anna","orders":2,"amount":12}', b"ben": b'{"user":"ben","orders":1,"amount":1}'
    }  # fmt: skip
    (bad,) = [line for file in (tmp_path / "out" / "kafka-bad").glob("*.json") for line in file.open()]
    assert "no JSON" in bad


def copy_job(kafka: KafkaBroker, topic: str, sink: hf.MemorySink) -> hf.Job:
    job = hf.Job("copy")
    rows = job.source(hf.KafkaSource(kafka.servers, topic), uid="events")
    rows.transform(lambda frame: frame.selectExpr("string(value) as value")).sink(sink, uid="out")
    return job


def test_messages_are_as_old_as_their_timestamps_say(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    kafka.make(topic, partitions=2)
    now_ms = int(time.time() * 1_000)
    kafka.send(topic, [b"old"] * 90, partition=0, timestamp=now_ms - 3_600_000)
    kafka.send(topic, [b"new"] * 10, partition=1, timestamp=now_ms - 60_000)
    sink = hf.MemorySink()
    told: list[hf.Progress] = []
    copy_job(kafka, topic, sink).run(
        tmp_path / "ck", spark=spark, until="exhausted", working_dir=tmp_path / "working",
        on_progress=told.append,
    )  # fmt: skip
    assert len(sink.rows()) == 100
    latency = told[-1].sinks["out"]["latency"]
    assert latency["rows"] == 100
    shortest = 90 * 3_600 + 10 * 60
    assert shortest - 1 <= latency["seconds"] <= shortest + 100 * (time.time() - now_ms / 1_000)


def wait_until(handle: hf.JobHandle, condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 240
    while not condition():
        assert handle.running, f"the run ended before {what}: {handle.status().error}"
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.05)


def test_a_broker_that_is_dead_at_the_start_and_lost_later_is_waited_for(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "MOST_SECONDS", 0.2)
    monkeypatch.setattr(client, "REQUEST_SECONDS", 1.0)
    kafka.make(topic)
    sink, said = hf.MemorySink(), list[str]()
    kafka.stop()
    try:
        handle = copy_job(kafka, topic, sink).start(tmp_path / "ck", spark=spark, on_message=said.append)
        assert isinstance(handle, hf.JobHandle)

        def shown() -> dict[str, Any]:
            return handle.status().sources.get("events") or {}

        for value in (b"1", b"2"):
            wait_until(handle, lambda: shown().get("unavailable") is not None, "the wait is shown")
            assert f"Kafka at {kafka.servers} is not there" in shown()["unavailable"]["reason"]
            kafka.start()
            kafka.send(topic, [value])
            wait_until(handle, lambda value=value: (value.decode(),) in sink.rows(), "its rows are there")
            wait_until(handle, lambda: shown().get("unavailable") is None, "the wait is over")
            kafka.stop()
    finally:
        kafka.start()
    handle.stop()
    assert handle.wait(240).restarts == 0
    assert sorted(sink.rows()) == [("1",), ("2",)]
    assert sum("WAITING for the server of source 'events'" in text for text in said) >= 2


def test_a_log_that_lost_rows_ends_the_run_and_says_so(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """That other rows are in their place only the tasks find out, from the broker."""
    kafka.make(topic)
    for n in range(4):
        kafka.send(topic, [b"old %d" % n])
    sink = hf.MemorySink()
    job = copy_job(kafka, topic, sink)
    job.run(tmp_path / "ck", spark=spark, until="exhausted")
    kafka.cut_short(topic, 2)
    kafka.send(topic, [b"new %d" % n for n in range(4)])
    with pytest.raises(hf.InputVanished, match=rf"offsets 4 to 5 of {topic}-0 .*skip --epoch"):
        job.run(tmp_path / "ck", spark=spark, until="exhausted")
    assert sorted(sink.rows()) == [(f"old {n}",) for n in range(4)]
