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
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from bench import spark_baselines
from bench.turns import Turns, machine

COLUMNS = {"k": "id % 1000", "value": "rnd", "text": "concat('user-', pmod(rnd, 100000))"}
SCHEMA = "k long, value long, text string"
BASE = "df.write.parquet"


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    number = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([number])], ["rows"])


@dataclass(frozen=True)
class Contenders:
    """Who writes so many rows, each time into a new directory of `place`. `files`: the rows as Parquet."""

    spark: SparkSession
    rows: int
    place: Path
    files: Path
    numbers: Iterator[int] = field(default_factory=count)

    def generated(self) -> hf.Source:
        return hf.GeneratorSource(COLUMNS, schema=SCHEMA, total=self.rows)

    def of_files(self) -> hf.Source:
        return hf.FileSource(self.files, format="parquet", schema=SCHEMA)

    def frame(self) -> DataFrame:
        """The generated rows."""
        reader = self.generated().reader([])
        slice = reader.next(None, self.rows, 0)
        assert slice is not None
        return reader.frame(self.spark, slice)

    def own(self) -> None:
        self.frame().write.parquet(str(self.place / f"out-{next(self.numbers)}"))

    def copied(self) -> None:
        frame = self.spark.read.schema(SCHEMA).parquet(str(self.files))
        frame.write.parquet(str(self.place / f"out-{next(self.numbers)}"))

    def handed_over(self) -> None:
        handed = self.frame().mapInArrow(counted, "rows long").collect()
        assert sum(row.rows for row in handed) == self.rows

    def holdfast(self, source: Callable[[], hf.Source], max_file_rows: int | None) -> Callable[[], None]:
        def run() -> None:
            number, job = next(self.numbers), hf.Job("file-sink")
            sink = hf.FileSink(self.place / f"out-{number}", format="parquet", max_file_rows=max_file_rows)
            job.source(source(), uid="rows").sink(sink, uid="out")
            checkpoint = self.place / f"ck-{number}"
            job.run(checkpoint, spark=self.spark, until="exhausted", max_rows_per_epoch=self.rows)

        return run

    def emptied(self, name: str) -> None:
        for path in self.place.iterdir():
            shutil.rmtree(path)


def main(rows: int, rounds: int) -> None:
    print(machine())
    spark = spark_baselines.session()
    with tempfile.TemporaryDirectory(prefix="holdfast-file-sink-") as directory:
        who = Contenders(spark, rows, Path(directory, "out"), Path(directory, "in"))
        who.place.mkdir()
        who.frame().write.parquet(str(who.files))
        lane = 1_000_000
        for title, contenders in {
            "rows that Spark makes": {
                BASE: who.own,
                "to Python, counted": who.handed_over,
                "FileSink, one file": who.holdfast(who.generated, None),
                "FileSink, lanes": who.holdfast(who.generated, lane),
            },
            "rows of Parquet files": {
                BASE: who.copied,
                "FileSink, one file": who.holdfast(who.of_files, None),
                "FileSink, lanes": who.holdfast(who.of_files, lane),
            },
        }.items():
            print(f"\n{title}")
            turns = Turns(contenders, who.emptied)
            turns.take(rounds, warm_up=2)
            turns.show(rows, BASE)
    spark.stop()


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*[*given, *[4_000_000, 7][len(given) :]])
