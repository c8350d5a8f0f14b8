"""Any table that Spark reads in batches, as a source by a column that grows.

The user says how far the table can be read, and how a piece of it is read; nothing is known of the system
behind it. What the source promises is what the user promises of that system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.connectors.contract import Json, Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Through = Callable[[Json, int | None], Json]
    Read = Callable[[SparkSession, Json, Json], DataFrame]


class BatchSource:
    """`read(spark, after, through)` gives the rows whose growing value is above `after` (None: from the
    beginning) and up to `through`, with it. `through(after, max_rows)` says where the next piece ends: a
    value above `after` that JSON can hold, or None where nothing is new. It runs on the driver, has no Spark
    and must be quick; it keeps to `max_rows` (None: no limit) as well as it can.

        hf.BatchSource(
            through=lambda after, max_rows: newest_day(after),
            read=lambda spark, after, through: spark.read.table("events")
                .where(f"day > '{after or ''}' and day <= '{through}'"),
            schema="day string, user string, amount long", unchanging=True)

    `unchanging=True` is the user's word that a piece gives the same rows whenever it is read: nothing at or
    below a value that `through` gave is added, changed or removed any more. Without it the source cannot
    replay, and its job is at most once.
    """

    def __init__(self, *, through: Through, read: Read, schema: str, unchanging: bool) -> None:
        self.through: Final = through
        self.read: Final = read
        self.schema: Final = schema
        self.unchanging: Final = unchanging

    @property
    def replayable(self) -> bool:
        return self.unchanging

    def reader(self, notes: Sequence[Json]) -> BatchReader:
        return BatchReader(self)


class BatchReader:
    """A position is a value of the growing column."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._ended = False
        self._end: Json = None

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        if self._ended and after == self._end:
            return None
        through = self._source.through(after, max_rows)
        if self._ended and through is not None and through > self._end:
            through = self._end
        return None if through is None or not _is_above(through, after) else Slice(after, through)

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        if end is None:
            through = self._source.through(after, None)
            end = after if through is None else through
        self._ended, self._end = True, end
        return end

    def exhausted(self, after: Json | None) -> bool:
        """All that is there now was read."""
        return self.next(after, None, 0) is None

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        rows = self._source.read(spark, slice.start, slice.end)
        return rows.to(spark.createDataFrame([], self._source.schema).schema)

    def lag(self, after: Json | None) -> int | None:
        return None


def _is_above(through: Json, after: Json | None) -> bool:
    """Whether there is something new. A copy of the table that lags behind ends lower than what was read of
    another one: read from there, rows would come twice."""
    return after is None or bool(through > after)
