"""A join by windows: which rows are pairs, when windows are given out, and what is kept until then."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.window_join import WindowJoin
from holdfast.graph.windows import TimeWindow, sliding, tumbling
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.evolution import Declared, evolve
from holdfast.tasks.operators.dispatch import next_due
from holdfast.tasks.operators.result import EventTime
from tests.unit.tasks.operators.operator_kit import ALL_GROUPS, SidesHarness

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("ad", pa.string()), ("ts", TIME), ("page", pa.string())])
RIGHT = pa.schema([("at", TIME), ("which", pa.string()), ("page", pa.int64())])
SECOND = 1_000_000


def joining(how: str = "inner", window: TimeWindow | None = None) -> SidesHarness:
    join = WindowJoin(("ts", "at"), window or tumbling("10s"), how, ("which",))
    return SidesHarness(join, LEFT, RIGHT, ["ad"], ["which"])


def shown(second: float | None, page: str, ad: Any = "a") -> tuple[str, Any]:
    return "left", (ad, None if second is None else int(second * SECOND), page)


def clicked(second: float | None, page: int, ad: Any = "a") -> tuple[str, Any]:
    return "right", (None if second is None else int(second * SECOND), ad, page)


def event_time(before: float | None, now: float | None, closing: bool = False) -> EventTime:
    return EventTime(*(None if at is None else int(at * SECOND) for at in (before, now)), closing)


def given(
    run: SidesHarness, rows: list[Any], before: float | None, now: float | None, closing: bool = False
) -> list[Any]:
    """Run an epoch with watermarks in seconds; where each window starts, and the pages of a pair, sorted."""
    found = run.epoch_of(rows, event_time(before, now, closing)).outputs[""].to_pylist()
    return sorted(
        ((int(row["window_start"].timestamp()), row["page"], row["page_right"]) for row in found), key=repr
    )


def due_next(run: SidesHarness, now: float | None) -> float | None:
    state: Any = run.state
    found = next_due(run.function, run.layout, ALL_GROUPS, state, event_time(None, now))
    assert found is not None
    return None if found.event_us is None else found.event_us / SECOND


def test_rows_of_a_key_and_window_are_pairs_once_the_window_closes() -> None:
    run = joining()
    rows = [shown(0, "p"), shown(9.999999, "q"), shown(10, "r"), clicked(5, 1), clicked(5, 2, "b")]
    assert given(run, rows, None, None) == []
    assert given(run, [clicked(19, 3)], None, 9.999998) == [], "one more µs is missing"
    assert given(run, [], 9.999998, 9.999999) == [(0, "p", 1), (0, "q", 1)]
    assert given(run, [], 9.999999, 30) == [(10, "r", 3)]
    assert run.state.entries == {}


def test_columns_are_the_key_the_window_the_left_and_the_right() -> None:
    (row,) = (
        joining()
        .epoch_of([shown(5, "p"), clicked(6, 1)], event_time(None, None, True))
        .outputs[""]
        .to_pylist()
    )
    assert list(row) == ["ad", "window_start", "window_end", "ts", "page", "at", "page_right"]
    assert (row["ad"], row["page"], row["page_right"]) == ("a", "p", 1)
    assert [row[name].second for name in ("window_start", "window_end", "ts", "at")] == [0, 10, 5, 6]


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("inner", []),
        ("left", [(0, "alone", None)]),
        ("right", [(0, None, 9)]),
        ("full", [(0, "alone", None), (0, None, 9)]),
    ],
)
def test_an_outer_join_gives_out_rows_without_a_partner_in_their_window(how: str, alone: Any) -> None:
    run = joining(how)
    rows = [shown(5, "p"), clicked(6, 1), shown(5, "alone", "b"), clicked(6, 9, "c"), clicked(14, 8, "d")]
    assert given(run, rows, None, 9) == []
    assert given(run, [], 9, 10) == sorted([(0, "p", 1), *alone], key=repr)
    assert given(run, [], 10, 11) == [], "a window is given out once"


def test_a_sliding_window_has_its_rows_in_each_of_its_windows_and_keeps_them_once() -> None:
    run = joining("full", sliding("10s", every="5s"))
    given(run, [shown(6, "p"), clicked(11, 1)], None, 1)
    assert len(run.state.entries) == 4, "each row, and its place in the time index"
    assert given(run, [], 1, 10) == [(0, "p", None)]
    assert len(run.state.entries) == 4, "both have an open window"
    assert given(run, [], 10, 15) == [(5, "p", 1)]
    assert len(run.state.entries) == 2, "the row of 6 s has none"
    assert given(run, [], 15, 40) == [(10, None, 1)]
    assert run.state.entries == {}


def test_windows_that_close_in_one_epoch_are_all_given_out() -> None:
    run = joining("inner", sliding("10s", every="3s", offset="1s"))
    rows = [shown(n, f"{n}") for n in range(0, 30, 2)] + [clicked(n, n) for n in range(1, 30, 2)]
    expected = [
        (start, f"{left}", right)
        for start in range(-11, 31, 3)
        for left in range(0, 30, 2)
        for right in range(1, 30, 2)
        if start <= left < start + 10 and start <= right < start + 10
    ]
    found = given(run, rows, None, -20) + given(run, [], -20, 12) + given(run, [], 12, 20)
    found += given(run, [], 20, 20, closing=True)
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert run.state.entries == {}


def test_a_row_is_late_when_all_its_windows_have_closed() -> None:
    run = joining("full", sliding("10s", every="5s"))
    rows = [shown(4, "late"), shown(6, "in one"), clicked(None, 1)]
    result = run.epoch_of(rows, event_time(9.999999, 10))
    late = result.outputs["!late"].to_pylist()
    assert [(row["side"], (row["left"] or row["right"])["page"]) for row in late] == [
        ("left", "late"), ("right", 1)
    ]  # fmt: skip
    assert late[0]["watermark"].second == 9
    assert given(run, [], 10, 15) == [(5, "in one", None)], "and not in the window that had closed"


def test_a_null_key_matches_nothing_and_waits_for_its_window() -> None:
    rows = [shown(5, "no key", None), clicked(5, 2, None)]
    run = joining()
    assert given(run, rows, None, 0) == []
    assert run.state.entries == {}
    run = joining("full")
    assert given(run, rows, None, 0) == []
    assert given(run, [], 0, 10) == [(0, "no key", None), (0, None, 2)]
    assert run.state.entries == {}


def test_closing_gives_out_every_window_and_keeps_nothing() -> None:
    run = joining("left")
    given(run, [shown(5, "p"), shown(500, "q"), clicked(7, 1)], None, 0)
    assert given(run, [clicked(505, 2)], 0, 0, closing=True) == [(0, "p", 1), (500, "q", 2)]
    assert run.state.entries == {}


def test_nothing_is_read_while_no_window_closes() -> None:
    run = joining()
    given(run, [clicked(5, n, f"ad{n}") for n in range(50)], None, 0)
    scans, gets = run.state.scans, run.state.get_manys
    state: Any = run.state
    given(run, [shown(5, "p", "ad7")], 0, 9)
    assert run.state.scans == scans
    read: list[Any] = []
    state.get_many = lambda keys: read.extend(keys) or [state.entries.get(key) for key in keys]
    given(run, [shown(25, "q")], 0, 9)
    assert (run.state.scans, run.state.get_manys, read) == (scans, gets + 2, [])


def test_no_more_is_read_than_the_windows_that_close() -> None:
    run = joining("inner", sliding("10s", every="5s"))
    given(run, [clicked(second, second) for second in range(0, 1000, 5)], None, 0)
    read: list[Any] = []
    state: Any = run.state
    scan = state.scan

    def watched(*given: Any, **named: Any) -> Any:
        for entry in scan(*given, **named):
            read.append(entry[0])
            yield entry

    state.scan = watched
    given(run, [], 0, 10)
    assert len(read) == 2, "the rows of 0 s and 5 s, by the time index"


def test_what_is_due_next_is_the_first_window_with_rows() -> None:
    run = joining("inner", sliding("10s", every="5s"))
    assert due_next(run, None) is None
    given(run, [shown(12, "p"), clicked(26, 1)], None, 3)
    assert due_next(run, 3) == 14.999999
    given(run, [], 3, 15)
    assert due_next(run, 15) == 19.999999
    given(run, [], 15, 20)
    assert due_next(run, 20) == 29.999999


def declared(run: SidesHarness) -> Declared:
    return Declared(run.layout, aggregates=run.function.kept_of)


def test_another_window_on_kept_rows_is_refused() -> None:
    stored = declared(joining()).begun
    assert evolve(stored, declared(joining("full")), allow_dropped_state=False).problems == ()
    problems = evolve(stored, declared(joining(window=tumbling("20s"))), allow_dropped_state=True).problems
    assert len(problems) == 2
    assert "holds tumbling windows of 10s, and tumbling windows of 20s are declared; declare" in problems[0]


def test_the_rows_of_an_interval_join_are_not_taken_for_those_of_windows() -> None:
    join = IntervalJoin(("ts", "at"), ("0s", "1s"), "inner", ("which",))
    other: StateLayout = SidesHarness(join, LEFT, RIGHT, ["ad"], ["which"]).layout
    found = evolve(Declared(other).begun, declared(joining()), allow_dropped_state=False)
    assert len(found.problems) == 2
    assert "state 'left_rows'" in found.problems[0]


def test_a_watermark_before_all_times_closes_nothing() -> None:
    run = joining("full")
    before_all = -(1 << 63)
    result = run.epoch_of([shown(5, "p"), clicked(6, 1)], EventTime(before_all, before_all))
    assert (result.outputs[""].num_rows, result.outputs["!late"].num_rows) == (0, 0)
    assert given(run, [], None, 10) == [(0, "p", 1)]


@pytest.mark.parametrize("window", [tumbling("1m"), sliding("1m", every="7s")])
@pytest.mark.parametrize("at", [(1 << 63) - 2, (1 << 63) - 10 * SECOND, -(1 << 63), -(1 << 63) + 1])
def test_a_watermark_near_the_ends_of_what_a_timestamp_holds_closes_all_or_nothing(
    window: TimeWindow, at: int
) -> None:
    run = joining(window=window)
    run.epoch_of([shown(5, "p"), clicked(5, 1)], EventTime(None, None))
    assert (run.epoch_of([], EventTime(None, at)).outputs[""].num_rows > 0) == (at > 0)
    assert run.epoch_of([], EventTime(at, at)).outputs[""].num_rows == 0
    state: Any = run.state
    found = next_due(run.function, run.layout, ALL_GROUPS, state, EventTime(at, at))
    assert found is not None
    assert (found.event_us is None) == (at > 0)
