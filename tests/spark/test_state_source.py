"""State as a DataFrame, of jobs that ended and of jobs that run."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.pins import read_pins
from holdfast.inspect.datasource import READERS
from holdfast.storage.urls import open_storage
from tests.spark.jobs import ROWS, expected_totals, run, sequence_job


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a job that ended: two shards, several epochs."""
    place = tmp_path_factory.mktemp("kept") / "ck"
    run(sequence_job(ROWS, hf.MemorySink()), spark, place, parallelism=2, key_groups=16)
    hf.register_data_sources(spark)
    return place


def state(spark: SparkSession, place: Path, **options: Any) -> Any:
    reader = spark.read.format("holdfast-state").option("checkpoint", str(place)).option("uid", "sequence")
    return reader.options(**options).load()


def test_the_state_of_a_job_is_one_row_per_key(spark: SparkSession, kept: Path) -> None:
    frame = state(spark, kept)
    assert frame.columns == ["user", "seen", "total", "key_group"]
    assert {row.user: (row.seen, row.total) for row in frame.collect()} == expected_totals()
    assert frame.rdd.getNumPartitions() == 2


def test_an_older_epoch_is_read_as_it_was(spark: SparkSession, kept: Path) -> None:
    rows = state(spark, kept, epoch="2").collect()
    assert {row.user: (row.seen, row.total) for row in rows} == expected_totals(ROWS[:100])
    same = state(spark, kept, commit="2").collect()
    assert sorted(same) == sorted(rows)


def test_a_read_pins_its_commit_and_lets_go_of_it_at_its_end(spark: SparkSession, kept: Path) -> None:
    storage = open_storage(str(kept))
    assert state(spark, kept, pin="10m").count() == 7
    assert read_pins(storage).records == ()
    assert storage.list(READERS) == []
    state(spark, kept, pin="10m").limit(1).collect()
    pins = read_pins(storage).records
    assert len(pins) <= 1, "a read that was cut short leaves one pin at most"
    assert all(pin.expires_ms == pin.pinned_ms + 600_000 for pin in pins)


def test_an_unknown_operator_is_told_with_the_known_ones(spark: SparkSession, kept: Path) -> None:
    with pytest.raises(Exception, match="its keyed operators are: 'sequence'"):
        state(spark, kept, uid="other").collect()


class Everything(hf.KeyedFunction):
    """One state of many types, and of every kind."""

    output = "k int"
    at = hf.ValueState("timestamp")
    local = hf.ValueState("timestamp_ntz")
    day = hf.ValueState("date")
    price = hf.ValueState("decimal(20,3)")
    raw = hf.ValueState("binary")
    pair = hf.ValueState("struct<a:int,b:array<string>>")
    items = hf.ListState("double")
    counts = hf.MapState("string", "long")

    def process(self, row: Any, ctx: Any) -> Any:
        self.at.value = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
        self.local.value = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
        self.day.value = dt.date(2026, 1, 2)
        self.price.value = Decimal("12.345")
        self.raw.value = b"\x00\xff"
        self.pair.value = {"a": row.k, "b": ["x", None]}
        self.items.extend([1.5, float(row.k)])
        self.counts["n"] = row.k
        yield (row.k,)


def test_every_kind_of_state_comes_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("everything")
    source = hf.MemorySource([(k,) for k in range(5)], schema="k int")
    job.source(source, uid="in").key_by("k").process(Everything(), uid="all").sink(hf.MemorySink(), uid="out")
    run(job, spark, tmp_path / "ck", key_groups=8)
    hf.register_data_sources(spark)
    reader = spark.read.format("holdfast-state").option("checkpoint", str(tmp_path / "ck"))
    frame = reader.option("uid", "all").load()
    (row,) = frame.where("k = 3").collect()
    assert frame.where("k = 3").selectExpr("unix_micros(at)").first()[0] == 1767323045000006
    assert (row.local, row.day, row.price) == (
        dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.date(2026, 1, 2), Decimal("12.345"),
    )  # fmt: skip
    assert (bytes(row.raw), row.pair.a, row.pair.b) == (b"\x00\xff", 3, ["x", None])
    assert (row["items"], row["counts"]) == ([1.5, 3.0], {"n": 3})


def test_a_key_of_a_running_job_is_at_most_one_commit_old(spark: SparkSession, tmp_path: Path) -> None:
    job = sequence_job(ROWS, hf.MemorySink())
    handle = job.start(
        tmp_path / "ck", spark=spark, max_rows_per_epoch=10, working_dir=tmp_path / "w", key_groups=16
    )
    try:
        while handle.status().commit < 2:
            with suppress(TimeoutError):
                handle.wait(0.1)
        with hf.StateReader(str(tmp_path / "ck")) as reader:
            while handle.status().rows < len(ROWS):
                before = handle.status()
                answer = reader.get("sequence", "u3")
                assert answer.commit >= before.commit - 1
                seen = [amount for user, amount in ROWS[: answer.epoch * 10] if user == "u3"]
                assert answer.values == {"seen": len(seen), "total": sum(seen)}
    finally:
        handle.stop()
        handle.wait()
    live = state(spark, tmp_path / "ck").collect()
    assert {row.user: (row.seen, row.total) for row in live} == expected_totals()
