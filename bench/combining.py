"""Does it pay to combine rows before they go to their shards?

    python -m bench.combining [--rows 1000000] [--slices 4] [--rounds 3] [--keys 1000 100000 1000000]

A keyed running sum by `aggregate` as it decides by itself, always combined, never combined, and by Spark's
own aggregation: the same slices, one session, two cores, two shards. The contenders take turns, round after
round, so that what else the machine does hurts all alike; a figure is the median over the rounds, and ratios
count more than times. A Zipf workload has one key with about a fifth of all rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench import holdfast_runs, spark_baselines
from bench.workload import Workload
from holdfast.runtime.epoch import combining

ZIPF, ZIPF_KEYS = 1.2, 100_000
KEYS = (1_000, ZIPF_KEYS, 1_000_000)
Measured = dict[str, float]


@contextmanager
def beginning_at(rows_per_shard: float, rows_per_key: float) -> Iterator[None]:
    """Let combining begin elsewhere than it does by itself."""
    kept = combining.ROWS_PER_SHARD, combining.ROWS_PER_KEY
    vars(combining).update(ROWS_PER_SHARD=rows_per_shard, ROWS_PER_KEY=rows_per_key)
    try:
        yield
    finally:
        vars(combining).update(ROWS_PER_SHARD=kept[0], ROWS_PER_KEY=kept[1])


def holdfast_ms(spark: SparkSession, slices: int, workload: Workload) -> float:
    return float(holdfast_runs.measure(spark, "aggregate", workload, slices)["ms_per_batch"])


def native_ms(spark: SparkSession, slices: int, workload: Workload) -> float:
    native = spark_baselines.CONTENDERS[0]
    return float(spark_baselines.measure(spark, native, workload, slices, "parquet")["ms_per_batch"])


def contenders(spark: SparkSession, slices: int) -> dict[str, Callable[[Workload], float]]:
    def begun(rows: float, keys: float, workload: Workload) -> float:
        with beginning_at(rows, keys):
            return holdfast_ms(spark, slices, workload)

    return {
        "by itself": partial(holdfast_ms, spark, slices),
        "combined": partial(begun, 0, 0),
        "not combined": partial(begun, math.inf, math.inf),
        "native": partial(native_ms, spark, slices),
    }


def measure(spark: SparkSession, workload: Workload, slices: int, rounds: int) -> Measured:
    """Milliseconds a slice by contender, and how many times as fast as Spark's own each is."""
    runs = contenders(spark, slices)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(run(workload))
    found = {f"{name} ms": round(statistics.median(times), 1) for name, times in taken.items()}
    for name in list(taken)[:-1]:
        # Within a round, since the machine changes between rounds.
        shares = [native / own for native, own in zip(taken["native"], taken[name], strict=True)]
        found[f"{name} / native"] = round(statistics.median(shares), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="aggregate with and without combining, beside Spark's own")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, nargs="*", default=KEYS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    workloads = [Workload(keys=keys, rows=given.rows) for keys in given.keys]
    workloads.append(Workload(keys=ZIPF_KEYS, rows=given.rows, zipf=ZIPF))
    load, spark = os.getloadavg()[0], spark_baselines.session()
    # The JVM compiles what it runs often: the first run would pay for all others.
    measure(spark, Workload(keys=1_000, rows=given.rows // 4), 2, 1)
    results: dict[str, Measured] = {}
    for workload in workloads:
        results[str(workload)] = measure(spark, workload, given.slices, given.rounds)
        print(workload, json.dumps(results[str(workload)]), flush=True)
    spark.stop()
    uniform = results.get(str(Workload(keys=ZIPF_KEYS, rows=given.rows)))
    skewed = results[str(workloads[-1])]
    found = {"load_before": round(load, 2), "results": results}
    if uniform is not None:
        found["zipf / uniform"] = {
            name: round(skewed[f"{name} ms"] / uniform[f"{name} ms"], 2)
            for name in ("by itself", "combined", "not combined", "native")
        }
    text = json.dumps(found, indent=2)
    print(text)
    if given.out is not None:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
