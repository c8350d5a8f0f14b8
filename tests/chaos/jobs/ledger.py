"""Numbers and sums per key, counted again per bucket: two operators in a row, each with a sink."""

import os
from collections.abc import Iterator
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))


class Ledger(hf.KeyedFunction):
    output = "event long, key long, seq long, total long, bucket long"
    seq = hf.ValueState("long", default=0)
    total = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.seq.value += 1
        self.total.value += row.value
        yield row.event, row.key, self.seq.value, self.total.value, row.event % 7


job = hf.Job("ledger")
events = job.source(
    hf.GeneratorSource(
        {
            "event": "id",
            "key": "id * 48271 % 2147483647 % 50",
            "value": "id * 39373 % 2147483647 % 1000",
        },
        schema="event long, key long, value long",
        total=ROWS,
    ),
    uid="events",
)
ledger = events.key_by("key", order_by="event").process(Ledger(), uid="ledger")
ledger.sink(hf.FileSink("out/ledger", format="parquet"), uid="ledger-out")
buckets = ledger.key_by("bucket").aggregate(uid="buckets", rows=hf.count(), seqs=hf.sum("seq"))
buckets.sink(hf.FileSink("out/buckets", format="json"), uid="buckets-out")
