"""The Nexmark queries, Holdfast beside Spark Structured Streaming: `make nexmark`.

    python -m bench.nexmark [--events 2000000] [--slice 200000] [--queries 0,4,19] [--out nexmark.json]

Both read the same Parquet files in the same session, one file an epoch or micro-batch, and write Parquet
files. What counts is the median time from commit to commit, and Spark's own `batchDuration`; the first
WARM_UP slices do not count. Every result is compared with what DuckDB finds over all events: a wrong one ends
the run. Rates count events, of all three kinds. `none`: there is no such query on this side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
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
from bench.nexmark.baselines import BASELINES
from bench.nexmark.expected import EXPECTATIONS, differences, without_zones
from bench.nexmark.generator import SCHEMA, Nexmark, write_parquet
from bench.nexmark.queries import QUERIES, job
from bench.spark_baselines import CORES, batch_durations_ms, session, write_batch

WARM_UP = 3
SHOWN_MAX = 3

Result = dict[str, Any]


class Input:
    """The events of a run as files, and the same events for the check."""

    def __init__(self, directory: Path, settings: Nexmark, events: int, per_slice: int) -> None:
        self.directory, self.settings, self.per_slice = directory, settings, per_slice
        self.files = write_parquet(directory, settings, events, per_slice)
        self.events = pa.concat_tables(map(pq.read_table, self.files))


def holdfast_ms(spark: SparkSession, query: int, given: Input, place: Path) -> float:
    """Milliseconds a slice; the result is compared."""
    source = hf.FileSource(given.directory, format="parquet", schema=SCHEMA)
    times = CommitTimes()
    sinks = {query: hf.FileSink(place / "out", format="parquet")}
    job(source, sinks, given.settings.disorder_us).run(
        place / "checkpoint",
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=given.per_slice,
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
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(given.directory))
    result = baseline.build(stream, f"{given.settings.disorder_us} microseconds")
    writer = result.writeStream.outputMode(baseline.mode).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    durations = batch_durations_ms(writer.foreachBatch(partial(write_batch, str(place / "out"))).start())
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
    rates: dict[str, int | None] = {}
    for name, known, run in (("holdfast", QUERIES, holdfast_ms), ("spark", BASELINES, spark_ms)):
        rates[name] = None
        if query in known:
            with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-") as scratch:
                rates[name] = round(given.per_slice / run(spark, query, given, Path(scratch)) * 1_000)
    ours, theirs = rates["holdfast"], rates["spark"]
    ratio = round(ours / theirs, 2) if ours and theirs else None
    return {"query": query, **rates, "ratio": ratio, "spark_way": BASELINES[query].how}


def line(result: Result) -> str:
    ours, theirs = (f"{result[name]:,}" if result[name] else "none" for name in ("holdfast", "spark"))
    return f"q{result['query']:<5} {ours:>12} {theirs:>12} {result['ratio'] or '':>7}  {result['spark_way']}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.nexmark", description="Nexmark, Holdfast beside Spark")
    parser.add_argument("--events", type=int, default=2_000_000, help="all events, warm-up included")
    parser.add_argument("--slice", type=int, default=200_000, help="events of an epoch or micro-batch")
    parser.add_argument("--rate", type=int, default=10_000, help="events per second of event time")
    parser.add_argument("--queries", help="numbers with commas between them; all unless given")
    parser.add_argument("--out", type=Path, help="write the results there, as JSON")
    given = parser.parse_args()
    queries = [int(each) for each in given.queries.split(",")] if given.queries else list(EXPECTATIONS)
    if unknown := sorted(set(queries) - EXPECTATIONS.keys()):
        parser.error(f"there are no queries {unknown}; there are {', '.join(map(str, EXPECTATIONS))}")
    if given.events < (WARM_UP + 1) * given.slice:
        parser.error(f"{given.events} events leave nothing to measure; give {WARM_UP + 1} slices or more")
    load = round(os.getloadavg()[0], 1)
    if load > CORES / 4:
        print(f"the machine is busy (load {load}): these numbers will be too low", file=sys.stderr)
    spark = session()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    results = []
    with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-") as scratch:
        settings = Nexmark(interval_us=1_000_000 // given.rate)
        events = Input(Path(scratch) / "events", settings, given.events, given.slice)
        print(f"{'query':<6} {'holdfast/s':>12} {'spark/s':>12} {'ratio':>7}  spark's way", flush=True)
        for query in queries:
            results.append(measure(spark, query, events))
            print(line(results[-1]), flush=True)
    spark.stop()
    if given.out:
        about = {"events": given.events, "slice": given.slice, "rate": given.rate, "cores": CORES}
        given.out.write_text(json.dumps({**about, "load_before": load, "results": results}, indent=2))


if __name__ == "__main__":
    main()
