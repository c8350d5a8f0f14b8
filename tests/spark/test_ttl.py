"""States with a ttl, in jobs on a real Spark: removed without input, and never back from a savepoint."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.clock import SystemClock
from holdfast.inspect.stored_state import open_stored, state_entries
from holdfast.runtime.savepoints.savepoint import Savepoint
from tests.chaos.harness import wait_until
from tests.spark.jobs import run

USERS = [f"u{number}" for number in range(40)]
WRITES: list[tuple[str, bool]] = [(user, True) for user in USERS]
LOOKS = [(user, False) for user in USERS]
SCHEMA = "user string, write boolean"


class Kept(hf.KeyedFunction):
    output = "user string, value long, items long, entries long, epoch long"
    value = hf.ValueState("long", ttl="1h")
    items = hf.ListState("long", ttl="1h")
    entries = hf.MapState("string", "long", ttl="1h")

    def process(self, row: Any, ctx: Any) -> Any:
        if row.write:
            self.value.value = 1
            self.items.append(1)
            self.entries[row.user] = 1
        yield row.user, self.value.value, len(self.items), len(self.entries), ctx.epoch


class ShiftedClock(SystemClock):
    """The machine's clock, ahead by as many hours as a test says."""

    hours = 0

    def now_ms(self) -> int:
        return super().now_ms() + type(self).hours * 3_600_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[ShiftedClock]:
    monkeypatch.setattr(ShiftedClock, "hours", 0)
    monkeypatch.setattr("holdfast.runtime.job_handle.SystemClock", ShiftedClock)
    return ShiftedClock


def job(rows: list[Any], sink: hf.MemorySink) -> hf.Job:
    job = hf.Job("kept")
    source = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="rows")
    source.key_by("user").process(Kept(), uid="kept").sink(sink, uid="out")
    return job


def stored(checkpoint: Path) -> int:
    """How many entries the newest commit holds."""
    return sum(len(list(part)) for part in state_entries(open_stored(str(checkpoint)), "kept"))


def test_a_running_job_removes_what_has_expired_without_input(
    spark: SparkSession, tmp_path: Path, clock: type[ShiftedClock]
) -> None:
    sink, place = hf.MemorySink(), tmp_path / "ck"
    handle = job(WRITES, sink).start(place, spark=spark, working_dir=tmp_path / "working")
    try:
        wait_until(lambda: len(sink.rows()) == len(WRITES), "the rows are shown")
        assert stored(place) == 4 * len(USERS)
        clock.hours = 2
        wait_until(lambda: stored(place) == 0, "what has expired is removed")
    finally:
        handle.stop()
        handle.wait(60)
    assert len(sink.rows()) == len(WRITES), "an epoch without input shows nothing"


def test_what_has_expired_does_not_come_back_from_a_savepoint(
    spark: SparkSession, tmp_path: Path, clock: type[ShiftedClock]
) -> None:
    sink = hf.MemorySink()
    handle = job(WRITES, sink).start(tmp_path / "ck", spark=spark, working_dir=tmp_path / "working")
    wait_until(lambda: len(sink.rows()) == len(WRITES), "the rows are shown")
    handle.stop(savepoint=str(tmp_path / "native"))
    handle.wait(60)
    Savepoint.open(str(tmp_path / "native")).convert(str(tmp_path / "canonical"), spark, key_groups=16)
    for hours, seen in ((0, (1, 1, 1)), (2, (None, 0, 0))):
        clock.hours = hours
        shown, place = hf.MemorySink(), tmp_path / f"after-{hours}"
        run(
            job([*WRITES, *LOOKS], shown), spark, place,
            from_savepoint=str(tmp_path / "canonical"), key_groups=16, parallelism=3,
        )  # fmt: skip
        assert {row[1:4] for row in shown.rows()} == {seen}
        assert stored(place) == (0 if hours else 4 * len(USERS))


class ByEventTime(hf.KeyedFunction):
    output = "user string, value long"
    value = hf.ValueState("long", ttl="10s", clock="event")

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.user, self.value.value
        self.value.value = row.n


def test_event_time_ends_state_by_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """One row an epoch. The watermark of an epoch is the newest time of those before."""
    times = [("a", 1, 0), ("b", 2, 4), ("a", 3, 8), ("a", 4, 30), ("a", 5, 31)]
    rows = [(user, n, datetime(2026, 1, 1, 0, 0, second)) for user, n, second in times]
    sink, timed = hf.MemorySink(), hf.Job("timed")
    source = timed.source(hf.MemorySource(rows, schema="user string, n long, ts timestamp"), uid="rows")
    seen = source.watermark("ts", delay="0s").key_by("user").process(ByEventTime(), uid="kept")
    seen.sink(sink, uid="out")
    run(timed, spark, tmp_path / "ck", max_rows_per_epoch=1)
    assert sorted(sink.rows(), key=str) == sorted(
        [("a", None), ("b", None), ("a", 1), ("a", 3), ("a", None)], key=str
    )
