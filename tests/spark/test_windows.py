"""Windows on a real Spark: crashes, other numbers of shards, operators in a row, input that goes on."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors.memory import CRASH, SimulatedCrash
from holdfast.errors import RestoreError
from tests.spark.jobs import run

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "user string, ts timestamp, value long"


def events(seconds: range) -> list[Any]:
    """A row each second, out of order by up to three seconds."""
    return [(f"u{n % 4}", START + timedelta(seconds=n ^ 3), n) for n in seconds]


def floor(at: datetime, size: int) -> datetime:
    return START + timedelta(seconds=(at.replace(tzinfo=UTC) - START).total_seconds() // size * size)


class Largest(hf.WindowFunction):
    output = "user string, total long"

    def process(self, window: hf.WindowBounds, rows: Any, ctx: Any) -> Any:
        best = sorted(rows, key=lambda row: (-row.total, row.user))[0]
        yield best.user, best.total


def windows(rows: list[Any], sums: hf.Sink, best: hf.Sink, visits: hf.Sink, size: str = "10s") -> hf.Job:
    """Sums per user and window, the largest of each window, and sessions, from the same rows."""
    job = hf.Job("windows")
    given = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="rows").watermark("ts", delay="4s")
    per_user = (
        given.key_by("user")
        .window(hf.tumbling(size), on="ts")
        .aggregate(uid="per-user", total=hf.sum("value"), n=hf.count())
    )
    per_user.sink(sums, uid="sums")
    named = per_user.transform(lambda df: df.selectExpr("window_start as began", "user", "total"))
    named.key_by("began").window(hf.tumbling(size), on="began").process(Largest(), uid="best").sink(
        best, uid="best-out"
    )
    visited = given.key_by("user").window(hf.session("3s"), on="ts")
    visited.aggregate(uid="visits", n=hf.count()).sink(visits, uid="visits-out")
    return job


SUMS = ("user", "window_start", "window_end", "total", "n", "revision")
BEST = ("began", "window_start", "window_end", "user", "total", "revision")
VISITS = ("user", "window_start", "window_end", "n", "revision", "deleted")


def shown(sink: hf.MemorySink, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in sink.rows()]


def told(sink: hf.MemorySink, names: tuple[str, ...], *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in columns) for row in shown(sink, names))


def test_windows_survive_crashes_and_other_numbers_of_shards(spark: SparkSession, tmp_path: Path) -> None:
    rows, sums, best, visits = events(range(60)), hf.MemorySink(), hf.MemorySink(), hf.MemorySink()
    with_crashes = [*rows[:13], CRASH, *rows[13:31], CRASH, *rows[31:]]
    job = windows(with_crashes, sums, best, visits)
    for shards in (2, 1, 3):
        try:
            run(job, spark, tmp_path, until="exhausted", max_rows_per_epoch=7, parallelism=shards)
        except SimulatedCrash:
            continue
    totals: dict[tuple[str, datetime], int] = {}
    for user, at, value in rows:
        totals[user, floor(at, 10)] = totals.get((user, floor(at, 10)), 0) + value
    found = told(sums, SUMS, "user", "window_start", "total")
    assert found == Counter((*key, total) for key, total in totals.items())
    largest = {
        began: sorted((-total, user) for (user, at), total in totals.items() if at == began)[0]
        for began in {at for _, at in totals}
    }
    assert told(best, BEST, "window_start", "user", "total") == Counter(
        (began, user, -total) for began, (total, user) in largest.items()
    )
    assert sum(row["n"] for row in shown(visits, VISITS)) == len(rows)
    assert not any(row["deleted"] for row in shown(visits, VISITS))


def test_another_size_is_refused_with_what_is_stored(spark: SparkSession, tmp_path: Path) -> None:
    sinks = [hf.MemorySink() for _ in range(3)]
    run(windows(events(range(20)), *sinks), spark, tmp_path, until="exhausted", parallelism=1)
    other = windows(events(range(20)), *sinks, size="20s")
    with pytest.raises(RestoreError, match=r"tumbling windows of 10s(.|\n)*tumbling windows of 20s"):
        run(other, spark, tmp_path, until="exhausted", parallelism=1)


def test_a_job_whose_input_ended_goes_on_with_new_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows, sinks = events(range(25)), [hf.MemorySink() for _ in range(3)]
    run(windows(rows[:13], *sinks), spark, tmp_path, until="exhausted", parallelism=2)
    run(windows(rows, *sinks), spark, tmp_path, until="exhausted", parallelism=2)
    newest: dict[Any, tuple[int, int]] = {}
    for row in shown(sinks[0], SUMS):
        key, now = (row["user"], row["window_start"]), (row["revision"], row["n"])
        newest[key] = max(newest.get(key, now), now)
    counted = Counter((user, floor(at, 10)) for user, at, _ in rows)
    assert {key: n for key, (_, n) in newest.items()} == dict(counted)


@pytest.mark.parametrize("type", ["timestamp", "timestamp_ntz"])
def test_the_first_and_the_last_time_there_is_end_no_job(
    spark: SparkSession, tmp_path: Path, type: str
) -> None:
    """What stands for no time in other systems. The first is late; after the last everything is."""
    first, last, second = -(1 << 63), (1 << 63) - 1, 1_000_000
    rows = [(at,) for at in (0, first, 21 * second, 42 * second, last, 63 * second, 84 * second)]
    counts, late = hf.MemorySink(), hf.MemorySink()
    job = hf.Job("edges")
    given = job.source(hf.MemorySource(rows, schema="micros long"), uid="rows").transform(
        lambda df: df.selectExpr("micros", "1 as one", f"cast(timestamp_micros(micros) as {type}) as ts")
    )
    per_window = given.watermark("ts", delay="4s").key_by("one").window(hf.tumbling("10s"), on="ts")
    counted = per_window.aggregate(uid="counts", n=hf.count())
    counted.transform(lambda df: df.selectExpr("n")).sink(counts, uid="out")
    counted.late().transform(lambda df: df.selectExpr("micros")).sink(late, uid="late")
    run(job, spark, tmp_path, until="exhausted", max_rows_per_epoch=1, parallelism=1)
    assert counts.rows() == [(1,)] * 4
    assert sorted(late.rows()) == [(first,), (84 * second,), (last,)]
