"""Percentiles of latency, weighted by rows, and what is kept for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.contract import Arrived, Slice
from holdfast.runtime.latency import (
    PIECES_MAX,
    SLOT_SECONDS,
    SLOTS,
    Latency,
    arrived_rows,
    counted,
    percentile_ms,
    waited_seconds,
)
from holdfast.testing.clocks import ManualClock

NOW = 1_760_000_000_000
pieces = st.builds(
    lambda rows, age_ms, width_ms: Arrived(rows, NOW - age_ms - width_ms, NOW - age_ms),
    st.integers(1, 1_000),
    st.floats(0, 1e6),
    st.floats(0, 1e5),
)


def each_row_ms(arrived: Sequence[Arrived]) -> Any:
    """The latency of every single row, if all are shown now. Each is cut into fifty."""
    rows = [
        np.linspace(NOW - each.last_ms, NOW - each.first_ms, 50 * int(each.share) + 1) for each in arrived
    ]
    return np.sort(np.concatenate(rows))


@settings(max_examples=60, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=8), st.sampled_from([0.5, 0.95, 0.99]))
def test_percentiles_are_those_of_the_single_rows(arrived: list[Arrived], share: float) -> None:
    found, rows = percentile_ms(counted(arrived, NOW), share), each_row_ms(arrived)
    # A bucket to either side, and the ends of pieces.
    low, high = (np.clip(int(share * len(rows)) + step, 0, len(rows) - 1) for step in (-10, 10))
    assert rows[low] / 1.05 - 1.1 <= found <= rows[high] * 1.05 + 1.1


def test_rows_weigh_and_not_pieces() -> None:
    counts = counted([Arrived(99, NOW - 100, NOW - 100), Arrived(1, NOW - 60_000, NOW - 60_000)], NOW)
    assert counts.sum() == pytest.approx(100)
    assert percentile_ms(counts, 0.95) == pytest.approx(100, rel=0.05)
    assert percentile_ms(counts, 0.999) == pytest.approx(60_000, rel=0.05)


def test_no_row_is_left_out_however_old_it_is_or_from_the_future() -> None:
    old, early = Arrived(3, 0, 0), Arrived(4, NOW + 500, NOW + 900)
    counts = counted([old, early], NOW)
    assert counts.sum() == pytest.approx(7)
    assert percentile_ms(counts, 0.1) <= 1
    assert percentile_ms(counts, 0.99) >= 36 * 3_600_000


class Dated:
    def __init__(self, *arrived: Arrived) -> None:
        self.given = arrived

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        return self.given


def dated(*arrived: Arrived) -> Any:
    return Dated(*arrived)


def test_shares_of_a_slice_become_its_rows() -> None:
    slice, files = Slice(None, 1), (Arrived(3_000, 5, 5), Arrived(1_000, 7, 7), Arrived(0, 9, 9))
    assert arrived_rows(dated(*files), slice, 20) == [Arrived(15, 5, 5), Arrived(5, 7, 7)]
    assert arrived_rows(dated(*files), slice, 0) == []
    assert arrived_rows(dated(), slice, 20) == []
    silent: Any = object()
    assert arrived_rows(silent, slice, 20) == []


def test_many_files_become_a_few_pieces() -> None:
    files = [Arrived(10, at, at) for at in range(1_000, 0, -1)]
    found = arrived_rows(dated(*files), Slice(None, 1), 10_000)
    assert len(found) <= PIECES_MAX
    assert sum(each.share for each in found) == pytest.approx(10_000)
    assert (found[0].first_ms, found[-1].last_ms) == (1, 1_000)


def test_how_long_rows_waited_is_told_by_the_middle_one() -> None:
    most, stray = Arrived(10, NOW - 2_000, NOW - 1_000), Arrived(1, 0, 0)
    assert waited_seconds([stray, most], NOW) == pytest.approx(1.5)
    assert waited_seconds([], NOW) == 0


class Watched:
    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.latency = Latency(self.clock)
        self.epoch = 0

    def show(self, rows: int, age_ms: int, *, publishing: float = 0.0, sink: str = "out") -> None:
        """An epoch whose rows are so old when it has been published."""
        self.epoch += 1
        at = self.clock.now_ms() + publishing * 1_000 - age_ms
        self.latency.ran(self.epoch, [Arrived(rows, at, at)], {sink: self.epoch - 1})
        self.clock.sleep(publishing)
        self.latency.shown(sink, self.epoch)


def test_percentiles_are_of_the_last_minute_and_sums_of_all() -> None:
    watched = Watched()
    watched.show(10, 4_000)
    watched.clock.sleep(SLOTS * SLOT_SECONDS / 2)
    watched.show(10, 1_000)
    both = watched.latency.told("out")
    assert both is not None
    assert both["p50"] == pytest.approx(1, rel=0.05)
    assert both["p99"] == pytest.approx(4, rel=0.05)
    watched.clock.sleep(SLOTS * SLOT_SECONDS / 2)
    later = watched.latency.told("out")
    assert later is not None
    assert later["p99"] == pytest.approx(1, rel=0.05)
    watched.clock.sleep(SLOTS * SLOT_SECONDS)
    assert watched.latency.told("out") == {
        "p50": None, "p95": None, "p99": None, "rows": 20, "seconds": pytest.approx(50),
    }  # fmt: skip


def test_an_epoch_counts_for_a_sink_when_that_shows_it_and_once() -> None:
    watched = Watched()
    latency = watched.latency
    latency.ran(1, [Arrived(5, NOW, NOW)], {"quick": 0, "slow": 0})
    watched.clock.sleep(1)
    latency.shown("quick", 1)
    latency.shown("quick", 1)
    assert latency.told("slow") is None
    watched.clock.sleep(4)
    latency.shown("slow", 1)
    assert [latency.told(sink)["seconds"] for sink in ("quick", "slow")] == [5, 25]  # type: ignore[index]
    assert latency.publishing_seconds == pytest.approx(5), "that of the slowest"


def test_what_another_process_has_shown_is_forgotten_and_not_counted() -> None:
    watched = Watched()
    for epoch in range(1, 200):
        watched.latency.ran(epoch, [Arrived(5, NOW, NOW)], {"out": epoch - 1})
    assert len(watched.latency._unshown["out"]) == 1
    assert watched.latency.told("out") is None


def test_an_epoch_that_runs_again_counts_once() -> None:
    watched = Watched()
    for _ in range(2):
        watched.latency.ran(1, [Arrived(5, NOW, NOW)], {"out": 0})
    watched.latency.shown("out", 1)
    told = watched.latency.told("out")
    assert told is not None
    assert told["rows"] == 5


def test_rows_of_sources_that_cannot_tell_are_not_counted_but_publishing_is_timed() -> None:
    watched = Watched()
    watched.latency.ran(1, [], {"out": 0})
    watched.clock.sleep(2)
    watched.latency.shown("out", 1)
    assert watched.latency.told("out") is None
    assert watched.latency.publishing_seconds == pytest.approx(2)
