"""Clicks of users, numbered and added up per user, counted per page.

`holdfast demo` copies this file into its directory and runs it there:

    holdfast run clickstream.py --checkpoint ck/ --until exhausted
"""

import os
from collections.abc import Iterator
from typing import Any

import holdfast as hf

EVENTS = int(os.environ.get("EVENTS", "1000000"))
EVENTS_PER_SECOND = float(os.environ.get("EVENTS_PER_SECOND", "20000"))


class Clicks(hf.KeyedFunction):
    """Gives each click of a user its number, and the user's spending so far. Both are remembered per user."""

    output = "event long, user long, click long, spent long"
    clicks = hf.ValueState("long", default=0)
    spent = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int, int, int]]:
        self.clicks.value += 1
        self.spent.value += row.cents
        yield row.event, row.user, self.clicks.value, self.spent.value


job = hf.Job("clickstream")
events = job.source(
    hf.GeneratorSource(
        {
            "event": "id",
            "user": "id * 48271 % 2147483647 % 5000",
            "page": "id * 69621 % 2147483647 % 40",
            "cents": "id * 39373 % 2147483647 % 1000",
        },
        schema="event long, user long, page long, cents long",
        rows_per_second=EVENTS_PER_SECOND,
        total=EVENTS,
    ),
    uid="events",
)
events.key_by("user", order_by="event").process(Clicks(), uid="clicks").sink(
    hf.FileSink("out/clicks", format="parquet"), uid="clicks-out"
)
events.key_by("page").aggregate(uid="pages", views=hf.count(), spent=hf.sum("cents")).sink(
    hf.FileSink("out/pages", format="parquet"), uid="pages-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/", until="exhausted")
