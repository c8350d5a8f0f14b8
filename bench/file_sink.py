"""How fast do rows get into Parquet files, beside Spark's own `df.write.parquet`?

    python -m bench.file_sink [ROWS]

The same generated rows in the same session: Spark's own writer; a job of one epoch whose FileSink writes one
file per epoch; one whose tasks write the files of its lanes. Each once to warm up, then once timed. What a
job does besides (plan, staged rows, commit) is in its time: rows are written twice, and once to be kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf
from bench import spark_baselines

COLUMNS = {"k": "id % 1000", "value": "rnd", "text": "concat('user-', pmod(rnd, 100000))"}
SCHEMA = "k long, value long, text string"
ROWS = 4_000_000


def job(rows: int, sink: hf.FileSink) -> hf.Job:
    job = hf.Job("file-sink")
    source = hf.GeneratorSource(COLUMNS, schema=SCHEMA, total=rows)
    job.source(source, uid="rows").sink(sink, uid="out")
    return job


def measure(spark: SparkSession, rows: int) -> dict[str, float]:
    """Contender -> rows per second."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-file-sink-"))

    def own(number: int) -> None:
        reader = hf.GeneratorSource(COLUMNS, schema=SCHEMA, total=rows).reader([])
        slice = reader.next(None, rows, 0)
        assert slice is not None
        reader.frame(spark, slice).write.parquet(str(place / f"own-{number}"))

    def holdfast(name: str, max_file_rows: int | None) -> Callable[[int], None]:
        def run(number: int) -> None:
            out = place / f"{name}-{number}"
            sink = hf.FileSink(out, format="parquet", max_file_rows=max_file_rows)
            checkpoint = place / f"ck-{name}-{number}"
            job(rows, sink).run(checkpoint, spark=spark, until="exhausted", max_rows_per_epoch=rows)

        return run

    contenders = {
        "df.write.parquet": own,
        "FileSink, one file": holdfast("one", None),
        "FileSink, lanes": holdfast("lanes", 1_000_000),
    }
    found = {}
    for name, run in contenders.items():
        run(0)
        begun = time.perf_counter()
        run(1)
        found[name] = rows / (time.perf_counter() - begun)
    return found


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    spark = spark_baselines.session()
    rates = measure(spark, rows)
    best = rates["df.write.parquet"]
    ratios = {name: round(rate / best, 2) for name, rate in rates.items()}
    print(json.dumps({"rows": rows, "rows_per_s": {n: round(r) for n, r in rates.items()}, "ratio": ratios}))
    spark.stop()


if __name__ == "__main__":
    main()
