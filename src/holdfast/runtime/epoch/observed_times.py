"""The newest event time of an epoch's rows, seen in passing by the job that reads them anyway.

Spark tells what it observed once a job is done. Of rows that it leaves out, because it can prove that nothing
comes of them, it tells nothing: its own call fails, or waits without end.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from holdfast.graph.event_time import micros_sql
from holdfast.state.encoding.routing import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

WAIT_SECONDS = 3.0
"""For what a job observed that gave results: it is there within milliseconds."""
_NEWEST = "newest"


class ObservedTimes:
    """What the jobs of one epoch observe, by source."""

    def __init__(self, unobserved: set[str]) -> None:
        """`unobserved`: sources of which Spark once told nothing. They are not watched; others are added."""
        self._unobserved = unobserved
        self._under_way: dict[str, Observation] = {}
        self._done: dict[str, Observation] = {}

    def watch(self, uid: str, frame: DataFrame, column: str) -> DataFrame:
        """The same rows; the job that computes them observes the newest time in `column`."""
        from pyspark.sql import Observation

        if uid in self._done or uid in self._unobserved:
            return frame
        self._under_way[uid] = Observation()
        return frame.observe(self._under_way[uid], _newest(frame, column).alias(_NEWEST))

    def ran(self, gave_results: bool) -> None:
        """A job has run. One that gave no results may have been left out, with what it was to observe."""
        if gave_results:
            self._done |= self._under_way
        self._under_way = {}

    def newest(self, uid: str) -> dict[str, int | None] | None:
        """The newest times of a source, by partition. None: no job observed them."""
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


def _told(observation: Observation) -> dict[str, int | None] | None:
    """What Spark tells of an observation. None: that it left it out."""
    from py4j.protocol import Py4JError

    try:
        return {"": observation.get[_NEWEST]}
    except (Py4JError, KeyError):
        return None


def newest_now(frame: DataFrame, column: str) -> dict[str, int | None]:
    """The newest times of some rows, by a job of its own."""
    found = frame.agg(_newest(frame, column).alias(_NEWEST)).collect()
    return {"": found[0][0]}


def _newest(frame: DataFrame, column: str) -> Column:
    from pyspark.sql.functions import expr
    from pyspark.sql.types import TimestampNTZType

    naive = isinstance(frame.schema[column].dataType, TimestampNTZType)
    return expr(f"max({micros_sql(quoted(column), naive)})")
