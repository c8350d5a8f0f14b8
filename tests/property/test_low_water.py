"""State that is in no file: read again from the low-water position on, from nothing, it is what it was."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.store.records import PlannedWatermark, PlanRecord
from holdfast.graph.aggregates import Aggregation, count, sum
from holdfast.graph.functions import KeyedFunction
from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.time_joins import HOWS
from holdfast.graph.window_join import WindowJoin
from holdfast.graph.windows import TimeWindow, Windowed
from holdfast.runtime.epoch.low_water import LowWater
from holdfast.state.cells.declarations import ValueState
from holdfast.tasks.operators import interval_join
from holdfast.tasks.operators.result import EventTime
from tests.unit.tasks.operators.operator_kit import Harness, SidesHarness

SECOND, DELAY_S = 1_000_000, 3
TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("key", pa.int64()), ("at", TIME), ("value", pa.int64())])
LEFT = pa.schema([("key", pa.int64()), ("at", TIME), ("name", pa.string())])

Row = tuple[str, int, int]
"""Side, key, time in seconds."""


@dataclass(frozen=True)
class Epoch:
    rows: tuple[Row, ...]
    time: EventTime


def epochs_of(found: Sequence[Sequence[Row]]) -> list[Epoch]:
    """Epochs of these rows, judged and closed by the watermarks that follow from the rows before them; the
    time of a row is how much later, or earlier, it is than the newest."""
    epochs, before, now, newest = [], None, None, 0
    for place, rows in enumerate(found):
        made = tuple((side, key, newest + ahead) for side, key, ahead in rows)
        closing = not rows and place % 5 == 4
        epochs.append(Epoch(made, EventTime(before, now, closing, _closed(epochs))))
        newest = max([newest, *(at for _, _, at in made)])
        before, now = now, (newest - DELAY_S) * SECOND - 1
    return epochs


def _closed(epochs: list[Epoch]) -> int:
    return max((number for number, epoch in enumerate(epochs, 1) if epoch.time.closing), default=0)


def harness_of(function: Any) -> Harness:
    if isinstance(function, Windowed | KeyedFunction):
        return Harness(function, ROWS, ["key"])
    return SidesHarness(function, LEFT, ROWS, ["key"])


def given_to(harness: Harness, epoch: Epoch) -> int | None:
    """Run an epoch; gives when what its rows were put into is let go of."""
    rows: list[Any] = []
    for number, (side, key, at) in enumerate(epoch.rows):
        if isinstance(harness, SidesHarness):
            rows.append((side, (key, at * SECOND, str(number) if side == "left" else number)))
        else:
            rows.append((key, at * SECOND, number))
    return harness.epoch_of(rows, epoch.time).expires_us


def plan_of(number: int, epoch: Epoch) -> PlanRecord:
    mark = PlannedWatermark(before_us=epoch.time.before_us, now_us=epoch.time.now_us)
    return PlanRecord(
        epoch=number, attempt=1, term=1, run="r", parent=0, fingerprint="f", parallelism=1, clock_ms=0,
        slices={}, watermarks={"op": mark},
    )  # fmt: skip


def check(function: Any, epochs: list[Epoch], too_high: int = 0) -> None:
    """After some epochs, and the last: state that is made again is the state that was kept."""
    kept, water = harness_of(function), LowWater("op", 0)
    for number, epoch in enumerate(epochs, 1):
        needed = water.ran(plan_of(number, epoch), given_to(kept, epoch)) + too_high
        if number % 3 and number < len(epochs):
            continue
        again = harness_of(function)
        again.epoch = min(needed, number + 1) - 1
        for replayed in epochs[again.epoch : number]:
            given_to(again, replayed)
        assert again.epoch == number
        assert again.state.entries == kept.state.entries, f"after epoch {number}, from epoch {needed} on"


times = st.integers(-DELAY_S - 2, 4)
rows = st.tuples(st.sampled_from(["left", "right"]), st.integers(0, 2), times)
stories = st.lists(st.lists(rows, max_size=5), max_size=10).map(epochs_of)
windows = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(-3, 3)).map(
    lambda each: TimeWindow(f"{max(each[:2])}s", f"{min(each[:2])}s", f"{each[2]}s")
)
bounds = st.tuples(st.integers(-6, 6), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def windowed(window: TimeWindow, lateness: int) -> Windowed:
    computed = Aggregation({"n": count(), "total": sum("value")})
    return Windowed(window, "at", computed, allowed_lateness=f"{lateness}s" if lateness else None)


def joined(within: tuple[int, int], how: str) -> IntervalJoin:
    return IntervalJoin(("at", "at"), (f"{within[0]}s", f"{within[1]}s"), how, ("key",))


@settings(max_examples=25, deadline=None)
@given(stories, windows, st.sampled_from([0, 0, 2, 7]))
def test_windows_are_had_again(epochs: list[Epoch], window: TimeWindow, lateness: int) -> None:
    check(windowed(window, lateness), epochs)


@settings(max_examples=25, deadline=None)
@given(stories, bounds, st.sampled_from(HOWS))
def test_joins_by_time_are_had_again(epochs: list[Epoch], within: tuple[int, int], how: str) -> None:
    check(joined(within, how), epochs)


@settings(max_examples=25, deadline=None)
@given(stories, windows, st.sampled_from(HOWS))
def test_joins_by_windows_are_had_again(epochs: list[Epoch], window: TimeWindow, how: str) -> None:
    check(WindowJoin(("at", "at"), window, how, ("key",)), epochs)


FUNCTIONS = [
    windowed(TimeWindow("4s", "4s"), 0),
    windowed(TimeWindow("6s", "2s"), 3),
    joined((-2, 3), "inner"),
    joined((-2, 3), "full"),
    WindowJoin(("at", "at"), TimeWindow("6s", "3s"), "left", ("key",)),
]


def drawn(seed: int, count: int = 10) -> list[Epoch]:
    chance = random.Random(seed)
    found = [
        [(chance.choice(["left", "right"]), chance.randrange(3), chance.randint(-DELAY_S - 2, 4))
         for _ in range(chance.randrange(4))]
        for _ in range(count)
    ]  # fmt: skip
    return epochs_of(found)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: type(function).__name__)
def test_rows_are_let_go_of_in_the_end(function: Any) -> None:
    kept, water = harness_of(function), LowWater("op", 0)
    for number, epoch in enumerate(drawn(0, 30), 1):
        water.ran(plan_of(number, epoch), given_to(kept, epoch))
    assert water.needs_from > 15


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: type(function).__name__)
def test_one_epoch_too_high_is_found_out(function: Any) -> None:
    assert any(_fails(function, seed, too_high=1) for seed in range(200))


def test_that_a_partner_says_of_itself_that_it_had_one_counts() -> None:
    """Without it a row that had its partner would be given out as if it never had one."""

    def own_alone(join: IntervalJoin, bounded: Any, rows: Any) -> int | None:
        return int((rows.at_us + bounded.partners_us[1]).max()) if len(rows) else None

    with patch.object(interval_join, "_expires", own_alone):
        assert any(_fails(joined((-4, 4), "full"), seed) for seed in range(300))


TTL_S = 4


class Seen(KeyedFunction):
    """Counts; forgets a key that had no rows for a while, by event time."""

    output = "key long, n long"
    n = ValueState("long", default=0, ttl=f"{TTL_S}s", clock="event")

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.n.value += 1
        yield row.key, self.n.value


def test_a_ttl_does_not_say_which_rows_a_value_is_made_of() -> None:
    """Why it is refused: each epoch is held for as long as anything that it wrote may be kept, and this is
    not enough. A key that has rows all the time has a value of all of them."""
    kept, water = harness_of(Seen()), LowWater("op", 0)
    epochs = epochs_of([[("left", 1, 1)]] * 30)
    for number, epoch in enumerate(epochs, 1):
        given_to(kept, epoch)
        now_us = epoch.time.now_us
        water.ran(plan_of(number, epoch), None if now_us is None else now_us + TTL_S * SECOND)
    assert 1 < water.needs_from < len(epochs)
    again = harness_of(Seen())
    again.epoch = water.needs_from - 1
    for epoch in epochs[again.epoch :]:
        given_to(again, epoch)
    shown = [each.rows_of([(1, 100 * SECOND, 0)]) for each in (kept, again)]
    assert shown == [[(1, 31)], [(1, 31 - water.needs_from + 1)]]


def _fails(function: Any, seed: int, too_high: int = 0) -> bool:
    try:
        check(function, drawn(seed), too_high)
    except AssertionError:
        return True
    return False
