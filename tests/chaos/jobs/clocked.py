"""State that is kept for an hour by the clock: results depend on what the clock does."""

import os
from collections.abc import Iterator
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))


class Recent(hf.KeyedFunction):
    output = "event long, key long, seq long"
    seq = hf.ValueState("long", default=0, ttl="1h")

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.seq.value += 1
        yield row.event, row.key, self.seq.value


job = hf.Job("clocked")
events = job.source(
    hf.GeneratorSource(
        {"event": "id", "key": "id * 48271 % 2147483647 % 50"}, schema="event long, key long", total=ROWS
    ),
    uid="events",
)
events.key_by("key", order_by="event").process(Recent(), uid="recent").sink(
    hf.FileSink("out/recent", format="parquet"), uid="recent-out"
)
