"""A function that gives other results each time: every row leaves a random mark in the state for the next.

Each row says which mark it found and which it left. State and sink agree only if both are of the same task
result, in every epoch: `marks_agree` checks that.
"""

import os
import uuid
from collections.abc import Iterator
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))


class Marked(hf.KeyedFunction):
    output = "event long, key long, seq long, mark string, before string"
    seq = hf.ValueState("long", default=0)
    mark = hf.ValueState("string", default="")

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        before = self.mark.value
        self.seq.value += 1
        self.mark.value = uuid.uuid4().hex
        yield row.event, row.key, self.seq.value, self.mark.value, before


job = hf.Job("marked")
events = job.source(
    hf.GeneratorSource(
        {"event": "id", "key": "id * 48271 % 2147483647 % 50"}, schema="event long, key long", total=ROWS
    ),
    uid="events",
)
events.key_by("key", order_by="event").process(Marked(), uid="marked").sink(
    hf.FileSink("out/marked", format="parquet"), uid="marked-out"
)
