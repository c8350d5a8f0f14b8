"""Epochs that are planned because something is due, and the one that closes what is open."""

from __future__ import annotations

from dataclasses import replace as replace_shape
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.checkpoint.chain.plans import Plans, input_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import PartitionTime, PlannedWatermark, PlanRecord
from holdfast.connectors.memory import MemoryReader
from holdfast.ids import EpochId, PlanAttempt
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.recorded_plans import PlanShape
from holdfast.state.contract import NextDue
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.leader_kit import SHAPE, planner_of

EVENT_OPEN = {"op": NextDue(event_us=50_000_000)}
PROCESSING_OPEN = {"op": NextDue(processing_us=5_000_000)}
NOTHING_OPEN = {"op": NextDue()}


class Timed(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        return None

    def on_timer(self, at: Any, ctx: Any) -> Any:
        return None


def graph(rows: int, sources: int = 1, idle_after: str | None = None) -> Any:
    job = hf.Job("timed")
    made = [
        job.source(hf.MemorySource([("u", None)] * rows, schema="user string, ts timestamp"), uid=f"s{n}")
        for n in range(sources)
    ]
    timed = [each.watermark("ts", delay="10s", idle_after=idle_after) for each in made]
    (timed[0].union(*timed[1:]) if timed[1:] else timed[0]).key_by("user").process(Timed(), uid="op")
    return job.graph()


def planner(root: Path, rows: int = 0, sources: int = 1, **more: Any) -> Planner:
    shape = more.pop("shape", replace_shape(SHAPE, sources=tuple(f"s{n}" for n in range(sources))))
    declared = graph(rows, sources, more.pop("idle_after", None))
    return planner_of(root, declared=declared, shape=shape, **more)


def seen(made: Planner, plan: PlanRecord | None, newest_us: int) -> None:
    """The epoch has run; every source that it read has come to this time."""
    assert plan is not None
    made.watermarks.observed({uid: {"": newest_us} for uid in plan.slices}, plan)


def test_an_epoch_without_rows_is_planned_when_a_timer_is_due_and_not_before(tmp_path: Path) -> None:
    made = planner(tmp_path, rows=2)
    seen(made, made.next(1, 0, EVENT_OPEN), 59_999_999)
    seen(made, made.next(1, 0, EVENT_OPEN), 59_999_999)
    assert made.next(1, 0, EVENT_OPEN) is None
    made.watermarks._times["s0"][""] = replace(made.watermarks._times["s0"][""], newest_us=60_000_001)
    plan = made.next(1, 0, EVENT_OPEN)
    assert plan is not None
    assert (plan.slices, plan.closing) == ({}, False)
    assert plan.watermarks == {"op": PlannedWatermark(before_us=49_999_998, now_us=50_000_000)}
    assert made.next(1, 0, NOTHING_OPEN) is None


def test_an_epoch_without_rows_is_planned_when_the_clock_has_come_to_a_processing_timer(
    tmp_path: Path,
) -> None:
    clock = ManualClock(4_999)
    made = planner(tmp_path, clock=clock)
    assert made.next(1, 0, PROCESSING_OPEN) is None
    clock.advance(timedelta(milliseconds=1))
    plan = made.next(1, 0, PROCESSING_OPEN)
    assert plan is not None
    assert (plan.slices, plan.clock_ms, plan.closing) == ({}, 5_000, False)


def test_what_is_not_known_is_found_out_by_an_epoch(tmp_path: Path) -> None:
    assert planner(tmp_path).next(1, 0, {"op": None}) is not None


def test_a_look_that_finds_nothing_due_asks_nothing_of_storage(tmp_path: Path) -> None:
    """It happens several times a second."""
    made = planner(tmp_path, clock=ManualClock(0))
    asked = list[Any]()
    made._plans.next_attempt = lambda epoch: asked.append(epoch) or PlanAttempt(1)  # type: ignore
    assert made.next(1, 0, PROCESSING_OPEN) is None
    assert made.next(1, 0, NOTHING_OPEN) is None
    assert made.close(0, NOTHING_OPEN) is None
    assert asked == []


@pytest.mark.parametrize("open_times", [EVENT_OPEN, PROCESSING_OPEN])
def test_when_the_input_has_ended_one_epoch_closes_what_is_open_or_due(
    tmp_path: Path, open_times: Any
) -> None:
    made = planner(tmp_path, rows=1, clock=ManualClock(9_000))
    seen(made, made.next(1, 0, open_times, ended=lambda: True), 20_000_000)
    assert made.next(1, 0, open_times, ended=lambda: True) is None
    plan = made.close(0, open_times)
    assert plan is not None
    assert (plan.epoch, plan.slices, plan.closing) == (2, {}, True)
    assert plan.watermarks == {"op": PlannedWatermark(before_us=None, now_us=9_999_999)}, "finite"
    assert made.close(0, open_times) is None, "once"


def test_what_the_last_rows_made_due_fires_before_the_epoch_that_closes(tmp_path: Path) -> None:
    """As it would if more rows had come: what it sets may join, which it may not when all is closed."""
    made = planner(tmp_path, rows=1, clock=ManualClock(9_000))
    seen(made, made.next(1, 0, EVENT_OPEN, ended=lambda: True), 70_000_000)
    due = made.next(1, 0, EVENT_OPEN, ended=lambda: True)
    assert due is not None
    assert (due.slices, due.closing) == ({}, False)
    assert made.next(1, 0, EVENT_OPEN, ended=lambda: True) is None, (
        "once: a timer may always set one in the past"
    )
    closing = made.close(0, EVENT_OPEN)
    assert closing is not None
    assert closing.closing
    assert made.next(1, 0, EVENT_OPEN, ended=lambda: True) is None
    view = CheckpointView(
        number=3, last_epoch=3, closed_through=3, positions={"s0": 1}, watermarks={"op": 10**9}
    )
    later = planner(tmp_path / "later", rows=1, view=view)
    assert later.next(1, 0, EVENT_OPEN, ended=lambda: True) is None, "a restart changes nothing about that"


def test_a_timer_that_always_sets_the_next_does_not_keep_a_job_from_ending(tmp_path: Path) -> None:
    clock = ManualClock(9_000)
    made = planner(tmp_path, rows=1, clock=clock)
    epochs = 0
    while (
        plan := made.next(1, 0, PROCESSING_OPEN, ended=lambda: True) or made.close(0, PROCESSING_OPEN)
    ) is not None:
        seen(made, plan, 0)
        clock.sleep(60)
        epochs += 1
        assert epochs < 10, "it goes on and on"
    assert epochs == 2


def test_nothing_is_closed_where_nothing_is_open(tmp_path: Path) -> None:
    made = planner(tmp_path, clock=ManualClock(0))
    assert made.close(0, NOTHING_OPEN) is None
    assert made.close(0, {}) is None
    assert made.close(0, PROCESSING_OPEN) is None, "the clock has not come to it"


def test_a_run_after_a_closing_epoch_closes_again_only_after_new_rows(tmp_path: Path) -> None:
    view = CheckpointView(number=3, last_epoch=7, closed_through=7, positions={"s0": 1})
    made = planner(tmp_path, rows=1, view=view)
    assert made.close(0, EVENT_OPEN) is None
    more = planner(tmp_path, rows=2, view=view)
    assert more.next(1, 0, EVENT_OPEN) is not None
    closing = more.close(0, EVENT_OPEN)
    assert closing is not None
    assert closing.epoch == 9


def test_another_attempt_at_a_plan_has_its_event_time_and_is_the_same_input(tmp_path: Path) -> None:
    """Sinks show what came of the plan: it is made again for another number of shards."""
    made = planner(tmp_path, rows=2)
    seen(made, made.next(1, 0), 60_000_000)
    plan = made.next(1, 0)
    closing = made.close(0, EVENT_OPEN)
    assert plan is not None
    assert closing is not None
    view = CheckpointView(
        number=1, last_epoch=1, positions={"s0": 1}, published_through={"out": 3}, clock_ms=plan.clock_ms
    )
    again = planner(tmp_path, rows=2, view=view, shape=PlanShape(("s0",), "f", 5), term=2, run="s")
    # This leader knows of no rows, and would say that event time is not known.
    assert again.watermarks.next(0)["op"].now_us is None
    for old in (plan, closing):
        new = again.next(1, 0)
        assert new is not None
        assert (new.attempt, new.parallelism) == (2, 5)
        assert (new.watermarks, new.closing, new.slices) == (old.watermarks, old.closing, old.slices)
        assert input_of(new) == input_of(old)
    assert again.close(0, EVENT_OPEN) is None


def test_another_attempt_at_a_plan_has_its_time(tmp_path: Path) -> None:
    """Of an epoch that sinks show nothing is shown again: what is due since then has to wait for the next."""
    clock, view = ManualClock(1_000), CheckpointView(number=1, published_through={"out": 2}, clock_ms=900)
    made = planner(tmp_path, rows=3, view=CheckpointView(clock_ms=900), clock=clock)
    shown = []
    for _ in range(2):
        shown.append(made.next(1, 0))
        clock.advance(timedelta(seconds=1))
    again = planner(
        tmp_path,
        rows=3,
        view=view,
        clock=ManualClock(50_000),
        shape=PlanShape(("s0",), "f", 5),
        term=2,
        run="s",
    )
    assert again.now_ms() == 50_000
    plans = [again.next(1, 0, PROCESSING_OPEN) for _ in range(3)]
    assert [plan and plan.attempt for plan in plans] == [2, 2, 1]
    assert [plan and plan.clock_ms for plan in plans] == [*(old and old.clock_ms for old in shown), 50_000]


def test_a_source_that_has_rows_or_was_not_asked_is_waited_for_however_long_it_was_not_read(
    tmp_path: Path,
) -> None:
    """The job was down for an hour, and both sources have more to read than an epoch takes."""
    last = {"": PartitionTime(newest_us=60_000_000, seen_ms=60_000)}
    view = CheckpointView(
        number=1,
        last_epoch=4,
        positions={"s0": 0, "s1": 0},
        event_times={"s0": last, "s1": last},
        watermarks={"op": 49_999_999},
        clock_ms=60_000,
    )
    made = planner(tmp_path, rows=3, sources=2, view=view, clock=ManualClock(3_600_000), idle_after="10m")
    found = []
    for newest_us in (3_600_000_000, 61_000_000, 3_601_000_000, 62_000_000):
        plan = made.next(1, 0)
        assert plan is not None
        found.append((list(plan.slices), plan.watermarks["op"].now_us))
        seen(made, plan, newest_us)
    # s0 is far ahead of s1, which has not come to its turn before the second epoch.
    assert found == [
        (["s0"], 49_999_999), (["s1"], 49_999_999), (["s0"], 50_999_999), (["s1"], 50_999_999),
    ]  # fmt: skip


@pytest.mark.parametrize(("silent_ms", "reached_us"), [(0, 49_999_999), (600_001, 3_590_000_000 - 1)])
def test_a_source_that_a_drain_has_read_to_its_end_is_waited_for_unless_it_was_idle_before(
    tmp_path: Path, silent_ms: int, reached_us: int
) -> None:
    """Rows that came to it since then wait there unseen: they would be late in the next run."""
    clock = ManualClock(60_000 + silent_ms)
    view = CheckpointView(
        number=1,
        last_epoch=4,
        positions={"s0": 0, "s1": 3},
        event_times={uid: {"": PartitionTime(newest_us=60_000_000, seen_ms=60_000)} for uid in ("s0", "s1")},
        watermarks={"op": 49_999_999},
        clock_ms=60_000,
    )
    made = planner(tmp_path, rows=3, sources=2, view=view, clock=clock, idle_after="10m")
    made.end_here({})
    marks = []
    for _ in range(3):
        plan = made.next(1, 0)
        assert plan is not None
        marks.append(plan.watermarks["op"].now_us)
        seen(made, plan, 3_600_000_000)
        clock.advance(timedelta(hours=1))
    assert marks == [49_999_999, reached_us, reached_us]


def test_partitions_that_a_reader_has_for_itself_are_none_of_event_time(tmp_path: Path) -> None:
    """A source without a partition_column has none, whatever its readers are made of."""

    class Reader(MemoryReader):
        partitions = ("part-0", "part-1")

    class Source(hf.MemorySource):
        def reader(self, notes: Any) -> Any:
            return Reader(self)

    job = hf.Job("timed")
    rows = job.source(Source([("u", None)] * 2, schema="user string, ts timestamp"), uid="s0")
    rows.watermark("ts", idle_after="1m").key_by("user").process(Timed(), uid="op")
    clock = ManualClock(0)
    shape = replace_shape(SHAPE, sources=("s0",))
    made = planner_of(tmp_path, declared=job.graph(), shape=shape, clock=clock)
    for _ in range(2):
        seen(made, made.next(1, 0), 0)
        assert made.watermarks.idle_sources(clock.now_ms()) == []
        clock.advance(timedelta(hours=1))


def test_plans_that_differ_in_event_time_alone_are_different_input(tmp_path: Path) -> None:
    made = planner(tmp_path, rows=1)
    plan = made.next(1, 0)
    assert plan is not None
    later = replace(plan, watermarks={"op": PlannedWatermark(now_us=7)})
    assert len({input_of(each) for each in (plan, later, replace(plan, closing=True))}) == 3
    assert input_of(replace(plan, watermarks={})) == input_of(replace(plan, watermarks={}, after="x"))


def test_a_recorded_closing_plan_is_followed_and_closes_once(tmp_path: Path) -> None:
    made = planner(tmp_path, rows=1)
    seen(made, made.next(1, 0), 60_000_000)
    closing = made.close(0, EVENT_OPEN)
    again = planner(tmp_path, rows=1, term=2, run="s")
    assert again.next(1, 0) is not None
    assert again.next(1, 0) == closing
    assert again.close(0, EVENT_OPEN) is None


def test_a_plan_without_rows_is_not_followed_after_a_plan_that_reads_less(tmp_path: Path) -> None:
    """The first leader read everything and closed, and nothing of it was committed. The second read less, and
    died after its plan. What the first planned next would close what still has rows to come."""
    clock = ManualClock(0)  # It stands still: no plan is older than another by its clock.
    first = planner(tmp_path, rows=10, clock=clock)
    seen(first, first.next(10, 0), 60_000_000)
    assert first.close(0, EVENT_OPEN) is not None
    second = planner(
        tmp_path, rows=10, clock=clock, term=2, run="s", shape=PlanShape(("s0",), "f", 2, max_rows=3)
    )
    assert second.next(3, 0) is not None
    third = planner(tmp_path, rows=10, clock=clock, term=3, run="t")
    found = [third.next(3, 0) for _ in range(2)]
    assert [each and (each.slices["s0"].end, each.closing) for each in found] == [(3, False), (6, False)]


def test_a_plan_is_not_followed_whose_event_time_comes_from_rows_of_another_source(tmp_path: Path) -> None:
    first = planner(tmp_path, rows=10, sources=2)
    seen(first, first.next(10, 0), 900_000_000)
    seen(first, first.next(10, 0), 900_000_000)
    (two,) = (Plans(LocalStorage(tmp_path)).read(EpochId(2), PlanAttempt(1)),)
    assert list(two.slices) == ["s1"]
    third = first.next(10, 0, {"op": NextDue(event_us=1)})
    assert third is not None
    # Another leader plans epoch 2 otherwise; epoch 3 of the first has no rows, and fits any position.
    Plans(LocalStorage(tmp_path)).write(replace(two, attempt=2, term=2, run="s", slices={}))
    again = planner(tmp_path, rows=10, sources=2, term=3, run="t")
    made = [again.next(10, 0) for _ in range(3)]
    assert [each and list(each.slices) for each in made] == [["s0"], [], ["s1"]]
    assert made[2] is not None
    assert made[2].watermarks["op"].now_us is None


def test_a_plan_is_not_followed_whose_leader_had_come_to_another_event_time(tmp_path: Path) -> None:
    """Two leaders planned epoch 2 with the same rows, and it was the one that was committed of which less was
    known. What the other planned next takes rows for late that nothing has fired for."""
    first = planner(tmp_path, rows=3)
    for newest_us in (60_000_000, 90_000_000):
        seen(first, first.next(1, 0), newest_us)
    third = first.next(1, 0)
    assert third is not None
    assert third.watermarks["op"].before_us == 49_999_999
    plans = Plans(LocalStorage(tmp_path))
    two = plans.read(EpochId(2), PlanAttempt(1))
    behind = {"op": PlannedWatermark(before_us=None, now_us=20_000_000)}
    plans.write(replace(two, attempt=2, term=2, run="s", watermarks=behind))
    again = planner(tmp_path, rows=3, term=3, run="t")
    seen(again, again.next(1, 0), 30_000_001)
    assert again.next(1, 0) == plans.read(EpochId(2), PlanAttempt(2))
    made = again.next(1, 0)
    assert made is not None
    assert (made.run, made.slices.keys()) == ("t", third.slices.keys())
    assert made.watermarks["op"] == PlannedWatermark(before_us=20_000_000, now_us=20_000_000)


def test_a_plan_is_not_followed_that_takes_another_epoch_for_the_last_that_closed(tmp_path: Path) -> None:
    """Its windows would be taken for shown."""
    first = planner(tmp_path, rows=2)
    seen(first, first.next(1, 0), 60_000_000)
    plan = first.next(1, 0)
    assert plan is not None
    plans = Plans(LocalStorage(tmp_path))
    plans.write(replace(plan, attempt=2, term=2, run="s", closed_through=1))
    again = planner(tmp_path, rows=2, term=3, run="t")
    assert again.next(1, 0) is not None
    made = again.next(1, 0)
    assert made is not None
    assert (made.run, made.closed_through) == ("t", 0)
