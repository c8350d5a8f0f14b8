"""Committed rows as a DataFrame, for any writer that Spark has: `fn(df, epoch)`, once for each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holdfast.connectors.contract import StagedPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ForeachEpochSink:
    """Calls `fn(df, epoch)` on the driver with the rows of each epoch that has some; whatever it does with
    them is done by Spark, from the staged files.

    At least once: Holdfast cannot know what `fn` has done when it was cut short, and calls it again with the
    same epoch. A writer that recognises the epoch (a column, a batch id) shows it once all the same.

        def into_warehouse(df, epoch):
            df.write.format("jdbc").options(**options).mode("append").save()

        stream.sink(hf.ForeachEpochSink(into_warehouse), uid="warehouse")
    """

    exactly_once: Final = False

    def __init__(self, fn: Callable[[DataFrame, int], object]) -> None:
        self.fn: Final = fn

    def publisher(self, job: str, uid: str) -> ForeachEpochPublisher:
        return ForeachEpochPublisher(self.fn)


class ForeachEpochPublisher:
    def __init__(self, fn: Callable[[DataFrame, int], object]) -> None:
        self._fn = fn

    def published_through(self) -> int:
        return 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        full = tuple(part for part in parts if part.rows)
        if full:
            self._fn(_frame(full), epoch)

    def close(self) -> None:
        return


def _frame(parts: tuple[StagedPart, ...]) -> DataFrame:
    """The rows of these parts, each read by a task of its own."""
    from pyspark.sql import SparkSession

    # Only the columns are wanted here: those of the smallest part.
    columns = min(parts, key=lambda part: part.bytes).load().schema
    spark = SparkSession.active()
    empty = spark.createDataFrame(columns.empty_table())
    ids = spark.range(0, len(parts), 1, len(parts))
    return ids.mapInArrow(partial(_rows, parts, columns), empty.schema)


def _rows(
    parts: tuple[StagedPart, ...], columns: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from parts[index].load().cast(columns).to_batches()
