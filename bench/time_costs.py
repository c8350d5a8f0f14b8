"""What does event time cost?

    python -m bench.time_costs [--only timers panes joins open-timers] [--slices 5] [--out time-costs.json]

    timers       a value and one timer for each row, beside Spark's transformWithState doing the same
    panes        a sliding window of 60 panes beside a tumbling one of the same size
    joins        an interval join beside Spark's own stream-stream join
    open-timers  epochs in which 100 timers are due, with 1,000,000 open ones beside 1,000

One session, two cores, the same files, Parquet out. A figure is the median from commit to commit (Spark's:
`batchDuration`) after a warm-up; what is compared runs in one process, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import holdfast as hf
from bench.holdfast_runs import CommitTimes
from bench.spark_baselines import batch_durations_ms, session, write_batch
from bench.workload import mixed

WARM_UP = 3
SCHEMA = "k long, ts timestamp, value long"
START_US = 1_700_000_000_000_000
Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Slices of rows whose times go on by `seconds` a slice."""

    keys: int
    rows: int
    seconds: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows a slice over {self.keys:,} keys in {self.seconds} s"

    def write(self, directory: Path, slices: int, side: int = 0) -> str:
        """One file a slice, in an order that file sources keep."""
        directory.mkdir(parents=True)
        for number in range(slices):
            ids = np.arange(number * self.rows, (number + 1) * self.rows, dtype=np.uint64)
            keys = mixed(ids + np.uint64(side << 50)) % np.uint64(self.keys)
            times = START_US + (ids * np.uint64(self.seconds * 1_000_000)) // np.uint64(self.rows)
            columns = {
                "k": keys.astype(np.int64),
                "ts": pa.array(times.astype(np.int64)).cast(pa.timestamp("us", "UTC")),
                "value": (ids % np.uint64(1_000)).astype(np.int64),
            }
            path = directory / f"slice-{number:06d}.parquet"
            pq.write_table(pa.table(columns), path, row_group_size=max(1, self.rows // 2))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        return str(directory)


class Deadline(hf.KeyedFunction):
    """Adds up, and says what there is when a while has passed since a row."""

    output = "k long, total long"
    total = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> None:
        self.total.value += row.value
        ctx.timers.event(row.ts)

    def on_timer(self, at: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        yield ctx.key, self.total.value


class SparkDeadline(StatefulProcessor):
    """The same for transformWithState."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.total.get()
        total = before[0] if before else 0
        for row in rows:
            total += row.value
            self.handle.registerTimer(round(row.ts.timestamp() * 1_000))
        self.total.update((total,))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        kept = self.total.get()
        yield Row(k=key[0], total=kept[0] if kept else 0)

    def close(self) -> None:
        pass


def holdfast_ms(spark: SparkSession, build: Callable[[hf.Job, Path], Any], slices: int, rows: int) -> float:
    """Milliseconds a slice of the job that `build` declares in a directory."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        place, job, times = Path(scratch), hf.Job("time-costs"), CommitTimes()
        build(job, place).sink(hf.FileSink(place / "out", format="parquet"), uid="out")
        job.run(
            place / "checkpoint",
            spark=spark,
            until="exhausted",
            max_rows_per_epoch=rows,
            working_dir=place / "working",
            on_progress=times,
            on_message=lambda _: None,
        )
        assert ds.dataset(place / "out").count_rows() > 0, "nothing came out: nothing measured here counts"
    return statistics.median(times.gaps_ms(WARM_UP)[:slices])


def spark_ms(
    spark: SparkSession, build: Callable[[SparkSession, Path], DataFrame], slices: int, mode: str
) -> float:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        place = Path(scratch)
        writer = build(spark, place).writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        query = writer.foreachBatch(partial(write_batch, str(place / "out"))).start()
        durations = batch_durations_ms(query)[WARM_UP:]
        rows = ds.dataset(place / "out", partitioning="hive").count_rows()
        assert rows > 0, "nothing came out: nothing measured here counts"
    return statistics.median(durations[:slices])


def read_stream(spark: SparkSession, directory: str) -> DataFrame:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(directory)
    return stream.withWatermark("ts", "0 seconds")


def timed_source(job: hf.Job, directory: str, uid: str = "rows") -> Any:
    source = hf.FileSource(directory, format="parquet", schema=SCHEMA)
    return job.source(source, uid=uid).watermark("ts", delay="0s")


def timers(spark: SparkSession, slices: int) -> Figures:
    """Rows a second, and how many times as many. Spark's way is too slow for the large workload; the small
    one has as many rows for each key."""

    def ours(workload: Timed, job: hf.Job, place: Path) -> Any:
        rows = timed_source(job, workload.write(place / "in", WARM_UP + slices + 1))
        return rows.key_by("k").process(Deadline(), uid="deadlines")

    def spark_way(workload: Timed, spark: SparkSession, place: Path) -> DataFrame:
        rows = read_stream(spark, workload.write(place / "in", WARM_UP + slices + 1))
        return rows.groupBy("k").transformWithState(
            SparkDeadline(), "k long, total long", "Append", "EventTime"
        )

    small = Timed(keys=20_000, rows=50_000, seconds=10)
    large = Timed(keys=100_000, rows=250_000, seconds=10)
    rate = {
        "holdfast, small": small.rows / holdfast_ms(spark, partial(ours, small), slices, small.rows),
        "holdfast": large.rows / holdfast_ms(spark, partial(ours, large), slices, large.rows),
        "spark, small": small.rows / spark_ms(spark, partial(spark_way, small), slices, "append"),
    }
    found: Figures = {f"{name}: rows/s": round(each * 1_000) for name, each in rate.items()}
    found["holdfast / spark, both small"] = round(rate["holdfast, small"] / rate["spark, small"], 1)
    found["holdfast / spark, small"] = round(rate["holdfast"] / rate["spark, small"], 1)
    return found


def panes(spark: SparkSession, slices: int) -> Figures:
    workload = Timed(keys=1_000, rows=1_000_000, seconds=10)
    windows = {"tumbling": hf.tumbling("60s"), "sliding": hf.sliding("60s", every="1s")}

    def build(window: Any, job: hf.Job, place: Path) -> Any:
        # As many slices before the warm-up ends as a window is long: then windows close in every epoch.
        keyed = timed_source(job, workload.write(place / "in", 6 + WARM_UP + slices)).key_by("k")
        return keyed.window(window, on="ts").aggregate(uid="windows", total=hf.sum("value"), n=hf.count())

    found: Figures = {}
    for name, window in windows.items():
        ms = holdfast_ms(spark, partial(build, window), 6 + slices, workload.rows)
        found[f"{name}: ms a slice"] = round(ms, 1)
    found["sliding / tumbling"] = round(found["sliding: ms a slice"] / found["tumbling: ms a slice"], 2)
    return found


def joins(spark: SparkSession, slices: int) -> Figures:
    workload = Timed(keys=50_000, rows=100_000, seconds=10)

    def sides(place: Path) -> list[str]:
        return [workload.write(place / f"in{side}", WARM_UP + slices + 1, side) for side in (0, 1)]

    def ours(job: hf.Job, place: Path) -> Any:
        left, right = (timed_source(job, each, f"rows{n}").key_by("k") for n, each in enumerate(sides(place)))
        return left.interval_join(right, on="ts", within=("-5s", "5s"), uid="pairs")

    def spark_way(spark: SparkSession, place: Path) -> DataFrame:
        left, right = (read_stream(spark, each) for each in sides(place))
        right = right.toDF("k2", "ts2", "value2")
        near = "k = k2 and ts2 >= ts - interval 5 seconds and ts2 <= ts + interval 5 seconds"
        return left.join(right, expr(near))

    rate = {
        "holdfast": 2 * workload.rows / holdfast_ms(spark, ours, slices, workload.rows),
        "spark": 2 * workload.rows / spark_ms(spark, spark_way, slices, "append"),
    }
    found: Figures = {f"{name}: rows/s": round(each * 1_000) for name, each in rate.items()}
    return {**found, "holdfast / spark": round(rate["holdfast"] / rate["spark"], 2)}


DUE, TAIL = 100, 40


class Reminder(hf.KeyedFunction):
    """One timer for each key."""

    output = "k long"

    def process(self, row: Any, ctx: Any) -> None:
        ctx.timers.event(row.at)

    def on_timer(self, at: Any, ctx: Any) -> Iterator[tuple[int]]:
        yield (ctx.key,)


def reminders(count: int, total: int, place: Path) -> hf.Job:
    """Ids below `count` set timers far away; those after it come DUE a second, and are due in the next."""
    second = f"10 + (id - {count}) div {DUE}"
    columns = {
        "k": "id",
        "ts": f"timestamp_seconds(if(id < {count}, 0, {second}))",
        "at": f"timestamp_seconds(if(id < {count}, 4000000000, {second}))",
    }
    source = hf.GeneratorSource(columns, schema="k long, ts timestamp, at timestamp", total=total)
    job = hf.Job("open-timers")
    rows = job.source(source, uid="ids").watermark("ts", delay="0s").key_by("k")
    rows.process(Reminder(), uid="reminders").sink(hf.FileSink(place / "out", format="parquet"), uid="out")
    return job


def open_timers(spark: SparkSession, slices: int) -> Figures:
    """Stopped as soon as all rows are read: an exhausted run would fire what is open."""
    found: Figures = {}
    for count in (1_000, 1_000_000):
        times = CommitTimes()
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
            place = Path(scratch)
            for total, rows in ((count, 250_000), (count + DUE * TAIL, DUE)):
                times.at.clear()
                handle = reminders(count, total, place).start(
                    place / "checkpoint",
                    spark=spark,
                    max_rows_per_epoch=rows,
                    working_dir=place / "working",
                    on_progress=times,
                    on_message=lambda _: None,
                )
                while handle.running and (handle.status().lag_rows != 0 or not handle.status().rows):
                    time.sleep(0.05)
                handle.stop()
                handle.wait()
        found[f"{count:,} open: ms an epoch"] = round(statistics.median(times.gaps_ms(0)[-TAIL // 2 :]), 1)
    small, large = found.values()
    return {**found, "1,000,000 / 1,000": round(large / small, 2)}


BENCHES = {"timers": timers, "panes": panes, "joins": joins, "open-timers": open_timers}


def main() -> None:
    parser = argparse.ArgumentParser(description="what event time costs")
    parser.add_argument("--only", nargs="*", choices=BENCHES, default=tuple(BENCHES))
    parser.add_argument("--slices", type=int, default=5, help="slices that count, after the warm-up (5)")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 2)}
    spark = session()
    for name in given.only:
        found[name] = BENCHES[name](spark, given.slices)
        print(name, json.dumps(found[name]), flush=True)
    spark.stop()
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
