"""Says that it can replay, and gives other rows when it is asked again after a restart: rows are lost."""

import os
from collections.abc import Sequence
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))


class ForgetfulSource(hf.GeneratorSource):
    def reader(self, notes: Sequence[Any]) -> Any:
        return ForgetfulReader(super().reader(notes))


class ForgetfulReader:
    """Numbers rows by what this process has read so far, not by the slice."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._skipped: int | None = None
        self.next, self.exhausted, self.lag = inner.next, inner.exhausted, inner.lag

    def frame(self, spark: Any, slice: Any) -> Any:
        if self._skipped is None:
            self._skipped = (slice.start or [0])[0] // 100
        return self._inner.frame(spark, slice).selectExpr(f"event - {self._skipped} as event", "key")


job = hf.Job("forgetful")
events = job.source(
    ForgetfulSource(
        {"event": "id", "key": "id * 48271 % 2147483647 % 50"}, schema="event long, key long", total=ROWS
    ),
    uid="events",
)
events.key_by("key").aggregate(uid="sums", events=hf.count(), total=hf.sum("event")).sink(
    hf.FileSink("out/sums", format="parquet"), uid="sums-out"
)
events.sink(hf.FileSink("out/events", format="parquet"), uid="events-out")
