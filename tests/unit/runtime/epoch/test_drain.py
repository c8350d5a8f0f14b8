"""A drain ends at what was there when it was asked for, whatever comes later."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.connectors.contract import Slice
from holdfast.connectors.generator import GeneratorSource
from holdfast.graph.job_graph import Place, SourceNode
from holdfast.runtime.epoch.planner import Planner
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock

UID = "rows"


class Live:
    """A source of a user's: it has more whenever it is asked, and cannot fix its end."""

    schema, replayable = "n long", True

    def __init__(self, lag: int | None, counts: bool) -> None:
        self._lag, self._counts = lag, counts

    def reader(self, notes: Any) -> Any:
        return self

    def next(self, after: int | None, max_rows: int | None, now_ms: int) -> Slice | None:
        first, rows = after or 0, max_rows or 100
        return Slice(after, first + rows, rows=rows if self._counts else None)

    def exhausted(self, after: Any) -> bool:
        return False

    def frame(self, spark: Any, slice: Slice) -> Any:
        raise NotImplementedError

    def lag(self, after: Any) -> int | None:
        return self._lag


def planner_of(root: Path, source: Any, clock: ManualClock, view: CheckpointView | None = None) -> Planner:
    node = SourceNode(uid=UID, source=source, place=Place(__file__, 1))
    plans = Plans(LocalStorage(root))
    return Planner(plans, (node,), view or CheckpointView(), deque(), clock, 1, "r", "f", 2)


def drained(planner: Planner, ends: dict[str, Any], most: int = 100) -> list[Any]:
    planner.end_here(ends)
    read = []
    while (plan := planner.next(10, 0)) is not None:
        read.append(plan.slices[UID].end)
        assert len(read) < most, "the drain goes on and on"
        planner.end_here(ends)
    return read


@pytest.mark.parametrize(
    ("lag", "counts", "read"),
    [(25, True, [10, 20, 25]), (0, True, []), (None, True, [10]), (None, False, [10]), (25, False, [10])],
)
def test_of_a_source_that_cannot_fix_its_end_what_it_counts_or_one_slice_is_read(
    tmp_path: Path, lag: int | None, counts: bool, read: list[int]
) -> None:
    assert drained(planner_of(tmp_path, Live(lag, counts), ManualClock(0)), {}) == read


def test_a_generator_ends_at_what_was_due_when_the_drain_was_asked_for(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    source = GeneratorSource(["id"], schema="n long", rows_per_second=10)
    planner = planner_of(tmp_path / "1", source, clock)
    assert planner.next(10, 0) is None
    clock.sleep(2.5)
    ends: dict[str, Any] = {}
    planner.end_here(ends)
    clock.sleep(60)
    assert [end for end, _ in drained(planner, ends)] == [10, 20, 25]
    # The stretch failed after the first of these was committed.
    view = CheckpointView(number=1, last_epoch=1, positions={UID: [10, 1_000]}, clock_ms=clock.now_ms())
    assert [end for end, _ in drained(planner_of(tmp_path / "2", source, clock, view), ends)] == [20, 25]
    # Or before.
    assert [end for end, _ in drained(planner_of(tmp_path / "3", source, clock), ends)] == [10, 20, 25]


def test_a_generator_without_rate_and_total_has_nothing_at_hand(tmp_path: Path) -> None:
    source = GeneratorSource(["id"], schema="n long")
    planner = planner_of(tmp_path, source, ManualClock(0))
    assert planner.next(10, 0) is not None
    assert drained(planner, {}) == []
