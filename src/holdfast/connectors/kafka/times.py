"""The times of messages, told by the tasks that read them: one piece for each batch, whatever its rows.

A piece is known by its place, so that a task which runs again, or twice, tells nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.contract import Arrived
from holdfast.connectors.kafka.positions import Range

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

ReadTimes = dict[tuple[str, int, int], Arrived]
"""Topic, partition and the first offset of a batch -> when its messages arrived."""


class Places:
    """How Spark adds up what tasks tell."""

    def zero(self, value: ReadTimes) -> ReadTimes:
        return {}

    def addInPlace(self, value: ReadTimes, more: ReadTimes) -> ReadTimes:
        return {**value, **more}


def times_read(spark: SparkSession) -> Accumulator[ReadTimes]:
    """What tasks add to, and the driver reads once a job is done."""
    places: Any = Places()
    found: Accumulator[ReadTimes] = spark.sparkContext.accumulator({}, places)
    return found


def times_of(batch: pa.RecordBatch) -> ReadTimes:
    """Of a batch of messages of one partition. None: they have no times."""
    found = pc.min_max(batch.column("timestamp"))
    if not found["min"].is_valid:
        return {}
    place = (batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())
    piece = Arrived(batch.num_rows, found["min"].value / 1_000, found["max"].value / 1_000)
    return {(*place, batch.column("offset")[0].as_py()): piece}


def within(read: Mapping[tuple[str, int, int], Arrived], ranges: Iterable[Range]) -> list[Arrived]:
    """The pieces of these ranges. A task of an earlier slice may have come late."""
    return [
        read[topic, number, first]
        for each in ranges
        for topic, number, first in sorted(read)
        if (topic, number) == each.partition and each.first <= first < each.end
    ]
