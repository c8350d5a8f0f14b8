"""Jobs of an epoch whose tasks read their rows by themselves, so that these never become Spark's.

Always true: where tasks cannot read a stream as Spark would, Spark reads it from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from holdfast.connectors.contract import Pieces
from holdfast.errors import EpochFailed
from holdfast.runtime.epoch.chosen_results import chosen_results
from holdfast.runtime.placement import Placement
from holdfast.runtime.spark_session import numbered_tasks
from holdfast.state.encoding.types import UTC_NAMES
from holdfast.tasks.keyed import (
    operator_by_shard,
    run_operator_on_few,
    run_operator_on_packed,
    run_stage_of_pieces,
)
from holdfast.tasks.messages import RESULT_SCHEMA, KeyedTask, StageTask, TaskResult
from holdfast.tasks.routed_rows import PACKED, SHARD_COLUMN, UNREADABLE, RoutedRows, unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.runtime.epoch.chosen_results import Job

FEW_ROWS = 5_000
"""Up to so many rows every shard's task reads all, and takes its own: less work than a shuffle."""
UNLIKE_TASKS = (
    # Texts have other types then.
    "spark.sql.execution.arrow.useLargeVarTypes",
    # What a task says of its failure does not come to the driver.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled",
)
"""Settings of a session, not usually true, under which rows are read by Spark."""


@dataclass(frozen=True)
class ReadingTasks:
    """Runs such jobs in one Spark session."""

    spark: SparkSession
    placement: Placement
    _read_by_spark: set[str] = field(default_factory=set, init=False)
    """Streams whose input tasks once could not read by themselves."""

    def may_read(self, stream: str) -> bool:
        """Whether tasks would read what Spark would, as far as the session tells."""
        settings = self.spark.conf
        return (
            stream not in self._read_by_spark
            # In others Spark reads times that have no zone otherwise.
            and self.zone in UTC_NAMES
            and not any(str(settings.get(name, "false")).lower() == "true" for name in UNLIKE_TASKS)
        )

    @property
    def zone(self) -> str:
        return str(self.spark.conf.get("spark.sql.session.timeZone"))

    def run_operator(
        self, stream: str, task: KeyedTask, routed: RoutedRows, what: str
    ) -> list[TaskResult] | None:
        """The results of an operator. None: its tasks cannot read the rows."""
        rows = routed.pieces.rows
        few = rows is not None and rows <= FEW_ROWS and self.placement.single_executor
        # Partial rows come in another order: members of a set of replicas have to take the same.
        few = few and task.partials is None
        return self._run(stream, lambda: self._operator_job(task, routed, few), what)

    def stage(self, task: StageTask, pieces: Pieces, what: str) -> list[TaskResult] | None:
        """The results of staging the rows of a source. None: tasks cannot read them."""
        body = partial(run_stage_of_pieces, task, pieces, self.zone)
        return self._run(task.stream, lambda: numbered_tasks(self.spark, pieces.count, body), what)

    def _run(self, stream: str, job: Callable[[], Job], what: str) -> list[TaskResult] | None:
        """If tasks cannot read the rows, Spark does from now on. If it cannot, it says why."""
        try:
            return chosen_results(job, what)
        except EpochFailed as failure:
            if UNREADABLE not in str(failure):
                raise
            self._read_by_spark.add(stream)
            return None

    def _operator_job(self, task: KeyedTask, routed: RoutedRows, few: bool) -> Job:
        shards, count = routed.shards, routed.pieces.count
        if few:
            return numbered_tasks(self.spark, shards, partial(run_operator_on_few, task, routed))
        numbers = self.spark.range(0, count, 1, max(1, count))
        packed = numbers.mapInArrow(routed.pack, f"{SHARD_COLUMN} int, {PACKED} binary")
        placed = packed.repartitionById(shards, SHARD_COLUMN)
        if self.placement.single_executor:
            return placed.mapInArrow(partial(run_operator_on_packed, task), RESULT_SCHEMA)
        body = operator_by_shard(task, unpacked)
        return self.placement.run(placed, SHARD_COLUMN, shards, body, RESULT_SCHEMA)
