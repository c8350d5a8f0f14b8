"""The newest event time of an epoch's rows, seen in passing by the job that reads them anyway.

Spark tells what it observed once a job is done. Of a job that it leaves out, because it can prove that
nothing comes of it, it tells nothing, and its own call would wait without end.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

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
        told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        observation = self._done[uid]
        waiting = threading.Thread(target=lambda: told.put(observation.get[_NEWEST]), daemon=True)
        waiting.start()
        try:
            return {"": told.get(timeout=WAIT_SECONDS)}
        except queue.Empty:
            # Left out of a job that gave results all the same, as rows of a union that Spark proves empty.
            self._unobserved.add(uid)
            return None


def newest_now(frame: DataFrame, column: str) -> dict[str, int | None]:
    """The newest times of some rows, by a job of its own."""
    found = frame.agg(_newest(frame, column).alias(_NEWEST)).collect()
    return {"": found[0][0]}


def _newest(frame: DataFrame, column: str) -> Column:
    from pyspark.sql import functions
    from pyspark.sql.types import TimestampNTZType

    time = frame[quoted(column)]
    if isinstance(frame.schema[column].dataType, TimestampNTZType):
        begin = functions.lit("1970-01-01").cast("timestamp_ntz")
        return functions.max(functions.timestamp_diff("MICROSECOND", begin, time))
    return functions.max(functions.unix_micros(time))
