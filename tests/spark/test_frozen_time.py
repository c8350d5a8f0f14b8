"""A checkpoint with everything open that goes by event time, as an earlier version wrote it, goes on as if it
had never been left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain
from holdfast.storage.urls import open_storage
from tests.fixtures.in_time import DIRECTORY, EPOCHS, run

Shown = dict[str, dict[int, list[Any]]]


def shown(sinks: dict[str, hf.MemorySink]) -> Shown:
    """Sink -> epoch -> its rows."""
    return {
        name: {
            epoch: sorted(map(str, (row for table in tables for row in table.to_pylist())))
            for epochs in sink._shown.values()
            for epoch, tables in epochs.items()
        }
        for name, sink in sinks.items()
    }


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """What a run shows that was never interrupted."""
    sinks: dict[str, hf.MemorySink] = {}
    run(tmp_path_factory.mktemp("whole") / "ck", sinks, spark=spark, parallelism=2)
    return shown(sinks)


@pytest.mark.parametrize("parallelism", [2, 3])
def test_what_was_open_goes_on(spark: SparkSession, tmp_path: Path, whole: Shown, parallelism: int) -> None:
    shutil.copytree(DIRECTORY, tmp_path / "ck")
    view = Chain(open_storage(str(DIRECTORY))).load()
    sinks: dict[str, hf.MemorySink] = {}
    run(tmp_path / "ck", sinks, spark=spark, parallelism=parallelism)
    for name, epochs in shown(sinks).items():
        published = view.published_through[f"{name}-out"]
        assert 0 < published < EPOCHS
        rest = {epoch: rows for epoch, rows in whole[name].items() if epoch > published and rows}
        assert rest
        assert {epoch: rows for epoch, rows in epochs.items() if rows} == rest, name
