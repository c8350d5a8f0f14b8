"""Jobs on a real Spark that append to tables of a lake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors import lane_publisher
from holdfast.connectors.lakes import delta, epochs
from tests.contract.lake_tables import CASES
from tests.spark.jobs import run


def test_large_epochs_are_written_by_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(files: object, rows: object) -> None:
        raise AssertionError("rows came through the driver")

    for module in (epochs, lane_publisher):
        monkeypatch.setattr(module, "ELSEWHERE_FROM_BYTES", 1)
    # In this process alone: tasks have modules of their own.
    monkeypatch.setattr(delta._DataFiles, "written", here)
    case, job = CASES["delta"](tmp_path), hf.Job("numbers")
    source = job.source(hf.MemorySource([(n,) for n in range(100)], schema="n long"), uid="rows")
    source.sink(case.sink("numbers"), uid="out")
    run(job, spark, tmp_path / "checkpoint", max_rows_per_epoch=40)
    assert case.numbers("numbers") == list(range(100))


@pytest.mark.parametrize("format", CASES)
def test_rows_that_a_table_loses_between_two_runs_are_not_passed_over(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    """It comes back from an older copy, or is made again; nothing waits for it then."""
    lake, older, newer = tmp_path / "lake", tmp_path / "older", tmp_path / "newer"
    lake.mkdir()
    case = CASES[format](lake)

    def run_with(rows: int) -> None:
        job = hf.Job("numbers")
        source = job.source(hf.MemorySource([(n,) for n in range(rows)], schema="n long"), uid="rows")
        source.sink(case.sink("numbers"), uid="out")
        run(job, spark, tmp_path / "checkpoint", max_rows_per_epoch=1)

    def bring_back(copy: Path) -> None:
        shutil.rmtree(lake)
        shutil.copytree(copy, lake)

    run_with(1)
    shutil.copytree(lake, older)
    run_with(2)
    shutil.copytree(lake, newer)
    bring_back(older)
    told = r"'out' went back: .* up to epoch 2, and .* up to epoch 1 .* epochs 2 to 2 are not there"
    with pytest.raises(hf.SinkWentBack, match=told):
        run_with(3)
    case.drop("numbers")
    with pytest.raises(hf.SinkWentBack, match="there is no trace of them"):
        run_with(3)
    bring_back(newer)
    run_with(3)
    assert case.numbers("numbers") == [0, 1, 2]
