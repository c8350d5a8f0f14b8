"""Keeps every shard on its executor.

Spark places a shuffled task anywhere, so working state would be rebuilt all the time. One tiny cached row per
shard, cogrouped with the data, makes the shard's task prefer the executor that caches its row, and adds no
shuffle. When an executor is lost Spark caches only that executor's rows again, elsewhere: the other shards
stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import is_single_executor
from holdfast.storage.contract import Storage
from holdfast.tasks.messages import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def workspace_of(
    spark: SparkSession, settings: RunSettings, identity: str, storage: Storage, owner: str
) -> Workspace:
    """Where the tasks of this session keep the working state of a job: for its epochs, and to follow it."""
    return Workspace(
        identity=identity,
        storage_url=storage.url,
        working_root=settings.working_dir if is_single_executor(spark) else None,
        private_root=settings.private_working_dir,
        backend=settings.backend,
        owner=owner,
    )


def shard_expression(group: str, shards: int, key_groups: int) -> str:
    """Spark SQL text whose value is the shard of a key group, as `shard_ranges` cuts them."""
    return f"cast((({group} + 1) * {shards} - 1) div {key_groups} as int)"


class Placement:
    """The cached rows, made when first needed for a number of shards.

    Another object for the same session and number of shards shares them: Spark recognises a plan that it has
    cached. So what a standby has followed is found by the epochs that come after.
    """

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
        listed = ", ".join(str(shard) for shard in wanted)
        if self.single_executor:
            count = len(wanted)
            return self._spark.range(0, count, 1, count).selectExpr(
                f"element_at(array({listed}), cast(id as int) + 1) as shard"
            )
        return self._cached(shards).where(f"shard in ({listed})")

    def _cached(self, shards: int) -> DataFrame:
        if shards not in self._rows:
            self._rows[shards] = every_shard(self._spark, shards).cache()
            self._rows[shards].count()
        return self._rows[shards]


def every_shard(spark: SparkSession, shards: int) -> DataFrame:
    """One row per shard, each in a partition of its own."""
    rows = spark.range(0, shards, 1, shards).selectExpr("cast(id as int) as shard")
    return rows.repartitionById(shards, "shard")
