"""A function over windows that tells each window twice once its driver was started again."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))
BEGIN_MS = 1_767_268_800_000


class Totals(hf.WindowFunction):
    output = "rows long, events long"

    def process(self, window: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        lives = list(Path(os.environ["HOLDFAST_CHAOS"], "logs").glob("*.log"))
        for _ in lives[:2]:
            yield len(rows), sum(row.event for row in rows)


job = hf.Job("doubled-windows")
events = job.source(
    hf.GeneratorSource(
        {
            "event": "id",
            "key": "pmod(rnd, 20)",
            "ts": f"timestamp_millis({BEGIN_MS} + id * 1000 - pmod(rnd, 20001))",
        },
        schema="event long, key long, ts timestamp",
        total=ROWS,
    ),
    uid="events",
).watermark("ts", delay="20s")
events.key_by("key").window(hf.tumbling("1m"), on="ts").process(Totals(), uid="totals").sink(
    hf.FileSink("out/totals", format="parquet"), uid="totals-out"
)
