"""Which copy of a table an epoch is joined with."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import Extent, TableCopy
from holdfast.connectors.memory import MemorySource
from holdfast.errors import EpochFailed, RestoreError
from holdfast.ids import EpochId
from holdfast.runtime.epoch.lookups import TRY_AGAIN_MS, DeclaredTable, Tables
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.recorded_plans import PlanShape, Recorded, recorded_plans
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.epoch.test_recorded_plans import Rewound
from tests.unit.runtime.leader_kit import planner_of

COLUMNS = "k bigint, price double"
HOUR = 3_600_000


class Table:
    """A table that is copied; `broken` says why it cannot be."""

    def __init__(self, columns: str = COLUMNS, refresh_ms: int = HOUR) -> None:
        self.declared = {"prices": DeclaredTable(refresh_ms, columns)}
        self.columns, self.broken = columns, ""
        self.copied: list[int] = []
        self.said: list[str] = []

    def make(self, uid: str, epoch: int, read_ms: int) -> TableCopy:
        if self.broken:
            raise EpochFailed(self.broken)
        self.copied.append(epoch)
        return made(epoch, read_ms, self.columns)

    def tables(self, in_use: TableCopy | None = None) -> Tables:
        held = {} if in_use is None else {"prices": in_use}
        return Tables(self.declared, held, self.make, self.said.append)


def made(epoch: int, read_ms: int, columns: str = COLUMNS) -> TableCopy:
    part = Extent(object=f"data/{epoch:012d}/table", offset=0, length=1, checksum=f"c{epoch}")
    return TableCopy(epoch=epoch, read_ms=read_ms, columns=columns, rows=1, extents=(part,))


def epochs(planner: Planner, count: int) -> list[int]:
    """Plan some epochs; of which epoch's copy each is."""
    found = [planner.next(10, 0) for _ in range(count)]
    return [plan.tables["prices"].epoch for plan in found if plan is not None]


def planner_with(
    root: Path, table: Table, clock: ManualClock, view: CheckpointView | None = None, **more: Any
) -> Planner:
    view = view or CheckpointView()
    source = {"rows": MemorySource(list(range(1_000)))}
    shape = PlanShape(("rows",), "f", 2, None, {"prices": table.columns})
    tables = table.tables(view.tables.get("prices"))
    return planner_of(root, source, clock, view=view, shape=shape, tables=tables, **more)


def test_plans_name_one_copy_until_it_is_as_old_as_refresh(tmp_path: Path) -> None:
    clock, table = ManualClock(10 * HOUR), Table()
    planner = planner_with(tmp_path, table, clock)
    assert epochs(planner, 3) == [1, 1, 1]
    clock.advance(timedelta(hours=1, milliseconds=-1))
    assert epochs(planner, 1) == [1]
    clock.advance(timedelta(milliseconds=1))
    assert epochs(planner, 2) == [5, 5]
    assert table.copied == [1, 5]


def test_a_restored_job_goes_on_with_the_copy_of_its_checkpoint(tmp_path: Path) -> None:
    clock, table = ManualClock(10 * HOUR), Table()
    view = CheckpointView(tables={"prices": made(7, 10 * HOUR - 5)}, clock_ms=10 * HOUR - 5)
    assert epochs(planner_with(tmp_path, table, clock, view=view), 2) == [7, 7]
    assert table.copied == []


def test_a_plan_found_in_storage_is_followed_with_its_copy_however_old(tmp_path: Path) -> None:
    clock, table = ManualClock(10 * HOUR), Table()
    epochs(planner_with(tmp_path, table, clock), 1)
    clock.advance(timedelta(hours=9))
    assert epochs(planner_with(tmp_path, table, clock, term=2, run="s"), 2) == [1, 2]


def test_an_epoch_that_is_planned_again_has_the_same_copy(tmp_path: Path) -> None:
    clock, table = ManualClock(10 * HOUR), Table()
    planner = planner_with(tmp_path, table, clock)
    first = planner.next(10, 0)
    assert first is not None
    clock.advance(timedelta(hours=9))
    recorded = [Recorded(first, "it was made by other code")]
    again = planner_with(tmp_path, table, clock, recorded=recorded, term=2, run="s").next(10, 0)
    assert again is not None
    assert again.attempt == 2
    assert again.tables == first.tables


def test_a_table_that_cannot_be_read_leaves_the_copy_and_is_tried_again(tmp_path: Path) -> None:
    clock, table = ManualClock(10 * HOUR), Table()
    planner = planner_with(tmp_path, table, clock)
    epochs(planner, 1)
    clock.advance(timedelta(hours=2))
    table.broken = "the table is gone"
    assert epochs(planner, 2) == [1, 1]
    assert table.said == [
        "LOOKUP: the table is gone; the copy of epoch 1 stays in use, and it is tried again"
    ]
    assert planner.tables.shown()["prices"]["error"] == "the table is gone"
    table.broken = ""
    assert epochs(planner, 1) == [1], "not in every epoch"
    clock.advance(timedelta(milliseconds=TRY_AGAIN_MS))
    assert epochs(planner, 1) == [5]
    assert table.said[1:] == ["LOOKUP: the table of 'prices' can be read again"]
    assert planner.tables.shown() == {"prices": {"rows": 1, "read_ms": clock.now_ms(), "error": None}}


def test_without_a_copy_a_table_that_cannot_be_read_ends_the_run(tmp_path: Path) -> None:
    table = Table()
    table.broken = "the table is gone"
    with pytest.raises(EpochFailed, match="the table is gone"):
        planner_with(tmp_path, table, ManualClock(0)).next(10, 0)


def test_other_columns_need_another_copy(tmp_path: Path) -> None:
    clock, table = ManualClock(10 * HOUR), Table("k bigint")
    view = CheckpointView(tables={"prices": made(7, 10 * HOUR)}, clock_ms=10 * HOUR)
    planner = planner_with(tmp_path, table, clock, view=view)
    assert epochs(planner, 2) == [1, 1]
    table.broken = "the table is gone"
    with pytest.raises(EpochFailed):
        planner_with(tmp_path / "other", table, clock, view=view).next(10, 0)


def test_a_plan_with_other_columns_is_made_again_unless_sinks_show_what_came_of_it(tmp_path: Path) -> None:
    clock = ManualClock(10 * HOUR)
    epochs(planner_with(tmp_path / "a", Table(), clock), 1)
    other = planner_with(tmp_path / "a", Table("k bigint"), clock, term=2, run="s")
    plan = other.next(10, 0)
    assert plan is not None
    assert (plan.attempt, plan.tables["prices"].columns) == (2, "k bigint")
    shown = Rewound(tmp_path / "b")
    shape = PlanShape(("rows",), "f", 2, None, {"prices": "k bigint"})
    assert len(recorded_plans(shown.chain, shown.view, shape, {})) == 2
    for epoch in (2, 3):
        old = shown.plans.newest(EpochId(epoch))
        assert old is not None
        name = f"plans/{epoch:012d}/{old.attempt:06d}"
        shown.storage.delete([name])
        shown.plans.write(replace(old, tables={"prices": made(1, 0)}))
    with pytest.raises(
        RestoreError, match=r"table of lookup 'prices' had the columns 'k bigint, price double"
    ):
        recorded_plans(shown.chain, shown.view, shape, {})
