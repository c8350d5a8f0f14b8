"""A FileSink that tasks write, on a real Spark: many files per epoch, read by readers without Holdfast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors import lane_publisher
from tests.spark.jobs import ROWS, check_sequences, expected_totals, run, run_through_crashes, sequence_job


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small epochs are taken for large ones."""
    monkeypatch.setattr(lane_publisher, "ELSEWHERE_FROM_BYTES", 0)
    monkeypatch.setattr(lane_publisher, "HERE_BELOW_BYTES", 0)


@pytest.mark.usefixtures("in_tasks")
def test_files_of_many_lanes_through_crashes_and_taken_away_in_between(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sink = hf.FileSink(out, format="parquet", max_file_rows=7, partition_by=["user"])
    rows: list[Any] = [*ROWS[:60], hf.CRASH, *ROWS[60:90], hf.CRASH, *ROWS[90:]]
    job = sequence_job(rows, sink)
    assert run_through_crashes(job, spark, tmp_path / "ck", parallelism=3) == 2
    query = f"select user, seq, total from read_parquet('{out}/**/*.parquet', hive_partitioning=true)"
    shown = duckdb.sql(query).fetchall()
    check_sequences(sorted(shown, key=lambda row: (row[0], row[1])), expected_totals())
    by_spark = spark.read.parquet(str(out)).select("user", "seq", "total").collect()
    assert sorted(map(tuple, by_spark)) == sorted(shown)
    files = list(out.rglob("*.parquet"))
    assert len({path.name.split("-")[2] for path in files}) > 1, "several lanes"
    for path in files:
        path.unlink()
    run(sequence_job(rows, sink), spark, tmp_path / "ck", parallelism=2)
    assert not list(out.rglob("*.parquet")), "what the marks have passed does not come again"
