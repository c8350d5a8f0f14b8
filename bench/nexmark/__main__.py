"""The Nexmark queries, Holdfast beside Spark Structured Streaming: `make nexmark`, about 15 minutes.

    python -m bench.nexmark [--queries 0,4,19] [--slices 10] [--slice 200000] [--out nexmark.json]

Both sides of a query do the same work, one after the other in one session: they read the same Parquet files,
one file an epoch or micro-batch, with as many tasks as there are cores, and write Parquet files, each slice
in one step that a repetition does not double. What counts is the median time of a slice: from commit to
commit, and Spark's own `batchDuration`. On both sides the first WARM_UP slices do not count, and before the
first query both have run one that does not count at all. Queries for which Spark needs state in Python get
fewer slices on both sides: they would take most of an hour.
Every result is compared with what DuckDB finds over all events: a wrong one ends the run. Rates count events,
of all three kinds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf
from bench.holdfast_runs import CommitTimes
from bench.nexmark.baselines import BASELINES, PYTHON, SQL
from bench.nexmark.expected import EXPECTATIONS, differences, without_zones
from bench.nexmark.generator import SCHEMA, Nexmark, write_parquet
from bench.nexmark.queries import job
from bench.spark_baselines import CORES, batch_durations_ms, session, write_batch
from holdfast.runtime.spark_session import GOOD_SETTINGS

WARM_UP = 3
PYTHON_SLICES = WARM_UP + 2
SHOWN_MAX = 3
QUERY_SECONDS_MAX = 900
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The one setting that differs: a session that Holdfast opens has another than Spark's default."""
WARM_UP_QUERY = 17

Result = dict[str, Any]


class Input:
    """The events of a run as files, one a slice, and the same events for the check."""

    def __init__(self, directory: Path, settings: Nexmark, slices: int, per_slice: int) -> None:
        self.directory, self.settings, self.per_slice = directory, settings, per_slice
        self.files = write_parquet(directory, settings, slices * per_slice, per_slice)
        self.events = pa.concat_tables(map(pq.read_table, self.files))


def holdfast_ms(spark: SparkSession, query: int, given: Input, place: Path) -> float:
    """Milliseconds a slice; the result is compared."""
    spark.conf.set(BATCH_ROWS, GOOD_SETTINGS[BATCH_ROWS])
    source = hf.FileSource(given.directory, format="parquet", schema=SCHEMA)
    times = CommitTimes()
    sinks = {query: hf.FileSink(place / "out", format="parquet")}
    job(source, sinks, given.settings.disorder_us).run(
        place / "checkpoint",
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=given.per_slice,
        parallelism=CORES,
        working_dir=place / "working",
        on_progress=times,
        on_message=lambda _: None,
    )
    refuse_wrong(query, differences(query, given.events, emitted(sorted(place.glob("out/*.parquet")))))
    # Epochs without input, in which the last windows close, come after the measured ones.
    return statistics.median(times.gaps_ms(WARM_UP)[: len(given.files) - WARM_UP])


def spark_ms(spark: SparkSession, query: int, given: Input, place: Path) -> float:
    """Milliseconds a slice; the result is compared, but for windows that are open when the input ends."""
    baseline = BASELINES[query]
    spark.conf.unset(BATCH_ROWS)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(given.directory))
    result = baseline.build(stream, f"{given.settings.disorder_us} microseconds")
    writer = result.writeStream.outputMode(baseline.mode).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    running = writer.foreachBatch(partial(write_batch, str(place / "out"))).start()
    durations = batch_durations_ms(running, QUERY_SECONDS_MAX)
    batches = sorted(place.glob("out/batch=*"), key=lambda path: int(path.name.split("=")[1]))
    found = emitted([file for batch in batches for file in sorted(batch.glob("*.parquet"))])
    # What the last slice said about time closes nothing any more.
    seen = without_zones(given.events.slice(0, (len(given.files) - 1) * given.per_slice))
    watermark = pc.max(seen["date_time"]).as_py() - timedelta(microseconds=given.settings.disorder_us)
    refuse_wrong(query, differences(query, given.events, found, watermark))
    return statistics.median(durations[WARM_UP : len(given.files)])


def emitted(files: list[Path]) -> pa.Table:
    """All rows of some files, in this order."""
    return pa.concat_tables([without_zones(pq.ParquetFile(file).read()) for file in files])


def refuse_wrong(query: int, found: list[str]) -> None:
    if found:
        shown = "\n  ".join(found[:SHOWN_MAX])
        sys.exit(f"q{query}: {len(found)} rows are wrong, so its time means nothing:\n  {shown}")


def measure(spark: SparkSession, query: int, given: Input) -> Result:
    """One query, both ways, one after the other."""
    taken_ms = {}
    for name, run in (("holdfast", holdfast_ms), ("spark", spark_ms)):
        with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-") as scratch:
            taken_ms[name] = run(spark, query, given, Path(scratch))
    ratio = round(taken_ms["spark"] / taken_ms["holdfast"], 2)
    rates = {name: round(given.per_slice / taken * 1_000) for name, taken in taken_ms.items()}
    rounded = {f"{name}_ms": round(taken) for name, taken in taken_ms.items()}
    slices = len(given.files)
    return {"query": query, "slices": slices, **rates, **rounded, "ratio": ratio, "way": told_way(query)}


def told_way(query: int) -> str:
    """How Spark does it, and what it cannot do."""
    baseline = BASELINES[query]
    return f"{baseline.how}: {baseline.because}" if baseline.because else baseline.how


def line(result: Result) -> str:
    ours, theirs = (f"{result[name]:,}" for name in ("holdfast", "spark"))
    return f"q{result['query']:<5} {ours:>12} {theirs:>12} {result['ratio']:>7.2f}  {result['way']}"


def summary(results: list[Result]) -> list[str]:
    """How many are ahead, of those that Spark does in SQL and of those that need state in Python there."""
    told = []
    for how in (SQL, PYTHON):
        ratios = [each["ratio"] for each in results if BASELINES[each["query"]].how == how]
        if ratios:
            ahead, mean = sum(ratio > 1 for ratio in ratios), statistics.geometric_mean(ratios)
            told.append(
                f"{how}: ahead in {ahead} of {len(ratios)}; ratios {min(ratios):.2f} to {max(ratios):.2f}, "
                f"geometric mean {mean:.2f}"
            )
    return told


def measure_all(
    spark: SparkSession, queries: list[int], settings: Nexmark, slices: int, per_slice: int
) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-") as scratch:
        whole = Input(Path(scratch) / "events", settings, slices, per_slice)
        fewer = Input(Path(scratch) / "fewer", settings, min(slices, PYTHON_SLICES), per_slice)
        # The JVM compiles what it runs often: the first query would pay for all others.
        measure(spark, WARM_UP_QUERY, fewer)
        print(f"{'query':<6} {'holdfast/s':>12} {'spark/s':>12} {'ratio':>7}  spark's way", flush=True)
        for query in queries:
            given = fewer if BASELINES[query].how == PYTHON else whole
            results.append(measure(spark, query, given))
            print(line(results[-1]), flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.nexmark", description="Nexmark, Holdfast beside Spark")
    parser.add_argument("--slices", type=int, default=10, help="slices of a query, warm-up included")
    parser.add_argument("--slice", type=int, default=200_000, help="events of an epoch or micro-batch")
    parser.add_argument("--rate", type=int, default=10_000, help="events per second of event time")
    parser.add_argument("--queries", help="numbers with commas between them; all unless given")
    parser.add_argument("--out", type=Path, default=Path("bench-results/nexmark.json"))
    given = parser.parse_args()
    queries = [int(each) for each in given.queries.split(",")] if given.queries else list(EXPECTATIONS)
    if unknown := sorted(set(queries) - EXPECTATIONS.keys()):
        parser.error(f"there are no queries {unknown}; there are {', '.join(map(str, EXPECTATIONS))}")
    if given.slices <= WARM_UP:
        parser.error(f"{given.slices} slices leave nothing to measure; give {WARM_UP + 1} or more")
    started, load = time.monotonic(), round(os.getloadavg()[0], 1)
    about: dict[str, Any] = {"slice": given.slice, "rate": given.rate, "cores": CORES, "load_before": load}
    about["started"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if load > CORES / 4:
        print(f"the machine is busy (load {load}): these numbers will be too low", file=sys.stderr)
    spark = session()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    settings = Nexmark(interval_us=1_000_000 // given.rate)
    results = measure_all(spark, queries, settings, given.slices, given.slice)
    spark.stop()
    for told in summary(results):
        print(told)
    about["seconds"] = round(time.monotonic() - started)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"about": about, "results": results}, indent=2))
    print(f"took {about['seconds']} s; everything: {given.out}")


if __name__ == "__main__":
    main()
