"""Windows over rows in any order within the delay, cut into epochs anywhere: what DuckDB makes of all rows at
once."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.graph.aggregates import Aggregation, collect, count, first, last, max, mean, min, sum
from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.graph.windows import CountWindow, SessionWindow, TimeWindow, Window, Windowed
from holdfast.tasks.operators.result import EventTime
from tests.unit.tasks.operators.operator_kit import Harness

SECOND = 1_000_000
ROWS = pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("value", pa.int64())])
AGGREGATES = {
    "n": count(), "total": sum("value"), "low": min("value"), "high": max("value"), "middle": mean("value"),
}  # fmt: skip

Row = tuple[str, int, int | None]
"""User, seconds, value."""


@dataclass(frozen=True)
class Story:
    """Rows whose order is wrong by at most `delay` seconds, and after which of them epochs end."""

    window: Window
    rows: tuple[Row, ...]
    delay: int
    cuts: tuple[int, ...]


@st.composite
def time_windows(draw: st.DrawFn) -> TimeWindow:
    every = draw(st.integers(1, 6))
    size = draw(st.sampled_from([every, 2 * every, every + draw(st.integers(0, 5)), 7 * every]))
    return TimeWindow(f"{size}s", f"{every}s", f"{draw(st.integers(-5, 5))}s")


@st.composite
def stories(draw: st.DrawFn, windows: st.SearchStrategy[Window] | None = None) -> Story:
    window = draw(windows if windows is not None else time_windows())
    delay, at, newest = draw(st.integers(0, 8)), 0, 0
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.integers(-delay - 2, delay + 4))
        at = at if at > newest - delay else newest - delay
        newest = at if at > newest else newest
        rows.append((draw(st.sampled_from("abc")), at, draw(st.none() | st.integers(-9, 9))))
    cuts = draw(st.lists(st.integers(0, len(rows)), max_size=8))
    return Story(window, tuple(rows), delay, tuple(sorted(cuts)))


def watermark(rows: Sequence[Row], delay: int) -> int | None:
    """After these rows, as the driver would say."""
    return None if not rows else (_newest(rows) - delay) * SECOND - 1


def _newest(rows: Sequence[Row]) -> int:
    return sorted(at for _, at, _ in rows)[-1]


def run(story: Story, function: Windowed) -> tuple[Harness, list[dict[str, Any]], int]:
    """All rows, epoch by epoch, then a closing epoch: what was emitted, in order, and how many were late."""
    harness = Harness(function, ROWS, ("user",))
    emitted: list[dict[str, Any]] = []
    before, late, start = None, 0, 0
    for end in (*story.cuts, len(story.rows)):
        now = watermark(story.rows[:start], story.delay)
        rows = [(user, at * SECOND, value) for user, at, value in story.rows[start:end]]
        outputs = harness.epoch_of(rows, EventTime(before, now)).outputs
        emitted += outputs[MAIN_OUTPUT].to_pylist()
        late += outputs[LATE_ROWS].num_rows
        before, start = now, end
    now = watermark(story.rows, story.delay)
    outputs = harness.epoch_of([], EventTime(before, now, closing=True)).outputs
    return harness, emitted + outputs[MAIN_OUTPUT].to_pylist(), late


def expected(story: Story) -> list[tuple[Any, ...]]:
    """By DuckDB, over all rows at once."""
    rows = pa.table(
        {
            "user": pa.array([user for user, _, _ in story.rows], pa.string()),
            "ts": pa.array([at * SECOND for _, at, _ in story.rows], pa.int64()),
            "value": pa.array([value for _, _, value in story.rows], pa.int64()),
        }
    )
    assert isinstance(story.window, TimeWindow)
    size, every, offset = story.window.size_us, story.window.every_us, story.window.offset_us
    query = f"""
        with numbered as (
            select *, cast(floor((ts - {offset}) / {every}) as bigint) * {every} + {offset} as last_start
            from rows
        ), placed as (
            select user, value, last_start - j * {every} as start
            from numbered, range({story.window.windows_per_pane}) as steps(j)
            where last_start - j * {every} + {size} > ts
        )
        select user, start, start + {size}, count(*),
            cast(sum(value) as bigint), min(value), max(value), avg(value)
        from placed group by user, start order by all
    """
    assert rows.num_columns == 3
    return duckdb.sql(query).fetchall()


SESSIONS = st.integers(1, 9).map(lambda gap: SessionWindow(f"{gap}s"))
COUNTS = st.integers(1, 5).map(CountWindow)


def sessions_of(story: Story) -> list[tuple[Any, ...]]:
    """The sessions of all rows at once, one row after another."""
    assert isinstance(story.window, SessionWindow)
    gap, found = story.window.gap_us // SECOND, []
    for user in "abc":
        session: list[tuple[int, int | None]] = []
        own = sorted(((at, value) for u, at, value in story.rows if u == user), key=itemgetter(0))
        for at, value in [*own, (10**9, None)]:
            if session and at - session[-1][0] >= gap:
                values = [v for _, v in session if v is not None]
                start, end = session[0][0] * SECOND, (session[-1][0] + gap) * SECOND
                found.append((user, start, end, len(session), *totals(values)))
                session = []
            session.append((at, value))
    return found


def totals(values: list[int]) -> tuple[Any, ...]:
    """Sum, smallest, largest and mean."""
    if not values:
        return None, None, None, None
    total = builtins.sum(values)
    return total, builtins.min(values), builtins.max(values), total / len(values)


def micros(row: dict[str, Any]) -> tuple[Any, ...]:
    start, end = (round(row[name].timestamp() * SECOND) for name in ("window_start", "window_end"))
    return (row["user"], start, end, row["n"], row["total"], row["low"], row["high"], row["middle"])


@given(stories())
@settings(deadline=None, max_examples=80)
def test_every_window_is_emitted_once_with_exactly_its_rows(story: Story) -> None:
    function = Windowed(story.window, "ts", Aggregation(AGGREGATES))
    _, emitted, late = run(story, function)
    assert late == 0
    assert sorted(map(micros, emitted), key=repr) == sorted(expected(story), key=repr)


@given(stories())
@settings(deadline=None, max_examples=60)
def test_what_is_let_go_of_and_when_something_is_due_follows_from_the_watermark(story: Story) -> None:
    function = Windowed(story.window, "ts", Aggregation(AGGREGATES))
    harness, emitted, _ = run(story, function)
    far = EventTime(watermark(story.rows, story.delay), 10**15, closed_through=harness.epoch)
    assert harness.epoch_of([], far).outputs[MAIN_OUTPUT].num_rows == 0, "emitted a second time, unchanged"
    assert harness.state.entries == {}
    assert len({(row["user"], row["window_start"]) for row in emitted}) == len(emitted)


@given(stories())
@settings(deadline=None, max_examples=60)
def test_first_last_and_collected_values_are_in_the_order_of_their_windows(story: Story) -> None:
    """Panes are merged in the order of time, so with rows in order there is one right answer."""
    rows = sorted(set(story.rows), key=lambda row: (row[0], row[1], row[2] is None, row[2] or 0))
    rows = [row for number, row in enumerate(rows) if row[:2] != rows[number - 1][:2] or number == 0]
    ordered = Story(story.window, tuple(sorted(rows, key=lambda row: row[1])), 0, story.cuts)
    aggregates = {"head": first("value"), "tail": last("value"), "some": collect("value", limit=3)}
    function = Windowed(ordered.window, "ts", Aggregation(aggregates))
    _, emitted, late = run(ordered, function)
    assert late == 0
    for row in emitted:
        start, end = (row[name].timestamp() for name in ("window_start", "window_end"))
        own = [(at, value) for user, at, value in ordered.rows if user == row["user"]]
        values = [value for at, value in own if start <= at < end and value is not None]
        assert row["head"] == (values[0] if values else None)
        assert row["tail"] == (values[-1] if values else None)
        assert (row["some"] or []) == values[-3:]


@given(stories(SESSIONS))
@settings(deadline=None, max_examples=80)
def test_every_session_is_emitted_once_with_exactly_its_rows(story: Story) -> None:
    function = Windowed(story.window, "ts", Aggregation(AGGREGATES))
    harness, emitted, late = run(story, function)
    assert late == 0
    assert not any(row["deleted"] for row in emitted)
    assert sorted(map(micros, emitted), key=repr) == sorted(sessions_of(story), key=repr)
    far = EventTime(watermark(story.rows, story.delay), 10**15, closed_through=harness.epoch)
    assert harness.epoch_of([], far).outputs[MAIN_OUTPUT].num_rows == 0, "emitted a second time, unchanged"
    assert harness.state.entries == {}


@given(stories(SESSIONS), st.data())
@settings(deadline=None, max_examples=80)
def test_revisions_of_sessions_end_with_what_all_rows_would_give(story: Story, data: st.DataObject) -> None:
    """The input seems to end again and again, and rows come after all: what an upsert by window holds."""
    function = Windowed(story.window, "ts", Aggregation(AGGREGATES), allowed_lateness="3s")
    harness, held = Harness(function, ROWS, ("user",)), {}
    before, start, closed = None, 0, 0
    for end in (*story.cuts, len(story.rows), len(story.rows)):
        closing = end == start or data.draw(st.booleans())
        now = watermark(story.rows[:start], story.delay)
        rows = [] if closing else [(user, at * SECOND, value) for user, at, value in story.rows[start:end]]
        time = EventTime(before, now, closing=closing, closed_through=closed)
        for row in harness.epoch_of(rows, time).outputs[MAIN_OUTPUT].to_pylist():
            key = row["user"], row["window_start"], row["window_end"]
            if row["deleted"]:
                assert held.pop(key)["revision"] < row["revision"]
            else:
                assert key not in held or held[key]["revision"] < row["revision"]
                held[key] = row
        before, closed = now, harness.epoch if closing else closed
        start = start if closing else end
    told = Story(story.window, story.rows[:start], story.delay, ())
    if start == len(story.rows) and closing:
        assert sorted(map(micros, held.values()), key=repr) == sorted(sessions_of(told), key=repr)


@given(stories(COUNTS))
@settings(deadline=None, max_examples=60)
def test_every_full_window_of_rows_is_emitted_once(story: Story) -> None:
    assert isinstance(story.window, CountWindow)
    function = Windowed(story.window, None, Aggregation(AGGREGATES))
    harness, emitted, start = Harness(function, ROWS, ("user",)), [], 0
    for end in (*story.cuts, len(story.rows)):
        rows = [(user, at * SECOND, value) for user, at, value in story.rows[start:end]]
        emitted += harness.epoch_of(rows).outputs[MAIN_OUTPUT].to_pylist()
        start = end
    size, wanted = story.window.rows, []
    for user in "abc":
        values = [value for each, _, value in story.rows if each == user]
        for number in range(len(values) // size):
            own = [v for v in values[number * size : (number + 1) * size] if v is not None]
            wanted.append((user, number, size, *totals(own)))
    got = [tuple(row[name] for name in ("user", "window", *AGGREGATES)) for row in emitted]
    assert sorted(got, key=repr) == sorted(wanted, key=repr)
