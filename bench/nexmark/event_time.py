"""The functions of the Nexmark queries that go by event time and that aggregates over windows do not say.

The watermark is behind by as much as events are out of order, so that no event comes after its window was
closed. State is gone when its window is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import holdfast as hf


class HighestBids(hf.WindowFunction):
    """Query 7: rows are those bids of the window that were the highest of an epoch."""

    output = "auction long, bidder long, price long, extra string, date_time timestamp"

    def process(self, window: Any, rows: list[Any], ctx: hf.Context) -> Iterator[tuple[Any, ...]]:
        highest = max(row.price for row in rows)
        for row in rows:
            if row.price == highest:
                yield row.auction, row.bidder, row.price, row.extra, row.date_time


class NewSellers(hf.KeyedFunction):
    """Query 8, by person and window: emitted as soon as the person and an auction are there."""

    output = "id long, name string, window_start timestamp"
    name = hf.ValueState("string")
    sells = hf.ValueState("boolean", default=False)
    shown = hf.ValueState("boolean", default=False)

    def process(self, row: Any, ctx: hf.Context) -> Iterator[tuple[Any, ...]]:
        ctx.timers.event(row.window_start + timedelta(seconds=10))
        if row.name is None:
            self.sells.value = True
        else:
            self.name.value = row.name
        if self.sells.value and self.name.value is not None and not self.shown.value:
            self.shown.value = True
            yield row.id, self.name.value, row.window_start

    def on_timer(self, at: datetime, ctx: hf.Context) -> None:
        self.name.clear()
        self.sells.clear()
        self.shown.clear()
