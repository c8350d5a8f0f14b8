"""The functions of the Nexmark queries that wait for event time: windows and sessions, closed by timers.

The watermark is behind by as much as events are out of order, so that no event comes after its window was
closed. State is gone when its window is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import holdfast as hf

GAP = timedelta(seconds=10)


class HotAuctions(hf.KeyedFunction):
    """Query 5, by window: rows are how many bids an auction got in it in one epoch."""

    output = "auction long, num long, window_start timestamp, window_end timestamp"
    counts = hf.MapState("long", "long")

    def process(self, row: Any, ctx: hf.Context) -> None:
        ctx.timers.event(row.window_end)
        self.counts[row.auction] = self.counts.get(row.auction, 0) + row.num

    def on_timer(self, at: datetime, ctx: hf.Context) -> Iterator[tuple[Any, ...]]:
        counts = dict(self.counts.items())
        most = max(counts.values())
        for auction, num in counts.items():
            if num == most:
                yield auction, num, at - timedelta(seconds=10), at
        self.counts.clear()


class HighestBids(hf.KeyedFunction):
    """Query 7, by window: rows are the bids of the highest price in it in one epoch."""

    output = "auction long, bidder long, price long, date_time timestamp, extra string"
    highest = hf.ValueState(
        "array<struct<auction: long, bidder: long, price: long, date_time: timestamp, extra: string>>"
    )

    def process(self, row: Any, ctx: hf.Context) -> None:
        highest = self.highest.value or []
        if not highest:
            ctx.timers.event(row.window_end)
        if not highest or row.price >= highest[0].price:
            ties = highest if highest and row.price == highest[0].price else []
            self.highest.value = [*ties, (row.auction, row.bidder, row.price, row.date_time, row.extra)]

    def on_timer(self, at: datetime, ctx: hf.Context) -> Iterator[tuple[Any, ...]]:
        for bid in self.highest.value or ():
            yield bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra
        self.highest.clear()


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


class Sessions(hf.KeyedFunction):
    """Query 11, by bidder: rows are the sessions within one epoch. They grow, and join where they are near.

    Always true: every open session has one timer, at its end.
    """

    output = "bidder long, bids long, window_start timestamp, window_end timestamp"
    open_sessions = hf.ValueState("array<struct<start: timestamp, last: timestamp, bids: long>>")

    def process(self, row: Any, ctx: hf.Context) -> None:
        start, last, bids, others = row.start, row.last, row.bids, []
        for each in self.open_sessions.value or ():
            if each.start - row.last < GAP and row.start - each.last < GAP:
                start, last, bids = min(start, each.start), max(last, each.last), bids + each.bids
                ctx.timers.delete(each.last + GAP)
            else:
                others.append(each)
        self.open_sessions.value = [*others, (start, last, bids)]
        ctx.timers.event(last + GAP)

    def on_timer(self, at: datetime, ctx: hf.Context) -> Iterator[tuple[Any, ...]]:
        rest = []
        for each in self.open_sessions.value or ():
            if each.last + GAP == at:
                yield ctx.key, each.bids, each.start, at
            else:
                rest.append(each)
        if rest:
            self.open_sessions.value = rest
        else:
            self.open_sessions.clear()
