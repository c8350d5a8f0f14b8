"""A join by time: which rows are pairs, when rows are given up, and what is left of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.graph.interval_join import LEFT_ROWS, RIGHT_ROWS, IntervalJoin
from holdfast.state.files.evolution import Declared, evolve
from holdfast.state.files.rows import rows_of
from holdfast.state.files.schema_conversion import Lineage
from holdfast.tasks.operators.interval_join import first_given_up
from holdfast.tasks.operators.result import EventTime
from holdfast.tasks.operators.time_pairs import pairs, plus
from tests.unit.tasks.operators.operator_kit import ALL_GROUPS, SidesHarness

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("ad", pa.string()), ("ts", TIME), ("page", pa.string())])
RIGHT = pa.schema([("at", TIME), ("which", pa.string()), ("page", pa.int64())])
SECOND = 1_000_000


def joining(how: str = "inner", within: tuple[str, str] = ("-1s", "2s")) -> SidesHarness:
    return SidesHarness(IntervalJoin(("ts", "at"), within, how, ("which",)), LEFT, RIGHT, ["ad"], ["which"])


def shown(second: float | None, page: str, ad: Any = "a") -> tuple[str, Any]:
    return "left", (ad, None if second is None else int(second * SECOND), page)


def clicked(second: float | None, page: int, ad: Any = "a") -> tuple[str, Any]:
    return "right", (None if second is None else int(second * SECOND), ad, page)


def given(run: SidesHarness, rows: list[Any], before: float | None = None, now: float | None = None) -> Any:
    """Run an epoch with watermarks in seconds; the pairs of pages, sorted."""
    time = EventTime(*(None if at is None else int(at * SECOND) for at in (before, now)))
    found = run.epoch_of(rows, time).outputs[""].to_pylist()
    return sorted(((row["page"], row["page_right"]) for row in found), key=repr)


def close(run: SidesHarness) -> Any:
    found = run.epoch_of([], EventTime(closing=True)).outputs[""].to_pylist()
    return sorted(((row["page"], row["page_right"]) for row in found), key=repr)


def late(run: SidesHarness, rows: list[Any], before: float) -> list[Any]:
    at_us = int(before * SECOND)
    return list(run.epoch_of(rows, EventTime(at_us, at_us)).outputs["!late"].to_pylist())


def test_bounds_are_included_and_keys_are_kept_apart() -> None:
    rights = [clicked(4, 4), clicked(3.999999, 3), clicked(7, 7), clicked(7.000001, 8), clicked(5, 5, "b")]
    assert given(joining(), [shown(5, "p"), *rights]) == [("p", 4), ("p", 7)]


def test_columns_are_those_of_the_left_then_those_of_the_right_but_its_key() -> None:
    (row,) = joining().epoch_of([shown(5, "p"), clicked(6, 1)], EventTime()).outputs[""].to_pylist()
    assert list(row) == ["ad", "ts", "page", "at", "page_right"]
    assert (row["ad"], row["page"], row["page_right"]) == ("a", "p", 1)
    assert (row["ts"].second, row["at"].second) == (5, 6)


def test_rows_meet_across_epochs_each_pair_once() -> None:
    run = joining()
    assert given(run, [shown(5, "p"), shown(5, "q"), clicked(9, 9)]) == []
    assert given(run, [clicked(6, 1), clicked(6, 2)]) == [("p", 1), ("p", 2), ("q", 1), ("q", 2)]
    assert given(run, [shown(7, "r")]) == [("r", 1), ("r", 2), ("r", 9)]
    assert given(run, [shown(20, "s")]) == []


def test_a_row_that_had_its_partner_while_that_did_not_matter_is_not_given_out_alone_later() -> None:
    run = joining("left")
    given(run, [shown(5, "p"), shown(5, "alone", "b")], None, 0)
    run.function = joining("inner").function
    assert given(run, [clicked(6, 1)], 0, 0) == [("p", 1)]
    run.function = joining("left").function
    assert given(run, [], 0, 50) == [("alone", None)]


def test_rows_of_one_key_and_time_are_kept_side_by_side() -> None:
    run = joining()
    for page in ("p", "q"):
        given(run, [shown(5, page), shown(5, page)])
    assert given(run, [clicked(6, 1)]) == [("p", 1), ("p", 1), ("q", 1), ("q", 1)]


def test_rows_are_given_up_when_the_watermark_has_passed_their_partners() -> None:
    run = joining()
    given(run, [shown(5, "p"), clicked(5, 1)], None, 0)
    assert len(run.state.entries) == 4, "each row, and its place in the time index"
    given(run, [], 0, 5.999999)  # partners of the click are shown from 3 s to 6 s, and one at 6 s may come
    assert len(run.state.entries) == 4
    given(run, [], 5.999999, 6)
    assert len(run.state.entries) == 2, "the click is gone"
    given(run, [], 6, 7)
    assert run.state.entries == {}


def test_what_is_due_next_is_the_first_row_to_be_given_up() -> None:
    run = joining()
    state: Any = run.state
    assert first_given_up(run.function, run.layout, ALL_GROUPS, state) is None
    given(run, [shown(5, "p"), clicked(5, 1)], None, 0)
    assert first_given_up(run.function, run.layout, ALL_GROUPS, state) == 6 * SECOND


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("inner", []),
        ("left", [("alone", None)]),
        ("right", [(None, 9)]),
        ("full", [("alone", None), (None, 9)]),
    ],
)
def test_an_outer_join_gives_out_unmatched_rows_once_they_are_given_up(how: str, alone: Any) -> None:
    run = joining(how)
    rows = [shown(5, "p"), shown(5, "alone", "b"), clicked(6, 1), clicked(60, 9, "c")]
    assert given(run, rows, None, 0) == [("p", 1)]
    assert given(run, [], 0, 6.9) == []
    assert given(run, [], 6.9, 100) == sorted(alone, key=repr)
    assert run.state.entries == {}
    assert given(run, [], 100, 200) == []


def test_a_row_that_found_its_partner_later_is_not_given_out_as_unmatched() -> None:
    run = joining("full")
    given(run, [shown(5, "p")], None, 0)
    assert given(run, [clicked(6, 1)], 0, 1) == [("p", 1)]
    assert given(run, [], 1, 100) == []
    run = joining("full")
    given(run, [shown(5, "p")], None, 0)
    assert given(run, [clicked(6, 1)], 0, 100) == [("p", 1)], "matched and given up in one epoch"
    assert run.state.entries == {}


def test_the_key_of_an_unmatched_right_row_stands_in_the_key_column() -> None:
    run = joining("right")
    run.epoch_of([clicked(6, 1, "z")], EventTime(None, 0))
    (row,) = run.epoch_of([], EventTime(closing=True)).outputs[""].to_pylist()
    assert (row["ad"], row["ts"], row["page"], row["page_right"]) == ("z", None, None, 1)


def test_closing_gives_up_everything() -> None:
    run = joining("full")
    given(run, [shown(5, "p"), clicked(50, 1)], None, 0)
    assert close(run) == [("p", None), (None, 1)]
    assert run.state.entries == {}


def test_a_row_behind_the_watermark_is_late_and_joins_nothing() -> None:
    run = joining("full")
    given(run, [clicked(6, 1)], None, 5)
    rows = [shown(5, "behind"), shown(5.000001, "on time"), clicked(4, 2)]
    behind = late(run, rows, before=5)
    assert sorted(row["side"] for row in behind) == ["left", "right"]
    left = next(row for row in behind if row["side"] == "left")
    assert left["left"]["page"] == "behind"
    assert left["right"] is None
    assert left["watermark"].second == 5
    assert close(run) == [], "what was on time is matched, what was late is not there"


def test_a_null_key_matches_nothing() -> None:
    rows = [shown(5, "no key", None), clicked(5, 2, None)]
    assert given(joining(), rows, 0, 0) == []
    run = joining("full")
    assert given(run, rows, 0, 0) == [("no key", None), (None, 2)]
    assert run.state.entries == {}


def test_a_row_without_a_time_is_with_the_late_ones() -> None:
    run = joining("full")
    result = run.epoch_of([shown(None, "no time"), clicked(None, 1)], EventTime(None, 0))
    assert result.outputs[""].num_rows == 0
    assert [row["watermark"] for row in result.outputs["!late"].to_pylist()] == [None, None]
    assert run.state.entries == {}


def test_no_more_is_read_than_can_match() -> None:
    run = joining("inner", ("0s", "1s"))
    given(run, [clicked(second, second) for second in range(100)])
    read: list[bytes] = []
    state: Any = run.state
    scan = state.scan

    def watched(*given: Any, **named: Any) -> Any:
        for entry in scan(*given, **named):
            read.append(entry[0])
            yield entry

    state.scan = watched
    assert given(run, [shown(50, "p")]) == [("p", 50), ("p", 51)]
    assert len(read) == 2


@pytest.mark.parametrize("within", [("-9s", "-3s"), ("3s", "9s"), ("0s", "0s")])
def test_bounds_may_lie_on_one_side(within: tuple[str, str]) -> None:
    lower, upper = (int(bound.removesuffix("s")) for bound in within)
    run, found = joining("full", within), []
    for second in range(20):
        found += given(run, [shown(second, f"{second}"), clicked(second, second)], second - 0.5, second + 0.5)
    found += close(run)
    pairs = [(left, right) for left in range(20) for right in range(20) if lower <= right - left <= upper]
    lonely = [(str(n), None) for n in range(20) if n not in {left for left, _ in pairs}]
    lonely_right = [(None, n) for n in range(20) if n not in {right for _, right in pairs}]
    assert sorted(found, key=repr) == sorted(
        [*((str(left), right) for left, right in pairs), *lonely, *lonely_right], key=repr
    )


def test_only_the_keys_of_new_rows_are_read() -> None:
    run = joining()
    given(run, [clicked(5, n, f"ad{n}") for n in range(50)], None, 0)
    scans = run.state.scans
    given(run, [shown(5, "p", "ad7")], None, None)
    assert run.state.scans == scans + 1


def test_times_at_the_ends_of_time_are_joined() -> None:
    last = (1 << 63) - 1
    at = np.array([last, -last - 1, 0])
    none = np.zeros(3, np.int64)
    assert sorted(zip(*map(list, pairs(none, at, none, at, (-5, 5))), strict=True)) == [
        (0, 0), (1, 1), (2, 2)
    ]  # fmt: skip
    assert plus(at, 5).tolist() == [last, -last + 4, 5]
    assert plus(at, -5).tolist() == [last - 5, -last - 1, -5]


def test_state_has_the_rows_without_their_key() -> None:
    fields = {field.name: field for field in joining().layout.fields}
    names = [[part.name for part in fields[name].value_type] for name in (LEFT_ROWS, RIGHT_ROWS)]
    assert names == [["ts", "page", "__hf_matched"], ["at", "page", "__hf_matched"]]


def test_kept_rows_go_on_when_the_stream_gets_a_column() -> None:
    run = joining("left")
    given(run, [shown(5, "p"), shown(6, "q", "b")], None, 0)
    wider = SidesHarness(run.function, LEFT.append(pa.field("place", pa.int64())), RIGHT, ["ad"], ["which"])
    evolved = evolve(Lineage.begin(run.layout), Declared(wider.layout), allow_dropped_state=False)
    assert evolved.problems == ()
    convert = evolved.lineage.converter(0, "old state")
    assert convert is not None
    wider.layout = evolved.lineage.layout
    wider.state.entries = {
        key: value for key, value in convert(sorted(run.state.entries.items())) if value is not None
    }
    assert len(wider.state.entries) == 4
    wider.epoch = run.epoch
    (row,) = wider.epoch_of([clicked(6, 1)], EventTime(0, 0)).outputs[""].to_pylist()
    assert (row["page"], row["page_right"], row["place"]) == ("p", 1, None)
    assert close(wider) == [("q", None)]


def test_kept_rows_can_be_looked_at() -> None:
    run = joining()
    given(run, [shown(5, "p"), shown(5, "q")], None, 0)
    (row,) = rows_of(run.layout, sorted(run.state.entries.items())).to_pylist()
    kept = {entry["at"].second: value["page"] for entry, value in row[LEFT_ROWS]}
    assert len(row[LEFT_ROWS]) == 2
    assert set(kept) == {5}
