"""Timers, the watermark and the clock in the harness: as a job would fire, checkpoint and replay them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import holdfast as hf
from holdfast.graph.windows import tumbling
from holdfast.testing import Harness

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


class Silence(hf.KeyedFunction):
    """Says when a user has been silent for five minutes of event time."""

    output = "user string, clicks long, at timestamp, watermark timestamp"
    clicks = hf.ValueState("long", default=0)
    last = hf.ValueState("timestamp")

    def process(self, row: hf.Row, ctx: hf.Context) -> None:
        if self.last.value is not None:
            ctx.timers.delete(self.last.value + 5 * MINUTE)
        self.clicks.value += 1
        self.last.value = row.at
        ctx.timers.event(row.at + 5 * MINUTE)

    def on_timer(self, at: dt.datetime, ctx: hf.Context) -> Any:
        yield ctx.key, self.clicks.value, at, ctx.watermark
        self.clicks.clear()
        self.last.clear()


class Reminder(hf.KeyedFunction):
    """Reminds every minute of processing time, three times."""

    output = "user string, epoch long, timestamp long"
    left = hf.ValueState("long", default=3)

    def process(self, row: hf.Row, ctx: hf.Context) -> None:
        ctx.timers.processing(ctx.timestamp + 60_000)

    def on_timer(self, at: dt.datetime, ctx: hf.Context) -> Any:
        assert ctx.timer == "processing"
        self.left.value -= 1
        if self.left.value:
            ctx.timers.processing(at + MINUTE)
        yield ctx.key, ctx.epoch, ctx.timestamp


def clicked(user: str, minutes: int) -> dict[str, Any]:
    return {"user": user, "at": NOON + minutes * MINUTE}


def test_event_timers_fire_when_the_watermark_has_come_to_them() -> None:
    users = Harness(Silence(), key="user")
    users.send(clicked("anna", 0), clicked("ben", 3))
    users.send(clicked("anna", 1))
    assert users.timers("anna") == {"event": [NOON + 6 * MINUTE]}
    assert users.watermark(NOON + 5 * MINUTE) == []
    reached = NOON + 6 * MINUTE
    assert users.watermark(reached) == [("anna", 2, NOON + 6 * MINUTE, reached)]
    assert (users.timers("anna"), users.state("anna"), users.keys) == ({}, {}, ["ben"])
    assert users.end_of_input() == [("ben", 1, NOON + 8 * MINUTE, reached)]
    assert users.outputs == [("anna", 2, reached, reached), ("ben", 1, NOON + 8 * MINUTE, reached)]


def test_a_row_that_sets_a_timer_in_the_past_hears_of_it_at_once() -> None:
    users = Harness(Silence(), key="user")
    users.watermark(NOON)
    assert users.send(clicked("anna", -30)) == [("anna", 1, NOON - 25 * MINUTE, NOON)]


def test_timers_survive_a_crash_and_those_that_fired_do_not_fire_again() -> None:
    users = Harness(Silence(), key="user", checkpoint_every=None)
    users.send(clicked("anna", 0))
    users.checkpoint()
    fired = users.watermark(NOON + 9 * MINUTE)
    assert len(fired) == 1
    users.crash()
    assert users.timers("anna") == {"event": [NOON + 5 * MINUTE]}
    assert users.outputs == []
    assert users.replay() == fired
    users.checkpoint()
    users.crash()
    assert (users.timers("anna"), users.outputs) == ({}, fired)
    with pytest.raises(ValueError, match="the watermark is at 2026-01-01 12:09:00"):
        users.watermark(NOON)


def test_the_watermark_goes_back_with_what_a_crash_throws_away() -> None:
    users = Harness(Silence(), key="user", checkpoint_every=None)
    users.send(clicked("anna", 0))
    users.watermark(NOON + MINUTE)
    users.checkpoint()
    users.watermark(NOON + 3 * MINUTE)
    users.crash()
    assert users.watermark(NOON + 2 * MINUTE) == []


def test_processing_timers_fire_by_the_clock_in_epochs_of_their_own() -> None:
    users = Harness(Reminder(), key="user")
    users.clock(1_000)
    users.send({"user": "anna"})
    assert users.clock(60_999) == []
    assert users.clock(61_000) == [("anna", 2, 61_000)]
    users.crash()
    assert users.timers("anna") == {"processing": [dt.datetime(1970, 1, 1, 0, 2, 1, tzinfo=dt.UTC)]}
    assert users.clock(dt.datetime(1970, 1, 1, 1)) == [("anna", 3, 3_600_000), ("anna", 3, 3_600_000)]
    assert users.clock(7_200_000) == []


def test_a_timer_that_fails_leaves_everything_as_it_was() -> None:
    class Fails(Silence):
        def on_timer(self, at: dt.datetime, ctx: hf.Context) -> Any:
            self.clicks.value = 99
            raise ValueError("not now")

    users = Harness(Fails(), key="user")
    users.send(clicked("anna", 0))
    with pytest.raises(hf.UserCodeError, match="not now"):
        users.watermark(NOON + 5 * MINUTE)
    assert users.state("anna")["clicks"] == 1
    assert users.timers("anna") == {"event": [NOON + 5 * MINUTE]}
    assert users.watermark(NOON + 4 * MINUTE) == []

    set_aside = Harness(Fails(), key="user", on_error="dead-letter")
    set_aside.send(clicked("anna", 0))
    set_aside.watermark(NOON + 5 * MINUTE)
    assert "not now" in set_aside.dead_letters[0].error


def test_timers_that_go_on_and_on_are_an_error_and_not_an_endless_test() -> None:
    class Restless(Reminder):
        def on_timer(self, at: dt.datetime, ctx: hf.Context) -> Any:
            ctx.timers.processing(at)

    users = Harness(Restless(), key="user")
    users.send({"user": "anna"})
    with pytest.raises(hf.DefinitionError, match="in 100 epochs one after the other"):
        users.clock(60_000)


def test_times_without_a_zone_stay_without_one() -> None:
    class Naive(hf.KeyedFunction):
        output = "at timestamp_ntz"

        def process(self, row: hf.Row, ctx: hf.Context) -> None:
            ctx.timers.event(row.at)

        def on_timer(self, at: dt.datetime, ctx: hf.Context) -> Any:
            yield (at,)

    harness = Harness(Naive(), key="user", schema="user string, at timestamp_ntz")
    noon = NOON.replace(tzinfo=None)
    harness.send(("anna", noon))
    assert harness.timers("anna") == {"event": [noon]}
    assert harness.watermark(noon) == [(noon,)]


def declared(job: hf.Job, rows: Any) -> hf.Job:
    rows.key_by("user").process(Silence(), uid="silence").sink(hf.MemorySink(), uid="out")
    return job


def test_an_operator_of_a_job_has_event_time_only_if_the_job_says_so() -> None:
    schema, job = "user string, at timestamp", hf.Job("timed")
    rows = job.source(hf.MemorySource([], schema=schema), uid="in")
    users = Harness.of(declared(job, rows.watermark("at", delay="10s")), "silence")
    users.send(("anna", NOON))
    assert len(users.watermark(NOON + 5 * MINUTE)) == 1

    job = hf.Job("untimed")
    users = Harness.of(declared(job, job.source(hf.MemorySource([], schema=schema), uid="in")), "silence")
    with pytest.raises(hf.UserCodeError, match="needs event time, and there is no watermark"):
        users.send(("anna", NOON))
    with pytest.raises(hf.DefinitionError, match="no watermark is declared before the operator"):
        users.watermark(NOON)
    assert users.end_of_input() == []


def test_event_time_of_a_job_looks_as_the_column_of_its_watermark() -> None:
    class Said(hf.KeyedFunction):
        output = "shown string"

        def process(self, row: hf.Row, ctx: hf.Context) -> Any:
            yield (str(ctx.watermark),)

    for type, shown in (("timestamp", "2026-01-01 12:00:00+00:00"), ("timestamp_ntz", "2026-01-01 12:00:00")):
        job = hf.Job("two")
        rows = job.source(hf.MemorySource([], schema=f"user string, at {type}"), uid="in").watermark("at")
        first = rows.key_by("user").aggregate(uid="first", n=hf.count())
        first.key_by("user").process(Said(), uid="second").sink(hf.MemorySink(), uid="out")
        harness = Harness.of(job, "second")
        harness.watermark(NOON)
        assert harness.send(("anna", 1)) == [(shown,)]


def test_a_function_without_timers_has_none() -> None:
    class Plain(hf.KeyedFunction):
        output = "watermark timestamp"

        def process(self, row: hf.Row, ctx: hf.Context) -> Any:
            yield (ctx.watermark,)

    harness = Harness(Plain(), key="user")
    assert harness.watermark(NOON) == harness.end_of_input() == []
    assert harness.send({"user": "anna"}) == [(NOON,)]
    assert harness.timers("anna") == {}
    harness.crash()
    assert harness.send({"user": "anna"}) == [(NOON,)]


def windows(**options: Any) -> Harness:
    job = hf.Job("windowed")
    rows = job.source(hf.MemorySource([], schema="user string, at timestamp"), uid="in").watermark("at")
    counted = rows.key_by("user").window(tumbling("10m"), on="at", **options).aggregate(uid="n", n=hf.count())
    counted.sink(hf.MemorySink(), uid="out")
    return Harness.of(job, "n")


def test_windows_close_by_the_watermark_and_late_rows_are_kept_apart() -> None:
    clicks = windows()
    assert clicks.send(("anna", NOON), ("anna", NOON + MINUTE), ("anna", NOON + 10 * MINUTE)) == []
    clicks.crash()
    (closed,) = clicks.watermark(NOON + 10 * MINUTE)
    assert (closed.user, closed.window_start, closed.n) == ("anna", NOON, 2)
    assert clicks.send(("anna", NOON + 9 * MINUTE)) == []
    assert clicks.late == [("anna", NOON + 9 * MINUTE, NOON + 10 * MINUTE)]
    (rest,) = clicks.end_of_input()
    assert (rest.window_start, rest.n) == (NOON + 10 * MINUTE, 1)


def test_a_window_that_was_emitted_at_the_end_of_input_comes_again_only_if_it_changed() -> None:
    clicks = windows()
    clicks.send(("anna", NOON), ("ben", NOON))
    assert [row.user for row in clicks.end_of_input()] == ["anna", "ben"]
    clicks.crash()
    clicks.send(("ben", NOON + MINUTE))
    assert [(row.user, row.n) for row in clicks.watermark(NOON + 10 * MINUTE)] == [("ben", 2)]


def test_windows_of_a_job_without_a_watermark_are_refused() -> None:
    job = hf.Job("untimed")
    rows = job.source(hf.MemorySource([], schema="user string, at timestamp"), uid="in")
    rows.key_by("user").window(tumbling("10m"), on="at").aggregate(uid="n", n=hf.count())
    with pytest.raises(hf.DefinitionError, match="not all of its rows have a watermark"):
        Harness.of(job, "n")


class Short(hf.KeyedFunction):
    output = "user string, seen long"
    seen = hf.ValueState("long", default=0, ttl="1m")
    pages = hf.ListState("string", ttl="1m")

    def process(self, row: hf.Row, ctx: hf.Context) -> Any:
        self.seen.value += 1
        self.pages.append("page")
        yield row.user, self.seen.value


def test_state_with_a_ttl_is_there_until_its_time() -> None:
    harness = Harness(Short(), key="user")
    harness.clock(NOON)
    harness.send({"user": "anna"})
    harness.clock(NOON + MINUTE - dt.timedelta(milliseconds=1))
    assert harness.state("anna") == {"seen": 1, "pages": ["page"]}
    harness.clock(NOON + MINUTE)
    assert harness.state("anna") == {}
    harness.crash()
    assert [row.seen for row in harness.send({"user": "anna"})] == [1]


class Recent(hf.KeyedFunction):
    """Counts the clicks of a user, and forgets them after a day of event time without any."""

    output = "user string, clicks long"
    clicks = hf.ValueState("long", default=0, ttl="1d", clock="event")

    def process(self, row: hf.Row, ctx: hf.Context) -> Any:
        self.clicks.value += 1
        yield row.user, self.clicks.value


def declared_recent() -> Harness:
    job = hf.Job("clicks")
    rows = job.source(hf.MemorySource([], schema="user string, at timestamp"), uid="clicks")
    rows.watermark("at").key_by("user").process(Recent(), uid="recent")
    return Harness.of(job, "recent")


@pytest.mark.parametrize("begin", [lambda: Harness(Recent(), key="user"), declared_recent])
def test_state_expires_by_event_time_in_the_harness(begin: Any) -> None:
    users = begin()
    users.watermark(NOON)
    assert users.send(clicked("anna", 0), clicked("anna", 1)) == [("anna", 1), ("anna", 2)]
    users.watermark(NOON + dt.timedelta(hours=23))
    users.crash()
    assert users.state("anna") == {"clicks": 2}
    users.watermark(NOON + dt.timedelta(hours=25))
    assert users.state("anna") == {}
    assert users.send(clicked("anna", 25 * 60)) == [("anna", 1)]


def test_state_that_expires_by_event_time_needs_a_watermark_in_its_job() -> None:
    job = hf.Job("clicks")
    rows = job.source(hf.MemorySource([], schema="user string, at timestamp"), uid="clicks")
    rows.key_by("user").process(Recent(), uid="recent")
    with pytest.raises(hf.DefinitionError, match=r"operator 'recent': Recent\.clicks expires by event time"):
        Harness.of(job, "recent")
