"""Windows and event timers over two sources, with rows that come late by some minutes, and by hours.

Whatever comes late comes either soon enough to be added to its windows, however the epochs are cut, or far
too late for all of them.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))
BEGIN_MS = 1_767_268_800_000
STRAY_FROM = 400
"""Before that, event time has not come far enough for a row of hours ago to be late in every run."""


class Minutes(hf.KeyedFunction):
    """Counts the rows of each minute, tells when it is over, and half a minute later tells the sum so far."""

    output = "key long, what string, at timestamp, rows long"
    rows = hf.MapState("timestamp", "long")
    total = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> None:
        minute = row.ts.replace(second=0, microsecond=0)
        self.rows[minute] = self.rows.get(minute, 0) + 1
        ctx.timers.event(minute + timedelta(minutes=1))

    def on_timer(self, at: datetime, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if at.second:
            yield ctx.key, "so far", at, self.total.value
            return
        told = self.rows.pop(at - timedelta(minutes=1))
        self.total.value += told
        ctx.timers.event(at + timedelta(seconds=30))
        yield ctx.key, "minute", at, told


def events(uid: str, first: int) -> Any:
    """A row for each second, up to 20 s out of order; every 53rd 10 to 20 minutes, every 97th six hours.

    In epochs of 200 rows event time is up to 7 minutes behind.
    """
    source = hf.GeneratorSource(
        {
            "event": f"2 * id + {first}",
            "key": "pmod(rnd, 20)",
            "ts": f"timestamp_millis({BEGIN_MS} + id * 1000 - case "
            f"when id % 97 = 0 and id >= {STRAY_FROM} then 21600000 "
            "when id % 53 = 0 then 600000 + pmod(rnd, 600000) else pmod(rnd, 20001) end)",
            "late": f"id % 53 = 0 or (id % 97 = 0 and id >= {STRAY_FROM})",
        },
        schema="event long, key long, ts timestamp, late boolean",
        total=ROWS // 2,
        seed=first,
    )
    return job.source(source, uid=uid).watermark("ts", delay="20s")


job = hf.Job("windows")
both = events("odd", 1).union(events("even", 0))

sliding = (
    both.key_by("key")
    .window(hf.sliding("60s", every="20s"), on="ts", allowed_lateness="20m")
    .aggregate(uid="sliding", rows=hf.count(), events=hf.sum("event"))
)
sliding.sink(hf.FileSink("out/sliding", format="parquet"), uid="sliding-out")
sliding.late().sink(hf.FileSink("out/late", format="parquet"), uid="late-out")

sessions = (
    both.key_by("key")
    .window(hf.session("25s"), on="ts", allowed_lateness="20m")
    .aggregate(uid="sessions", rows=hf.count(), events=hf.sum("event"))
)
sessions.sink(hf.FileSink("out/sessions", format="parquet"), uid="sessions-out")

in_time = both.transform(lambda rows: rows.where("not late"))
minutes = in_time.key_by("key").process(Minutes(), uid="minutes")
minutes.sink(hf.FileSink("out/minutes", format="json"), uid="minutes-out")

# Of what another operator gave out, by the same event time, each window once.
hours = minutes.key_by("what").window(hf.tumbling("10m"), on="at").aggregate(uid="hours", rows=hf.sum("rows"))
hours.sink(hf.FileSink("out/hours", format="json"), uid="hours-out")
