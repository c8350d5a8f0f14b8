"""A function over two streams: which method sees which row, in which order, with one state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import UserCodeError
from holdfast.state.cells.timers import datetime_of
from holdfast.tasks.operators.result import EventTime
from holdfast.tasks.operators.two_inputs import SideOrder
from tests.unit.tasks.operators.operator_kit import SidesHarness

LEFT = pa.schema([("user", pa.string()), ("at", pa.int64()), ("page", pa.string())])
RIGHT = pa.schema([("amount", pa.int64()), ("who", pa.string()), ("when", pa.int64())])


class Seen(hf.CoFunction):
    """Everything that a key has seen so far, with each row."""

    output = "user string, seen array<string>"
    seen = hf.ListState("string")

    def process_left(self, row: Any, ctx: Any) -> Any:
        assert list(row._asdict()) == ["user", "at", "page"]
        self.seen.append(f"page {row.page}")
        yield ctx.key, list(self.seen)

    def process_right(self, row: Any, ctx: Any) -> Any:
        if row.amount < 0:
            self.seen.append("half done")
            raise ValueError("a negative amount")
        self.seen.append(f"paid {row.amount}")
        yield ctx.key, list(self.seen)


class Unpaid(hf.CoFunction):
    """A user who paid nothing within ten seconds of a page."""

    output = "user string, since long"
    waiting = hf.ValueState("long")

    def process_left(self, row: Any, ctx: Any) -> Any:
        self.waiting.value = row.at
        ctx.timers.event(datetime_of(row.at) + timedelta(seconds=10))

    def process_right(self, row: Any, ctx: Any) -> Any:
        if self.waiting.value is not None:
            ctx.timers.delete(datetime_of(self.waiting.value) + timedelta(seconds=10))
            self.waiting.clear()

    def on_timer(self, at: Any, ctx: Any) -> Any:
        yield ctx.key, self.waiting.value


def harness(function: Any, **options: Any) -> SidesHarness:
    return SidesHarness(function, LEFT, RIGHT, ["user"], ["who"], **options)


ROWS = [
    ("right", (5, "a", 2)),
    ("left", ("a", 3, "p")),
    ("left", ("b", 1, "q")),
    ("right", (6, "a", 4)),
    ("left", ("a", 1, "r")),
]


def test_left_rows_of_a_key_come_before_right_ones() -> None:
    rows = harness(Seen()).rows_of(ROWS)
    assert rows[-1] == ("b", ["page q"])
    assert max(rows[:-1])[1] == ["page p", "page r", "paid 5", "paid 6"]


def test_each_side_has_an_order_of_its_own() -> None:
    rows = harness(Seen(), order=SideOrder(("at",))).rows_of(ROWS)
    assert max(rows[:-1])[1] == ["page r", "page p", "paid 5", "paid 6"]
    rows = harness(Seen(), order=SideOrder((), ("when",))).rows_of(ROWS)
    assert max(rows[:-1])[1] == ["page p", "page r", "paid 5", "paid 6"]


def test_two_orders_interleave_and_a_tie_is_left_first() -> None:
    ties = [("right", (7, "a", 3)), *ROWS]
    rows = harness(Seen(), order=SideOrder(("at",), ("when",))).epoch_of(ties).outputs[""].to_pylist()
    longest = max((row["seen"] for row in rows if row["user"] == "a"), key=len)
    assert longest == ["page r", "paid 5", "page p", "paid 7", "paid 6"]


def test_both_sides_share_state_over_epochs() -> None:
    run = harness(Seen())
    run.rows_of([("left", ("a", 1, "p"))])
    run.rows_of([("right", (5, "a", 1)), ("right", (9, "b", 1))])
    assert run.rows_of([("left", ("a", 2, "q"))]) == [("a", ["page p", "paid 5", "page q"])]


def test_a_row_that_fails_is_set_aside_with_nothing_left_of_it() -> None:
    rows = [("right", (-1, "a", 1)), ("left", ("a", 1, "p")), ("right", (2, "a", 2))]
    result = harness(Seen(), on_error="dead-letter").epoch_of(rows)
    assert [row["seen"] for row in result.outputs[""].to_pylist()] == [["page p"], ["page p", "paid 2"]]
    (letter,) = result.outputs["!dead"].to_pylist()
    assert letter["row"] == '{"amount":-1,"who":"a","when":1}'
    with pytest.raises(UserCodeError, match="a negative amount"):
        harness(Seen()).epoch_of(rows)


def test_timers_of_both_sides_fire_with_the_key_they_were_set_for() -> None:
    run = harness(Unpaid())
    second = 1_000_000
    run.epoch_of([("left", ("a", 0, "p")), ("left", ("b", second, "p"))], EventTime(0, 0))
    run.epoch_of([("right", (5, "a", 0))], EventTime(0, 9 * second))
    result = run.epoch_of([], EventTime(9 * second, 20 * second))
    assert result.outputs[""].to_pylist() == [{"user": "b", "since": second}]
    assert run.epoch_of([], EventTime(closing=True)).outputs[""].num_rows == 0


def test_state_with_a_ttl_expires_for_both_sides() -> None:
    class Once(hf.CoFunction):
        output = "user string, n long"
        n = hf.ValueState("long", default=0, ttl="10s")

        def process_left(self, row: Any, ctx: Any) -> Any:
            self.n.value += 1
            yield row.user, self.n.value

        def process_right(self, row: Any, ctx: Any) -> Any:
            yield row.who, self.n.value

    run = harness(Once())
    run.epoch_of([("left", ("a", 1, "p"))], clock_ms=1_000)
    seen = run.epoch_of([("right", (1, "a", 1))], clock_ms=9_000).outputs[""].to_pylist()
    assert seen == [{"user": "a", "n": 1}]
    seen = run.epoch_of([("right", (1, "a", 1))], clock_ms=60_000).outputs[""].to_pylist()
    assert seen == [{"user": "a", "n": 0}]
