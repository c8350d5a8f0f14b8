"""Redis streams read by Spark's tasks, from a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client_library
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load_job import load_job
from holdfast.testing import conformance
from tests.contract.test_sources import NEED_SPARK
from tests.services.servers import Server, redis_server
from tests.spark.jobs import ROWS, Sequence, check_sequences, expected_totals, run


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with client_library.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


def rows_of(spark: SparkSession, source: hf.RedisStreamSource) -> list[tuple[Any, ...]]:
    reader = source.reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    return sorted(tuple(row) for row in reader.frame(spark, slice).collect())


def test_streams_keep_what_is_promised_about_their_rows(
    spark: SparkSession, server: Server, client: Any
) -> None:
    ids = [client.xadd(stream, {"n": n}) for n in range(6) for stream in ("a", "b")]
    report = conformance.check_source(
        lambda: hf.RedisStreamSource(
            server.url, ["a", "b"], schema="n long, from string", stream_column="from"
        ),
        spark=spark,
        only={*NEED_SPARK, "partitions"},
        vanish=lambda: client.xdel("a", ids[4]),
    )
    assert {*NEED_SPARK, "partitions"} <= set(report.kept)


def test_fields_become_columns_of_every_type(spark: SparkSession, server: Server, client: Any) -> None:
    id = client.xadd("s", {"n": 7, "x": "1.5", "t": "2026-01-02 03:04:05", "b": b"\xff\x00", "w": "ä"})
    source = hf.RedisStreamSource(
        server.url, "s", id_column="id",
        schema="id string, n long, x double, t timestamp, b binary, w string, absent string",
    )  # fmt: skip
    ((found, n, x, t, b, w, absent),) = rows_of(spark, source)
    assert (found, n, x, bytes(b), w, absent) == (id.decode(), 7, 1.5, b"\xff\x00", "ä", None)
    assert t.isoformat() == "2026-01-02T03:04:05"


def test_json_becomes_columns(spark: SparkSession, server: Server, client: Any) -> None:
    client.xadd("s", {"value": json.dumps({"user": "anna", "tags": ["x", "y"]})})
    source = hf.RedisStreamSource(server.url, "s", format="json", schema="user string, tags array<string>")
    assert rows_of(spark, source) == [("anna", ["x", "y"])]


def test_entries_that_do_not_fit_are_named_or_set_aside(
    spark: SparkSession, server: Server, client: Any
) -> None:
    client.xadd("s", {"n": "1"})
    bad = [client.xadd("s", {"n": text}).decode() for text in ("one", b"\xff")]
    reader = hf.RedisStreamSource(server.url, "s", schema="n long").reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    with pytest.raises(Exception, match="does not fit the schema"):
        reader.frame(spark, slice).where("n = 1").collect()
    sifted = reader.sifted(spark, slice)
    assert [tuple(row) for row in sifted.rows.collect()] == [(1,)]
    assert sifted.observed() == (3, 2)
    letters = sorted(tuple(row) for row in reader.malformed(spark, slice).collect())
    assert [(place, reason) for place, _, _, reason in letters] == [
        (f"entry {id} of s", "n is not a bigint") for id in bad
    ]


def test_a_job_over_streams_goes_on_where_it_was(
    spark: SparkSession, server: Server, client: Any, tmp_path: Path
) -> None:
    sink = hf.MemorySink()

    def job() -> hf.Job:
        made = hf.Job("streams")
        source = hf.RedisStreamSource(server.url, ["a", "b"], schema="user string, amount long", trim=True)
        rows = made.source(source, uid="rows")
        rows.key_by("user").process(Sequence(), uid="sequence").sink(sink, uid="out")
        return made

    for part in (ROWS[:100], ROWS[100:]):
        for number, (user, amount) in enumerate(part):
            client.xadd("ab"[number % 2], {"user": user, "amount": amount})
        run(job(), spark, tmp_path / "ck")
    check_sequences(sink.rows(), expected_totals())


def test_the_example(
    spark: SparkSession, server: Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", server.url)
    for user, amount in (("anna", 5), ("ben", 1), ("anna", 7)):
        client.xadd("orders", {"user": user, "amount": amount})
    job = load_job(Path(__file__).parents[2] / "examples" / "redis_orders.py")
    run(job, spark, tmp_path / "ck")
    lines = [line for file in (tmp_path / "out" / "redis-orders").glob("*.json") for line in file.open()]
    assert sorted(lines) == [
        '{"user":"anna","orders":2,"amount":12}\n', '{"user":"ben","orders":1,"amount":1}\n'
    ]  # fmt: skip
