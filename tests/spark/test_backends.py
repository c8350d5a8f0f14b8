"""One job on one backend after the other: its state comes along through the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.runtime.epoch import snapshotter
from tests.spark.jobs import ROWS, check_sequences, expected_totals, run, sequence_job


def test_a_job_moves_from_backend_to_backend(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each but the last writes snapshots and is crashed; the next one builds its state from those."""
    monkeypatch.setattr(snapshotter, "DELTAS_MIN", 1)
    monkeypatch.setenv("HOLDFAST_MEMORY_DIR", str(tmp_path))
    sink = hf.MemorySink()
    rows: list[Any] = [*ROWS[:70], hf.CRASH, *ROWS[70:140], hf.CRASH, *ROWS[140:]]
    job = sequence_job(rows, sink)
    checkpoint = tmp_path / "ck"
    written = []
    for backend in ("rocksdb", "lmdb", "memory"):
        # A machine that has never seen the job: there is nothing but the checkpoint to start from.
        options = {"backend": backend, "working_dir": tmp_path / backend, "max_rows_per_epoch": 10}
        if backend == "memory":
            run(job, spark, checkpoint, **options)
        else:
            with pytest.raises(Exception, match="crash"):
                run(job, spark, checkpoint, **options)
        kinds = {path.suffix for path in checkpoint.glob("snapshots/*/*")}
        written.append(kinds)
    check_sequences(sink.rows(), expected_totals())
    assert written[0] == {".rocksdb"}, "there was a snapshot to move by"
    assert ".lmdb" in written[1], "there was a snapshot to move by"
