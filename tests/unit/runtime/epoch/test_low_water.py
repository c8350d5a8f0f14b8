"""Which epochs hold rows that something open is made of."""

from __future__ import annotations

from holdfast.checkpoint.store.records import PlannedWatermark, PlanRecord
from holdfast.runtime.epoch.low_water import LowWater


def plan(epoch: int, now_us: int | None) -> PlanRecord:
    return PlanRecord(
        epoch=epoch, attempt=1, term=1, run="r", parent=0, fingerprint="f", parallelism=1, clock_ms=0,
        slices={}, watermarks={"op": PlannedWatermark(now_us=now_us)},
    )  # fmt: skip


def test_an_epoch_is_needed_until_the_watermark_has_passed_all_that_its_rows_were_put_into() -> None:
    water = LowWater("op", 4)
    assert water.needs_from == 5
    assert water.ran(plan(5, None), 100) == 5
    assert water.ran(plan(6, 99), 300) == 5
    assert water.ran(plan(7, 100), None) == 6, "an epoch whose rows are all late is needed by nothing"
    assert water.ran(plan(8, 200), 250) == 6
    assert water.ran(plan(9, 300), None) == 10


def test_a_row_that_is_far_ahead_holds_up_those_after_it() -> None:
    water = LowWater("op", 0)
    water.ran(plan(1, 0), 10_000)
    assert [water.ran(plan(epoch, epoch * 10), epoch * 10) for epoch in (2, 3, 4)] == [1, 1, 1]


def test_a_part_without_state_needs_nothing() -> None:
    water = LowWater(None, 0)
    assert [water.ran(plan(epoch, None), None) for epoch in (1, 2)] == [2, 3]
