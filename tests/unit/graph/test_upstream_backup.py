"""What a part may hold whose state is had again from its input, and how all else is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError
from holdfast.graph.streams import Declaration, Stream
from holdfast.graph.validate import check


class Count(hf.KeyedFunction):
    output = "key long, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield row.key, 1


class Expiring(Count):
    n = hf.ValueState("long", default=0, ttl="1m", clock="event")


class Timed(Count):
    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.timers.event(row.ts)
        return iter(())


class Both(hf.CoFunction):
    output = "key long, n long"
    n = hf.ValueState("long", default=0)

    def process_left(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield row.key, 1

    process_right = process_left


SAVED = hf.Uncoordinated(every="1s", storage=hf.FileStateStorage("/nowhere"))


class Once(MemorySource):
    replayable = False


class Any_(hf.OperatorFunction):
    output = "key long"

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield (row.key,)


def stream_in(job: Declaration, uid: str = "rows") -> Stream:
    return job.source(MemorySource([], schema="key long, ts timestamp"), uid=uid).watermark("ts", delay="1s")


def declared(make: Callable[[Stream, Stream], Stream]) -> Declaration:
    job = Declaration("job")
    part = job.part("b", protection=hf.UpstreamBackup())
    left, right = (stream_in(job, f"rows-{uid}").into(part, uid=uid) for uid in ("left", "right"))
    make(left, right).sink(MemorySink(), uid="out")
    return job


def keyed(stream: Stream) -> Any:
    return stream.key_by("key")


def windows(left: Stream, window: Any, **more: Any) -> Any:
    return keyed(left).window(window, **{"on": "ts", **more}).aggregate(n=hf.count(), uid="n")


@pytest.mark.parametrize(
    "make",
    [
        lambda left, right: windows(left.union(right), hf.tumbling("1m")),
        lambda left, right: windows(left.union(right), hf.sliding("1m", every="5s"), allowed_lateness="1m"),
        lambda left, right: keyed(left).interval_join(keyed(right), on="ts", within=("-1m", "1m"), uid="j"),
        lambda left, right: keyed(left).window_join(keyed(right), hf.tumbling("1m"), on="ts", uid="j"),
        lambda left, right: left.union(right).transform(lambda df: df),
    ],
)  # fmt: skip
def test_windows_and_joins_by_time_may_be_had_again(make: Callable[[Stream, Stream], Stream]) -> None:
    check(declared(make).graph())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda left: keyed(left).process(Count(), uid="n"), "states of a function may hold rows of any age"),
        (lambda left: keyed(left).process(Timed(), uid="n"), "states of a function may hold rows of any age"),
        (lambda left: keyed(left).process(Expiring(), uid="n"), "a ttl does not bound it: each write renews"),
        (lambda left: keyed(left).connect(keyed(left)).process(Both(), uid="n"), "states of a function"),
        (lambda left: keyed(left).aggregate(n=hf.count(), uid="n"), "an aggregate without a window"),
        (lambda left: keyed(left).aggregate(n=hf.count(), uid="n", ttl="1m"), "of any age (a ttl does not"),
        (
            lambda left: keyed(left).process(Count(), uid="n", protection=SAVED),
            "its keys are saved on their own, and hf.UpstreamBackup() saves nothing",
        ),
        (
            lambda left: windows(left.transform(lambda df: df, materialize=True), hf.tumbling("1m")),
            "its rows may be others each time",
        ),
        (lambda left: windows(left, hf.session("5s")), "a session may go on without end"),
        (lambda left: windows(left, hf.tumbling("1m"), emit_every="5s"), "which early results are due"),
        (lambda left: windows(left, hf.count_window(5), on=None), "counted windows"),
        (lambda left: left.process(Any_(), uid="n"), "the lists of an operator without keys"),
        (
            lambda left: windows(left, hf.tumbling("1m")).key_by("key").aggregate(m=hf.count(), uid="second"),
            "operator 'second': part 'b' has hf.UpstreamBackup() and operator 'n' already",
        ),
    ],
)  # fmt: skip
def test_what_holds_rows_without_bound_is_refused(make: Callable[[Stream], Stream], text: str) -> None:
    job = declared(lambda left, right: make(left.union(right)))
    with pytest.raises(DefinitionError) as refused:
        check(job.graph())
    lines = str(refused.value).splitlines()
    assert any(text in line for line in lines), lines
    assert all("; " in line for line in lines), "what to do"


def reading(source: Any, *, inside: bool) -> Declaration:
    """Windows over a source that is read in the part itself, or before it."""
    job = Declaration("job")
    part = job.part("b", protection=hf.UpstreamBackup())
    rows = job.source(source, uid="rows", part=part if inside else None).watermark("ts", delay="1s")
    counted = windows(rows if inside else rows.into(part, uid="in"), hf.tumbling("1m"))
    counted.transform(lambda df: df, materialize=True).sink(MemorySink(), uid="out")
    job.source(MemorySource([], schema="key long"), uid="more").sink(MemorySink(), uid="more-out")
    return job


def test_a_source_that_cannot_be_read_again_is_refused_in_the_part_itself() -> None:
    columns = "key long, ts timestamp"
    check(reading(MemorySource([], schema=columns), inside=True).graph())
    check(reading(Once([], schema=columns), inside=False).graph())
    with pytest.raises(DefinitionError, match=r"source 'rows': it cannot be read again.*; read it in anoth"):
        check(reading(Once([], schema=columns), inside=True).graph())


def test_a_source_that_lets_go_of_rows_is_refused_in_the_part_itself() -> None:
    door = hf.ChannelSource("elsewhere", channel="rows", schema="key long, ts timestamp")
    check(reading(door, inside=False).graph())
    with pytest.raises(
        DefinitionError, match=r"source 'rows': it lets go of rows.*; read it in another part"
    ):
        check(reading(door, inside=True).graph())


def test_a_job_of_one_part_has_nothing_upstream() -> None:
    job = Declaration("job")
    part = job.part("b", protection=hf.UpstreamBackup())
    rows = MemorySource([], schema="key long, ts timestamp")
    job.source(rows, uid="rows", part=part).watermark("ts", delay="1s").sink(MemorySink(), uid="out")
    with pytest.raises(DefinitionError, match=r"part 'b': hf.UpstreamBackup\(\) is for a part beside others"):
        check(job.graph())
