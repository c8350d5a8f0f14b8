"""A checkpoint with a received log and a sink that is written by lanes, as an earlier version wrote it, goes
on as if it had never been left."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.checkpoint.store.names import MANIFESTS
from holdfast.storage.urls import open_storage
from tests.fixtures.in_lanes import DIRECTORY, LINES, expected, lines, start
from tests.services.line_server import LineServer

MORE = 30
SECONDS = 240.0


def shown(directory: Path) -> Counter[tuple[Any, ...]]:
    files = sorted((directory / "out").glob("*.parquet"))
    return Counter(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())


def test_it_was_left_in_the_middle_of_everything() -> None:
    """Otherwise the test below would show nothing."""
    storage = open_storage(str(DIRECTORY / "checkpoint"))
    view = History(storage).load()
    assert len(view.lanes_through["out"]) > 1, "several lanes have shown rows"
    assert view.published_through["out"] < view.last_epoch, "an epoch is committed and not shown"
    assert storage.list(MANIFESTS), "what lanes have shown is in a manifest, too"
    log = ReceivedLog(storage, "lines", "reader")
    log.look()
    read = view.positions["lines"]["batch"]
    assert sum(batch.rows for batch in log.after(read)), "lines wait in the log"
    assert storage.list("log/lines/floor/"), "batches of the log were let go"
    assert 0 < shown(DIRECTORY).total() < LINES


@pytest.mark.parametrize("parallelism", [3, 2])
def test_what_was_logged_and_what_was_committed_is_shown_once(
    spark: SparkSession, tmp_path: Path, parallelism: int
) -> None:
    shutil.copytree(DIRECTORY, tmp_path / "frozen")
    # All lines of the fixture were acknowledged: nobody has them but the log.
    server = LineServer(lines(LINES, LINES + MORE))
    handle = start(server.port, tmp_path / "frozen", spark=spark, parallelism=parallelism)
    try:
        end = time.monotonic() + SECONDS
        while shown(tmp_path / "frozen").total() < LINES + MORE:
            assert time.monotonic() < end, handle.status()
            time.sleep(0.1)
    finally:
        handle.stop()
        handle.wait(SECONDS)
        server.close()
    assert shown(tmp_path / "frozen") == expected(LINES + MORE)
