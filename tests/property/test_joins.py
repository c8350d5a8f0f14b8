"""A join by time, or by windows, gives the pairs that a plain join of all rows gives, however the rows are
cut into epochs, whatever crashes, whatever the parallelism and the backend.

The tasks and what they store are the real ones, as in test_epochs. Rows come out of order by less than the
watermark's delay, so none is late; those that are have a test of their own.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.time_joins import HOWS, TimeJoin
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN, connected_schema
from holdfast.graph.window_join import WindowJoin
from holdfast.graph.windows import TimeWindow
from holdfast.tasks.operators.result import EventTime
from tests.property.test_epochs import Life, World, checked, lives
from tests.unit.tasks.operators.operator_kit import SidesHarness

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("key", pa.int64()), ("at", TIME), ("name", pa.string())])
RIGHT = pa.schema([("key", pa.int64()), ("at", TIME), ("value", pa.int64())])
DELAY_S, SECOND, KEYS_MAX = 4, 1_000_000, 2

Row = tuple[str, int, int, int]
"""Side, key, time in seconds, number."""

bounds = st.tuples(st.integers(-6, 6), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
arrivals = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.integers(0, KEYS_MAX), st.integers(0, DELAY_S - 1)),
    min_size=1,
    max_size=60,
)


def rows_of(found: list[tuple[str, int, int]]) -> list[Row]:
    """Time goes on by a second with every second row; each row is behind it by less than the delay."""
    return [(side, key, place // 2 - behind, place) for place, (side, key, behind) in enumerate(found)]


def expected(rows: list[Row], within: tuple[int, int], how: str) -> Counter[tuple[int | None, int | None]]:
    """Pairs of numbers, by comparing every left row with every right one."""
    left, right = ([row for row in rows if row[0] == side] for side in ("left", "right"))
    pairs = [
        (ours[3], theirs[3])
        for ours in left
        for theirs in right
        if ours[1] == theirs[1] and within[0] <= theirs[2] - ours[2] <= within[1]
    ]
    found: list[tuple[int | None, int | None]] = [*pairs]
    if how in ("left", "full"):
        met = {number for number, _ in pairs}
        found += [(row[3], None) for row in left if row[3] not in met]
    if how in ("right", "full"):
        met = {number for _, number in pairs}
        found += [(None, row[3]) for row in right if row[3] not in met]
    return Counter(found)


def shown(rows: list[dict[str, Any]]) -> Counter[tuple[int | None, int | None]]:
    return Counter((None if row["name"] is None else int(row["name"]), row["value"]) for row in rows)


def join(within: tuple[int, int], how: str) -> IntervalJoin:
    return IntervalJoin(("at", "at"), (f"{within[0]}s", f"{within[1]}s"), how, ("key",))


class JoinWorld(World):
    """Epochs whose watermarks follow from the rows of the epochs before."""

    def __init__(self, root: Path, joined: TimeJoin) -> None:
        super().__init__(root, joined, (), connected_schema(LEFT, RIGHT, ("key",)))
        self._newest: int | None = None
        self._before: int | None = None
        self.closing = False

    def committed(self, rows: list[Row | None]) -> None:
        self._before = self._mark()
        times = [row[2] for row in filter(None, rows)] + ([] if self._newest is None else [self._newest])
        self._newest = max(times, default=None)

    def _mark(self) -> int | None:
        return None if self._newest is None else (self._newest - DELAY_S) * SECOND - 1

    def time(self) -> EventTime:
        return EventTime(self._before, self._mark(), self.closing)

    def table(self, rows: list[Row | None]) -> pa.Table:
        made = []
        for side, key, at, number in filter(None, rows):
            row = {"key": key, "at": at * SECOND}
            if side == "left":
                made.append({"key": key, LEFT_COLUMN: {**row, "name": str(number)}})
            else:
                made.append({"key": key, RIGHT_COLUMN: {**row, "value": number}})
        return pa.Table.from_pylist(made, schema=self._input)

    def close(self) -> None:
        """An epoch without rows, after the last."""
        self.closing = True
        self.live(Life(2, "lmdb", (1,), None, 0, False), [None])


@checked
@given(arrivals, bounds, st.sampled_from(HOWS), st.lists(lives, max_size=5))
def test_a_join_gives_what_a_plain_join_of_all_rows_gives(
    found: list[tuple[str, int, int]], within: tuple[int, int], how: str, plan: list[Life]
) -> None:
    rows = rows_of(found)
    with tempfile.TemporaryDirectory(prefix="hf-joins-", ignore_cleanup_errors=True) as root:
        world = JoinWorld(Path(root), join(within, how))
        left = rows
        for life in plan:
            left = world.live(life, left)
        if left:
            world.live(Life(1, "lmdb", (len(left),), None, 0, False), left)
        world.close()
        assert shown(world.shown) == expected(rows, within, how)
        assert world.state() == {}, "nothing is kept once everything was given up"


@checked
@given(arrivals, bounds, st.sampled_from(HOWS), st.lists(st.integers(1, 5), min_size=4), st.integers(0, 3))
def test_rows_that_are_not_late_are_joined_as_if_the_late_ones_had_never_come(
    found: list[tuple[str, int, int]], within: tuple[int, int], how: str, sizes: list[int], delay: int
) -> None:
    rows = rows_of(found)
    run = SidesHarness(join(within, how), LEFT, RIGHT, ["key"])
    given_out: list[dict[str, Any]] = []
    on_time: list[Row] = []
    late: list[int] = []
    before, now, newest = None, None, None
    while rows:
        size = sizes.pop() if sizes else len(rows)
        epoch, rows = rows[:size], rows[size:]
        on_time += [row for row in epoch if before is None or row[2] * SECOND > before]
        made = [(side, (key, at * SECOND, str(n) if side == "left" else n)) for side, key, at, n in epoch]
        result = run.epoch_of(made, EventTime(before, now))
        given_out += result.outputs[""].to_pylist()
        for row in result.outputs["!late"].to_pylist():
            late.append(int((row["left"] or {}).get("name") or (row["right"] or {}).get("value")))
        newest = max([row[2] for row in epoch] + ([] if newest is None else [newest]))
        before, now = now, (newest - delay) * SECOND - 1
    given_out += run.epoch_of([], EventTime(before, now, closing=True)).outputs[""].to_pylist()
    assert shown(given_out) == expected(on_time, within, how)
    assert sorted(late) == sorted(set(range(len(found))) - {row[3] for row in on_time})
    assert run.state.entries == {}


windows = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(-3, 3)).map(
    lambda each: TimeWindow(f"{max(each[:2])}s", f"{min(each[:2])}s", f"{each[2]}s")
)


def by_windows(window: TimeWindow, how: str) -> WindowJoin:
    return WindowJoin(("at", "at"), window, how, ("key",))


def windowed_by_sql(rows: list[tuple[Any, ...]], window: TimeWindow, how: str) -> Counter[Any]:
    """Key, start and end of the window in seconds, and the numbers of a pair, by DuckDB. `rows`: each with
    the second up to which windows had closed before its epoch; None: none had."""
    if not rows:
        return Counter()
    size, every, offset = (each // SECOND for each in (window.size_us, window.every_us, window.offset_us))
    names = ["side", "key", "ts", "number", "before"]
    given = pa.table(
        [
            pa.array([row[place] for row in rows], pa.string() if place == 0 else pa.int64())
            for place in range(5)
        ],
        names=names,
    )
    query = f"""
        with steps as (select unnest(range(0, {-(-size // every)})) as step),
        placed as (
            select *, ts - (((ts - {offset}) % {every}) + {every}) % {every}
                - step * {every} as start
            from given, steps
        ),
        inside as (
            select * from placed
            where ts < start + {size} and (before is null or start + {size} > before)
        )
        select coalesce(l.key, r.key), coalesce(l.start, r.start), coalesce(l.start, r.start) + {size},
            l.number, r.number
        from (select * from inside where side = 'left') l
        {how} join (select * from inside where side = 'right') r on l.key = r.key and l.start = r.start
    """
    assert given.num_columns == len(names)
    return Counter(duckdb.sql(query).fetchall())


def shown_by_windows(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(
        (
            row["key"],
            int(row["window_start"].timestamp()),
            int(row["window_end"].timestamp()),
            None if row["name"] is None else int(row["name"]),
            row["value"],
        )
        for row in rows
    )


@checked
@given(arrivals, windows, st.sampled_from(HOWS), st.lists(lives, max_size=5))
def test_a_window_join_gives_what_a_plain_join_of_all_windows_gives(
    found: list[tuple[str, int, int]], window: TimeWindow, how: str, plan: list[Life]
) -> None:
    rows = rows_of(found)
    with tempfile.TemporaryDirectory(prefix="hf-joins-", ignore_cleanup_errors=True) as root:
        world = JoinWorld(Path(root), by_windows(window, how))
        left = rows
        for life in plan:
            left = world.live(life, left)
        if left:
            world.live(Life(1, "lmdb", (len(left),), None, 0, False), left)
        world.close()
        assert shown_by_windows(world.shown) == windowed_by_sql([(*row, None) for row in rows], window, how)
        assert world.state() == {}, "nothing is kept once every window was given out"


@checked
@given(arrivals, windows, st.sampled_from(HOWS), st.lists(st.integers(1, 5), min_size=4), st.integers(0, 3))
def test_a_window_has_the_rows_that_came_before_it_closed(
    found: list[tuple[str, int, int]], window: TimeWindow, how: str, sizes: list[int], delay: int
) -> None:
    rows = rows_of(found)
    run = SidesHarness(by_windows(window, how), LEFT, RIGHT, ["key"])
    given_out: list[dict[str, Any]] = []
    placed: list[tuple[Any, ...]] = []
    late = 0
    before, now, newest = None, None, None
    while rows:
        size = sizes.pop() if sizes else len(rows)
        epoch, rows = rows[:size], rows[size:]
        # The watermark is one µs before a whole second: windows up to that second have closed.
        placed += [(*row, None if before is None else (before + 1) // SECOND) for row in epoch]
        made = [(side, (key, at * SECOND, str(n) if side == "left" else n)) for side, key, at, n in epoch]
        result = run.epoch_of(made, EventTime(before, now))
        given_out += result.outputs[""].to_pylist()
        late += result.outputs["!late"].num_rows
        newest = max([row[2] for row in epoch] + ([] if newest is None else [newest]))
        before, now = now, (newest - delay) * SECOND - 1
    given_out += run.epoch_of([], EventTime(before, now, closing=True)).outputs[""].to_pylist()
    assert shown_by_windows(given_out) == windowed_by_sql(placed, window, how)
    in_a_window = {
        number for *_, left, right in windowed_by_sql(placed, window, "full") for number in (left, right)
    }
    assert late == len(found) - len(in_a_window - {None})
    assert run.state.entries == {}
