"""Jobs that read Kafka: whole ones, on a real Spark and a real broker."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load_job import load_job
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


def test_the_example(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_SERVERS", kafka.servers)
    kafka.make("orders")
    kafka.send("orders", [row("anna", 5), row("ben", 1), b"no order", row("anna", 7)])
    job = load_job(Path(__file__).parents[2] / "examples" / "kafka_orders.py")
    job.run(tmp_path / "ck", spark=spark, until="exhausted")
    lines = [line for file in (tmp_path / "out" / "kafka-orders").glob("*.json") for line in file.open()]
    assert sorted(lines) == [
        '{"user":"anna","orders":2,"amount":12}\n', '{"user":"ben","orders":1,"amount":1}\n'
    ]  # fmt: skip
    (bad,) = [line for file in (tmp_path / "out" / "kafka-bad").glob("*.json") for line in file.open()]
    assert "no JSON" in bad
