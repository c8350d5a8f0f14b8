"""Has lanes of a sink written by Spark's tasks, so that no row of a large epoch passes through the driver.

Always true: a job gives one answer for each lane; one that Spark gave up says of all its lanes that their
outcome is not known. At most half of the slots are taken: epochs go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from holdfast import errors
from holdfast.connectors.lanes import LaneRows, LaneWriter, Outcome, Result
from holdfast.runtime.spark_failures import explained
from holdfast.runtime.spark_session import default_parallelism, describe_jobs
from holdfast.tasks.lanes import LaneAnswer, LaneTask, decode_answer, run_lanes
from holdfast.tasks.messages import RESULT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class LaneJobs:
    """Writes lanes of one sink with this Spark session."""

    spark: SparkSession
    writer: LaneWriter
    uid: str
    term: int

    def __call__(self, waiting: Sequence[LaneRows]) -> list[Result | Exception]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        slots = default_parallelism(self.spark) // 2
        task = LaneTask(self.writer, self.term, grouped(waiting, max(1, slots)))
        tasks = len(task.groups)
        describe_jobs(self.spark, f"holdfast epoch {waiting[0].epoch} into sink {self.uid}")
        try:
            rows = self.spark.range(0, tasks, 1, tasks).mapInArrow(partial(run_lanes, task), RESULT_SCHEMA)
            answers = [decode_answer(bytes(row[0])) for row in rows.collect()]
        except (PySparkException, Py4JError, ConnectionError, EOFError) as cause:
            lost = Result(Outcome.UNAVAILABLE, reason=f"failed in Spark: {explained(cause).reason}")
            return [lost for _ in waiting]
        by_lane = {answer.lane: answer for answer in answers}
        return [_told(by_lane[rows.lane]) for rows in waiting]


def grouped(waiting: Sequence[LaneRows], groups: int) -> tuple[tuple[LaneRows, ...], ...]:
    """The lanes in at most so many groups of about the same size."""
    dealt: list[list[LaneRows]] = [[] for _ in range(min(groups, len(waiting)))]
    for rows in sorted(waiting, key=_size, reverse=True):
        min(dealt, key=lambda group: sum(map(_size, group))).append(rows)
    return tuple(tuple(sorted(group, key=lambda rows: rows.lane)) for group in dealt)


def _size(rows: LaneRows) -> int:
    return sum(part.bytes or part.rows for part in rows.parts)


def _told(answer: LaneAnswer) -> Result | Exception:
    if answer.failure is None:
        assert answer.result is not None
        return answer.result
    if not answer.failure.kind:
        return RuntimeError(*answer.failure.args)
    error: Exception = getattr(errors, answer.failure.kind)(*answer.failure.args)
    return error
