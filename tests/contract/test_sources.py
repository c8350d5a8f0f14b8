"""What every source promises about planning. What its frames hold is shown on a real Spark (tests/spark)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.connectors.contract import EndingReader, Json, Slice, Source, SourceReader
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.generator import GeneratorSource
from holdfast.connectors.memory import MemorySource
from holdfast.state.encoding.types import parse_schema

ROWS = 12
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Case:
    """A bounded source of `ROWS` rows, and how many rows one of its slices has."""

    source: Source
    rows_in: Callable[[Slice], int]


def memory_case(directory: Path) -> Case:
    return Case(MemorySource(list(range(ROWS))), lambda slice: slice.rows or 0)


def generator_case(directory: Path) -> Case:
    return Case(GeneratorSource(["id"], schema="n long", total=ROWS), lambda slice: slice.rows or 0)


def files_case(directory: Path) -> Case:
    for number in range(ROWS // 2):
        path = directory / f"{number}.json"
        path.write_text("".join(json.dumps({"n": 2 * number + i}) + "\n" for i in range(2)))
        os.utime(path, ns=(number, number))
    source = FileSource(directory, format="json", schema="n long")
    return Case(source, lambda slice: 2 * len(slice.detail))


@pytest.fixture(params=[memory_case, generator_case, files_case])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made: Case = request.param(tmp_path)
    return made


def plan_all(reader: SourceReader, max_rows: int | None, after: Json = None) -> list[Slice]:
    slices = []
    while (planned := reader.next(after, max_rows, NOW_MS)) is not None:
        slices.append(planned)
        after = planned.end
        assert len(slices) <= ROWS, "a bounded source must come to its end"
    return slices


def stored(position: Json) -> Json:
    return json.loads(json.dumps(position))


def test_a_source_is_a_source_with_a_readable_schema(case: Case) -> None:
    assert isinstance(case.source, Source)
    assert len(parse_schema(case.source.schema)) == 1


def test_slices_follow_one_another_without_gap_or_overlap(case: Case) -> None:
    slices = plan_all(case.source.reader([]), max_rows=4)
    assert len(slices) == 3
    assert [slice.start for slice in slices] == [None, *(slice.end for slice in slices[:-1])]
    assert sum(map(case.rows_in, slices)) == ROWS


def test_no_slice_is_larger_than_asked(case: Case) -> None:
    assert all(case.rows_in(slice) <= 5 for slice in plan_all(case.source.reader([]), max_rows=5))


def test_everything_is_one_slice_without_a_limit(case: Case) -> None:
    (only,) = plan_all(case.source.reader([]), max_rows=None)
    assert case.rows_in(only) == ROWS


def test_planning_from_a_stored_position_in_another_run_goes_on_where_it_was(case: Case) -> None:
    first = case.source.reader([]).next(None, 4, NOW_MS)
    assert first is not None
    notes = [stored(note) for note in first.notes]
    rest = plan_all(case.source.reader(notes), max_rows=4, after=stored(first.end))
    assert case.rows_in(first) + sum(map(case.rows_in, rest)) == ROWS
    assert not set(first.notes) & {note for slice in rest for note in slice.notes}


def test_planning_again_from_an_older_position_loses_no_row(case: Case) -> None:
    reader = case.source.reader([])
    first, *thrown_away = plan_all(reader, max_rows=4)
    again = plan_all(reader, max_rows=4, after=first.end)
    assert len(again) == len(thrown_away)
    assert sum(map(case.rows_in, again)) == ROWS - case.rows_in(first)


def test_the_end_is_told_only_at_the_end(case: Case) -> None:
    reader = case.source.reader([])
    assert not reader.exhausted(None)
    slices = plan_all(reader, max_rows=4)
    assert reader.exhausted(slices[-1].end)
    assert not reader.exhausted(slices[0].end)


def test_a_source_that_can_end_plans_up_to_its_end_in_this_and_in_another_run(case: Case) -> None:
    reader = case.source.reader([])
    first = reader.next(None, 4, NOW_MS)
    assert first is not None
    if not isinstance(reader, EndingReader):
        return
    end = stored(reader.end_at(first.end, NOW_MS, None))
    assert plan_all(reader, max_rows=4, after=first.end)[-1].end == end
    again = case.source.reader([stored(note) for note in first.notes])
    assert isinstance(again, EndingReader)
    assert again.end_at(stored(first.end), NOW_MS, end) == end
    assert plan_all(again, max_rows=4, after=stored(first.end))[-1].end == end


def test_slices_survive_json(case: Case) -> None:
    for slice in plan_all(case.source.reader([]), max_rows=4):
        again = Slice(
            stored(slice.start),
            stored(slice.end),
            slice.rows,
            stored(slice.detail),
            tuple(stored(slice.notes)),
        )
        assert again == slice


def test_lag_counts_what_is_not_planned_or_is_not_known(case: Case) -> None:
    reader = case.source.reader([])
    first = reader.next(None, 4, NOW_MS)
    assert first is not None
    assert reader.lag(first.end) in (ROWS - case.rows_in(first), None)
