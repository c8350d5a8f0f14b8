"""Timers of a function: when they fire, in which order, and what becomes of the key's state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import UserCodeError
from holdfast.state.cells.timers import EVENT_TIMERS, PROCESSING_TIMERS, datetime_of
from holdfast.state.encoding.layout import in_time_index
from holdfast.state.files.rows import rows_of
from holdfast.tasks.operators.due import earliest
from holdfast.tasks.operators.result import EventTime
from tests.unit.tasks.operators.operator_kit import ALL_GROUPS, Harness

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64())])
LONG = "y" * 3_000


class Calls(hf.KeyedFunction):
    """Sets a timer at the ms of each row, and shows each call."""

    output = "user string, kind string, at long, watermark long, seen long"
    seen = hf.ValueState("long", default=0)

    def __init__(self, on_row: Callable[..., Any] | None = None, on_timer: Callable[..., Any] | None = None):
        self.on_row, self.then = on_row or (lambda row, timers: timers.event(row.at)), on_timer

    def process(self, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        self.on_row(row, ctx.timers)

    def on_timer(self, at: datetime, ctx: Any) -> Any:
        if self.then is not None:
            self.then(at, ctx.timers)
        yield ctx.key, ctx.timer, millis(at), ctx.watermark and millis(ctx.watermark), self.seen.value


def millis(at: datetime) -> int:
    return round((at.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() * 1_000)


def at_ms(now: int | None, before: int | None = None, **more: Any) -> EventTime:
    return EventTime(*(None if at is None else at * 1_000 for at in (before, now)), **more)


def harness(*calls: Any, key: pa.DataType | None = None, **more: Any) -> Harness:
    schema = SCHEMA if key is None else SCHEMA.set(0, pa.field("user", key))
    return Harness(Calls(*calls), schema, ["user"], **more)


def fired(ran: Harness, rows: Any, time: EventTime | None, clock_ms: int = 1_000) -> list[tuple[Any, ...]]:
    """(user, time) of each call, in the order of the calls."""
    made = ran.epoch_of(rows, time, clock_ms).outputs[""].to_pylist()
    return [(row["user"], row["at"]) for row in made]


def open_timers(ran: Harness) -> dict[str, list[int]]:
    table = rows_of(ran.layout, sorted(ran.state.entries.items()))
    return {
        row["user"]: sorted(
            millis(at) for name in (EVENT_TIMERS, PROCESSING_TIMERS) for at, _ in row[name] or ()
        )
        for row in table.to_pylist()
    }


def test_timers_fire_after_the_rows_of_their_key_in_order_once_the_watermark_has_reached_them() -> None:
    ran = harness()
    assert fired(ran, [("a", 30), ("b", 10), ("a", 20)], at_ms(None)) == []
    assert fired(ran, [("a", 25), ("a", 40)], at_ms(30, before=10)) == [
        ("a", 20),
        ("a", 25),
        ("a", 30),
        ("b", 10),
    ]
    assert open_timers(ran) == {"a": [40], "b": []}
    assert fired(ran, [], at_ms(39)) == []
    assert fired(ran, [], at_ms(40)) == [("a", 40)]
    assert not [key for key in ran.state.entries if in_time_index(key)]


def test_a_timer_is_given_its_key_its_state_its_clock_and_the_watermark_of_its_epoch() -> None:
    def set_both(row: Any, timers: Any) -> None:
        timers.event(row.at)
        timers.processing(row.at + 1)

    ran = harness(set_both)
    ran.epoch_of([("a", 20)], at_ms(None), clock_ms=0)
    result = ran.epoch_of([], at_ms(50, before=10), clock_ms=1_000)
    assert [tuple(row.values()) for row in result.outputs[""].to_pylist()] == [
        ("a", "event", 20, 50, 1),
        ("a", "processing", 21, 50, 1),
    ]


def test_rows_are_given_the_watermark_of_the_epoch_before_and_no_clock() -> None:
    seen = list[Any]()

    class Watching(Calls):
        def process(self, row: Any, ctx: Any) -> Any:
            seen.append((ctx.watermark, ctx.timer))

    ran = Harness(Watching(), SCHEMA, ["user"])
    ran.compute([("a", 1)], at_ms(50, before=10))
    ran.compute([("a", 1)], at_ms(50, before=10, naive=True))
    ran.compute([("a", 1)], at_ms(50))
    ran.compute([("a", 1)], None)
    before = datetime(1970, 1, 1, 0, 0, 0, 10_000)
    assert seen == [(before.replace(tzinfo=UTC), None), (before, None), (None, None), (None, None)]


def test_times_of_a_column_without_a_zone_have_none_and_processing_times_have_one() -> None:
    zones = list[Any]()

    def set_both(row: Any, timers: Any) -> None:
        timers.event(datetime(1970, 1, 1))
        timers.processing(datetime(1970, 1, 1))

    ran = harness(set_both, lambda at, timers: zones.append(at.tzinfo))
    ran.epoch_of([("a", 1)], at_ms(50, naive=True))
    assert zones == [None, UTC]


@pytest.mark.parametrize("beyond_us", [253_402_300_800_000_000, 1 << 62, -(1 << 63)])
@pytest.mark.parametrize("naive", [True, False])
def test_a_watermark_beyond_the_years_of_python_is_shown_as_the_last_that_it_has(
    beyond_us: int, naive: bool
) -> None:
    time = EventTime(beyond_us, beyond_us, naive=naive)
    ran = harness(lambda row, timers: timers.event(datetime_of(-62_135_596_800_000_000)))
    made = ran.epoch_of([("a", 1)], time).outputs[""].to_pylist()
    assert [row["user"] for row in made] == (["a"] if beyond_us > 0 else [])


def test_a_deleted_timer_does_not_fire() -> None:
    ran = harness(lambda row, timers: timers.event(row.at) if row.at > 0 else timers.delete(-row.at))
    assert fired(ran, [("a", 10), ("a", 20), ("b", 10)], at_ms(None)) == []
    assert fired(ran, [("a", -10), ("b", -99)], at_ms(30)) == [("a", 20), ("b", 10)]


def test_a_timer_of_one_clock_may_set_one_of_the_other() -> None:
    """A processing timer joins, because processing timers come second; an event timer waits."""

    def other(at: datetime, timers: Any) -> None:
        if millis(at) == 20:
            timers.processing(21)
        if millis(at) == 21:
            timers.event(22)

    ran = harness(None, other)
    assert fired(ran, [("a", 20)], at_ms(50)) == [("a", 20), ("a", 21)]
    assert fired(ran, [], at_ms(50)) == [("a", 22)]


@pytest.mark.parametrize(("step", "joined"), [(10, [20, 30, 40, 50]), (0, [20]), (-10, [20])])
def test_a_timer_set_by_a_timer_joins_only_if_it_is_later_and_due(step: int, joined: list[int]) -> None:
    ran = harness(None, lambda at, timers: timers.event(millis(at) + step))
    assert fired(ran, [("a", 20)], at_ms(50)) == [("a", at) for at in joined]
    assert open_timers(ran) == {"a": [joined[-1] + step]}


def test_when_the_input_has_ended_everything_fires_and_what_that_sets_waits() -> None:
    ran = harness(None, lambda at, timers: timers.event(millis(at) + 10))
    ran.epoch_of([("a", 20), ("b", 10_000_000)], at_ms(None))
    assert fired(ran, [], at_ms(5, closing=True)) == [("a", 20), ("b", 10_000_000)]
    assert open_timers(ran) == {"a": [30], "b": [10_000_010]}


def test_when_the_input_has_ended_timers_of_rows_that_an_operator_before_made_fire_too() -> None:
    ran = harness()
    assert fired(ran, [("a", 99_999)], at_ms(5, closing=True)) == [("a", 99_999)]


def test_when_the_input_has_ended_everything_fires_though_the_watermark_is_not_known() -> None:
    ran = harness()
    ran.epoch_of([("a", 20)], at_ms(None))
    assert fired(ran, [], at_ms(None, closing=True)) == [("a", 20)]


def test_processing_timers_fire_by_the_clock_of_the_plan_and_not_because_the_input_has_ended() -> None:
    ran = harness(lambda row, timers: timers.processing(row.at))
    assert fired(ran, [("a", 1_000), ("a", 3_000)], None, clock_ms=1_000) == [("a", 1_000)]
    assert fired(ran, [], at_ms(9_999, closing=True), clock_ms=2_999) == []
    assert fired(ran, [], None, clock_ms=3_000) == [("a", 3_000)]


@pytest.mark.parametrize(
    ("type", "key"),
    [
        (pa.string(), LONG),
        (pa.string(), None),
        (pa.string(), ""),
        (pa.int64(), -5),
        (pa.float64(), 0.5),
        (pa.timestamp("us", "UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
        (pa.decimal128(10, 2), None),
        (pa.struct([("a", pa.int64())]), {"a": 7}),
    ],
)
def test_a_key_without_rows_is_found_by_its_timer(type: pa.DataType, key: Any) -> None:
    found = list[Any]()

    class Keys(Calls):
        output = "n long"

        def on_timer(self, at: datetime, ctx: Any) -> Any:
            found.append(ctx.key)
            yield (self.seen.value,)

    ran = Harness(Keys(), SCHEMA.set(0, pa.field("user", type)), ["user"])
    ran.epoch_of([(key, 20)], at_ms(None))
    assert ran.epoch_of([], at_ms(20)).outputs[""].to_pylist() == [{"n": 1}]
    (given,) = found
    assert (given._asdict() if isinstance(key, dict) else given) == key


def test_long_keys_with_and_without_rows_keep_their_timers_apart() -> None:
    ran = harness()
    ran.epoch_of([(LONG, 20), (LONG + "z", 30), ("a", 25)], at_ms(None))
    assert sorted(fired(ran, [(LONG + "z", 28)], at_ms(30))) == [
        ("a", 25),
        (LONG, 20),
        (LONG + "z", 28),
        (LONG + "z", 30),
    ]


def test_keys_of_several_columns_are_found() -> None:
    class Pairs(Calls):
        output = "user string, day long, seen long"

        def on_timer(self, at: datetime, ctx: Any) -> Any:
            yield (*ctx.key, self.seen.value)

    schema = pa.schema([("user", pa.string()), ("day", pa.int32()), ("at", pa.int64())])
    ran = Harness(Pairs(), schema, ["user", "day"])
    ran.epoch_of([("a", 1, 20), ("a", 2, 20)], at_ms(None))
    found = ran.epoch_of([("a", 2, 99)], at_ms(30)).outputs[""].to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [("a", 1, 1), ("a", 2, 2)]


def test_only_what_is_due_is_read() -> None:
    ran = harness()
    ran.epoch_of([(f"u{n}", 1_000 + n) for n in range(200)], at_ms(None))
    given = list[bytes]()
    scan = ran.state.scan

    def counted(prefix: bytes, end: bytes | None = None) -> Any:
        for key, value in scan(prefix, end):
            given.append(key)
            yield key, value

    ran.state.scan = counted  # type: ignore[method-assign]
    ran.compute([], at_ms(1_002))
    assert len(given) == 3


def test_the_earliest_time_is_found() -> None:
    ran = harness()
    field = ran.layout.field(EVENT_TIMERS)
    assert earliest(field, ALL_GROUPS, ran.state) is None
    ran.epoch_of([("a", 30), ("b", 20), (LONG, 25)], at_ms(None))
    assert earliest(field, ALL_GROUPS, ran.state) == 20_000
    assert earliest(ran.layout.field(PROCESSING_TIMERS), ALL_GROUPS, ran.state) is None


def failing(at: datetime, timers: Any) -> None:
    timers.event(millis(at) + 1)
    if millis(at) == 20:
        raise ValueError("no")


def test_a_timer_that_fails_ends_the_epoch_and_names_key_and_time() -> None:
    ran = harness(None, failing)
    with pytest.raises(UserCodeError) as failed:
        ran.epoch_of([("a", 20)], at_ms(30))
    assert "ValueError: no" in str(failed.value)
    assert "'op'" in str(failed.value)
    assert '{"timer":"1970-01-01T00:00:00.020000Z"}' in str(failed.value)


def test_a_timer_that_fails_becomes_a_dead_letter_and_leaves_nothing_behind() -> None:
    class Failing(Calls):
        def on_timer(self, at: datetime, ctx: Any) -> Any:
            self.seen.value += 100
            yield ctx.key, ctx.timer, millis(at), None, self.seen.value
            failing(at, ctx.timers)

    ran = Harness(Failing(), SCHEMA, ["user"], on_error="dead-letter")
    result = ran.epoch_of([("a", 10), ("a", 20), ("b", 20)], at_ms(20))
    assert [(row["user"], row["at"], row["seen"]) for row in result.outputs[""].to_pylist()] == [
        ("a", 10, 102),
        ("a", 11, 202),
        ("a", 12, 302),
        ("a", 13, 402),
        ("a", 14, 502),
        ("a", 15, 602),
        ("a", 16, 702),
        ("a", 17, 802),
        ("a", 18, 902),
        ("a", 19, 1002),
    ]
    (letters,) = [table for name, table in result.outputs.items() if name != ""]
    told = [(row["key"], row["row"]) for row in letters.to_pylist()]
    timer = '{"timer":"1970-01-01T00:00:00.020000Z"}'
    assert told == [("a", timer), ("b", timer)]
    assert open_timers(ran) == {"a": [], "b": []}


@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
def test_what_on_timer_returns_that_holds_no_rows_is_named_as_its_mistake(on_error: str) -> None:
    class Wrong(Calls):
        def on_timer(self, at: datetime, ctx: Any) -> Any:
            return 7

    ran = Harness(Wrong(), SCHEMA, ["user"], on_error=on_error)
    said = r"TypeError: on_timer\(\) returned 7 \(int\); yield each output row"
    if on_error == "fail":
        with pytest.raises(UserCodeError, match=said):
            ran.epoch_of([("a", 20)], at_ms(30))
    else:
        (table,) = [t for name, t in ran.epoch_of([("a", 20)], at_ms(30)).outputs.items() if name != ""]
        assert [row["error"].partition(";")[0] for row in table.to_pylist()] == [
            "TypeError: on_timer() returned 7 (int)"
        ]


@pytest.mark.parametrize("time", [None, at_ms(30)])
def test_the_time_of_a_timer_is_checked_where_it_is_set(time: EventTime | None) -> None:
    ran = harness(lambda row, timers: timers.event(10**17))
    expected = "ValueError: .*beyond what a datetime can hold" if time else "Misuse: .*needs event time"
    with pytest.raises(UserCodeError, match=expected):
        ran.epoch_of([("a", 20)], time)


def test_a_time_that_cannot_be_is_not_deleted_either() -> None:
    ran = harness(lambda row, timers: timers.delete(10**17))
    with pytest.raises(UserCodeError, match="ValueError: a timer at 100000000000000000 is beyond"):
        ran.epoch_of([("a", 20)], at_ms(30))


def test_no_timer_is_set_in_open_where_there_is_no_key() -> None:
    class Opening(Calls):
        def open(self, ctx: Any) -> None:
            ctx.timers.processing(0)

    with pytest.raises(UserCodeError, match="timers are those of a key"):
        Harness(Opening(), SCHEMA, ["user"]).epoch_of([("a", 20)], at_ms(30))


def test_a_function_knows_when_what_is_open_is_closed() -> None:
    class Puts(hf.KeyedFunction):
        """Puts its timer off again and again, unless the input has ended."""

        output = "user string, closing boolean"

        def process(self, row: Any, ctx: Any) -> Any:
            assert not ctx.closing
            ctx.timers.event(row.at)

        def on_timer(self, at: Any, ctx: Any) -> Any:
            if ctx.closing:
                yield ctx.key, ctx.closing
            else:
                ctx.timers.event(at + timedelta(hours=1))

    run = Harness(Puts(), SCHEMA, ("user",))
    run.epoch_of([("ann", 5)], at_ms(None))
    assert run.epoch_of([], at_ms(10)).outputs[""].num_rows == 0
    assert run.epoch_of([], at_ms(10, 10, closing=True)).outputs[""].to_pylist() == [
        {"user": "ann", "closing": True}
    ]
