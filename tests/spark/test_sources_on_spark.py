"""Frames on a real Spark: a slice gives its rows, again and again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain
from holdfast.connectors.contract import Slice, Source, SourceReader
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.generator import GeneratorSource
from holdfast.connectors.memory import MemorySource
from holdfast.errors import DefinitionError
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.urls import open_storage
from holdfast.testing import conformance
from holdfast.testing.conformance.source_frames import FRAMES
from tests.contract.test_sources import HOW, NEED_SPARK, channel_source, file_source, kafka_source
from tests.services.kafka_broker import shared_broker
from tests.unit.runtime.parts.channel_kit import Producer, door
from tests.unit.testing.conformance.broken_sources import BROKEN, ROWS, HonestSource

# A task's error comes as either, depending on how deep it lies.
SPARK_ERRORS = (PySparkException, Py4JJavaError)


def next_slice(reader: SourceReader, after: Any = None, max_rows: int | None = None) -> Slice:
    slice = reader.next(after, max_rows, 0)
    assert slice is not None
    return slice


def rows(spark: SparkSession, reader: SourceReader, slice: Slice) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in reader.frame(spark, slice).collect())


def let_go(directory: Path) -> None:
    """The sender of a channel goes on, and keeps one epoch only."""
    sender = Producer(LocalStorage(directory), door(keep_epochs=1))
    for _ in range(20):
        sender.commit([])


@pytest.mark.parametrize("make", HOW, ids=lambda make: make.__name__)
def test_a_source_keeps_what_is_promised_about_its_rows(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], Source]
) -> None:
    how = dict(HOW[make])
    if make is file_source:
        how["vanish"] = (tmp_path / "3.json").unlink
    if make is channel_source:
        how["vanish"] = lambda: let_go(tmp_path)
    if make is kafka_source:
        topic = make(tmp_path).topics[0]  # type: ignore[attr-defined]
        how["vanish"] = lambda: shared_broker().forget(topic, partition=1, before=2)
    asked = {*NEED_SPARK, "partitions"} if make is kafka_source else NEED_SPARK
    report = conformance.check_source(lambda: make(tmp_path), spark=spark, only=asked, **how)
    not_asked = {file_source: set(), channel_source: {"verify"}, kafka_source: set()}
    assert NEED_SPARK - set(report.kept) == not_asked.get(make, {"verify", "vanished-input"})


def test_a_source_of_the_user_that_keeps_everything_passes(spark: SparkSession) -> None:
    rows = list(range(ROWS))
    report = conformance.check_source(lambda: HonestSource(rows), spark=spark, vanish=rows.clear)
    assert not report.not_asked


@pytest.mark.parametrize("name", FRAMES.names)
def test_a_source_that_breaks_a_promise_about_its_rows_is_told_so(spark: SparkSession, name: str) -> None:
    rows = list(range(ROWS))
    with pytest.raises(conformance.BrokenPromises) as found:
        conformance.check_source(lambda: BROKEN[name](rows), spark=spark, vanish=rows.clear, only=[name])
    (broken,) = found.value.broken
    assert broken.name == name
    assert "Error" not in broken.seen, "found by what was promised, not by chance"


def test_memory_rows_may_be_tuples_or_dicts(spark: SparkSession) -> None:
    reader = MemorySource([("a", 1), {"n": 2}, ("c", None)], schema="user string, n long").reader([])
    first = next_slice(reader, max_rows=2)
    assert sorted(map(str, reader.frame(spark, first).collect())) == [
        "Row(user='a', n=1)", "Row(user=None, n=2)",
    ]  # fmt: skip
    assert rows(spark, reader, next_slice(reader, first.end)) == [("c", None)]


def test_memory_rows_beyond_the_schema_are_refused(spark: SparkSession) -> None:
    for row in ({"m": 1}, (1, 2)):
        reader = MemorySource([row], schema="n long").reader([])
        with pytest.raises(DefinitionError):
            reader.frame(spark, next_slice(reader))


def test_generated_rows_have_the_schema_and_are_the_same_each_time(spark: SparkSession) -> None:
    columns = {"n": "id", "user": "concat('u', pmod(rnd, 10))"}
    source = GeneratorSource(columns, schema="user string, n int", total=100, seed=7)
    first = next_slice(source.reader([]), max_rows=40)
    second = next_slice(source.reader([]), first.end)
    frame = source.reader([]).frame(spark, first)
    assert frame.schema.simpleString() == "struct<user:string,n:int>"
    seen = rows(spark, source.reader([]), first) + rows(spark, source.reader([]), second)
    assert sorted(n for _, n in seen) == list(range(100))
    assert sorted(seen) == rows(spark, source.reader([]), Slice(None, second.end))
    other = GeneratorSource(columns, schema="user string, n int", total=100, seed=8)
    assert rows(spark, other.reader([]), first) != rows(spark, source.reader([]), first)


def test_a_list_of_expressions_is_taken_by_position(spark: SparkSession) -> None:
    reader = GeneratorSource(["id * 2 AS twice", "'x'"], schema="a long, b string", total=2).reader([])
    assert rows(spark, reader, next_slice(reader)) == [(0, "x"), (2, "x")]


def test_columns_that_do_not_fit_the_schema_are_refused(spark: SparkSession) -> None:
    reader = GeneratorSource({"a": "id"}, schema="b long", total=1).reader([])
    with pytest.raises(DefinitionError, match="one expression for each column"):
        reader.frame(spark, next_slice(reader))


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_exactly_the_planned_files_are_read_whatever_their_names(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    for number, name in enumerate(["a[1]", "b c", "d{x,y}", "e*", "a1"]):
        path = tmp_path / f"{name}.{format}"
        if format == "parquet":
            pq.write_table(pa.table({"n": pa.array([number], pa.int64())}), path)
        else:
            path.write_text(f"n\n{number}\n" if format == "csv" else json.dumps({"n": number}) + "\n")
    options = {"header": "true"} if format == "csv" else {}
    source = FileSource(tmp_path, format=format, schema="n long", pattern="[!a]*", options=options)
    reader = source.reader([])
    slice = next_slice(reader)
    (tmp_path / f"late.{format}").write_text("not read")
    assert rows(spark, reader, slice) == [(1,), (2,), (3,)]
    bracket = FileSource(tmp_path, format=format, schema="n long", pattern="a[[]*", options=options).reader(
        []
    )
    assert rows(spark, bracket, next_slice(bracket)) == [(0,)], "the name a[1] must not be taken for a1"


ODD_NAMES = [
    "a:b.json", ":c.json", "d e.json", "f%20g.json", "h%i.json", "j\nk.json", "l\\m.json", "n#o?.json",
    "ö.json",
]  # fmt: skip


def test_names_with_characters_that_mean_something_to_hadoop_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, name in enumerate(ODD_NAMES):
        (tmp_path / name).write_text(json.dumps({"n": number}) + "\n")
    reader = FileSource(tmp_path, format="json", schema="n long").reader([])
    assert rows(spark, reader, next_slice(reader)) == [(number,) for number in range(len(ODD_NAMES))]


class OverwrittenSource(FileSource):
    """Its file is written again after the driver has looked at it and before Spark reads it."""

    def reader(self, notes: Any) -> Any:
        reader, directory = super().reader(notes), Path(self.path)
        look = reader.frame

        def frame(spark: SparkSession, slice: Slice) -> Any:
            seen = look(spark, slice)
            (directory / "a.json").write_text('{"n": 7}\n')
            return seen

        reader.frame = frame  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
def test_a_file_that_changes_while_its_epoch_runs_commits_and_shows_nothing(
    spark: SparkSession, tmp_path: Path, guarantee: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n')
    os.utime(tmp_path / "in" / "a.json", ns=(1, 1))
    job, sink = hf.Job("overwritten"), hf.MemorySink()
    job.source(OverwrittenSource(tmp_path / "in", format="json", schema="n long"), uid="files").sink(
        sink, uid="out"
    )
    with pytest.raises(hf.InputVanished, match=r"'a.json' .* was changed"):
        job.run(tmp_path / "ck", spark=spark, until="exhausted", guarantee=guarantee, restart=hf.NoRestart())
    assert sink.rows() == []
    committed = Chain(open_storage(str(tmp_path / "ck"))).load().last_epoch
    assert committed == (0 if guarantee == "exactly-once" else 1)


def test_a_run_says_what_its_source_does_not_read_and_shows_what_waits(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n')
    with open(os.fsencode(tmp_path) + b"/in/\xff.json", "w") as file:
        file.write('{"n": 2}\n')
    job, sink = hf.Job("telling"), hf.MemorySink()
    job.source(FileSource(tmp_path / "in", format="json", schema="n long"), uid="files").sink(sink, uid="out")
    said: list[str] = []
    ended = job.start(tmp_path / "ck", spark=spark, until="exhausted", on_message=said.append).wait()
    assert sink.rows() == [(1,)]
    assert [text for text in said if "subdirectories are not read: 'deeper'" in text]
    assert [text for text in said if "SET ASIDE" in text]
    assert (ended.waiting_files, ended.waiting_bytes) == (1, 0)


def test_rows_count_as_they_are_read_whatever_a_transform_leaves_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(6))
    for name, text in (("strict", lines), ("sifted", lines + "not a row\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(text)
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"n": list(range(5))}), tmp_path / "parquet" / "a.parquet")
    job, sink = hf.Job("filtered"), hf.MemorySink()
    streams = [
        job.source(
            FileSource(tmp_path / name, format="parquet" if name == "parquet" else "json", schema="n long"),
            uid=name,
            on_error="dead-letter" if name == "sifted" else "fail",
        )
        for name in ("strict", "sifted", "parquet")
    ]
    streams[1].dead_letters().sink(hf.MemorySink(), uid="letters")
    few = [stream.transform(lambda frame: frame.where("n > 3")) for stream in streams]
    few[0].union(*few[1:]).sink(sink, uid="out")
    ended = job.start(tmp_path / "ck", spark=spark, until="exhausted").wait()
    assert sorted(sink.rows()) == [(4,), (4,), (4,), (5,), (5,)]
    assert ended.rows == 6 + 6 + 5


def test_a_typing_error_in_the_path_does_not_look_like_a_quiet_job(tmp_path: Path) -> None:
    job = hf.Job("typo")
    job.source(FileSource(tmp_path / "inn", format="json", schema="n long"), uid="files").sink(
        hf.MemorySink(), uid="out"
    )
    with pytest.raises(hf.DefinitionError, match="inn does not exist; correct the path"):
        job.start(tmp_path / "ck")


def test_a_malformed_row_fails_instead_of_becoming_null(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n{"n": oops\n')
    strict = FileSource(tmp_path, format="json", schema="n long").reader([])
    with pytest.raises(SPARK_ERRORS, match="does not fit the schema"):
        strict.frame(spark, next_slice(strict)).collect()
    lenient = FileSource(tmp_path, format="json", schema="n long", mode="DROPMALFORMED").reader([])
    assert rows(spark, lenient, next_slice(lenient)) == [(1,)]


def test_a_csv_header_without_a_declared_column_fails(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    source = FileSource(tmp_path, format="csv", schema="a long, b long", options={"header": "true"})
    reader = source.reader([])
    with pytest.raises(SPARK_ERRORS, match="CSV header does not conform"):
        reader.frame(spark, next_slice(reader)).collect()
