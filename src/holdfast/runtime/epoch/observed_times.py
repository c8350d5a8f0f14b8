"""The newest event time of an epoch's rows, seen in passing by the job that reads them anyway.

Spark tells what it observed once a job is done. Of rows that it leaves out, because it can prove that nothing
comes of them, it tells nothing: its own call fails, or waits without end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.graph.event_time import micros_sql
from holdfast.state.encoding.routing import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

WAIT_SECONDS = 3.0
"""For what a job observed that gave results: it is there within milliseconds."""
_NEWEST = "newest"


@dataclass(frozen=True)
class NewestTimes:
    """The newest event times of some rows: of all, or by partition. `partitions`: those that the rows are
    of, as text in `partition_column`."""

    column: str
    partition_column: str | None = None
    partitions: tuple[str, ...] = ()

    @property
    def are_any(self) -> bool:
        """False: there are partitions, and the rows are of none of them."""
        return self.partition_column is None or bool(self.partitions)

    def columns(self, frame: DataFrame) -> list[Column]:
        """What Spark is to find, over all rows of the frame."""
        from pyspark.sql.functions import expr, lit, max, when
        from pyspark.sql.types import TimestampNTZType

        naive = isinstance(frame.schema[self.column].dataType, TimestampNTZType)
        time = expr(micros_sql(quoted(self.column), naive))
        if self.partition_column is None:
            return [max(time).alias(_NEWEST)]
        partition = frame[quoted(self.partition_column)].cast("string")
        return [
            max(when(partition == lit(name), time)).alias(f"{_NEWEST}{number}")
            for number, name in enumerate(self.partitions)
        ]

    def named(self, found: Mapping[str, int | None]) -> dict[str, int | None]:
        """What Spark found, by partition ("": the source has none)."""
        if self.partition_column is None:
            return {"": found[_NEWEST]}
        return {name: found[f"{_NEWEST}{number}"] for number, name in enumerate(self.partitions)}

    def now(self, frame: DataFrame) -> dict[str, int | None]:
        """The newest times of some rows, by a job of its own."""
        return self.named(frame.agg(*self.columns(frame)).collect()[0].asDict())


@dataclass(frozen=True)
class Observed:
    """What a job observes."""

    observation: Observation
    times: NewestTimes


class ObservedTimes:
    """What the jobs of one epoch observe, by source."""

    def __init__(self, unobserved: set[str]) -> None:
        """`unobserved`: sources of which Spark once told nothing. They are not watched; others are added."""
        self._unobserved = unobserved
        self._under_way: dict[str, Observed] = {}
        self._done: dict[str, Observed] = {}
        self._by_tasks: dict[str, dict[str, int | None]] = {}

    def told(self, uid: str, newest: dict[str, int | None]) -> None:
        """Tasks that read the rows of a source by themselves have found its newest times."""
        self._by_tasks[uid] = newest

    def watch(self, uid: str, frame: DataFrame, times: NewestTimes) -> DataFrame:
        """The same rows; the job that computes them observes the newest times in them."""
        from pyspark.sql import Observation

        if uid in self._done or uid in self._by_tasks or uid in self._unobserved:
            return frame
        self._under_way[uid] = Observed(Observation(), times)
        return frame.observe(self._under_way[uid].observation, *times.columns(frame))

    def ran(self, gave_results: bool) -> None:
        """A job has run. One that gave no results may have been left out, with what it was to observe."""
        if gave_results:
            self._done |= self._under_way
        self._under_way = {}

    def newest(self, uid: str) -> dict[str, int | None] | None:
        """The newest times of a source, by partition. None: no job observed them."""
        if uid in self._by_tasks:
            return self._by_tasks[uid]
        if uid not in self._done:
            return None
        told: queue.SimpleQueue[dict[str, int | None] | None] = queue.SimpleQueue()
        waiting = threading.Thread(target=lambda: told.put(_told(self._done[uid])), daemon=True)
        waiting.start()
        try:
            newest = told.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            newest = None
        if newest is None:
            # Left out of a job that gave results all the same, as rows of a union that Spark proves empty.
            self._unobserved.add(uid)
        return newest


def _told(observed: Observed) -> dict[str, int | None] | None:
    """What Spark tells of an observation. None: that it left it out."""
    from py4j.protocol import Py4JError

    try:
        return observed.times.named(observed.observation.get)
    except (Py4JError, KeyError):
        return None
