"""The latency of real jobs, whose rows and sinks have clocks of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.generator import GeneratorReader
from holdfast.connectors.memory import MemoryPublisher

RATE, ROWS = 100.0, 150
DELAY_SECONDS = 0.4


class Clocked(hf.GeneratorSource):
    """A generator that keeps its reader, which knows when it started."""

    opened: GeneratorReader

    def reader(self, notes: Sequence[Any]) -> GeneratorReader:
        self.opened = super().reader(notes)
        return self.opened


class Slow(hf.MemorySink):
    """A sink that takes its time, and says when each row was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown_ms: dict[int, float] = {}

    def publisher(self, job: str, uid: str) -> MemoryPublisher:
        sink, publisher = self, super().publisher(job, uid)

        class Slowly(MemoryPublisher):
            def __init__(self) -> None:
                super().__init__(publisher._shown)

            def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
                time.sleep(DELAY_SECONDS)
                super().publish(epoch, parts)
                for table in (part.load() for part in parts):
                    sink.shown_ms |= dict.fromkeys(table.column("n").to_pylist(), time.time() * 1_000)

        return Slowly()


def run(job: hf.Job, spark: SparkSession, root: Path, **options: Any) -> list[hf.Progress]:
    """To its end; gives back all that it told."""
    told: list[hf.Progress] = []
    job.run(
        root / "ck", spark=spark, until="exhausted", parallelism=2, working_dir=root / "working",
        on_progress=told.append, on_message=lambda _: None, restart=hf.NoRestart(), **options,
    )  # fmt: skip
    return told


def latencies(told: list[hf.Progress], sink: str) -> list[dict[str, float]]:
    """What was said of a sink, whenever it had shown rows in the last minute."""
    found = [progress.sinks[sink]["latency"] for progress in told if progress.sinks]
    return [each for each in found if each and each["p50"] is not None]


def test_latency_is_counted_from_the_clock_of_the_rows_to_that_of_the_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, slow, also = Clocked(["id"], schema="n long", rows_per_second=RATE, total=ROWS), Slow(), Slow()
    job = hf.Job("clocked")
    rows = job.source(source, uid="rows")
    rows.sink(slow, uid="slow")
    rows.sink(also, uid="also")
    told = run(job, spark, tmp_path, target_latency="1s", max_rows_per_epoch=60)
    assert told[-1].target_latency == 1.0
    ended_ms, started_ms = time.time() * 1_000, source.opened._started_ms
    assert started_ms is not None
    assert sorted(slow.shown_ms) == list(range(ROWS))
    arrived_ms = {row: started_ms + (row + 1) * 1_000 / RATE for row in range(ROWS)}
    for uid, sink in (("slow", slow), ("also", also)):
        end = told[-1].sinks[uid]["latency"]
        assert end["rows"] == ROWS, "each once"
        at_least = sum(sink.shown_ms[row] - arrived_ms[row] for row in range(ROWS)) / 1_000
        at_most = sum(ended_ms - arrived_ms[row] for row in range(ROWS)) / 1_000
        # Clocks are read in whole milliseconds.
        assert at_least - 0.01 * ROWS <= end["seconds"] <= at_most
        assert latencies(told, uid)
        for each in latencies(told, uid):
            assert DELAY_SECONDS < each["p50"] <= each["p95"] <= each["p99"]


def test_files_are_as_old_as_they_say(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    now = time.time()
    for name, age, rows in (("a", 3_600, 90), ("b", 60, 10)):
        path = tmp_path / "in" / f"{name}.json"
        path.write_text('{"n": 1}\n' * rows)
        os.utime(path, (now - age, now - age))
    job = hf.Job("files")
    source = hf.FileSource(tmp_path / "in", format="json", schema="n long")
    job.source(source, uid="rows").sink(hf.FileSink(tmp_path / "out", format="parquet"), uid="out")
    told = run(job, spark, tmp_path)
    assert told[-1].sinks["out"]["latency"]["rows"] == 100
    shortest = 90 * 3_600 + 10 * 60
    assert shortest - 1 <= told[-1].sinks["out"]["latency"]["seconds"] <= shortest + 100 * (time.time() - now)
    assert max(each["p50"] for each in latencies(told, "out")) >= 3_600 * 0.95


def test_rows_that_never_arrived_have_no_latency(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("silent")
    job.source(hf.MemorySource([1, 2, 3]), uid="rows").sink(hf.MemorySink(), uid="out")
    assert run(job, spark, tmp_path)[-1].sinks["out"]["latency"] is None
