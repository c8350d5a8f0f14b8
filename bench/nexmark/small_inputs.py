"""Events for tests: few, and every query finds something in them."""

from __future__ import annotations

from bench.nexmark.generator import Nexmark

DENSE = Nexmark(seed=9, interval_us=10_000, disorder_us=15_000_000)
"""5,000 are fifty seconds of event time: many bids in a window, many auctions that end. Disorder reaches
across epochs: the last bid by event time, or the winning one of an auction not yet seen, may come an epoch
early."""
SPREAD = Nexmark(seed=7, interval_us=20_000_000, disorder_us=3_600_000_000)
"""More than a day: all hours, two dates, disorder across midnight."""
GROUPS = ((0, 1, 2, 13, 22), (3, 4, 6, 9), (18, 19, 20), (5, 7, 8, 11, 12), (14, 15, 17))
"""Queries that may be one job, with the same events: those of the last tell hours or dates apart."""


def small_input(query: int) -> Nexmark:
    return SPREAD if query in GROUPS[-1] else DENSE
