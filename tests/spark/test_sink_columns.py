"""What a sink can never show is refused before an epoch is planned; what it accepts is shown, whatever the
values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.runtime import job_handle as job_module
from tests.spark.jobs import run

VALUES = {
    "at": "timestamp_micros(9223372036854775807)",
    "span": "make_dt_interval(-100000000, 0, 0, -1.5)",
    "days": "map(date'2024-02-29', 1, date_add(date'9999-12-31', 1), null)",
    "keys": "map(named_struct('a', id), array(X'FF'))",
    "text": "cast(X'61FF' as string)",
    "odd": "double('NaN')",
}


def declared(format: str, path: Path, *columns: str) -> hf.Job:
    job = hf.Job("columns")
    ids = job.source(hf.GeneratorSource({"id": "id"}, schema="id long", total=1), uid="ids")
    rows = ids.transform(lambda frame: frame.selectExpr("id", *(f"{VALUES[c]} as {c}" for c in columns)))
    rows.sink(hf.FileSink(path, format=format), uid="out")
    return job


def test_values_that_python_cannot_hold_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    run(declared("json", tmp_path / "out", *VALUES), spark, tmp_path / "ck")
    (file,) = (tmp_path / "out").glob("*.json")
    assert json.loads(file.read_text()) == {
        "id": 0,
        "at": "+294247-01-10T04:00:54.775807+00:00",
        "span": "-P100000000DT0H0M1.500000S",
        "days": {"2024-02-29": 1, "+10000-01-01": None},
        "keys": [{"key": {"a": 0}, "value": ["/w=="]}],
        "text": "a\ufffd",
        "odd": "NaN",
    }


def test_columns_behind_a_transform_are_refused_before_an_epoch_is_planned(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(
        hf.DefinitionError,
        match=r"test_sink_columns.py:\d+ sink 'out': csv .* 'days' \(map<date32\[day\], int32>\); use",
    ) as refused:
        run(declared("csv", tmp_path / "out", "at", "days"), spark, tmp_path / "ck")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ck").exists()
    assert not (tmp_path / "out").exists()


def test_columns_that_are_declared_are_refused_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(name: str) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(job_module, "open_session", no_spark)
    job = hf.Job("columns")
    rows = job.source(hf.MemorySource([], schema="user string, tags array<string>"), uid="rows")
    rows.sink(hf.FileSink(tmp_path / "out", format="csv"), uid="out")
    with pytest.raises(hf.DefinitionError, match=r"sink 'out': csv .* 'tags' \(list<item: string>\); use"):
        job.run(tmp_path / "ck")
    assert not (tmp_path / "ck").exists()
