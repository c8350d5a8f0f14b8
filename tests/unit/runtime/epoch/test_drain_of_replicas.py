"""Members of a set of replicas that is drained: the first end that one of them fixes is that of all."""

from __future__ import annotations

from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.connectors.generator import GeneratorSource
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.recorded_plans import recorded_plans
from holdfast.runtime.leader_context import AdoptedOther
from holdfast.runtime.replica import Replica, join
from holdfast.state.contract import NextDue
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.epoch.test_planner import Live
from tests.unit.runtime.leader_kit import SHAPE, leader_of, no_tables

ROWS = "rows"
CLOSES = NextDue(event_us=1, processing_us=1)


class Member:
    """A planner in a seat, over a source of its own."""

    def __init__(
        self, root: Path, seat: int, source: Any, clock: ManualClock, view: CheckpointView = EMPTY
    ) -> None:
        self.storage, self.wishes = LocalStorage(root), Wishes()
        context = leader_of(self.storage, sources={ROWS: source}, clock=clock, wishes=self.wishes)
        joined = join(self.storage, ActiveReplicas(k=1), seat, f"p{seat}", "f", 2, clock)
        context = with_(context, run=joined.set.run, term=joined.set.term)
        replica = Replica(joined, self.storage, clock, context.monitor, lambda: False)
        recorded = recorded_plans(context.checkpoint.chain, view, SHAPE, {})
        self.planner = Planner(with_(context, replica=replica), view, SHAPE, recorded, no_tables())

    def end_here(self) -> None:
        self.planner.end_here(self.wishes.ends)

    def read(self, rows: int = 10) -> Any:
        """The end of the next slice; None: there is none."""
        plan = self.planner.next(rows, 0)
        return plan.slices[ROWS].end if plan is not None else None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


def generator() -> GeneratorSource:
    return GeneratorSource(["id"], schema="n long", rows_per_second=10)


def test_the_end_that_one_has_fixed_is_that_of_all(tmp_path: Path, clock: ManualClock) -> None:
    first, second = (Member(tmp_path, seat, generator(), clock) for seat in (1, 2))
    assert first.read() is None
    clock.sleep(2.5)
    first.end_here()
    clock.sleep(60)
    second.end_here()
    assert [second.read()[0] for _ in range(3)] == [10, 20, 25]
    assert second.read() is None
    assert [first.read()[0] for _ in range(3)] == [10, 20, 25]


def test_a_process_that_joins_later_goes_by_it(tmp_path: Path, clock: ManualClock) -> None:
    first = Member(tmp_path, 1, generator(), clock)
    first.read()
    clock.sleep(2.5)
    first.end_here()
    clock.sleep(60)
    first.read()
    view = CheckpointView(number=1, last_epoch=1, positions={ROWS: [10, 1_000]}, clock_ms=clock.now_ms())
    other = Member(tmp_path, 2, generator(), clock, view)
    other.end_here()
    assert [other.read()[0] for _ in range(2)] == [20, 25]
    assert other.read() is None


@pytest.mark.parametrize("ahead", [0, 2], ids=["at the same epoch", "two epochs on"])
def test_rows_are_counted_once_where_a_source_cannot_fix_its_end(
    tmp_path: Path, clock: ManualClock, ahead: int
) -> None:
    first = Member(tmp_path, 1, Live(25, counts=True), clock)
    second = Member(tmp_path, 2, Live(1_000, counts=True), clock)
    read = [second.read() for _ in range(ahead)]
    first.end_here()
    second.end_here()
    while (end := second.read()) is not None:
        read.append(end)
    assert read == [10, 20, 25]
    assert [first.read() for _ in range(4)] == [10, 20, 25, None]


def test_one_that_is_behind_reads_on_to_where_they_were_counted(tmp_path: Path, clock: ManualClock) -> None:
    first = Member(tmp_path, 1, Live(5, counts=True), clock)
    second = Member(tmp_path, 2, Live(1_000, counts=True), clock)
    assert [first.read(), first.read()] == [10, 20]
    first.end_here()
    second.end_here()
    assert [second.read() for _ in range(4)] == [10, 20, 25, None]


def test_where_the_plans_since_are_gone_rows_are_counted_again(tmp_path: Path, clock: ManualClock) -> None:
    first = Member(tmp_path, 1, Live(25, counts=True), clock)
    first.end_here()
    first.read()
    view = CheckpointView(number=1, last_epoch=1, positions={ROWS: 10}, clock_ms=clock.now_ms())
    first.storage.delete([names.plan(1, 1)])
    later = Member(tmp_path, 2, Live(7, counts=True), clock, view)
    later.end_here()
    assert [later.read(), later.read()] == [17, None]


def test_one_that_fixed_another_at_the_same_time_begins_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Member(tmp_path, seat, generator(), clock) for seat in (1, 2))
    assert (first.read(), second.read()) == (None, None)
    clock.sleep(2.5)
    reader: Any = second.planner.readers[ROWS]
    fix = reader.end_at

    def slow(*given: Any) -> Any:
        fixed = fix(*given)
        clock.sleep(0.5)
        first.end_here()
        return fixed

    monkeypatch.setattr(reader, "end_at", slow)
    with pytest.raises(AdoptedOther, match="another member has fixed where the drain ends"):
        second.end_here()
    again = Member(tmp_path, 2, generator(), clock)
    again.planner.end_here(second.wishes.ends)
    assert [again.read()[0] for _ in range(3)] == [10, 20, 30]
    assert again.read() is None


def test_all_are_told_before_an_end_is_fixed(tmp_path: Path, clock: ManualClock) -> None:
    member = Member(tmp_path, 1, generator(), clock)
    member.end_here()
    assert member.storage.size(names.draining(1)) is not None


def test_one_that_follows_the_closing_epoch_reads_nothing_after_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Before the closing is planned the drain is known to all; this one has not looked since."""
    first, second = (Member(tmp_path, seat, generator(), clock) for seat in (1, 2))
    assert (first.read(), second.read()) == (None, None)
    clock.sleep(1)
    first.end_here()
    assert first.read()[0] == 10
    closing = first.planner.close(0, {"op": CLOSES})
    assert closing is not None
    assert second.read()[0] == 10
    clock.sleep(60)
    assert second.planner.next(10, 0) == closing
    assert second.wishes.draining.is_set()
    second.end_here()
    assert second.read() is None
