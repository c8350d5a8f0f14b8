"""Has lanes of a sink written by Spark's tasks, so that no row of a large epoch passes through the driver.

Lanes are written in turns of a limited size, each of which is a Spark job. While epochs or anything else run
in the session, a turn takes at most half of the slots; where nothing does, nobody waits for them, and it
takes all. What begins meanwhile waits for one turn at most.

Always true: there is one answer for each lane; a job that Spark gave up says of all its lanes that their
outcome is not known, and none is begun after it. Where the executors lack what the sink needs another try
does not bring it: that is a refusal, for a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from holdfast.connectors.lanes import LaneRows, LaneWriter, Outcome, Result
from holdfast.runtime.spark_failures import SparkFailure, explained, raised_by_task
from holdfast.runtime.spark_session import default_parallelism, describe_jobs, is_idle
from holdfast.tasks.lanes import LaneAnswer, LaneTask, decode_answer, run_lanes
from holdfast.tasks.messages import RESULT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TURN_BYTES = 64 << 20
"""What a task writes in a turn, as large as it is staged: some seconds of work, beside which starting a job
is cheap."""


@dataclass(frozen=True)
class LaneJobs:
    """Writes lanes of one sink with this Spark session."""

    spark: SparkSession
    writer: LaneWriter
    uid: str
    term: int

    def __call__(self, waiting: Sequence[LaneRows]) -> list[Result | Exception]:
        answers: dict[int, Result | Exception] = {}
        rest = list(waiting)
        while rest:
            # Looked at before every turn: an epoch may have begun since.
            slots = slots_for(default_parallelism(self.spark), alone=is_idle(self.spark))
            turn, rest = next_turn(rest, slots)
            try:
                answers |= self._written(turn, slots)
            except _GivenUp as lost:
                outcome = Outcome.REFUSED if lost.failure.lacking else Outcome.UNAVAILABLE
                unknown = Result(outcome, reason=f"failed in Spark: {lost.failure.reason}")
                answers |= {rows.lane: unknown for rows in (*turn, *rest)}
                break
        return [answers[rows.lane] for rows in waiting]

    def _written(self, turn: Sequence[LaneRows], slots: int) -> dict[int, Result | Exception]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        task = LaneTask(self.writer, self.term, grouped(turn, slots))
        tasks = len(task.groups)
        describe_jobs(self.spark, f"holdfast epoch {turn[0].epoch} into sink {self.uid}")
        try:
            rows = self.spark.range(0, tasks, 1, tasks).mapInArrow(partial(run_lanes, task), RESULT_SCHEMA)
            answers = [decode_answer(bytes(row[0])) for row in rows.collect()]
        except (PySparkException, Py4JError, ConnectionError, EOFError) as cause:
            raise _GivenUp(explained(cause)) from cause
        return {answer.lane: _told(answer) for answer in answers}


class _GivenUp(Exception):
    """Spark gave up a job that wrote lanes."""

    def __init__(self, failure: SparkFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def slots_for(slots: int, *, alone: bool) -> int:
    """How many tasks may write at once: all where nothing else runs, else at most half."""
    return max(1, slots if alone else slots // 2)


def next_turn(waiting: Sequence[LaneRows], slots: int) -> tuple[list[LaneRows], list[LaneRows]]:
    """The lanes of the next turn, and the rest. A turn has a lane for each slot at least, then more as long
    as each slot has no more than TURN_BYTES to write."""
    turn: list[LaneRows] = []
    size = 0
    for place, rows in enumerate(waiting):
        size += _size(rows)
        if place >= slots and size > slots * TURN_BYTES:
            break
        turn.append(rows)
    return turn, list(waiting[len(turn) :])


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
    return raised_by_task(answer.failure)
