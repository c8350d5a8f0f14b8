"""Windows whose rows are reduced to one, or given to a function as a whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError, UserCodeError
from holdfast.graph.window_functions import Reduction, WindowFunction, WindowProcess
from holdfast.graph.windows import PANES, Windowed, count_window, session, sliding, tumbling
from holdfast.tasks.operators.result import EventTime
from tests.unit.tasks.operators.operator_kit import Harness

S = 1_000_000
ROWS = pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("value", pa.int64())])


class TopTwo(WindowFunction):
    """The two largest values, with their places; the times of the window."""

    output = "place long, value long, seconds double"

    def process(self, window: Any, rows: Any, ctx: Any) -> Any:
        assert [row.ts for row in rows] == sorted(row.ts for row in rows)
        assert {row.user for row in rows} == {ctx.key}
        length = (window.end - window.start).total_seconds() if window.end else float(window.number)
        for place, row in enumerate(sorted(rows, key=lambda row: -row.value)[:2], 1):
            yield place, row.value, length


def larger(a: Any, b: Any) -> Any:
    return a if a.value >= b.value else b


def harness(computation: Any, window: Any = None, on: str | None = "ts", **settings: Any) -> Harness:
    return Harness(Windowed(window or tumbling("10s"), on, computation, **settings), ROWS, ("user",))


def rows(*pairs: tuple[float, int], user: str = "ann") -> list[tuple[Any, ...]]:
    return [(user, int(at * S), value) for at, value in pairs]


def time(before: float | None, now: float | None, **more: Any) -> EventTime:
    return EventTime(*(None if at is None else int(at * S) - 1 for at in (before, now)), **more)


def seen(result: Any, *columns: str) -> list[tuple[Any, ...]]:
    found = result.outputs[""].select(columns).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def test_a_function_sees_all_rows_of_a_window_from_several_epochs_in_the_order_of_time() -> None:
    run = harness(WindowProcess(TopTwo()))
    run.epoch_of(rows((5, 1), (2, 7), (12, 3)) + rows((1, 9), user="bob"), time(None, None))
    run.epoch_of(rows((1, 8)), time(None, None))
    columns = ("user", "place", "value", "seconds", "revision")
    assert seen(run.epoch_of([], time(None, 10)), *columns) == [
        ("ann", 1, 8, 10.0, 3), ("ann", 2, 7, 10.0, 3), ("bob", 1, 9, 10.0, 3),
    ]  # fmt: skip
    assert seen(run.epoch_of([], time(10, 20)), *columns) == [("ann", 1, 3, 10.0, 4)]
    assert run.state.entries == {}


def test_rows_that_are_kept_are_written_once_and_not_read_before_their_window_closes() -> None:
    """However many epochs add to a window, each writes what it adds."""
    run = harness(WindowProcess(TopTwo()))
    for epoch in range(1, 6):
        gets = run.state.get_manys
        result = run.epoch_of(rows((epoch, epoch), (9 - epoch, epoch)), time(None, None))
        change = result.changes.entries[PANES]
        assert [len(kept["rows"]) for kept in change.values.to_pylist()] == [2]
        assert run.state.get_manys == gets
    closing = run.epoch_of([], time(None, 10))
    assert seen(closing, "place", "value") == [(1, 5), (2, 5)]
    assert run.state.entries == {}


def test_rows_are_reduced_window_by_window_and_across_panes() -> None:
    run = harness(Reduction(larger), sliding("20s", every="10s"))
    run.epoch_of(rows((5, 1), (2, 7), (12, 3)), time(None, None))
    run.epoch_of(rows((13, 5)), time(None, None))
    found = [
        (row["window_start"].timestamp(), row["ts"].timestamp(), row["value"])
        for row in run.epoch_of([], time(None, 100)).outputs[""].to_pylist()
    ]
    assert sorted(found) == [(-10, 2, 7), (0, 2, 7), (10, 13, 5)]


@pytest.mark.parametrize("computation", [Reduction(larger), WindowProcess(TopTwo())])
def test_sessions_that_a_row_joins_are_computed_as_one(computation: Any) -> None:
    run = harness(computation, session("5s"))
    run.epoch_of(rows((0, 4), (8, 6)), time(None, None))
    run.epoch_of(rows((4, 5)), time(None, None))
    result = run.epoch_of([], time(None, 100)).outputs[""].to_pylist()
    assert {row["window_end"].timestamp() for row in result} == {13}
    assert sorted(row["value"] for row in result)[-1] == 6
    assert len(result) == (1 if isinstance(computation, Reduction) else 2)
    assert run.state.entries == {}


def test_windows_that_are_counted_are_reduced_and_processed_too() -> None:
    run = harness(Reduction(larger), count_window(3), on=None)
    assert seen(run.epoch_of(rows((1, 1), (2, 5))), "window", "value") == []
    assert seen(run.epoch_of(rows((3, 2), (4, 9))), "window", "value") == [(0, 5)]
    whole = harness(WindowProcess(TopTwo()), count_window(2), on=None)
    result = whole.epoch_of(rows((1, 1), (2, 5), (3, 4), (4, 3), (5, 8)))
    assert seen(result, "window", "place", "value", "seconds") == [
        (0, 1, 5, 0.0), (0, 2, 1, 0.0), (1, 1, 4, 1.0), (1, 2, 3, 1.0),
    ]  # fmt: skip


def test_a_row_that_may_change_its_columns_is_checked_and_named() -> None:
    run = harness(Reduction(lambda a, b: {**a._asdict(), "value": "seven"}))
    with pytest.raises(UserCodeError, match=r"ann(.|\n)*reduce gives back(.|\n)*value"):
        run.epoch_of(rows((1, 1), (2, 5)), time(None, None))


def test_what_a_function_fails_with_or_yields_wrong_names_the_key_and_the_window() -> None:
    class Wrong(TopTwo):
        def process(self, window: Any, rows: Any, ctx: Any) -> Any:
            yield "first", 1, 2.0

    class Failing(TopTwo):
        def process(self, window: Any, rows: Any, ctx: Any) -> Any:
            raise RuntimeError("no luck")

    for function, told in ((Wrong(), "place"), (Failing(), "no luck")):
        run = harness(WindowProcess(function))
        run.epoch_of(rows((1, 1)), time(None, None))
        with pytest.raises(UserCodeError, match=rf"ann(.|\n)*{told}"):
            run.epoch_of([], time(None, 10))


def test_a_function_is_told_that_its_window_closes_because_the_input_has_ended() -> None:
    class Whole(WindowFunction):
        output = "whole boolean"

        def process(self, window: Any, rows: Any, ctx: Any) -> Any:
            yield (not ctx.closing,)

    run = harness(WindowProcess(Whole()))
    run.epoch_of(rows((1, 1), (12, 1)), time(None, None))
    assert seen(run.epoch_of([], time(None, 10)), "whole") == [(True,)]
    assert seen(run.epoch_of([], time(10, 11, closing=True)), "whole") == [(False,)]


LAST_DAY, FIRST_DAY = 253_402_214_400, -62_135_596_800
"""The last and the first day that Python has."""


@pytest.mark.parametrize("window", [tumbling("1d"), sliding("3d", every="1d"), session("1d")])
@pytest.mark.parametrize("at", [LAST_DAY, FIRST_DAY])
def test_a_bound_that_no_datetime_can_hold_is_the_nearest_that_one_can(window: Any, at: int) -> None:
    """Such times stand for "never" and "not set" in many systems."""
    run = harness(WindowProcess(TopTwo()), window)
    run.epoch_of(rows((at, 5)), time(None, None))
    found = seen(run.epoch_of([], time(None, at - 10, closing=True)), "place", "value")
    assert set(found) == {(1, 5)}


@pytest.mark.parametrize("computation", [WindowProcess(TopTwo()), Reduction(larger)])
@pytest.mark.parametrize("window", [tumbling("1d"), session("1d"), count_window(2)])
def test_a_row_that_python_cannot_hold_is_refused_when_it_comes_and_not_when_its_window_closes(
    computation: Any, window: Any
) -> None:
    run = harness(computation, window, on=None if window == count_window(2) else "ts")
    with pytest.raises(UserCodeError, match=r"column 'ts'(.|\n)*transform before key_by"):
        run.epoch_of(rows((LAST_DAY + 86_400, 5)), time(None, None))


def test_a_time_within_a_row_that_python_cannot_hold_is_refused_too() -> None:
    inner = pa.struct([("spent", pa.list_(pa.duration("us"))), ("at", pa.timestamp("us"))])
    schema = pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("more", inner)])
    run = Harness(Windowed(tumbling("10s"), "ts", WindowProcess(TopTwo())), schema, ("user",))
    fits, beyond = {"spent": [0, None], "at": None}, {"spent": [], "at": (LAST_DAY + 86_400) * S}
    run.epoch_of([("ann", 0, fits)], time(None, None))
    with pytest.raises(UserCodeError, match="column 'more'"):
        run.epoch_of([("ann", 0, beyond)], time(None, None))


def test_functions_that_cannot_be_used_are_told() -> None:
    class Silent(WindowFunction):
        output = "n long"

    assert "no process method" in "".join(WindowProcess(Silent()).mistakes())
    assert "the class TopTwo" in "".join(WindowProcess(TopTwo).mistakes())  # type: ignore[arg-type]
    assert "not a function" in "".join(Reduction(7).mistakes())  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="declares no output"):
        WindowProcess(WindowFunction()).output_fields(ROWS, ())
