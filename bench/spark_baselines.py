"""How fast are Spark's own ways to keep a running sum per key?

    python -m bench.spark_baselines --slices 7

Four contenders, one session, the settings that Spark's tuning advice asks for (SETTINGS). Each reads the same
Parquet files, one file a micro-batch, and emits every touched key once per micro-batch with its new sum.
Measured is Spark's own `batchDuration`: planning, reading, state, sink, both of Spark's logs. The first
WARM_UP micro-batches do not count. Where the sink keeps the rows, the sums are checked.

Not the same for all: the Python operators are so slow that they get fewer slices of a smaller workload, with
as many rows for each key (their cost is per key), and the pandas ones get one sink only. On a machine that
does other work at the same time the numbers mean little: the load before the start is part of the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.workload import FULL, SCHEMA, SLIGHT, SMALL, TINY, Workload, expected_sums, write_slices
from holdfast.runtime.spark_session import GOOD_SETTINGS

CORES = 2
WARM_UP = 2
TINY_SLICES = 20
QUERY_SECONDS_MAX = 180
OUTPUT = "k long, total long"

SETTINGS = {
    **GOOD_SETTINGS,
    "spark.driver.memory": "4g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(CORES),
    # A slice is smaller than the default (4 MB), which would keep one core idle while reading.
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

Result = dict[str, Any]


class RowSum(StatefulProcessor):
    """For transformWithState: rows in, rows out, the sum in a value state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.total.get()
        total = (before[0] if before else 0) + sum(row.value for row in rows)
        self.total.update((total,))
        yield Row(k=key[0], total=total)

    def close(self) -> None:
        pass


class PandasSum(StatefulProcessor):
    """For transformWithStateInPandas: the same with pandas frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import pandas as pd

        before = self.total.get()
        total = (before[0] if before else 0) + sum(int(frame["value"].sum()) for frame in rows)
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "total": [total]})

    def close(self) -> None:
        pass


def pandas_group_sum(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
    """For applyInPandasWithState."""
    import pandas as pd

    before = state.get[0] if state.exists else 0
    total = before + sum(int(frame["value"].sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "total": [total]})


def native(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k").agg({"value": "sum"}).toDF("k", "total")


def transform_with_state(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k").transformWithState(RowSum(), OUTPUT, "Update", "None")


def transform_with_state_in_pandas(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k").transformWithStateInPandas(PandasSum(), OUTPUT, "Update", "None")


def apply_in_pandas_with_state(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k").applyInPandasWithState(
        pandas_group_sum, OUTPUT, "total long", "update", GroupStateTimeout.NoTimeout
    )


@dataclass(frozen=True, kw_only=True)
class Contender:
    """`workload`, `slices_max` and `sinks` bound the run time of the slow ones."""

    name: str
    build: Callable[[DataFrame], DataFrame]
    workload: Workload
    slices_max: int = 3
    sinks: tuple[str, ...] = ("noop", "parquet")


CONTENDERS = (
    Contender(name="groupBy.sum (JVM)", build=native, workload=FULL, slices_max=100),
    Contender(name="transformWithState", build=transform_with_state, workload=SMALL),
    Contender(
        name="transformWithStateInPandas",
        build=transform_with_state_in_pandas,
        workload=SLIGHT,
        sinks=("parquet",),
    ),
    Contender(
        name="applyInPandasWithState",
        build=apply_in_pandas_with_state,
        workload=SLIGHT,
        sinks=("parquet",),
    ),
)


def measure(spark: SparkSession, contender: Contender, workload: Workload, slices: int, sink: str) -> Result:
    """Run one query to the end of `slices` measured slices; `sink` is `noop` or `parquet`."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        place = Path(scratch)
        write_slices(place / "in", workload, WARM_UP + slices)
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place / "in"))
        writer = contender.build(stream).writeStream.outputMode("update").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        if sink == "parquet":
            writer = writer.foreachBatch(partial(write_batch, str(place / "out")))
        else:
            writer = writer.format("noop")
        durations_ms = batch_durations_ms(writer.start())[WARM_UP:]
        assert len(durations_ms) == slices, f"{contender.name}: {len(durations_ms)} batches, not {slices}"
        if sink == "parquet":
            _check_sums(place / "out", workload, WARM_UP + slices)
    milliseconds = statistics.median(durations_ms)
    return {
        "name": contender.name,
        "sink": sink,
        "workload": str(workload),
        "slices": slices,
        "ms_per_batch": round(milliseconds),
        "ms_per_batch_min": min(durations_ms),
        "ms_per_batch_max": max(durations_ms),
        "rows_per_s": round(workload.rows / milliseconds * 1000),
    }


def write_batch(directory: str, batch: DataFrame, number: int) -> None:
    """The usual exactly-once files for update mode: a directory per micro-batch, replaced when repeated."""
    batch.write.mode("overwrite").parquet(f"{directory}/batch={number}")


def batch_durations_ms(query: StreamingQuery, seconds_max: int = QUERY_SECONDS_MAX) -> list[int]:
    """Wait for the query's end and give the duration of each micro-batch that had rows."""
    try:
        if not query.awaitTermination(seconds_max):
            raise TimeoutError(f"the query was not done after {seconds_max} s; ask for fewer slices")
        return [batch.batchDuration for batch in query.recentProgress if batch.numInputRows > 0]
    finally:
        query.stop()


def _check_sums(directory: Path, workload: Workload, slices: int) -> None:
    # Values are never negative, so a key's last sum is its largest.
    rows = ds.dataset(directory, partitioning="hive").to_table(columns=["k", "total"])
    last = rows.group_by("k").aggregate([("total", "max")])
    sums = dict(zip(last["k"].to_pylist(), last["total_max"].to_pylist(), strict=True))
    assert sums == expected_sums(workload, slices), "the sums are wrong: nothing measured here means anything"


def session(jars: str = "") -> SparkSession:
    # Spark would take the first python3 of the PATH, which need not be the one with the packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("spark-baselines")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    for name, value in {**SETTINGS, "spark.jars": jars}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_all(spark: SparkSession, slices: int) -> list[Result]:
    """Every contender: its throughput into its sinks, and the fixed cost of a micro-batch."""
    results = []
    for contender in CONTENDERS:
        count = min(slices, contender.slices_max)
        for sink in contender.sinks:
            results.append(measure(spark, contender, contender.workload, count, sink))
            print(_line(results[-1]), flush=True)
        results.append(measure(spark, contender, TINY, TINY_SLICES, "parquet"))
        print(_line(results[-1]), flush=True)
    return results


def _line(result: Result) -> str:
    spread = f"{result['ms_per_batch_min']}-{result['ms_per_batch_max']}"
    return (
        f"{result['name']:<28} {result['sink']:<8} {result['workload']:<42} {result['slices']:>6} "
        f"{result['ms_per_batch']:>8} {spread:>13} {result['rows_per_s']:>10,}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark's own stateful operators on the common workload")
    parser.add_argument("--slices", type=int, default=7, help="slices that count, after the warm-up (7)")
    slices: int = parser.parse_args().slices
    started, load = time.monotonic(), round(os.getloadavg()[0], 1)
    if load > CORES / 4:
        print(f"the machine is busy (load {load}): these numbers will be too low", file=sys.stderr)
    spark = session()
    header = ("contender", "sink", "workload", "slices", "ms/batch", "min-max", "rows/s")
    print("{:<28} {:<8} {:<42} {:>6} {:>8} {:>13} {:>10}".format(*header))
    try:
        results = run_all(spark, slices)
        version = spark.version
    finally:
        spark.stop()
    seconds = round(time.monotonic() - started)
    about = {"spark": version, "cores": CORES, "load": load, "seconds": seconds, "settings": SETTINGS}
    print(json.dumps({**about, "results": results}))


if __name__ == "__main__":
    main()
