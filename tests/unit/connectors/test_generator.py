from __future__ import annotations

from typing import Any

import pytest

from holdfast.connectors.contract import Arrived
from holdfast.connectors.generator import SLICE_ROWS_MAX, GeneratorSource
from holdfast.errors import DefinitionError

START_MS = 1_000_000


def test_rows_become_due_by_the_clock_from_a_start_kept_in_the_position() -> None:
    source = GeneratorSource(["id"], schema="n long", rows_per_second=10)
    reader = source.reader([])
    assert reader.next(None, None, START_MS) is None
    first = reader.next(None, None, START_MS + 500)
    assert first is not None
    assert first.end == [5, START_MS]
    restarted = source.reader([])
    assert restarted.next(first.end, None, START_MS + 599) is None
    backlog = restarted.next(first.end, None, START_MS + 10_000)
    assert backlog is not None
    assert backlog.rows == 95
    assert restarted.lag(first.end) == 95


def test_a_clock_that_goes_back_plans_nothing() -> None:
    reader = GeneratorSource(["id"], schema="n long", rows_per_second=10).reader([])
    assert reader.next([5, START_MS], None, START_MS - 1) is None
    assert reader.lag([5, START_MS]) == 0


def test_an_endless_source_is_planned_in_pieces_and_never_ends() -> None:
    reader = GeneratorSource(["id"], schema="n long").reader([])
    first = reader.next(None, None, START_MS)
    assert first is not None
    assert first.rows == SLICE_ROWS_MAX
    assert not reader.exhausted(first.end)
    assert reader.lag(first.end) is None


@pytest.mark.parametrize(
    ("columns", "settings"),
    [([], {}), ("id", {}), (["id"], {"rows_per_second": 0}), (["id"], {"total": -1})],
)
def test_settings_that_make_no_rows_are_refused(columns: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        GeneratorSource(columns, schema="n long", **settings)


def test_rows_arrived_when_they_were_due_whoever_plans_them_and_when() -> None:
    source = GeneratorSource(["id"], schema="n long", rows_per_second=10)
    first = source.reader([]).next([0, START_MS], 20, START_MS + 9_000)
    assert first is not None
    second = source.reader([]).next(first.end, 20, START_MS + 60_000)
    assert second is not None
    found = [piece for slice in (first, second) for piece in source.reader([]).arrived(slice)]
    assert found == [
        Arrived(20, START_MS + 100, START_MS + 2_000), Arrived(20, START_MS + 2_100, START_MS + 4_000),
    ]  # fmt: skip


def test_rows_that_are_always_there_never_arrived() -> None:
    reader = GeneratorSource(["id"], schema="n long", total=10).reader([])
    slice = reader.next(None, None, START_MS)
    assert slice is not None
    assert reader.arrived(slice) == []
