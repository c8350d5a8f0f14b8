"""A checkpoint of a job in parts, as an earlier version wrote it, goes on as if it had never been left: from
where each part was, and from the barrier that went through all of them."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.admin.rewind_job import retained_barriers, rewind_job
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.clock import SystemClock
from holdfast.runtime.parts.channel_source import Position
from holdfast.runtime.parts.waiting import waiting_in
from holdfast.storage.urls import open_storage
from tests.fixtures.in_parts import DIRECTORY, EPOCHS, HELD, PARTS, ROWS_PER_EPOCH, SINKS, run

CHANNELS = {
    "rows-in": ("main", "windows"), "short-way": ("main", "joined"), "windows-in": ("windows", "joined"),
}  # fmt: skip
Shown = dict[str, Counter[tuple[Any, ...]]]


def shown(directory: Path) -> Shown:
    """Sink -> its rows."""
    tables = {name: pq.read_table(directory / "out" / name) for name in SINKS}
    return {
        name: Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
        for name, table in tables.items()
    }


def views(directory: Path) -> dict[str, CheckpointView]:
    places = {name: open_storage(str(directory / "checkpoint" / "parts" / name)) for name in PARTS}
    return {name: History(place).load() for name, place in places.items()}


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """What a run shows that was never interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    run(directory, spark=spark, parallelism=2)
    found = shown(directory)
    assert found["met"].total() == EPOCHS * ROWS_PER_EPOCH + found["counted"].total()
    return found


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(DIRECTORY, tmp_path / "frozen")


def test_it_was_left_in_the_middle_of_everything() -> None:
    """Otherwise the tests below would show nothing."""
    found = views(DIRECTORY)
    for uid, (sender, reader) in CHANNELS.items():
        channel = found[sender].channels[uid]
        waiting = waiting_in(uid, channel, reader, Position.of(found[reader].positions[uid]))
        assert waiting.rows, f"rows wait in {uid}"
        assert channel.times, f"event time has come through {uid}"
        assert channel.released, f"rows of {uid} were let go"
    assert found["main"].channels["door"].kept == HELD
    assert all(view.barriers for view in found.values())
    assert newest_ending(open_storage(str(DIRECTORY / "checkpoint" / "parts" / "main"))) is None, "killed"


@pytest.mark.parametrize("parallelism", [2, 3])
def test_all_parts_go_on_where_they_were(
    spark: SparkSession, frozen: Path, whole: Shown, parallelism: int
) -> None:
    before = shown(frozen)
    assert all(0 < rows.total() < whole[name].total() for name, rows in before.items())
    run(frozen, spark=spark, parallelism=parallelism)
    assert shown(frozen) == whole


def test_all_parts_go_back_to_the_barrier_and_on_from_there(
    spark: SparkSession, frozen: Path, whole: Shown
) -> None:
    root, sent = str(frozen / "checkpoint"), views(frozen)
    (barrier,) = retained_barriers(root)
    rewind_job(root, barrier.number, SystemClock(), not_running=True)
    for name, view in views(frozen).items():
        assert view.last_epoch < sent[name].last_epoch or name == "joined", name
        assert {uid: list(each.files) for uid, each in view.channels.items()} == {
            uid: list(each.files) for uid, each in sent[name].channels.items()
        }
    run(frozen, spark=spark, parallelism=2)
    assert shown(frozen) == whole


def test_its_door_still_gives_what_it_held(spark: SparkSession, frozen: Path) -> None:
    hf.register_data_sources(spark)
    main = frozen / "checkpoint" / "parts" / "main"
    last = views(frozen)["main"].last_epoch
    reader = spark.read.format("holdfast").option("checkpoint", str(main)).option("channel", "door")
    first_row, end = (last - HELD) * ROWS_PER_EPOCH, last * ROWS_PER_EPOCH
    assert sorted(row.n for row in reader.load().collect()) == list(range(first_row, end))
