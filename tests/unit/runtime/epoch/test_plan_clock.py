"""Processing time, whatever the clocks of the leaders say."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.epoch.plan_clock import PlanClock, strange_clock
from holdfast.testing.clocks import ManualClock

YEAR_MS = 365 * 86_400_000
NOW_MS = 50 * YEAR_MS


def after(clock: ManualClock, seconds: float) -> ManualClock:
    clock.advance(timedelta(seconds=seconds))
    return clock


def test_it_is_the_machines_time_where_nothing_is_ahead() -> None:
    clock = ManualClock(NOW_MS)
    time = PlanClock(clock, NOW_MS - 5_000)
    assert time.now_ms() == NOW_MS
    after(clock, 3)
    assert time.now_ms() == NOW_MS + 3_000


def test_after_a_leader_that_was_years_ahead_time_goes_on_at_its_pace() -> None:
    clock = ManualClock(NOW_MS)
    time = PlanClock(clock, NOW_MS + 4 * YEAR_MS)
    readings = [time.now_ms()]
    for _ in range(4):
        after(clock, 10)
        readings.append(time.now_ms())
    assert [reading - NOW_MS - 4 * YEAR_MS for reading in readings] == [0, 10_000, 20_000, 30_000, 40_000]


def test_a_few_seconds_ahead_are_made_up_for_at_half_the_pace() -> None:
    clock = ManualClock(NOW_MS)
    time = PlanClock(clock, NOW_MS + 4_000)
    readings = []
    for _ in range(6):
        after(clock, 2)
        readings.append(time.now_ms() - NOW_MS)
    assert readings == [5_000, 6_000, 7_000, 8_000, 10_000, 12_000]


def test_reading_it_often_does_not_make_it_stand_still() -> None:
    clock = ManualClock(NOW_MS)
    time = PlanClock(clock, NOW_MS + 30_000)
    for _ in range(10_000):
        clock.advance(timedelta(microseconds=500))
        time.now_ms()
    assert time.now_ms() == pytest.approx(NOW_MS + 30_000 + 2_500, abs=2)


def test_members_that_follow_each_others_plans_do_not_drive_time_ahead() -> None:
    """While one follows the plans of the other, it does not read its own clock."""
    clock = ManualClock(NOW_MS)
    members = PlanClock(clock, NOW_MS), PlanClock(clock, NOW_MS)
    for turn in range(100):
        planning, following = members if turn // 10 % 2 else members[::-1]
        after(clock, 1)
        following.reach(planning.now_ms())
    assert [member.now_ms() for member in members] == [NOW_MS + 100_000] * 2


def test_a_machine_whose_clock_is_set_back_while_it_leads_goes_on() -> None:
    clock = ManualClock(NOW_MS)
    time = PlanClock(clock, 0)
    assert time.now_ms() == NOW_MS
    clock.jump(timedelta(days=-400))
    after(clock, 7)
    assert time.now_ms() == NOW_MS + 7_000


_MOVES = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9), st.none() | st.integers(0, 2 * NOW_MS)), max_size=20
)


@given(start=st.integers(0, 2 * NOW_MS), moves=_MOVES)
def test_it_never_goes_back_and_never_stands_still(
    start: int, moves: list[tuple[float, float, int | None]]
) -> None:
    clock = ManualClock(NOW_MS)
    time = PlanClock(clock, start)
    last = time.now_ms()
    assert last >= start
    for passed, jump, plan_ms in moves:
        after(clock, passed)
        clock.jump(timedelta(seconds=jump))
        if plan_ms is not None:
            time.reach(plan_ms)
        now = time.now_ms()
        assert now >= max(last + int(passed * 500) - 2, plan_ms or 0)
        last = now


@pytest.mark.parametrize(
    ("committed_ms", "told"),
    [
        (0, None),
        (NOW_MS, None),
        (NOW_MS + 59_000, None),
        (NOW_MS + 3 * YEAR_MS, "1095 days ahead of this machine's clock; processing time goes on from there"),
        (NOW_MS - 3_600_000, None),
        (NOW_MS - 3 * YEAR_MS, "1095 days old by this machine's clock, .* stop the job now"),
    ],
)
def test_a_clock_that_does_not_go_with_the_commits_is_told(committed_ms: int, told: str | None) -> None:
    text = strange_clock(ManualClock(NOW_MS), committed_ms)
    if told is None:
        assert text is None
    else:
        assert text is not None
        assert re.search(told, text)
