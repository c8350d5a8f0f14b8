"""Keeps every shard on its executor.

Spark places a shuffled task anywhere, so working state would be rebuilt all the time. One tiny cached row per
shard,
cogrouped with the data, makes the shard's task prefer the executor that caches its row, and adds no shuffle.
When an
executor is lost Spark caches only its rows anew, elsewhere: the other shards stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.engine.session import is_single_executor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Placement:
    """The cached rows, made when first needed for a number of shards."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._rows: dict[int, DataFrame] = {}
        self.single_executor = is_single_executor(spark)

    def run(
        self, routed: DataFrame, column: str, shards: int, body: Callable[..., pa.Table], schema: str
    ) -> DataFrame:
        """A job that calls `body` once per shard, where the shard lives, also for shards without rows."""
        rows = self._cached(shards).withColumnRenamed("shard", column)
        return routed.groupBy(column).cogroup(rows.groupBy(column)).applyInArrow(body, schema)

    def shard_rows(self, shards: int, wanted: list[int]) -> DataFrame:
        """One row, with the shard's number, for each wanted shard: read where the shard lives."""
        if self.single_executor:
            return self._spark.createDataFrame([(shard,) for shard in wanted], "shard int").repartition(
                len(wanted)
            )
        return self._cached(shards).where(f"shard in ({', '.join(str(shard) for shard in wanted)})")

    def _cached(self, shards: int) -> DataFrame:
        if shards not in self._rows:
            rows = self._spark.range(0, shards, 1, shards).selectExpr("cast(id as int) as shard")
            self._rows[shards] = rows.repartitionById(shards, "shard").cache()
            self._rows[shards].count()
        return self._rows[shards]
