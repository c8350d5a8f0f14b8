"""How fast do rows get into Parquet files, beside Spark's own `df.write.parquet`?

    python -m bench.file_sink [ROWS] [ROUNDS]

The same generated rows in the same session: Spark's own writer; Python workers that only count the rows they
are handed; a job of one epoch whose FileSink writes one file per epoch; one whose tasks write the files of
its lanes. What a job does besides (plan, staged rows, commit) is in its time: rows are written twice, and
every file is synced, which Spark's are not. No job that stages rows in Python is faster than the counting.

And the same for rows that come from Parquet files: Spark reads and writes them; the tasks of the job read and
stage them without Spark.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

import holdfast as hf
from bench import spark_baselines
from bench.turns import Turns, machine

COLUMNS = {"k": "id % 1000", "value": "rnd", "text": "concat('user-', pmod(rnd, 100000))"}
SCHEMA = "k long, value long, text string"
BASE = "df.write.parquet"


def job(source: hf.Source, sink: hf.FileSink) -> hf.Job:
    job = hf.Job("file-sink")
    job.source(source, uid="rows").sink(sink, uid="out")
    return job


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    number = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([number])], ["rows"])


def main(rows: int, rounds: int) -> None:
    print(machine())
    spark = spark_baselines.session()
    # As sessions have it that Holdfast opens; Spark's own writer uses no Arrow.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "250000")
    numbers = count()

    def frame() -> DataFrame:
        reader = hf.GeneratorSource(COLUMNS, schema=SCHEMA, total=rows).reader([])
        slice = reader.next(None, rows, 0)
        assert slice is not None
        return reader.frame(spark, slice)

    def own() -> None:
        frame().write.parquet(str(place / f"out-{next(numbers)}"))

    def handed_over() -> None:
        handed = frame().mapInArrow(counted, "rows long").collect()
        assert sum(row.rows for row in handed) == rows

    def holdfast(source: Callable[[], hf.Source], max_file_rows: int | None) -> Callable[[], None]:
        def run() -> None:
            number = next(numbers)
            sink = hf.FileSink(place / f"out-{number}", format="parquet", max_file_rows=max_file_rows)
            job(source(), sink).run(
                place / f"ck-{number}", spark=spark, until="exhausted", max_rows_per_epoch=rows
            )

        return run

    def generated() -> hf.Source:
        return hf.GeneratorSource(COLUMNS, schema=SCHEMA, total=rows)

    def of_files() -> hf.Source:
        return hf.FileSource(files, format="parquet", schema=SCHEMA)

    def copied() -> None:
        spark.read.schema(SCHEMA).parquet(str(files)).write.parquet(str(place / f"out-{next(numbers)}"))

    def emptied(name: str) -> None:
        for path in place.iterdir():
            shutil.rmtree(path)

    with tempfile.TemporaryDirectory(prefix="holdfast-file-sink-") as directory:
        place, files = Path(directory, "out"), Path(directory, "in")
        place.mkdir()
        frame().write.parquet(str(files))
        for title, contenders in {
            "rows that Spark makes": {
                BASE: own,
                "to Python, counted": handed_over,
                "FileSink, one file": holdfast(generated, None),
                "FileSink, lanes": holdfast(generated, 1_000_000),
            },
            "rows of Parquet files": {
                BASE: copied,
                "FileSink, one file": holdfast(of_files, None),
                "FileSink, lanes": holdfast(of_files, 1_000_000),
            },
        }.items():
            print(f"\n{title}")
            turns = Turns(contenders, emptied)
            turns.take(rounds, warm_up=2)
            turns.show(rows, BASE)
    spark.stop()


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*[*given, *[4_000_000, 7][len(given) :]])
