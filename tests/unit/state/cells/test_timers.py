"""Timers as user code sets and deletes them, and what is due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.graph.contexts import Context
from holdfast.state.cells.misuse import Misuse
from holdfast.state.cells.timers import (
    FIRST_US,
    LAST_US,
    TimerCell,
    Timers,
    datetime_of,
    microseconds,
    timer_fields,
)
from holdfast.state.files.delta import Changes

EVENT, PROCESSING = timer_fields(3)
FOREVER = 10**15
DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS


def cell(stored: Sequence[int] = (), limit: int | None = FOREVER) -> TimerCell:
    made = TimerCell(EVENT, {0: stored}, limit)
    made.load(0)
    return made


def fired(timers: TimerCell, limit: int) -> list[int]:
    timers.begin(limit)
    return list(iter(timers.pop, None))


def kept(timers: TimerCell) -> dict[int, bool]:
    """Time -> whether it is there, of the times that changed."""
    timers.keep(0)
    changes = Changes([pa.array(["a"])], np.zeros(1, np.uint16), [b"\x00\x00\x00a"])
    timers.put_into(changes)
    if EVENT.name not in changes.entries:
        return {}
    found = changes.entries[EVENT.name]
    assert found.deleted is not None
    times = found.entry.cast(pa.int64()).to_pylist()
    return {at: not gone for at, gone in zip(times, found.deleted.tolist(), strict=True)}


def test_stored_and_new_timers_fire_in_the_order_of_their_times_and_are_gone() -> None:
    timers = cell([10, 30])
    timers.set(20)
    timers.set(99)
    assert fired(timers, 50) == [10, 20, 30]
    assert kept(timers) == {10: False, 20: False, 30: False, 99: True}


def test_a_timer_that_was_set_twice_fires_once() -> None:
    timers = cell([10])
    timers.set(10)
    timers.set(10)
    assert fired(timers, 50) == [10]


def test_a_deleted_timer_does_not_fire_whether_it_is_stored_or_new() -> None:
    timers = cell([10])
    timers.set(20)
    timers.delete(10)
    timers.delete(20)
    timers.delete(77)
    assert fired(timers, 50) == []
    assert kept(timers) == {10: False, 20: False, 77: False}


def test_one_that_was_deleted_and_set_again_fires() -> None:
    timers = cell([10])
    timers.delete(10)
    timers.set(10)
    assert fired(timers, 50) == [10]


def test_one_timer_may_delete_a_later_one_that_is_due() -> None:
    timers = cell([10, 20])
    timers.begin(50)
    assert timers.pop() == 10
    timers.delete(20)
    assert timers.pop() is None


@pytest.mark.parametrize(("at", "joins"), [(9, False), (10, False), (11, True), (50, True), (51, False)])
def test_one_set_while_another_fires_joins_if_it_is_later_and_due(at: int, joins: bool) -> None:
    timers = cell([10], limit=50)
    timers.begin(50)
    assert timers.pop() == 10
    timers.set(at)
    assert timers.pop() == (at if joins else None)
    assert kept(timers)[at] is not joins


def test_one_set_while_another_fires_waits_where_none_may_join() -> None:
    timers = cell([10], limit=None)
    timers.begin(FOREVER)
    assert timers.pop() == 10
    timers.set(11)
    assert timers.pop() is None
    assert kept(timers) == {10: False, 11: True}


def test_one_set_after_all_have_fired_waits() -> None:
    """As an event timer that a processing timer sets: event timers had their turn."""
    timers = cell([10], limit=50)
    assert fired(timers, 50) == [10]
    timers.set(20)
    assert timers.pop() is None


def test_what_a_timer_set_before_it_failed_does_not_fire() -> None:
    timers = cell([10, 40], limit=50)
    timers.begin(50)
    assert timers.pop() == 10
    mark = timers.mark()
    timers.set(20)
    timers.delete(40)
    timers.undo(mark)
    assert timers.pop() == 40
    assert kept(timers) == {10: False, 40: False}


def test_a_key_sees_nothing_of_the_key_before() -> None:
    timers = TimerCell(EVENT, {0: [10]}, None)
    timers.load(0)
    timers.set(20)
    timers.load(1)
    assert fired(timers, 50) == []


def test_many_timers_of_one_key_cost_no_look_through_all_for_each() -> None:
    class Counted(list[int]):
        looked = 0

        def __contains__(self, at: object) -> bool:
            Counted.looked += 1
            return super().__contains__(at)

    stored = Counted(range(100))
    assert fired(cell(stored), 50_000) == list(range(100))
    assert Counted.looked == 0


@pytest.mark.parametrize(
    ("at", "micros"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 7), 1_000_007),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (datetime.min, FIRST_US),
        (datetime.max, LAST_US),
        (5, 5_000),
        (-5, -5_000),
    ],
)
def test_a_time_is_a_datetime_or_ms_since_1970(at: datetime | int, micros: int) -> None:
    assert microseconds(at) == micros
    assert microseconds(datetime_of(micros)) == microseconds(datetime_of(micros, naive=True)) == micros


def timers_at(clock_ms: int = NOW_MS, *, event_time: bool = True) -> Timers:
    return Timers(cell(), cell(), clock_ms * 1_000, clock_ms * 1_000 if event_time else None, event_time)


@pytest.mark.parametrize("at", [True, 1.5, "2026-01-01", date(2026, 1, 1), None, np.int64(5)])
@pytest.mark.parametrize("use", ["event", "processing", "delete"])
def test_what_is_no_time_is_refused(use: str, at: Any) -> None:
    with pytest.raises(TypeError, match="is not a time; give a datetime, or ms since 1970 as an int"):
        getattr(timers_at(), use)(at)


@pytest.mark.parametrize("at", [NOW_MS * 1_000, -(10**17), 10**30])
@pytest.mark.parametrize("use", ["event", "processing", "delete"])
def test_a_time_beyond_what_there_is_is_refused(use: str, at: int) -> None:
    with pytest.raises(ValueError, match=f"a timer at {at} is beyond what a datetime can hold; give ms"):
        getattr(timers_at(), use)(at)


@pytest.mark.parametrize("use", ["event", "processing"])
def test_seconds_for_ms_are_refused(use: str) -> None:
    seconds = NOW_MS // 1_000 + 3_600
    with pytest.raises(ValueError, match=r"seems to be in seconds; give ms since 1970, or a datetime"):
        getattr(timers_at(), use)(seconds)


@pytest.mark.parametrize(
    "at", [0, 86_400_000, datetime(1970, 1, 1), datetime(1, 1, 1), NOW_MS - 9_000 * DAY_MS]
)
@pytest.mark.parametrize("use", ["event", "processing"])
def test_an_early_time_is_taken_as_it_is(use: str, at: datetime | int) -> None:
    """Rows of a device whose clock was lost must not end a job."""
    getattr(timers_at(), use)(at)


def test_a_watermark_beyond_the_years_of_python_refuses_no_timer() -> None:
    timers_at(10**15).event(datetime(2026, 1, 1))


def test_an_event_timer_without_a_watermark_is_refused_and_a_processing_timer_is_not() -> None:
    with pytest.raises(Misuse, match=r"no watermark before this operator; declare stream\.watermark"):
        timers_at(event_time=False).event(NOW_MS)
    timers_at(event_time=False).processing(NOW_MS)


def test_a_function_without_on_timer_has_no_timers() -> None:
    with pytest.raises(Misuse, match=r"a function that has a method on_timer\(self, at, ctx\); write one"):
        Context(1, 0, {}).timers.event(0)
