"""A small job that makes a JVM load what most jobs need: run while it records its classes (jvm_archive)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.generator import GeneratorSource
from holdfast.graph.aggregates import count, sum
from holdfast.graph.functions import KeyedFunction
from holdfast.runtime.job import Job
from holdfast.state.cells.declarations import ValueState

ROWS, EPOCH_ROWS = 3_000, 1_000


class Count(KeyedFunction):
    """Counts the rows of a key."""

    output = "k long, n long"
    n = ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.n.value += 1
        yield row.k, self.n.value


def main() -> None:
    """Rows from a generator and then from files, aggregated and processed one by one, written as files."""
    columns = {"k": "pmod(id, 10)", "v": "id", "at": "timestamp_millis(id)"}
    schema = "k long, v long, at timestamp"
    written = Job("jvm-archive")
    source = GeneratorSource(columns, schema=schema, total=ROWS)
    written.source(source, uid="ids").sink(FileSink("rows", format="parquet"), uid="rows")
    written.run("ck-written", until="exhausted", max_rows_per_epoch=EPOCH_ROWS)
    read = Job("jvm-archive")
    files = read.source(FileSource("rows", format="parquet", schema=schema), uid="files")
    keyed = files.transform(lambda rows: rows.where("v >= 0")).key_by("k")
    totals = keyed.aggregate(uid="totals", n=count(), total=sum("v"))
    totals.sink(FileSink("totals", format="parquet"), uid="out")
    keyed.process(Count(), uid="counts").sink(FileSink("counts", format="json"), uid="counted")
    read.run("ck-read", until="exhausted", max_rows_per_epoch=EPOCH_ROWS)


if __name__ == "__main__":
    main()
