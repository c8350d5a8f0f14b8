"""State in Python for the Nexmark queries that Spark's SQL on streams cannot say: see `baselines`.

Times are kept as microseconds since 1970: a timestamp comes out of state without the time zone that it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.nexmark.functions import TOP

AUCTION = ("item_name", "initial_bid", "reserve", "date_time", "expires", "seller", "category")


class WinningBid(StatefulProcessor):
    """Query 9, by auction: rows are bids within its time, with its columns."""

    output = (
        "id long, item_name string, initial_bid long, reserve long, date_time timestamp, expires timestamp, "
        "seller long, category long, bidder long, price long, bid_date_time timestamp"
    )

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.best = handle.getValueState("best", "price long, at long, number long")

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        held = self.best.get()
        best = min(rows, key=_place)
        if held is None or _place(best) < (-held[0], held[1], held[2]):
            self.best.update((best.price, best.at, best.number))
            auction = {name: best[name] for name in AUCTION}
            yield Row(
                id=key[0], **auction, bidder=best.bidder, price=best.price, bid_date_time=best.bid_date_time
            )

    def close(self) -> None:
        pass


class CategoryAverage(StatefulProcessor):
    """Query 4, by category: rows are bids within the time of their auction."""

    output = "category long, average double"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.prices = handle.getMapState("prices", "id long", "price long")
        self.total = handle.getValueState("total", "total long, sold long")

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        total, sold = self.total.get() or (0, 0)
        highest: dict[int, int] = {}
        for row in rows:
            highest[row.id] = max(row.price, highest.get(row.id, 0))
        for id, price in highest.items():
            before = self.prices.getValue((id,)) if self.prices.containsKey((id,)) else None
            if before is None or price > before[0]:
                self.prices.updateValue((id,), (price,))
                total += price - (before[0] if before else 0)
                sold += before is None
        self.total.update((total, sold))
        yield Row(category=key[0], average=total / sold)

    def close(self) -> None:
        pass


class LastTenAverage(StatefulProcessor):
    """Query 6, by seller: rows are bids within the time of their auction."""

    output = "seller long, average double"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "last array<struct<ended: long, id: long, price: long>>")

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        held = self.last.get()
        known = {(ended, id): price for ended, id, price in held[0]} if held else {}
        for row in rows:
            auction = (row.ended, row.id)
            known[auction] = max(row.price, known.get(auction, 0))
        kept = sorted(known)[-TOP:]
        self.last.update(([(*auction, known[auction]) for auction in kept],))
        yield Row(seller=key[0], average=sum(known[auction] for auction in kept) / len(kept))

    def close(self) -> None:
        pass


class TopTen(StatefulProcessor):
    """Query 19, by auction: rows are bids."""

    output = "auction long, rank long, bidder long, price long, at long, extra string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        bid = "struct<price: long, at: long, number: long, bidder: long, extra: string>"
        self.top = handle.getValueState("top", f"top array<{bid}>")

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        held = self.top.get()
        before = [tuple(bid) for bid in held[0]] if held else []
        new = [(row.price, row.at, row.number, row.bidder, row.extra) for row in rows]
        top = sorted(before + new, key=lambda bid: (-bid[0], bid[1], bid[2]))[:TOP]
        self.top.update((top,))
        for rank, bid in enumerate(top, start=1):
            if rank > len(before) or before[rank - 1] != bid:
                yield Row(auction=key[0], rank=rank, bidder=bid[3], price=bid[0], at=bid[1], extra=bid[4])

    def close(self) -> None:
        pass


def _place(row: Row) -> tuple[int, int, int]:
    """Where a bid stands among those on an auction: the winning one is first."""
    return -row.price, row.at, row.number
