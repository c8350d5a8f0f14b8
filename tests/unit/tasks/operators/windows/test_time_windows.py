"""Windows of time over a shard: what is late, what is emitted again, early results, and what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import UserCodeError
from holdfast.graph.aggregates import Aggregation, count, sum
from holdfast.graph.job_graph import LATE_ROWS, OperatorNode
from holdfast.graph.windows import Windowed, session, sliding, tumbling
from holdfast.runtime.epoch.schemas_in_force import declaration
from holdfast.state.files.evolution import evolve
from holdfast.tasks.operators.dispatch import next_due
from holdfast.tasks.operators.result import EventTime
from tests.unit.tasks.operators.operator_kit import ALL_GROUPS, Harness

S = 1_000_000
ROWS = pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("value", pa.int64())])


def harness(window: Any = None, **settings: Any) -> Harness:
    aggregation = Aggregation({"n": count(), "total": sum("value")})
    return Harness(Windowed(window or tumbling("10s"), "ts", aggregation, **settings), ROWS, ("user",))


def rows(*seconds: float | None, user: str = "ann") -> list[tuple[Any, ...]]:
    return [(user, None if at is None else int(at * S), 1) for at in seconds]


def time(before: float | None, now: float | None, **more: Any) -> EventTime:
    """Watermarks in seconds: all before them is complete."""
    return EventTime(*(None if at is None else int(at * S) - 1 for at in (before, now)), **more)


def seen(result: Any) -> list[tuple[Any, ...]]:
    """(start, end, n, revision) of what was emitted."""
    return sorted(
        (r["window_start"].timestamp(), r["window_end"].timestamp(), r["n"], r["revision"])
        for r in result.outputs[""].to_pylist()
    )


def due(run: Harness, now: float | None) -> Any:
    state: Any = run.state
    found = next_due(run.function, run.layout, ALL_GROUPS, state, time(None, now))
    assert found is not None
    return None if found.event_us is None else (found.event_us + 1) / S


def test_a_window_closes_when_the_watermark_has_passed_its_end() -> None:
    run = harness()
    assert seen(run.epoch_of(rows(1, 2, 11), time(None, None))) == []
    assert due(run, None) == 10
    assert seen(run.epoch_of([], time(None, 9.999))) == []
    assert seen(run.epoch_of([], time(9.999, 10))) == [(0, 10, 2, 3)]
    assert due(run, 10) == 20
    assert seen(run.epoch_of([], time(10, 25))) == [(10, 20, 1, 4)]
    assert run.state.entries == {}
    assert due(run, 25) is None


def test_rows_of_the_epoch_in_which_a_window_closes_are_in_it() -> None:
    run = harness()
    run.epoch_of(rows(1), time(None, None))
    assert seen(run.epoch_of(rows(3, 12), time(None, 11))) == [(0, 10, 2, 2)]


def test_a_row_is_late_once_all_its_windows_are_closed() -> None:
    run = harness()
    run.epoch_of(rows(1), time(None, 10))
    result = run.epoch_of([*rows(9, 10), ("bob", None, 5)], time(10, 10))
    late = result.outputs[LATE_ROWS].to_pylist()
    assert [(r["user"], r["value"]) for r in late] == [("ann", 1), ("bob", 5)]
    assert late[0]["watermark"].timestamp() == 9.999999
    assert seen(run.epoch_of([], time(10, 20))) == [(10, 20, 1, 3)]


def test_a_row_of_a_sliding_window_counts_in_those_that_are_open() -> None:
    run = harness(sliding("10s", every="5s"))
    run.epoch_of(rows(1), time(None, 10))
    result = run.epoch_of(rows(7), time(10, 10))
    assert result.outputs[LATE_ROWS].num_rows == 0
    assert seen(result) == [], "the window from 0 to 10 is closed"
    assert seen(run.epoch_of([], time(10, 20))) == [(5, 15, 1, 3)]


def test_late_rows_that_are_allowed_emit_their_window_again_with_a_higher_revision() -> None:
    run = harness(allowed_lateness="5s")
    assert seen(run.epoch_of(rows(1, 2), time(None, 10))) == [(0, 10, 2, 1)]
    assert due(run, 10) == 15, "the pane stays until then"
    assert seen(run.epoch_of(rows(3), time(10, 14))) == [(0, 10, 3, 2)]
    assert seen(run.epoch_of([], time(14, 14))) == [], "nothing has changed"
    result = run.epoch_of(rows(4), time(14, 20))
    assert seen(result) == [(0, 10, 4, 4)]
    assert run.state.entries == {}
    assert run.epoch_of(rows(5), time(20, 20)).outputs[LATE_ROWS].num_rows == 1


def test_a_window_is_let_go_of_also_where_no_other_closes_at_that_time() -> None:
    run = harness(allowed_lateness="3s")
    run.epoch_of(rows(1), time(None, 10))
    assert due(run, 10) == 13
    run.epoch_of([], time(10, 13.5))
    assert run.state.entries == {}
    assert due(run, 13.5) is None, "an epoch without rows would be planned for it again and again"


def test_what_is_kept_longer_than_a_new_lateness_says_is_let_go_of_with_the_next() -> None:
    run = harness(allowed_lateness="1h")
    run.epoch_of(rows(1), time(None, 20))
    run.function = harness(allowed_lateness="3s").function
    run.epoch_of([], time(20, 21))
    assert due(run, 21) == 23
    run.epoch_of([], time(21, 23))
    assert run.state.entries == {}


def test_the_next_window_is_due_before_an_older_one_is_let_go_of() -> None:
    run = harness(allowed_lateness="1h")
    run.epoch_of(rows(1, 12), time(None, 10))
    assert due(run, 10) == 20


def test_a_closing_epoch_emits_what_is_open_and_a_window_again_only_if_it_changes_after_it() -> None:
    run = harness()
    run.epoch_of(rows(1, 12), time(None, None))
    assert seen(run.epoch_of([], time(None, 5, closing=True))) == [(0, 10, 1, 2), (10, 20, 1, 2)]
    # The job goes on: one window gets another row, the other none.
    run.epoch_of(rows(13), time(5, 5, closed_through=2))
    assert seen(run.epoch_of([], time(5, 30, closed_through=2))) == [(10, 20, 2, 4)]
    assert run.state.entries == {}


def test_early_results_of_the_windows_that_have_changed() -> None:
    run = harness(emit_every="1s")
    run.epoch_of(rows(1, 12) + rows(1, user="bob"), time(None, None), clock_ms=10_300)
    assert seen(run.epoch_of([], time(None, None), clock_ms=10_900)) == []
    assert seen(run.epoch_of([], time(None, None), clock_ms=11_000)) == [
        (0, 10, 1, 3), (0, 10, 1, 3), (10, 20, 1, 3),
    ]  # fmt: skip
    assert seen(run.epoch_of([], time(None, None), clock_ms=13_000)) == []
    run.epoch_of(rows(2), time(None, None), clock_ms=13_100)
    run.epoch_of(rows(3), time(None, None), clock_ms=13_200)
    assert seen(run.epoch_of([], time(None, None), clock_ms=14_500)) == [(0, 10, 3, 7)]
    state: Any = run.state
    found = next_due(run.function, run.layout, ALL_GROUPS, state, None)
    assert found is not None
    assert found.processing_us is None
    assert seen(run.epoch_of([], time(None, 20), clock_ms=14_600)) == [
        (0, 10, 1, 8), (0, 10, 3, 8), (10, 20, 1, 8),
    ]  # fmt: skip


def declared(window: Any = None, **settings: Any) -> Any:
    """What a job says of the windows that `harness` runs."""
    job = hf.Job("early")
    source = job.source(hf.MemorySource([], schema="user string, ts timestamp, value long"), uid="rows")
    keyed = source.watermark("ts", delay="1s").key_by("user")
    windowed = keyed.window(window or tumbling("10s"), on="ts", **settings)
    windowed.aggregate(uid="op", n=count(), total=sum("value"))
    (node,) = (each for each in job.graph().nodes if isinstance(each, OperatorNode))
    return declaration(node, harness(window, **settings).layout)


@pytest.mark.parametrize("window", [tumbling("10s"), session("10s")])
def test_a_longer_lateness_is_refused_since_windows_were_let_go_of(window: Any) -> None:
    """The row would be in time, and its window told with nothing else in it: as the newest revision."""
    lineage = declared(window, allowed_lateness="3s").begun
    longer = declared(window, allowed_lateness="1m")
    (problem,) = evolve(lineage, longer, allow_dropped_state=False).problems
    assert "holds windows for 3000 ms after they closed, and allowed_lateness is 60000 ms now" in problem
    accepted = evolve(lineage, longer, allow_dropped_state=True)
    assert accepted.problems == ()
    shorter = evolve(accepted.lineage, declared(window), allow_dropped_state=False)
    assert shorter.problems == ()
    assert evolve(shorter.lineage, longer, allow_dropped_state=False).problems != ()


def test_windows_of_which_no_lateness_is_stored_take_any() -> None:
    begun = declared().begun
    (generation,) = begun.generations
    known = {id: {name: told for name, told in each.items() if name != "(lateness)"}
             for id, each in generation.aggregates.items()}  # fmt: skip
    older = replace(begun, generations=(replace(generation, aggregates=known),))
    assert evolve(older, declared(allowed_lateness="1m"), allow_dropped_state=False).problems == ()


def test_early_results_may_be_given_up_and_taken_up_again() -> None:
    run, without, lineage = harness(emit_every="1s"), harness(), declared(emit_every="1s").begun
    run.epoch_of(rows(1), time(None, None), clock_ms=10_300)
    evolved = evolve(lineage, declared(), allow_dropped_state=False)
    assert evolved.problems == ()
    convert = evolved.lineage.converter(0, "old state")
    assert convert is not None
    without.state.entries = {
        key: value for key, value in convert(sorted(run.state.entries.items())) if value is not None
    }
    without.layout, without.epoch = evolved.lineage.layout, 1
    state: Any = without.state
    found = next_due(without.function, without.layout, ALL_GROUPS, state, time(None, None))
    assert found is not None
    assert found.processing_us is None
    assert seen(without.epoch_of([], time(None, 10), clock_ms=20_000)) == [(0, 10, 1, 2)]
    assert without.state.entries == {}
    again = evolve(evolved.lineage, declared(emit_every="2s"), allow_dropped_state=False)
    assert again.problems == ()


def test_nothing_is_read_of_windows_while_none_closes() -> None:
    run = harness()
    run.epoch_of(rows(*range(20)), time(None, 5))
    scans = run.state.scans
    run.epoch_of(rows(8), time(5, 6))
    assert run.state.scans == scans


def test_a_sum_that_overflows_names_the_key() -> None:
    run = harness(sliding("20s", every="10s"))
    many = [("ann", 1 * S, 2**62), ("ann", 12 * S, 2**62)]
    run.epoch_of(many, time(None, None))
    with pytest.raises(UserCodeError, match="ann"):
        run.epoch_of([], time(None, 40))


@pytest.mark.parametrize(
    ("window", "told"),
    [
        (tumbling("0s"), "no time at all"),
        (tumbling("-5s"), "negative"),
        (tumbling("soon"), "not a duration"),
        (tumbling("100000000d"), "longer than 73,000 years"),
        (session("9" * 400 + "d"), "longer than 73,000 years"),
        (Windowed(tumbling("1m"), "ts", Aggregation({}), "100000000d"), "allowed_lateness: '100000000d' is"),
        (sliding("5s", every="10s"), "leave rows out"),
        (sliding("1h", every="7ms"), "panes"),
        (tumbling(5), "not text"),  # type: ignore[arg-type]
        (tumbling("5s", offset="x"), "offset"),
    ],
)
def test_windows_that_make_no_sense_are_refused_with_a_remedy(window: Any, told: str) -> None:
    text = "\n".join(window.mistakes())
    assert told in text
    assert "; " in text


def test_windows_say_what_they_are() -> None:
    assert str(tumbling("300s")) == "tumbling windows of 5m"
    assert str(sliding("1h", every="10m", offset="-5m")) == "windows of 1h every 10m from 5m"


@pytest.mark.parametrize("window", [tumbling("1d"), sliding("2d", every="1d"), session("1d")])
@pytest.mark.parametrize("at", [(1 << 63) - 1, -(1 << 63), -(1 << 63) + 11, (1 << 61) + 1])
def test_a_time_that_no_window_can_hold_is_late(window: Any, at: int) -> None:
    """Sums of times near the ends of what a timestamp holds would wrap around, and the row be lost."""
    run = harness(window)
    assert run.epoch_of([("ann", at, 1)], time(None, None)).outputs[LATE_ROWS].num_rows == 1
    assert run.state.entries == {}
    edge = 1 << 61
    assert (
        run.epoch_of([("ann", edge, 1), ("ann", -edge, 1)], time(None, None)).outputs[LATE_ROWS].num_rows == 0
    )
    told = run.epoch_of([], time(None, 100, closing=True))
    starts = told.outputs[""]["window_start"].cast(pa.int64()).to_pylist()
    assert {start < 0 for start in starts} == {True, False}


@pytest.mark.parametrize("window", [tumbling("1d"), sliding("2d", every="7s"), session("1d")])
@pytest.mark.parametrize("lateness", [None, "30d"])
@pytest.mark.parametrize("at", [(1 << 63) - 2, (1 << 63) - 10 * S, -(1 << 63), -(1 << 63) + 1])
def test_a_watermark_near_the_ends_of_what_a_timestamp_holds_closes_all_or_nothing(
    window: Any, lateness: str | None, at: int
) -> None:
    """One row with such a time is enough to bring it there; the job has to go on."""
    run = harness(window, allowed_lateness=lateness)
    run.epoch_of(rows(1, user="ann"), time(None, None))
    told = [run.epoch_of([], EventTime(before, at)) for before in (None, at)]
    windows = [result.outputs[""].num_rows > 0 for result in told]
    assert windows == [at > 0, False]
    assert (run.state.entries == {}) == (at > 0)
    state: Any = run.state
    found = next_due(run.function, run.layout, ALL_GROUPS, state, EventTime(at, at))
    assert found is not None
    assert (found.event_us is None) == (at > 0)
    assert run.epoch_of(rows(1), EventTime(at, at)).outputs[LATE_ROWS].num_rows == (at > 0)


@pytest.mark.parametrize("window", [tumbling("10s"), sliding("10s", every="5s"), session("10s")])
def test_with_a_longer_lateness_what_was_kept_is_let_go_of_when_that_ends(window: Any) -> None:
    run = harness(window, allowed_lateness="10s")
    run.epoch_of(rows(0), time(None, None))
    assert run.epoch_of([], time(None, 12)).outputs[""].num_rows > 0
    run.function = replace(run.function, allowed_lateness="100s")
    for before, now in ((12, 20), (20, 109)):
        run.epoch_of([], time(before, now))
        assert due(run, now) == 110
    run.epoch_of([], time(109, 110))
    assert run.state.entries == {}
    assert run.epoch_of(rows(0), time(110, 110)).outputs[LATE_ROWS].num_rows == 1
