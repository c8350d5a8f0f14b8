"""Lists, maps and wide text in state, rows set aside: every task writes files of its own."""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))
TEXT_LENGTH = 1_000


class Visits(hf.KeyedFunction):
    output = "event long, user long, visits long, pages long, newest array<long>, note string"
    visits = hf.ValueState("long", default=0)
    newest = hf.ListState("long")
    pages = hf.MapState("string", "long")
    note = hf.ValueState("string", default="")

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if row.event % 97 == 0:
            raise ValueError(f"event {row.event} is not to be had")
        self.visits.value += 1
        page = f"page-{row.page}"
        self.pages[page] = self.pages.get(page, 0) + 1
        self.newest.replace([*list(self.newest)[-4:], row.event])
        self.note.value = _text(row.event)
        yield row.event, row.user, self.visits.value, self.pages[page], list(self.newest), self.note.value


def _text(seed: int) -> str:
    """Text that does not compress, the same for the same seed."""
    blocks = (
        hashlib.sha256(f"{seed}-{number}".encode()).hexdigest() for number in range(TEXT_LENGTH // 64 + 1)
    )
    return "".join(blocks)[:TEXT_LENGTH]


job = hf.Job("wide")
events = job.source(
    hf.GeneratorSource(
        {
            "event": "id",
            "user": "id * 48271 % 2147483647 % 200",
            "page": "id * 69621 % 2147483647 % 12",
        },
        schema="event long, user long, page long",
        total=ROWS,
    ),
    uid="events",
)
visits = events.key_by("user", order_by="event").process(Visits(), uid="visits", on_error="dead-letter")
visits.sink(hf.FileSink("out/visits", format="parquet"), uid="visits-out")
visits.dead_letters().sink(hf.FileSink("out/refused", format="parquet"), uid="refused-out")
