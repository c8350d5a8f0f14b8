"""Channels from and to other jobs and Structured Streaming, on a real Spark: every row once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.storage.urls import open_storage

DEADLINE_SECONDS = 120
KEYS = 3


@pytest.fixture(autouse=True)
def formats(spark: SparkSession) -> None:
    hf.register_data_sources(spark)


class Number(hf.KeyedFunction):
    """Numbers the rows of a key: a row that comes twice is seen."""

    output = "key long, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.n.value += 1
        yield row.key, self.n.value


def numbered(source: hf.Source) -> hf.Job:
    job = hf.Job("numbered")
    rows = job.source(source, uid="rows").key_by("key").process(Number(), uid="number")
    rows.sink(hf.ChannelSink(), uid="numbers")
    return job


def numbers(count: int) -> Counter[tuple[int, int]]:
    return Counter((n % KEYS, n // KEYS + 1) for n in range(count))


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    given = {"parallelism": 2, "working_dir": tmp_path / "working", "restart": hf.NoRestart()}
    return {**given, "max_rows_per_epoch": 10, "on_message": lambda text: None, **more}


def drained(job: hf.Job, checkpoint: Path, spark: SparkSession, **given: Any) -> None:
    """Run a job until it has read what is there."""
    handle = job.start(checkpoint, spark=spark, **given)
    handle.stop(drain=True)
    handle.wait(DEADLINE_SECONDS)


def held(spark: SparkSession, place: Path, channel: str) -> DataFrame:
    reader = spark.read.format("holdfast").option("checkpoint", str(place)).option("channel", channel)
    return reader.load()


def fed(frame: DataFrame, place: Path, state: Path, **more: str) -> None:
    """Write what a stream has now into channel `feed`."""
    writing = frame.writeStream.format("holdfast").option("checkpoint", str(place)).options(**more)
    writing = writing.option("writer", "feed").option("checkpointLocation", str(state))
    assert writing.trigger(availableNow=True).start().awaitTermination(DEADLINE_SECONDS)


def followed(spark: SparkSession, place: Path, out: Path, state: Path) -> Counter[tuple[int, int]]:
    """Read what channel `numbers` has now into files; gives all that the files show."""
    reading = spark.readStream.format("holdfast").option("checkpoint", str(place))
    rows = reading.option("channel", "numbers").option("maxEpochsPerTrigger", "2").load()
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(state))
    assert writing.trigger(availableNow=True).start(str(out)).awaitTermination(DEADLINE_SECONDS)
    shown = spark.read.parquet(str(out)).collect()
    return Counter((row.key, row.n) for row in shown)


def forget_newest_batch(state: Path) -> None:
    """As if the query had been killed before it wrote down that its newest batch is done."""
    newest = max(int(path.name) for path in (state / "commits").iterdir() if path.name.isdecimal())
    (state / "commits" / str(newest)).unlink()
    (state / "commits" / f".{newest}.crc").unlink(missing_ok=True)


def put_rows(directory: Path, first: int, end: int) -> None:
    directory.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"key": n % KEYS}) + "\n" for n in range(first, end))
    (directory / f"{first}.json").write_text(lines)


def test_structured_streaming_feeds_a_job_and_follows_one(spark: SparkSession, tmp_path: Path) -> None:
    feed, checkpoint = tmp_path / "feed", tmp_path / "ck"
    before, after, out = tmp_path / "spark-before", tmp_path / "spark-after", tmp_path / "out"

    def round_of(first: int, end: int) -> Counter[tuple[int, int]]:
        put_rows(tmp_path / "in", first, end)
        fed(spark.readStream.schema("key long").json(str(tmp_path / "in")), feed, before)
        source = hf.ChannelSource(feed, channel="feed", schema="key long")
        drained(numbered(source), checkpoint, spark, **options(tmp_path))
        return followed(spark, checkpoint, out, after)

    assert round_of(0, 30) == numbers(30)
    assert round_of(30, 50) == numbers(50)
    # Both queries do their newest batch again, and go on.
    forget_newest_batch(before)
    forget_newest_batch(after)
    assert round_of(50, 70) == numbers(70)
    assert held(spark, feed, "feed").count() == 70
    storage = open_storage(str(feed))
    assert History(storage).load().last_epoch == 3, "three batches, three epochs"
    assert len(storage.list(names.TERMS)) <= 3, "a start of a query claims one term"


def test_a_query_that_goes_on_is_one_writer(spark: SparkSession, tmp_path: Path) -> None:
    put_rows(tmp_path / "in", 0, 5)
    put_rows(tmp_path / "in", 5, 10)
    rows = spark.readStream.schema("key long").option("maxFilesPerTrigger", "1").json(str(tmp_path / "in"))
    fed(rows, tmp_path / "feed", tmp_path / "state", keepEpochs="1")
    storage = open_storage(str(tmp_path / "feed"))
    view = History(storage).load()
    assert (view.last_epoch, view.channels["feed"].released) == (2, 1)
    assert len(storage.list(names.TERMS)) == 1
    assert view.positions["feed"]["query"], "Spark tells its tasks the id of the query"
    # A query with a Spark checkpoint of its own has a batch 0, too.
    with pytest.raises(PySparkException, match=r"is written by another streaming query.* begin at 0 again"):
        fed(rows, tmp_path / "feed", tmp_path / "other-state")
    assert History(storage).load() == view


def test_a_job_reads_the_channel_of_another(spark: SparkSession, tmp_path: Path) -> None:
    def rows_of(count: int) -> hf.MemorySource:
        return hf.MemorySource([(n % KEYS,) for n in range(count)], schema="key long")

    def copy() -> hf.Job:
        job = hf.Job("copy")
        source = hf.ChannelSource(tmp_path / "ck", channel="numbers", schema="n long, key long")
        job.source(source, uid="numbers").sink(hf.FileSink(tmp_path / "out", format="parquet"), uid="out")
        return job

    for count in (40, 60):
        given = options(tmp_path, until="exhausted")
        numbered(rows_of(count)).start(tmp_path / "ck", spark=spark, **given).wait(DEADLINE_SECONDS)
        copy().start(tmp_path / "copy-ck", spark=spark, **given).wait(DEADLINE_SECONDS)
        shown = pq.read_table(tmp_path / "out").to_pylist()
        assert Counter((row["key"], row["n"]) for row in shown) == numbers(count)


def test_values_of_any_type_come_as_they_went(spark: SparkSession, tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    ddl = (
        "t timestamp, w timestamp_ntz, d date, m decimal(10,2), b binary, a array<int>, s struct<x:long>, "
        "e map<string,int>"
    )
    rows = spark.createDataFrame([(at, None, None, None, b"x", [1, None], (5,), {"k": 1})], ddl)
    for _ in range(2):
        writing = rows.write.format("holdfast").mode("append").option("writer", "all")
        writing.option("checkpoint", str(tmp_path / "ck")).save()
    back = held(spark, tmp_path / "ck", "all")
    assert back.schema.simpleString() == rows.schema.simpleString()
    assert back.collect() == rows.collect() * 2


def test_bad_input_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"is not there yet .* give the columns with"):
        held(spark, tmp_path / "nowhere", "numbers")
    with pytest.raises(PySparkException, match="option 'chanel' is not known here"):
        spark.read.format("holdfast").option("checkpoint", "ck").option("chanel", "c").load()
    rows = spark.range(1)
    with pytest.raises(PySparkException, match="give the option 'writer'"):
        rows.write.format("holdfast").mode("append").option("checkpoint", str(tmp_path / "ck")).save()
    writing = rows.write.format("holdfast").mode("overwrite").option("writer", "w")
    with pytest.raises(PySparkException, match="it only grows"):
        writing.option("checkpoint", str(tmp_path / "ck")).save()
    rows.write.format("holdfast").mode("append").option("writer", "w").save(str(tmp_path / "ck"))
    with pytest.raises(PySparkException, match=r"no channel 'v' in .*, its channels are: 'w'"):
        held(spark, tmp_path / "ck", "v")
