"""State with a ttl, timers of both kinds, and a join by time, none of which may depend on where epochs end.

Each key has rows for a while and then none for much longer than its ttl; towards the end there is one key
alone, so that all others have expired. Processing timers are set for years ago, and fire at once, or for
years ahead, and stay open. At least 8,000 rows are needed, in epochs of at most 200.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))
BEGIN_MS = 1_767_268_800_000
LONG_AGO, FAR_AHEAD = datetime(2001, 1, 1, tzinfo=UTC), datetime(2201, 1, 1, tzinfo=UTC)


class Visits(hf.KeyedFunction):
    """Numbers the rows of a visit; a visit is forgotten a quarter of an hour after its last row."""

    output = "event long, visitor long, seq long, what string"
    seq = hf.ValueState("long", default=0, ttl="15m", clock="event")
    pages = hf.MapState("long", "long", ttl="15m", since="read", clock="event")
    newest = hf.ListState("long", ttl="15m", clock="event")
    kept = hf.ValueState("long", default=0, ttl="3650d")
    """By the clock, which jumps by hours at most."""

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.seq.value += 1
        self.pages[row.event % 3] = self.pages.get(row.event % 3, 0) + 1
        if row.key >= 0:
            self.newest.append(row.event)
        self.kept.value += 1
        ctx.timers.processing(LONG_AGO + timedelta(seconds=row.event))
        if row.event % 100 == 0:
            ctx.timers.processing(FAR_AHEAD + timedelta(seconds=row.event))
        ctx.timers.event(row.ts + timedelta(minutes=1))
        yield row.event, row.visitor, self.seq.value, f"row {sum(self.pages.values())} {len(self.newest)}"

    def on_timer(self, at: datetime, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield int(at.timestamp()), ctx.key, 0, ctx.timer


def events(uid: str, first: int) -> Any:
    """A row for each second, up to 20 s out of order."""
    busy = ROWS // 3
    source = hf.GeneratorSource(
        {
            "event": f"2 * id + {first}",
            "key": f"case when id < {busy} then (id div 250) % 8 else -1 end",
            "visitor": f"case when id < {busy} then (id div 250) % 8 else -1 end * 2 + {first}",
            "ts": f"timestamp_millis({BEGIN_MS} + id * 1000 - pmod(rnd, 20001))",
        },
        schema="event long, key long, visitor long, ts timestamp",
        total=ROWS // 2,
        seed=first,
    )
    return job.source(source, uid=uid).watermark("ts", delay="20s")


job = hf.Job("expiring")
odd, even = events("odd", 1), events("even", 0)

visits = odd.union(even).key_by("visitor", order_by="event").process(Visits(), uid="visits")
visits.sink(hf.FileSink("out/visits", format="parquet"), uid="visits-out")

pairs = odd.key_by("key").interval_join(
    even.key_by("key"), on="ts", within=("-1s", "2s"), how="full", uid="pairs"
)
pairs.sink(hf.FileSink("out/pairs", format="parquet"), uid="pairs-out")
pairs.late().sink(hf.FileSink("out/late", format="parquet"), uid="late-out")
