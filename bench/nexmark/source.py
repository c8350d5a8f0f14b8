"""The events as a source: a slice is a range of event numbers, its rows are made inside Spark tasks.

Nothing is read, so what a job does with its events is all that a measurement sees. Every slice can be made
again, anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import holdfast as hf
from bench.nexmark.generator import SCHEMA, Nexmark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SLICE_EVENTS_MAX = 250_000
CHUNK_EVENTS = 50_000
"""Made at once: few enough for the caches of a processor."""


class NexmarkSource:
    """The first `events` events, or all of them, without end."""

    schema: Final = SCHEMA
    replayable: Final = True

    def __init__(self, settings: Nexmark, events: int | None = None) -> None:
        self.settings: Final = settings
        self.events: Final = events

    def reader(self, notes: Sequence[Any]) -> NexmarkReader:
        return NexmarkReader(self)


class NexmarkReader:
    """A position is the number of the next event."""

    def __init__(self, source: NexmarkSource) -> None:
        self._source = source

    def next(self, after: int | None, max_rows: int | None, now_ms: int) -> hf.Slice | None:
        first = after or 0
        end = first + (SLICE_EVENTS_MAX if max_rows is None else max_rows)
        if self._source.events is not None:
            end = min(end, self._source.events)
        return hf.Slice(after, end, rows=end - first) if end > first else None

    def exhausted(self, after: int | None) -> bool:
        return self.lag(after) == 0

    def frame(self, spark: SparkSession, slice: hf.Slice) -> DataFrame:
        chunks = spark.range(slice.start or 0, slice.end, CHUNK_EVENTS)
        return chunks.mapInArrow(partial(_made, self._source.settings, slice.end), SCHEMA)

    def lag(self, after: int | None) -> int | None:
        return None if self._source.events is None else self._source.events - (after or 0)


def _made(settings: Nexmark, end: int, chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in chunks:
        for first in batch.column(0).to_pylist():
            yield from settings.table(first, min(end, first + CHUNK_EVENTS)).to_batches()
