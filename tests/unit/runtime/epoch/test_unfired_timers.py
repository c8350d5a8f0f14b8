"""A watermark that is declared no more, while event timers wait for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.checkpoint.chain.live_files import with_deltas
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.errors import RestoreError
from holdfast.runtime.epoch.unfired_timers import refuse_unfired, unfired_timers
from holdfast.state.contract import NextDue
from tests.unit.checkpoint.kept import GROUPS, delta, snapshot

AT_US = 1_767_268_800_000_000


class Timed(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        return None

    def on_timer(self, at: Any, ctx: Any) -> Any:
        return None


class Untimed(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        return None


def graph(*watermarks: bool, function: type[hf.KeyedFunction] = Timed) -> Any:
    """A union of sources, with a watermark or without."""
    job = hf.Job("timed")
    streams = []
    for number, has_one in enumerate(watermarks):
        rows = job.source(hf.MemorySource([], schema="user string, ts timestamp"), uid=f"s{number}")
        streams.append(rows.watermark("ts", delay="10s") if has_one else rows)
    streams[0].union(*streams[1:]).key_by("user").process(function(), uid="op")
    return job.graph()


def view(*due: NextDue | None, watermarks: dict[str, int] | None = None, **more: Any) -> CheckpointView:
    """A checkpoint after some epochs of all key groups, each with what was due next."""
    deltas = [replace(delta(epoch, operator="op"), next_due=each) for epoch, each in enumerate(due, start=1)]
    return CheckpointView(
        deltas=with_deltas({}, deltas), watermarks={"op": 7} if watermarks is None else watermarks, **more
    )


def test_what_is_due_before_all_timers_is_not_taken_for_one() -> None:
    """State with a ttl by event time, from before there was a watermark."""
    (told,) = unfired_timers(graph(False), view(NextDue(event_us=-(1 << 52) * 1_000)), False)
    assert "operator 'op': the checkpoint may hold event timers, and not all of its rows" in told


OPEN, NONE = NextDue(event_us=AT_US), NextDue()


@pytest.mark.parametrize("declared", [(False,), (True, False)])
def test_open_event_timers_without_a_watermark_are_refused_by_name_and_time(declared: Any) -> None:
    with pytest.raises(RestoreError) as refused:
        refuse_unfired(graph(*declared), view(NONE, OPEN), allow_dropped_state=False)
    told = str(refused.value)
    assert "test_unfired_timers.py:" in told
    assert "operator 'op': the checkpoint holds event timers, the first for 2026-01-01 12:00:00" in told
    assert "; declare .watermark(...) as it was, or drain the job once" in told
    assert len(told.splitlines()) == 1


def test_with_its_watermarks_or_with_leave_the_job_goes_on() -> None:
    assert unfired_timers(graph(True, True), view(OPEN), allow_dropped_state=False) == []
    assert unfired_timers(graph(False), view(OPEN), allow_dropped_state=True) == []


@pytest.mark.parametrize("due", [(OPEN, NONE), (NextDue(processing_us=AT_US),), ()])
def test_what_has_no_event_timers_open_may_lose_its_watermark(due: Any) -> None:
    assert unfired_timers(graph(False), view(*due), allow_dropped_state=False) == []


def test_a_function_without_timers_may_lose_its_watermark() -> None:
    assert unfired_timers(graph(False, function=Untimed), view(OPEN), allow_dropped_state=False) == []


def test_what_is_not_known_counts_as_open_where_there_was_event_time() -> None:
    rescaled = view(None)
    (told,) = unfired_timers(graph(False), rescaled, allow_dropped_state=False)
    assert "the checkpoint may hold event timers" in told
    saved = view(snapshots={"op": (replace(snapshot(1), operator="op"),)})
    assert len(unfired_timers(graph(False), saved, allow_dropped_state=False)) == 1
    never = view(None, watermarks={})
    assert unfired_timers(graph(False), never, allow_dropped_state=False) == []


def test_shards_of_before_a_rescaling_do_not_count() -> None:
    halves = [
        replace(delta(2, 0, GROUPS // 2, "op"), next_due=NONE),
        replace(delta(2, GROUPS // 2, GROUPS, "op"), next_due=NONE),
    ]
    before = replace(delta(1, operator="op"), next_due=OPEN)
    rescaled = CheckpointView(deltas=with_deltas({}, [before, *halves]), watermarks={"op": 7})
    assert unfired_timers(graph(False), rescaled, allow_dropped_state=False) == []
