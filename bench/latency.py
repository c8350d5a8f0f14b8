"""How long does a row take, beside Spark Structured Streaming?

    python -m bench.latency [--rates 100 10000 100000] [--turns 5] [--seconds 10] [--out latency.json]

A process of its own puts a Parquet file in place every 100 ms, with a tenth of the rows of a second. Every
contender reads them, keeps a running sum for each of 100,000 keys, and writes the sums that changed as
Parquet files, exactly once. They take turns; the first WARM_UP_SECONDS of each turn do not count.

    holdfast                      as it comes
    holdfast, target 1 s          target_latency="1s"
    spark, default trigger        as it comes, RocksDB as its state store
    spark, fastest                besides, the least wait between micro-batches, changelog checkpoints; the
                                  triggers without micro-batches take no files and no aggregates

Latency is measured from outside, the same way for all: each file names its number, sums carry the highest
number of their rows, and files are read in order. So when output with a number can be read, all files up to
it are shown: each row took from its file's time until then. `own` is what Holdfast says of itself.
A contender that does not keep up is said so: rows that were not shown by the end count as if shown then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.functions import max as newest
from pyspark.sql.functions import sum as total

import holdfast as hf
from bench.spark_baselines import CORES, session, write_batch
from bench.turns import over_turns
from bench.workload import Workload, slice_table

RATES = (100, 10_000, 100_000)
KEYS = 100_000
FILES_PER_SECOND = 10
WARM_UP_SECONDS = 15
LOOK_SECONDS = 0.01
SCHEMA = "k long, value long, number long"
TUNED = {
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
PLAIN = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"}
"""Spark's own defaults, where the session of all benches has others."""
PERCENTS = ("p50", "p95", "p99")
Result = dict[str, Any]


def feed(directory: Path, rate: int) -> None:
    """Put files in place until the process is ended. Small rates have a file for each row or so."""
    workload = Workload(keys=KEYS, rows=max(1, rate // FILES_PER_SECOND))
    began = time.monotonic()
    for number in range(1_000_000):
        rows = slice_table(workload, number)
        rows = rows.append_column("number", [np.full(len(rows), number)])
        unfinished = directory / f".{number:06d}"
        pq.write_table(rows, unfinished)
        time.sleep(max(0.0, began + number / FILES_PER_SECOND - time.monotonic()))
        os.utime(unfinished)
        unfinished.rename(directory / f"{number:06d}.parquet")


@contextmanager
def fed(directory: Path, rate: int) -> Iterator[None]:
    directory.mkdir()
    command = [sys.executable, "-m", "bench.latency", "--feed", str(directory), "--rates", str(rate)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


class Watcher:
    """Sees when output can be read, by any reader: `shown` lists the files that are shown now."""

    def __init__(self, shown: Callable[[], list[Path]]) -> None:
        self._shown, self._ended = shown, threading.Event()
        self.seen: dict[Path, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            now = time.time()
            for path in self._shown():
                self.seen.setdefault(path, now)

    def end(self) -> list[tuple[float, int]]:
        """When output was shown, and the highest number in it, in order of time."""
        self._ended.set()
        self._thread.join()
        found = []
        for path, at in sorted(self.seen.items(), key=lambda each: each[1]):
            numbers = pq.read_table(path, columns=["number"])["number"].to_numpy()
            if len(numbers):
                found.append((at, int(numbers.max())))
        return found


def of_holdfast(out: Path) -> list[Path]:
    return list(out.glob("*.parquet"))


def of_spark(out: Path) -> list[Path]:
    """Micro-batches that are complete: each in a directory of its own."""
    return [part for done in out.glob("batch=*/_SUCCESS") for part in done.parent.glob("*.parquet")]


def latencies(inputs: Path, shown: list[tuple[float, int]], since: float, until: float) -> Result:
    """Of the files that arrived between two times."""
    times, late = [], 0
    waiting = sorted(inputs.glob("*.parquet"))
    highest = -1
    steps = []
    for at, number in shown:
        if number > highest:
            steps.append((at, number))
            highest = number
    for path in waiting:
        arrived, number = path.stat().st_mtime, int(path.stem)
        if not since <= arrived <= until:
            continue
        shown_at = next((at for at, through in steps if through >= number), None)
        late += shown_at is None
        times.append((shown_at or until) - arrived)
    p50, p95, p99 = (round(float(np.quantile(times, share)), 3) for share in (0.5, 0.95, 0.99))
    return {"p50": p50, "p95": p95, "p99": p99, "files": len(times), "not_shown": late}


def run_holdfast(spark: SparkSession, place: Path, seconds: float, **options: Any) -> Result:
    job = hf.Job("latency")
    source = hf.FileSource(place / "in", format="parquet", schema=SCHEMA)
    sums = job.source(source, uid="rows").key_by("k").aggregate(
        uid="sums", total=hf.sum("value"), number=hf.max("number")
    )  # fmt: skip
    (place / "out").mkdir()
    sums.sink(hf.FileSink(place / "out", format="parquet"), uid="out")
    handle = job.start(
        place / "checkpoint", spark=spark, working_dir=place / "working", on_message=lambda _: None, **options
    )
    watcher = Watcher(partial(of_holdfast, place / "out"))
    since, until = measured_between(seconds)
    told = (handle.status().sinks["out"]["latency"] or {}).items()
    handle.stop()
    handle.wait()
    found = latencies(place / "in", watcher.end(), since, until)
    return {**found, "own": {name: value for name, value in told if name.startswith("p")}}


def run_spark(
    spark: SparkSession, place: Path, seconds: float, settings: Mapping[str, str] = PLAIN
) -> Result:
    for name, value in settings.items():
        spark.conf.set(name, value)
    sums = spark.readStream.schema(SCHEMA).parquet(str(place / "in")).groupBy("k")
    changed = sums.agg(total("value").alias("total"), newest("number").alias("number"))
    writer = changed.writeStream.outputMode("update").option("checkpointLocation", str(place / "checkpoint"))
    query = writer.foreachBatch(partial(write_batch, str(place / "out"))).start()
    watcher = Watcher(partial(of_spark, place / "out"))
    since, until = measured_between(seconds)
    query.stop()
    for name in settings:
        spark.conf.unset(name)
    return latencies(place / "in", watcher.end(), since, until)


def measured_between(seconds: float) -> tuple[float, float]:
    """Waits until it is over."""
    since = time.time() + WARM_UP_SECONDS
    time.sleep(WARM_UP_SECONDS + seconds)
    return since, time.time()


CONTENDERS: dict[str, Callable[[SparkSession, Path, float], Result]] = {
    "holdfast": run_holdfast,
    "holdfast, target 1 s": partial(run_holdfast, target_latency="1s"),
    "spark, default trigger": run_spark,
    "spark, fastest": partial(run_spark, settings=TUNED),
}


def measure(spark: SparkSession, name: str, rate: int, seconds: float) -> Result:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        place = Path(scratch)
        with fed(place / "in", rate):
            return {"name": name, "rate": rate, **CONTENDERS[name](spark, place, seconds)}


def ratios(results: list[Result]) -> dict[str, float]:
    """How many times as long a row takes with Spark."""
    by_name = {(each["name"], each["rate"]): each for each in results}
    return {
        f"{theirs} / {ours}, {rate:,} rows/s, {percent}": round(
            by_name[theirs, rate][percent] / by_name[ours, rate][percent], 2
        )
        for ours in list(CONTENDERS)[:2]
        for theirs in list(CONTENDERS)[2:]
        for rate in sorted({each["rate"] for each in results})
        for percent in PERCENTS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="latency beside Spark Structured Streaming")
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="rows per second")
    parser.add_argument("--turns", type=int, default=5, help="how often each contender runs at a rate (5)")
    parser.add_argument("--seconds", type=float, default=10, help="of a turn, after the warm-up (10)")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    parser.add_argument("--feed", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.feed:
        feed(given.feed, given.rates[0])
        return
    load = round(os.getloadavg()[0], 1)
    if load > CORES / 4:
        print(f"the machine is busy (load {load}): these figures will be too high", file=sys.stderr)
    spark, results = session(), []
    try:
        for name in CONTENDERS:
            # The JVM compiles what it runs often: the first run would pay for all others.
            measure(spark, name, max(given.rates), WARM_UP_SECONDS / 3)
        for rate in given.rates:
            turns: dict[str, list[Result]] = {name: [] for name in CONTENDERS}
            for _ in range(given.turns):
                for name, taken in turns.items():
                    taken.append(measure(spark, name, rate, given.seconds))
                    print(json.dumps(taken[-1]), flush=True)
            results += [over_turns(taken, *PERCENTS, "not_shown") for taken in turns.values()]
    finally:
        spark.stop()
    compared = ratios(results)
    for name, ratio in compared.items():
        print(f"{name:<70} {ratio:>8.2f}")
    found = {"load_before": load, "cores": CORES, "results": results, "ratios": compared}
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
