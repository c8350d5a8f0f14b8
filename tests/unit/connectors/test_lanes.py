"""Where the rows of a lane continue, and how they are read."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, continues, lane_of


def numbers(part: int, first: int, count: int) -> StagedPart:
    table = pa.table({"n": range(first, first + count)})
    return StagedPart(part, count, lambda: table)


ROWS = LaneRows(0, 5, LaneMark(3, 2), 10, 1, "i", (numbers(0, 0, 10),))


def test_parts_are_dealt_by_their_numbers_for_good() -> None:
    assert LANES == 16
    assert [lane_of(part) for part in (0, 1, 15, 16, 17, 130)] == [0, 1, 15, 0, 1, 2]


@pytest.mark.parametrize(
    ("mark", "found"),
    [
        (None, Outcome.WENT_BACK),
        (LaneMark(0), Outcome.WENT_BACK),
        (LaneMark(3, 1, "h"), Outcome.WENT_BACK),
        (LaneMark(3, 2, "h"), 0),
        (LaneMark(4), 0),
        (LaneMark(5, 0, "i"), 0),
        (LaneMark(5, 4, "i"), 4),
        (LaneMark(5, 4, ""), 4),
        (LaneMark(5, 4, "j"), Outcome.OTHER_ROWS),
        (LaneMark(5, 10, "i"), Outcome.ALREADY),
        (LaneMark(5, 10, "j"), Outcome.OTHER_ROWS),
        (LaneMark(5, 11, "i"), Outcome.OTHER_ROWS),
        (LaneMark(6), Outcome.ALREADY),
    ],
)
def test_rows_apply_only_where_they_continue(mark: LaneMark | None, found: int | Outcome) -> None:
    assert continues(mark, ROWS) == found


def test_marks_are_ordered_by_epoch_and_rows_and_not_by_input() -> None:
    assert LaneMark(2, 9) < LaneMark(3, 0) < LaneMark(3, 1)
    assert LaneMark(3, 1, "a") == LaneMark(3, 1, "b")


@pytest.mark.parametrize("start", range(9))
def test_rows_from_any_row_on_are_the_same_rows_in_the_same_order(start: int) -> None:
    parts = (numbers(0, 0, 3), numbers(16, 3, 0), numbers(32, 3, 5))
    lane = LaneRows(0, 1, LaneMark(0), 8, 1, "", parts)
    tables = list(lane.load(start))
    assert all(table.num_rows for table in tables)
    assert [n for table in tables for n in table["n"].to_pylist()] == list(range(start, 8))


def test_parts_that_are_passed_over_are_not_read() -> None:
    def missing() -> pa.Table:
        raise AssertionError("it was read")

    lane = LaneRows(0, 1, LaneMark(0), 5, 1, "", (StagedPart(0, 3, missing), numbers(16, 3, 2)))
    assert [table["n"].to_pylist() for table in lane.load(3)] == [[3, 4]]


def test_a_mark_survives_pickling() -> None:
    mark = LaneMark(4, 7, "i")
    again = pickle.loads(pickle.dumps(mark))
    assert (again, again.input) == (mark, "i")
