"""Sinks that are written from tasks on a real Spark: many lanes, workers killed while they write, and no row
of a large epoch through the driver."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.admin import brief_term
from holdfast.connectors import lane_publisher
from holdfast.connectors.lanes import LaneMark, LaneRows, Result
from holdfast.errors import SinkFailed
from holdfast.tasks import task_output
from holdfast.testing.sqlite_lanes import OpenSqliteLanes, SqliteLaneSink, SqliteLaneWriter
from tests.spark.jobs import (
    ROWS,
    check_sequences,
    expected_totals,
    rewind,
    run,
    run_through_crashes,
    sequence_job,
)


@dataclass(frozen=True)
class Watched(SqliteLaneSink):
    """Notes which process writes which lane. `kill`: the first that is in the middle of a lane dies."""

    notes: str = ""
    kill: bool = False

    def lane_writer(self, job: str, uid: str) -> SqliteLaneWriter:
        return WatchedWriter(self.path, job, uid, self.chunk_rows, self.notes, self.kill)


@dataclass(frozen=True)
class WatchedWriter(SqliteLaneWriter):
    notes: str = ""
    kill: bool = False

    def open(self, term: int) -> OpenSqliteLanes:
        return WatchedLanes(self, super().open(term)._file)


class WatchedLanes(OpenSqliteLanes):
    def __init__(self, writer: WatchedWriter, file: Any) -> None:
        super().__init__(writer, file)
        self._watched = writer

    def write(self, rows: LaneRows) -> Result:
        with Path(self._watched.notes, "writes").open("a") as notes:
            notes.write(f"{os.getpid()} {rows.lane}\n")
        return super().write(rows)

    def _write(self, rows: LaneRows, encoded: list[str]) -> Result | None:
        done = super()._write(rows, encoded)
        # Rows of the chunk are in the transaction, and some of the lane are shown.
        if self._watched.kill and done is not None and _first(Path(self._watched.notes, "killed")):
            os.kill(os.getpid(), signal.SIGKILL)
        return done


@dataclass(frozen=True)
class Halved(SqliteLaneSink):
    """Shows the first rows of lanes 0 and 1 of epoch 3, and none of its other lanes, while it is `stuck`."""

    stuck: str = ""

    def lane_writer(self, job: str, uid: str) -> SqliteLaneWriter:
        return HalvedWriter(self.path, job, uid, self.chunk_rows, self.stuck)


@dataclass(frozen=True)
class HalvedWriter(SqliteLaneWriter):
    stuck: str = ""

    def open(self, term: int) -> OpenSqliteLanes:
        return HalvedLanes(self, super().open(term)._file)


class HalvedLanes(OpenSqliteLanes):
    def __init__(self, writer: HalvedWriter, file: Any) -> None:
        super().__init__(writer, file)
        self._stuck = Path(writer.stuck)

    def _write(self, rows: LaneRows, encoded: list[str]) -> Result | None:
        began = self._mark(rows.lane) >= LaneMark(3)  # type: ignore[operator]
        if rows.epoch == 3 and self._stuck.exists() and (began or rows.lane > 1):
            raise OSError("no room")
        return super()._write(rows, encoded)


def _first(token: Path) -> bool:
    try:
        token.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def shown(sink: SqliteLaneSink) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in sink.rows("out")]


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small epochs are taken for large ones."""
    monkeypatch.setattr(lane_publisher, "ELSEWHERE_FROM_BYTES", 0)
    monkeypatch.setattr(lane_publisher, "HERE_BELOW_BYTES", 0)


@pytest.mark.usefixtures("in_tasks")
def test_lanes_are_written_by_tasks_and_no_row_passes_through_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = task_output.read_extent

    def noted(storage: Any, extent: Any) -> bytes:
        read.append(extent.object)
        return real(storage, extent)

    # Workers are processes of their own: only what the driver reads is seen here.
    monkeypatch.setattr(task_output, "read_extent", noted)
    sink = Watched(str(tmp_path / "out.db"), notes=str(tmp_path))
    run(sequence_job(ROWS, sink), spark, tmp_path / "ck", parallelism=5)
    check_sequences(shown(sink), expected_totals())
    assert not read
    writes = [line.split() for line in (tmp_path / "writes").read_text().splitlines()]
    assert len({lane for _, lane in writes}) > 1
    assert str(os.getpid()) not in {pid for pid, _ in writes}


@pytest.mark.usefixtures("in_tasks")
@pytest.mark.parametrize("chunk_rows", [None, 3], ids=["lane", "chunk"])
def test_a_worker_killed_while_it_writes_repeats_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, chunk_rows: int | None
) -> None:
    sink = Watched(str(tmp_path / "out.db"), chunk_rows, notes=str(tmp_path), kill=True)
    run(sequence_job(ROWS, sink), spark, tmp_path / "ck", parallelism=2)
    assert (tmp_path / "killed").exists()
    check_sequences(shown(sink), expected_totals())


def test_small_epochs_are_written_by_the_driver_through_crashes_and_other_parallelism(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Watched(str(tmp_path / "out.db"), 4, notes=str(tmp_path))
    rows: list[Any] = [*ROWS[:60], hf.CRASH, *ROWS[60:61], hf.CRASH, *ROWS[61:]]
    assert run_through_crashes(sequence_job(rows, sink), spark, tmp_path / "ck", parallelism=3) == 2
    check_sequences(shown(sink), expected_totals())
    writes = [line.split() for line in (tmp_path / "writes").read_text().splitlines()]
    assert {pid for pid, _ in writes} == {str(os.getpid())}


@pytest.mark.usefixtures("in_tasks")
def test_an_epoch_that_is_shown_by_half_is_whole_after_a_rewind_with_other_parallelism(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed again with two shards its rows would be in other lanes."""
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)
    stuck, checkpoint = tmp_path / "stuck", tmp_path / "ck"
    sink = Halved(str(tmp_path / "out.db"), 2, stuck=str(stuck))
    stuck.touch()
    with pytest.raises(SinkFailed, match="no room"):
        run(sequence_job(ROWS[:150], sink), spark, checkpoint, parallelism=5)
    before = shown(sink)
    assert 100 < len(before) < 150
    assert rewind(checkpoint, 1)["replayed"] == 2
    stuck.unlink()
    run(sequence_job(ROWS, sink), spark, checkpoint, parallelism=2)
    after = shown(sink)
    check_sequences(after, expected_totals())
    assert Counter(before) <= Counter(after), "what was shown stays"


def test_any_writer_of_spark_is_a_sink_at_least_once(spark: SparkSession, tmp_path: Path) -> None:
    epochs: list[int] = []

    def into_parquet(df: Any, epoch: int) -> None:
        df.write.mode("append").parquet(str(tmp_path / "out"))
        epochs.append(epoch)

    job = sequence_job(ROWS, hf.ForeachEpochSink(into_parquet))
    with pytest.raises(hf.DefinitionError, match="ForeachEpochSink gives at-least-once"):
        run(job, spark, tmp_path / "refused")
    run(job, spark, tmp_path / "ck", guarantee="at-least-once", parallelism=3)
    rows = [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    check_sequences(rows, expected_totals())
    assert epochs == sorted(epochs)
    assert len(epochs) > 1
