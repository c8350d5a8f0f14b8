"""How far event time has come."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import (
    PartitionTime,
    PlannedSlice,
    PlannedWatermark,
    PlanRecord,
)
from holdfast.runtime.epoch.watermarks import Watermarks, is_due, to_close
from holdfast.runtime.parts.part_jobs import part_jobs
from holdfast.state.contract import NextDue

SCHEMA = "user string, ts timestamp"
DELAY_US = 10_000_000


class Quiet(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        return None


def graph_of(*idle_after: str | None, delay: str = "10s", second: bool = False) -> Any:
    """A job with a source for each; all of them united before operator `op`. `second`: another behind it."""
    job = hf.Job("timed")
    streams = [
        job.source(hf.MemorySource([], schema=SCHEMA), uid=f"s{n}").watermark("ts", delay, idle)
        for n, idle in enumerate(idle_after)
    ]
    united = streams[0].union(*streams[1:]) if streams[1:] else streams[0]
    out = united.key_by("user").process(Quiet(), uid="op")
    if second:
        out.key_by("user").process(Quiet(), uid="behind")
    return job.graph()


class Time:
    """Event time as plans and the epochs after them move it."""

    def __init__(self, graph: Any, view: CheckpointView | None = None) -> None:
        self.graph, self.watermarks = graph, Watermarks(graph, view or CheckpointView())
        self.epoch = 0

    def plan(self, clock_ms: int = 0, *read: str) -> PlanRecord:
        self.epoch += 1
        plan = PlanRecord(
            epoch=self.epoch, attempt=1, term=1, run="r", parent=0, fingerprint="f", parallelism=1,
            clock_ms=clock_ms, slices={uid: PlannedSlice(start=None, end=self.epoch) for uid in read},
            watermarks=self.watermarks.next(clock_ms),
        )  # fmt: skip
        self.watermarks.planned(plan)
        return plan

    def epoch_of(
        self, clock_ms: int = 0, silent: Any = None, **newest: int | dict[str, int | None] | None
    ) -> PlannedWatermark:
        """An epoch that reads of these sources, up to these times; the watermark of `op` in it."""
        plan = self.plan(clock_ms, *newest)
        times = {uid: at if isinstance(at, dict) else {"": at} for uid, at in newest.items()}
        self.watermarks.observed(times, plan, silent)
        return plan.watermarks["op"]

    def now(self, clock_ms: int = 0) -> int | None:
        """Times before this are complete."""
        reached = self.watermarks.next(clock_ms)["op"].now_us
        return None if reached is None else reached + 1

    def restarted(self) -> Time:
        """Another leader, from what a commit would hold."""
        reached = {uid: mark.now_us for uid, mark in self.watermarks.next(0).items()}
        kept = {uid: at for uid, at in reached.items() if at is not None}
        view = CheckpointView(event_times=self.watermarks.standing(), watermarks=kept)
        return Time(self.graph, view)


def mark(before: int | None, now: int | None) -> PlannedWatermark:
    """Times before these are complete."""
    return PlannedWatermark(before_us=before and before - 1, now_us=now and now - 1)


def test_the_watermark_of_an_epoch_follows_from_the_epochs_before_it() -> None:
    time = Time(graph_of(None))
    found = [time.epoch_of(s0=at) for at in (100_000_000, 130_000_000, 120_000_000)]
    assert found == [mark(None, None), mark(None, 90_000_000), mark(90_000_000, 120_000_000)]
    assert time.now() == 120_000_000


def test_it_never_goes_back() -> None:
    time = Time(graph_of(None, None))
    time.epoch_of(s0=500_000_000, s1=400_000_000)
    assert time.epoch_of(s0=100) == mark(None, 390_000_000)
    # A delay that became longer with an upgrade would set it back.
    reached = time.watermarks.standing()
    later = Watermarks(
        graph_of(None, None, delay="1h"), CheckpointView(event_times=reached, watermarks={"op": 389_999_999})
    )
    assert later.next(0)["op"] == mark(390_000_000, 390_000_000)


def test_a_followed_plan_counts_even_where_its_rows_are_not_known() -> None:
    time = Time(graph_of(None))
    plan = time.plan()
    time.watermarks.planned(
        PlanRecord(
            **{f: getattr(plan, f) for f in plan.__struct_fields__} | {"watermarks": {"op": mark(1, 77)}}
        )
    )
    assert time.watermarks.next(0)["op"] == mark(77, 77)


def test_the_slowest_of_several_sources_counts_and_all_must_have_had_rows() -> None:
    time = Time(graph_of(None, None))
    time.epoch_of(s0=500_000_000)
    assert time.now(10**9) is None
    time.epoch_of(s1=300_000_000)
    assert time.now() == 290_000_000
    time.epoch_of(s1=900_000_000)
    assert time.now() == 490_000_000


def test_rows_without_a_time_leave_it_where_it_is() -> None:
    time = Time(graph_of(None))
    time.epoch_of(s0=None)
    assert time.now() is None
    time.epoch_of(s0=100_000_000)
    time.epoch_of(s0=None)
    assert time.now() == 90_000_000


def test_a_source_that_is_not_observed_leaves_it_where_it_is() -> None:
    time = Time(graph_of(None))
    time.epoch_of(s0=100_000_000)
    time.watermarks.observed({}, time.plan(0, "s0"))
    assert time.now() == 90_000_000


def test_a_partition_without_rows_is_waited_for_until_it_was_silent_for_too_long() -> None:
    time = Time(graph_of("1m"))
    time.epoch_of(0, silent={"s0": ["b"]}, s0={"a": 500_000_000})
    assert time.now(60_000) is None
    assert time.watermarks.idle_sources(60_000) == []
    # That it is still there is no sign of life.
    time.epoch_of(50_000, silent={"s0": ["b"]}, s0={"a": 600_000_000})
    assert time.restarted().now(60_001) == time.now(60_001) == 590_000_000
    assert time.watermarks.idle_sources(60_001) == ["s0/b"]
    time.epoch_of(70_000, silent={"s0": ["a"]}, s0={"b": 550_000_000})
    assert time.watermarks.idle_sources(70_000) == []
    assert time.watermarks.idle_sources(200_000) == ["s0"]
    time.epoch_of(80_000, s0={"a": 900_000_000, "b": 800_000_000})
    assert time.now(80_000) == 790_000_000


def test_a_source_that_was_silent_for_too_long_is_not_waited_for_until_it_has_rows_again() -> None:
    time = Time(graph_of("1m", "1m"))
    time.epoch_of(0, s0=500_000_000, s1=100_000_000)
    time.epoch_of(50_000, s0=900_000_000)
    assert time.now(60_000) == 90_000_000
    assert time.watermarks.idle_sources(60_000) == []
    assert time.now(60_001) == 890_000_000
    assert time.watermarks.idle_sources(60_001) == ["s1"]
    time.epoch_of(70_000, s1=110_000_000)
    assert time.watermarks.idle_sources(70_000) == []
    assert time.now(70_000) == 890_000_000, "it waits for that source again, and does not go back"


def test_where_all_are_silent_time_stands_still() -> None:
    time = Time(graph_of("1m", "1m"))
    time.epoch_of(0, s0=500_000_000, s1=100_000_000)
    assert time.now(0) == 90_000_000
    time.plan(0)
    assert time.now(10**9) == 90_000_000


def test_a_source_is_not_idle_while_it_has_rows_however_long_an_epoch_takes() -> None:
    """Nor one that was not asked for rows, because others had enough for an epoch."""
    time = Time(graph_of("5s", "5s"))
    for turn in range(4):
        time.watermarks.looked({"s0": None, "s1": None})
        assert time.watermarks.idle_sources(turn * 7_000) == []
        newest = 100_000_000 * (turn + 1)
        time.epoch_of(turn * 7_000, s0=newest, s1=newest if turn < 3 else None)
    assert time.now(28_000) == 290_000_000
    time.watermarks.looked({"s0": frozenset(), "s1": None})
    assert time.watermarks.idle_sources(28_000) == ["s0"]


def test_what_the_last_rows_reached_counts_when_all_have_fallen_silent_meanwhile() -> None:
    """The epoch that read them took longer than they may be silent."""
    time = Time(graph_of("5s"))
    time.epoch_of(0, s0=100_000_000)
    time.watermarks.looked({"s0": frozenset()})
    assert time.watermarks.idle_sources(7_000) == ["s0"]
    assert time.now(7_000) == 90_000_000


def test_a_partition_that_has_rows_to_be_read_is_not_idle() -> None:
    time = Time(graph_of("5s"))
    time.epoch_of(0, s0={"a": 500_000_000, "b": 300_000_000})
    time.watermarks.looked({"s0": frozenset({"a", "b"})})
    assert time.now(7_000) == 290_000_000
    time.watermarks.looked({"s0": frozenset({"a"})})
    assert time.watermarks.idle_sources(7_000) == ["s0/b"]
    assert time.now(7_000) == 490_000_000


def test_a_source_that_never_had_a_row_is_waited_for_from_the_first_plan_on() -> None:
    time = Time(graph_of("1m", "1m"))
    time.epoch_of(1_000_000, s0=500_000_000)
    time.epoch_of(1_050_000, s0=500_000_000)
    assert time.now(1_060_000) is None
    assert time.now(1_060_001) == 490_000_000


def test_one_that_is_idle_only_after_a_restart_is_counted_from_where_it_fell_silent() -> None:
    time = Time(graph_of("1m", "1m"))
    time.epoch_of(1_000_000, s0=500_000_000)
    time.epoch_of(1_050_000, s0=500_000_000)
    assert time.restarted().now(1_060_001) == 490_000_000


def test_the_slowest_partition_of_a_source_counts_and_an_idle_one_does_not() -> None:
    time = Time(graph_of("1m"))
    time.epoch_of(0, s0={"p0": 500_000_000, "p1": 300_000_000})
    assert time.now(0) == 290_000_000
    time.epoch_of(50_000, s0={"p0": 700_000_000})
    assert time.now(60_000) == 290_000_000
    assert time.now(60_001) == 690_000_000


def test_a_source_without_known_partitions_is_forgotten_once_they_are_known() -> None:
    time = Time(graph_of(None))
    time.plan(0)
    time.epoch_of(0, s0={"p0": 500_000_000})
    assert time.now() == 490_000_000


def test_an_operator_behind_another_has_the_same_watermark_in_the_same_epoch() -> None:
    time = Time(graph_of(None, second=True))
    time.epoch_of(s0=100_000_000)
    plan = time.plan()
    assert plan.watermarks == {"op": mark(None, 90_000_000), "behind": mark(None, 90_000_000)}


def test_another_leader_goes_on_from_the_commit() -> None:
    time = Time(graph_of("1m", None))
    time.epoch_of(5, s0=100_000_000, s1={"p0": 300_000_000})
    again = time.restarted()
    assert again.now(5) == time.now(5) == 90_000_000
    assert again.watermarks.standing() == {
        "s0": {"": PartitionTime(newest_us=100_000_000, seen_ms=5)},
        "s1": {
            "p0": PartitionTime(newest_us=300_000_000, seen_ms=5),
            "": PartitionTime(newest_us=None, seen_ms=5),
        },
    }


def test_what_a_commit_holds_of_sources_and_operators_that_are_gone_is_passed_over() -> None:
    gone = {"old": {"": PartitionTime(newest_us=1, seen_ms=1)}}
    time = Time(graph_of(None), CheckpointView(event_times=gone, watermarks={"gone": 7}))
    assert time.plan().watermarks == {"op": mark(None, None)}
    assert "old" not in time.watermarks.standing()


def test_a_union_with_rows_that_have_no_event_time_has_none() -> None:
    job = hf.Job("timed")
    timed = job.source(hf.MemorySource([], schema=SCHEMA), uid="a").watermark("ts")
    plain = job.source(hf.MemorySource([], schema=SCHEMA), uid="b")
    timed.union(plain).key_by("user").process(Quiet(), uid="op")
    assert Watermarks(job.graph(), CheckpointView()).next(0) == {}


@pytest.mark.parametrize(("newest_us", "edge_us"), [(-(1 << 63), -(1 << 61)), ((1 << 63) - 1, 1 << 61)])
def test_no_watermark_is_so_far_away_that_reckoning_with_it_overflows(newest_us: int, edge_us: int) -> None:
    """A row without a time may have the first or the last that a timestamp can hold."""
    time = Time(graph_of(None))
    time.epoch_of(s0=newest_us)
    assert time.watermarks.next(0)["op"].now_us == edge_us


def test_a_watermark_of_earlier_versions_that_is_further_away_is_taken_for_the_last_there_is() -> None:
    beyond, last = (1 << 63) - 2, 1 << 61
    time = Time(graph_of(None), CheckpointView(watermarks={"op": beyond}))
    assert time.watermarks.next(0)["op"] == PlannedWatermark(before_us=last, now_us=last)
    time.watermarks.planned(replace(time.plan(), watermarks={"op": PlannedWatermark(now_us=beyond)}))
    assert time.watermarks.next(0)["op"].now_us == last


OPEN = NextDue(event_us=50_000, processing_us=70_000)


@pytest.mark.parametrize(
    ("open_times", "now_us", "now_ms", "due"),
    [
        ({}, 10**9, 10**9, False),
        ({"op": None}, None, 0, True),
        ({"op": NextDue()}, 10**9, 10**9, False),
        ({"op": OPEN}, None, 69, False),
        ({"op": OPEN}, 49_999, 69, False),
        ({"op": OPEN}, 50_000, 0, True),
        ({"op": OPEN}, None, 70, True),
        ({"untimed": NextDue(event_us=1)}, 10**9, 0, False),
        ({"untimed": NextDue(processing_us=1_000)}, None, 1, True),
    ],
)
def test_what_is_due_without_rows(open_times: Any, now_us: int | None, now_ms: int, due: bool) -> None:
    assert is_due(open_times, {"op": PlannedWatermark(now_us=now_us)}, now_ms) is due


@pytest.mark.parametrize(
    ("open_times", "left"),
    [
        ({}, False),
        ({"op": None}, True),
        ({"op": NextDue()}, False),
        ({"op": NextDue(event_us=10**18)}, True),
        ({"op": NextDue(processing_us=1)}, False),
        ({"untimed": NextDue(event_us=1)}, False),
        ({"untimed": None}, False),
    ],
)
def test_what_there_is_to_close(open_times: Any, left: bool) -> None:
    assert to_close(open_times, {"op": mark(None, None)}) is left


def carried_graph() -> Any:
    """Part `there` of a job: two channels with event time, united before operator `op`, and on into a third
    part."""
    job = hf.Job("timed")
    there = job.part("there")
    streams = [
        job.source(hf.MemorySource([], schema=SCHEMA), uid=f"s{n}")
        .watermark("ts", "10s")
        .into(there, uid=uid)
        for n, uid in enumerate(("c0", "c1"))
    ]
    out = streams[0].union(streams[1]).key_by("user").process(Quiet(), uid="op")
    out.into(job.part("last"), uid="c2").sink(hf.MemorySink(), uid="out")
    parts = {part.part: part.graph() for part in part_jobs(job.graph(), "/cp")}
    return parts["there"]


def test_time_that_came_through_channels_waits_for_the_slowest_and_goes_on_into_the_next() -> None:
    time = Time(carried_graph())
    # Carried times are complete already: no delay is taken off again.
    time.epoch_of(c0=100_000_000, c1=70_000_000)
    plan = time.plan()
    assert plan.watermarks == {"op": mark(None, 70_000_000), "c2": mark(None, 70_000_000)}


@pytest.mark.parametrize("had_rows", [True, False])
def test_time_does_not_wait_for_a_channel_that_has_come_to_its_end(had_rows: bool) -> None:
    time = Time(carried_graph())
    time.epoch_of(c0=100_000_000, **({"c1": 70_000_000} if had_rows else {}))
    assert time.now() == (70_000_000 if had_rows else None)
    time.watermarks.ended = frozenset({"c1"})
    assert time.now() == 100_000_000
    time.watermarks.ended = frozenset()
    assert time.now() == (70_000_000 if had_rows else None), "it was taken back before any plan went by it"
