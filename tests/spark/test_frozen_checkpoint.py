"""Checkpoints that earlier versions wrote are restored, state and all. tests/fixtures holds one per
version.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain
from holdfast.storage.urls import open_storage
from tests.fixtures.everything import (
    FROZEN_EPOCHS,
    ROWS_PER_EPOCH,
    TOTAL_EPOCHS,
    expected,
    expected_windows,
    job,
)

FROZEN = sorted(
    path for path in (Path(__file__).parents[1] / "fixtures").iterdir() if path.name.startswith("v")
)


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("frozen", FROZEN, ids=lambda path: path.name)
def test_a_frozen_checkpoint_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, frozen: Path, parallelism: int
) -> None:
    shutil.copytree(frozen, tmp_path / "ck")
    # Staged output of the last epochs waits in the checkpoint until a sink has taken it.
    view = Chain(open_storage(str(frozen))).load()
    published = view.published_through["out"]
    assert published < FROZEN_EPOCHS
    sink, windows = hf.MemorySink(), hf.MemorySink()
    timed = "windows" in view.deltas
    job(TOTAL_EPOCHS, sink, windows if timed else None).run(
        tmp_path / "ck",
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=ROWS_PER_EPOCH,
        parallelism=parallelism,
        working_dir=tmp_path / "working",
        on_message=lambda _: None,
    )
    assert sorted(sink.rows()) == sorted(expected(TOTAL_EPOCHS)[published * ROWS_PER_EPOCH :])
    if timed:
        told = view.published_through["windows-out"]
        assert sorted(windows.rows()) == sorted(expected_windows(TOTAL_EPOCHS, told))


def test_there_is_a_frozen_checkpoint_with_snapshots_and_deltas() -> None:
    assert FROZEN
    newest = Chain(open_storage(str(FROZEN[-1]))).load()
    assert all(delta.next_due and delta.next_due.event_us for delta in newest.live_deltas("windows")[-2:])
    for frozen in FROZEN:
        assert list(frozen.glob("snapshots/*/*"))
        assert list(frozen.glob("data/*/*"))
