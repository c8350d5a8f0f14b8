from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.epoch.admission import ROWS_FIRST, Admission


def settled(fixed: float, per_row: float, admission: Admission, epochs: int = 60) -> Admission:
    """Run epochs that cost a fixed time and a time per row, all full."""
    for _ in range(epochs):
        admission = admission.after(admission.limit, fixed + per_row * admission.limit)
    return admission


@pytest.mark.parametrize(("fixed", "per_row"), [(0.1, 2e-6), (0.3, 1e-5), (0.05, 1e-4)])
def test_the_epoch_size_settles_near_the_target(fixed: float, per_row: float) -> None:
    rows = settled(fixed, per_row, Admission(target_seconds=1.0)).limit
    assert fixed + per_row * rows == pytest.approx(1.0, rel=0.15)


def test_a_fixed_cost_above_the_target_does_not_starve_the_job() -> None:
    rows = settled(2.0, 1e-6, Admission(target_seconds=1.0)).limit
    assert rows > ROWS_FIRST


def test_a_ceiling_is_kept_exactly() -> None:
    admission = Admission(target_seconds=1.0, ceiling=123)
    assert settled(0.001, 1e-9, admission).limit == 123


def test_an_epoch_far_from_full_changes_nothing() -> None:
    admission = Admission(target_seconds=1.0)
    assert admission.after(10, 0.1).limit == admission.limit


def test_growth_is_bounded_per_epoch() -> None:
    admission = Admission(target_seconds=1.0)
    assert admission.after(admission.limit, 1e-6).limit <= 2 * admission.limit


class Stream:
    """Rows that come evenly, and a job whose epochs cost a fixed time and a time per row."""

    def __init__(self, admission: Admission, *, rate: float, fixed: float, per_row: float) -> None:
        self.admission, self.rate, self.fixed, self.per_row = admission, rate, fixed, per_row
        self.now, self.read, self.publishing = 1.0, 0, 0.1
        self.largest = 0
        """The most rows that an epoch has read."""

    @property
    def waiting(self) -> int:
        return int(self.now * self.rate) - self.read

    def epoch(self, stall: float = 0.0) -> float:
        """The latency of the oldest row that it read."""
        rows = min(max(1, self.waiting), self.admission.limit)
        oldest = self.now - self.read / self.rate
        waited = max(0.0, self.now - (self.read + rows / 2) / self.rate)
        seconds = self.fixed + self.per_row * rows + stall
        self.now, self.read, self.largest = self.now + seconds, self.read + rows, max(self.largest, rows)
        self.admission = self.admission.after(rows, seconds, self.publishing, waited)
        return oldest + seconds + self.publishing

    def epochs(self, count: int) -> list[float]:
        return [self.epoch() for _ in range(count)]


FAST = {"fixed": 0.1, "per_row": 2e-6}
jobs = st.fixed_dictionaries({"fixed": st.floats(0.02, 0.3), "per_row": st.floats(1e-7, 1e-5)})


@pytest.mark.parametrize("publishing", [0.0, 0.4, 1.2])
def test_full_epochs_take_half_of_what_publishing_leaves_of_the_target(publishing: float) -> None:
    admission = Admission(target_seconds=1.0, target_latency=2.0)
    for _ in range(60):
        admission = admission.after(admission.limit, 0.1 + 2e-6 * admission.limit, publishing)
    expected = max(0.5, (2.0 - publishing) / 2)
    assert 0.1 + 2e-6 * admission.limit == pytest.approx(expected, rel=0.15)


@settings(max_examples=50, deadline=None)
@given(jobs, st.floats(0.1, 0.6), st.floats(2.0, 20.0))
def test_a_job_that_keeps_up_comes_to_its_target_and_stays_there(
    costs: dict[str, float], busy: float, target: float
) -> None:
    admission = Admission(target_seconds=1.0, target_latency=target)
    stream = Stream(admission, rate=busy / costs["per_row"] / 2, **costs)
    stream.epochs(80)
    assert max(stream.epochs(50)) <= target * 1.25


@settings(max_examples=50, deadline=None)
@given(jobs, st.integers(1, 100_000), st.floats(0.1, 5.0), st.lists(st.floats(0, 30), max_size=20))
def test_the_limit_of_the_user_is_never_exceeded(
    costs: dict[str, float], ceiling: int, target: float, stalls: list[float]
) -> None:
    admission = Admission(target_seconds=1.0, target_latency=target, ceiling=ceiling)
    stream = Stream(admission, rate=1e6, **costs)
    for stall in [*stalls, *[0.0] * 20]:
        stream.epoch(stall)
        assert 1 <= stream.admission.limit <= ceiling
    assert stream.largest <= ceiling


def test_a_limit_of_the_user_is_still_adapted_below_it() -> None:
    admission = Admission(target_seconds=1.0, target_latency=1.0, ceiling=40_000)
    for _ in range(30):
        admission = admission.after(admission.limit, 0.02 + 1e-4 * admission.limit)
    assert 0.02 + 1e-4 * admission.limit == pytest.approx(0.5, rel=0.2)


def test_after_a_stall_it_catches_up_and_comes_back_to_the_target() -> None:
    admission = Admission(target_seconds=1.0, target_latency=1.0)
    stream = Stream(admission, rate=200_000, **FAST)
    stream.epochs(60)
    stream.largest = 0
    stream.epoch(stall=30.0)
    latencies = stream.epochs(60)
    assert latencies[0] > 30
    assert max(latencies[-20:]) <= 1.0
    # Meanwhile epochs were as large as without a target, and no larger: a second each, or so.
    assert 350_000 < stream.largest < 1_500_000


def test_what_was_added_to_catch_up_is_taken_back() -> None:
    """A burst that comes later is not read at one go."""
    caught_up = replace(settled(0.1, 2e-6, Admission(target_seconds=1.0, target_latency=1.0)), rows=2_000_000)
    for rows in (30_000, 40_000) * 20:
        caught_up = caught_up.after(rows, 0.1 + 2e-6 * rows)
        assert caught_up.limit >= 2 * rows, "room for what comes besides"
    assert 0.1 + 2e-6 * caught_up.limit <= 0.75
    without = replace(caught_up, rows=2_000_000, target_latency=None)
    assert without.after(30_000, 0.16).limit == 2_000_000


def test_a_stall_does_not_count_as_what_epochs_cost() -> None:
    admission = Admission(target_seconds=1.0, target_latency=1.0)
    for _ in range(40):
        admission = admission.after(admission.limit, 0.1 + 2e-6 * admission.limit)
    stalled = admission.after(admission.limit, 60.0)
    assert stalled.limit <= admission.limit
    for _ in range(30):
        stalled = stalled.after(stalled.limit, 0.1 + 2e-6 * stalled.limit)
        assert stalled.limit <= 2 * admission.limit
    assert stalled.limit == pytest.approx(admission.limit, rel=0.2)


def test_a_target_holds_for_rows_that_are_slow_one_by_one_from_the_first_epoch_on() -> None:
    admission, took = Admission.first(1.0, 2.0, None), []
    for _ in range(20):
        took.append(0.1 + 0.01 * admission.limit)
        admission = admission.after(admission.limit, took[-1])
    assert max(took) <= 11, "the first is a guess, and a small one"
    assert took[-1] == pytest.approx(1.0, rel=0.2)
    assert Admission.first(1.0, None, None) == Admission(target_seconds=1.0)
