"""Rows that a source cannot read: set aside with file, line and reason, or the end of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.runtime import epoch_loop
from holdfast.runtime.epoch import runner
from holdfast.steps import Step
from tests.spark.jobs import run

SCHEMA = "user string, amount long"
GOOD = '{"user": "a", "amount": 1}'
BAD = '{"user": "b", "amount": "x"}'


def dirty_job(
    place: Path,
    good: hf.MemorySink,
    bad: hf.MemorySink,
    *,
    format: str = "json",
    schema: str = SCHEMA,
    **options: str,
) -> hf.Job:
    """Shows one column only, and some rows: what Spark need not look at must not matter."""
    job = hf.Job("dirty")
    source = hf.FileSource(place, format=format, schema=schema, options=options)
    rows = job.source(source, uid="events", on_error="dead-letter")
    rows.transform(lambda df: df.where("user is null or user <> 'z'").select("user")).sink(good, uid="good")
    rows.dead_letters().sink(bad, uid="bad")
    return job


def put(place: Path, name: str, *lines: str) -> None:
    place.mkdir(exist_ok=True)
    (place / name).write_text("\n".join(lines) + "\n")


def test_json_rows_that_do_not_fit_are_set_aside_with_file_line_and_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, good, bad = tmp_path / "in", hf.MemorySink(), hf.MemorySink()
    cut_off = '{"user": "z", "amount": '
    put(place, "a b%.json", GOOD, "nonsense", "", BAD, '{"user": "c"}', BAD, "5", cut_off)
    with open(place / "a b%.json", "ab") as file:
        file.write(b'{"user": "\xff"}\n')
    put(place, "b.json", '{"user": "d", "amount": 2, "extra": true}')
    progress = []
    job = dirty_job(place, good, bad)
    said: list[str] = []
    handle = job.start(
        tmp_path / "ck", spark=spark, until="exhausted", on_message=said.append, on_progress=progress.append
    )
    handle.wait()
    assert sorted(good.rows()) == [("a",), ("c",), ("d",)]
    file = f"{place}/a b%.json"
    wrong = "column 'amount' is declared long, found \"x\""
    assert sorted(bad.rows(), key=lambda row: row[1]) == [
        (file, 2, "nonsense", "it is no JSON: Expecting value at character 1", 1),
        (file, 4, BAD, wrong, 1),
        (file, 6, BAD, wrong, 1),
        (file, 7, "5", "it is JSON, but no object", 1),
        (file, 8, cut_off, "it is no JSON: Expecting value at character 25", 1),
        (file, 9, '{"user": "\ufffd"}', "column 'user' is declared string, found \"\ufffd\"", 1),
    ]
    told = progress[-1].sources["events"]
    assert told["set_aside"] == 6
    assert "line" in told["reason"]
    assert told["undeclared"] == {"extra": "b.json"}
    assert [text for text in said if "new column 'extra', first seen in file 'b.json'" in text]


def test_csv_rows_are_read_by_the_names_of_their_header(spark: SparkSession, tmp_path: Path) -> None:
    place, good, bad = tmp_path / "in", hf.MemorySink(), hf.MemorySink()
    header = "user,amount"
    put(place, "1.csv", header, "a,1", "b", "c,3,4", "d,x", header, '"e,5', "f,6")
    put(place, "2.csv", "amount,new,User", "7,z,g", "x,y,h")
    put(place, "3.csv", "user", "i")
    run(dirty_job(place, good, bad, format="csv", header="true"), spark, tmp_path / "ck")
    assert sorted(good.rows()) == [("a",), ("f",), ("g",), ("i",)]
    letters = sorted((Path(file).name, line, row, reason) for file, line, row, reason, _ in bad.rows())
    assert letters == [
        ("1.csv", 3, "b", "it has 1 field, expected are 2: user, amount"),
        ("1.csv", 4, "c,3,4", "it has 3 fields, expected are 2: user, amount"),
        ("1.csv", 5, "d,x", "column 'amount' is declared long, found 'x'"),
        ("1.csv", 6, header, "column 'amount' is declared long, found 'amount'"),
        ("1.csv", 7, '"e,5', "it has 1 field, expected are 2: user, amount"),
        ("2.csv", 3, "x,y,h", "column 'amount' is declared long, found 'x'"),
    ]


def test_lines_are_counted_over_the_parts_in_which_spark_reads_a_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, good, bad = tmp_path / "in", hf.MemorySink(), hf.MemorySink()
    lines = [json.dumps({"user": f"u{i}", "amount": "x" if i % 500 == 499 else 1}) for i in range(2_000)]
    put(place, "long.json", *lines)
    put(place, "short.json", BAD)
    kept = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "8k")
    try:
        run(dirty_job(place, good, bad), spark, tmp_path / "ck", max_rows_per_epoch=10_000)
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", kept)
    found = sorted((Path(row[0]).name, row[1]) for row in bad.rows())
    assert found == [*(("long.json", line) for line in (500, 1_000, 1_500, 2_000)), ("short.json", 1)]
    assert len(good.rows()) == 1_996


def test_dead_letters_are_shown_once_through_a_crash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, good, bad = tmp_path / "in", hf.MemorySink(), hf.MemorySink()
    for number in range(3):
        put(place, f"{number}.json", GOOD, f'{{"amount": "{number}"}}')

    deaths = [Step.PLAN_WRITTEN, Step.BUNDLE_WRITTEN]

    def die(step: Step) -> None:
        second = list((tmp_path / "ck" / "plans").glob("*2/*"))
        if second and step in deaths:
            deaths.remove(step)
            raise RuntimeError("killed")

    for module in (epoch_loop, runner):
        monkeypatch.setattr(module, "reached", die)
    runs = 0
    while deaths:
        with pytest.raises(RuntimeError, match="killed"):
            run(dirty_job(place, good, bad), spark, tmp_path / "ck", max_rows_per_epoch=2)
        runs += 1
    run(dirty_job(place, good, bad), spark, tmp_path / "ck", max_rows_per_epoch=2)
    assert runs == 2
    assert good.rows() == [("a",)] * 3
    assert sorted((Path(row[0]).name, row[1], row[4]) for row in bad.rows()) == [
        ("0.json", 2, 1), ("1.json", 2, 2), ("2.json", 2, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("format", "schema", "lines", "told"),
    [
        ("json", SCHEMA, (GOOD, BAD), r"a\.txt', line 2: column 'amount' is declared long, found \"x\""),
        ("csv", SCHEMA, ("a,1", "b"), r"a\.txt', line 2: it has 1 field, expected are 2"),
        (
            "json",
            "user string not null, amount long",
            (GOOD, "{}"),
            r"a\.txt': column 'user' is declared not null",
        ),
    ],
)
def test_a_source_that_sets_nothing_aside_fails_with_file_line_and_reason(
    spark: SparkSession, tmp_path: Path, format: str, schema: str, lines: tuple[str, ...], told: str
) -> None:
    sink = hf.MemorySink()
    put(tmp_path / "in", "a.txt", *lines)
    job = hf.Job("strict")
    rows = job.source(hf.FileSource(tmp_path / "in", format=format, schema=schema), uid="events")
    rows.transform(lambda df: df.select("user")).sink(sink, uid="out")
    with pytest.raises(hf.MalformedInput, match=told) as failed:
        run(job, spark, tmp_path / "ck")
    assert "\n" not in str(failed.value)
    assert "holdfast skip --file a.txt" in str(failed.value)
    assert sink.rows() == []


def test_a_transform_that_ignores_its_input_hides_no_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    place, good, bad = tmp_path / "in", hf.MemorySink(), hf.MemorySink()
    put(place, "a.json", GOOD, BAD)
    job = hf.Job("ignoring")
    source = hf.FileSource(place, format="json", schema=SCHEMA)
    rows = job.source(source, uid="events", on_error="dead-letter")
    rows.transform(lambda df: df.where("1 = 0")).sink(good, uid="good")
    rows.dead_letters().sink(bad, uid="bad")
    run(job, spark, tmp_path / "ck")
    assert [(row[1], row[2]) for row in bad.rows()] == [(2, BAD)]


def test_a_parquet_file_of_another_type_is_named_with_its_column(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table: Any = pa.table({"user": ["a"], "amount": ["many"]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    job = hf.Job("parquet")
    job.source(hf.FileSource(tmp_path / "in", format="parquet", schema=SCHEMA), uid="events").sink(
        hf.MemorySink(), uid="out"
    )
    with pytest.raises(hf.EpochFailed, match=r"(?s)a\.parquet.*amount|amount.*a\.parquet"):
        run(job, spark, tmp_path / "ck")
