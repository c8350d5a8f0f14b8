"""Every question in one run: `make bench`.

    python -m bench [--quick] [--out bench-results]

Prints ratios against Spark's own ways on the same data in the same session, and against PyFlink and bytewax
(bench.peers: those that can be had here), writes everything as JSON, and draws the plots that
docs/benchmarks.md shows. `--quick` leaves out the large states.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import guarantees, holdfast_runs, plots, safeguards, spark_baselines, state_growth
from bench.peers import comparison
from bench.turns import over_turns
from bench.workload import FULL, SMALL, TINY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICES = 9
TINY_SLICES = 30
TURNS = 5

Result = dict[str, Any]


def throughput(turns: int) -> list[Result]:
    """Holdfast's operators and Spark's own, in turns, in a session that both have warmed."""
    spark = spark_baselines.session()
    for _ in range(2):
        # The JVM compiles what it runs often: the first run would pay for all others.
        for operator in holdfast_runs.OPERATORS:
            holdfast_runs.measure(spark, operator, FULL, 2)
            holdfast_runs.measure(spark, operator, TINY, 10)
        for contender in spark_baselines.CONTENDERS[:2]:
            spark_baselines.measure(spark, contender, SMALL, 2, "parquet")
    found = [turn(spark) for _ in range(turns)]
    spark.stop()
    return [over_turns(each, "ms_per_batch", "rows_per_s") for each in zip(*found, strict=True)]


def turn(spark: SparkSession) -> list[Result]:
    """Everyone once."""
    results = []
    for operator in holdfast_runs.OPERATORS:
        results.append(holdfast_runs.measure(spark, operator, FULL, SLICES))
        results.append(holdfast_runs.measure(spark, operator, TINY, TINY_SLICES))
        print(json.dumps(results[-2:]), flush=True)
    return results + spark_baselines.run_all(spark, SLICES)


def ratios(results: list[Result]) -> dict[str, float]:
    """What the project promises, as numbers."""

    def rate(name: str) -> float:
        found = [r["rows_per_s"] for r in results if r["name"] == name and r["sink"] == "parquet"]
        return float(max(found))

    def fixed(name: str) -> float:
        return float(
            min(r["ms_per_batch"] for r in results if r["name"] == name and r["workload"] == str(TINY))
        )

    row_api, native = "transformWithState", "groupBy.sum (JVM)"
    return {
        "aggregate / transformWithState": rate("holdfast aggregate") / rate(row_api),
        "process / transformWithState": rate("holdfast process") / rate(row_api),
        "process_batch / transformWithState": rate("holdfast process_batch") / rate(row_api),
        "aggregate / native groupBy": rate("holdfast aggregate") / rate(native),
        "process / native groupBy": rate("holdfast process") / rate(native),
        "small epoch / native micro-batch": fixed("holdfast aggregate") / fixed(native),
        "small epoch / transformWithState micro-batch": fixed("holdfast process") / fixed(row_api),
    }


SECTIONS = ("throughput", "peers", "guarantees", "safeguards_ms", "state_growth")


def measured(section: str, sizes: list[int], turns: int) -> Any:
    if section == "throughput":
        return throughput(turns)
    if section == "peers":
        return comparison.run()
    if section == "guarantees":
        return guarantees.run()
    if section == "safeguards_ms":
        return {name: round(spent, 2) for name, spent in safeguards.run().items()}
    return state_growth.run_sizes(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description="Holdfast beside Spark's own operators")
    parser.add_argument("--quick", action="store_true", help="leave out the large states")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"how often each contender runs ({TURNS})")
    parser.add_argument("--only", choices=SECTIONS, help="measure one section again")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    results = given.out / "results.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    sizes = [100_000, 1_000_000] if given.quick else [100_000, 1_000_000, 10_000_000]
    for section in [given.only] if given.only else SECTIONS:
        found.setdefault("about", {})[section] = {
            "machine": machine,
            "load_before": round(os.getloadavg()[0], 2),
            "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }
        found[section] = measured(section, sizes, given.turns)
        if section == "throughput":
            found["ratios"] = {name: round(value, 2) for name, value in ratios(found[section]).items()}
        results.write_text(json.dumps(found, indent=2))
    plots.draw(given.out)
    sections = ("about", "ratios", "guarantees", "safeguards_ms")
    shown: dict[str, Any] = {name: found[name] for name in sections if name in found}
    if "peers" in found:
        shown["peers"] = found["peers"]["ratios"]
    print(json.dumps(shown, indent=2))
    print(f"everything: {results}")


if __name__ == "__main__":
    main()
