"""Streams that are brought together: what a declaration may say, and what it means for the graph."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.graph.column_types import known_schema
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.guarantees import Guarantee, statements
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import mistakes

LEFT, RIGHT = "user string, at long, ts timestamp", "who string, amount long, ts timestamp"


class Both(hf.CoFunction):
    output = "user string"

    def process_left(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)

    def process_right(self, row: Any, ctx: Any) -> Any:
        yield (row.who,)


class OneHandler(hf.CoFunction):
    output = "user string"

    def process_left(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


class Alone(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


def streams(left: str = LEFT, right: str = RIGHT) -> tuple[Declaration, Any, Any]:
    job = Declaration("job")
    sources = [MemorySource([], schema=schema) for schema in (left, right)]
    return job, job.source(sources[0], uid="left"), job.source(sources[1], uid="right")


def told(job: Declaration) -> str:
    return "\n".join(map(str, mistakes(job.graph())))


def connected(job: Declaration, left: Any, right: Any, function: Any = None) -> str:
    left.connect(right).process(function or Both(), uid="both").sink(MemorySink(), uid="out")
    return told(job)


def test_columns_may_have_other_names_on_the_other_side() -> None:
    job, left, right = streams()
    assert connected(job, left.key_by("user", order_by="at"), right.key_by("who", order_by="amount")) == ""


@pytest.mark.parametrize(
    ("left_key", "right_key", "orders", "said"),
    [
        (["user"], ["amount"], ["", ""], "key column 'user' of the left stream is string, 'amount' of the"),
        (["user"], ["who", "amount"], ["", ""], "left stream has 1 key columns (user), the right one has 2"),
        (["user"], ["whom"], ["", ""], "key column 'whom' does not exist; there are who, amount, ts"),
        (["user"], ["who"], ["at", "ts"], "order_by column 'at' of the left stream is long, 'ts' of the"),
    ],
)
def test_keys_and_orders_that_do_not_fit_are_refused(
    left_key: list[str], right_key: list[str], orders: list[str], said: str
) -> None:
    job, left, right = streams()
    order = [name or () for name in orders]
    found = connected(
        job, left.key_by(*left_key, order_by=order[0]), right.key_by(*right_key, order_by=order[1])
    )
    assert said in found
    assert len(found.splitlines()) == 1


def test_functions_that_do_not_fit_are_refused() -> None:
    for function, said in (
        (OneHandler(), "OneHandler has no process_right method; write one"),
        (Alone(), "is not a function of two streams; derive its class from hf.CoFunction"),
        (Both, "Both is a class; give an instance: Both()"),
    ):
        job, left, right = streams()
        assert said in connected(job, left.key_by("user"), right.key_by("who"), function)
    job, left, _ = streams()
    left.key_by("user").process(Both(), uid="both").sink(MemorySink(), uid="out")
    assert "is not a function of a keyed stream" in told(job)


def test_only_a_keyed_stream_of_the_same_job_can_be_connected() -> None:
    job, left, right = streams()
    assert "connect: the stream that it was given has no keys" in connected(job, left.key_by("user"), right)
    job, left, _ = streams()
    _, _, foreign = streams()
    assert "is not a keyed stream of this job" in connected(job, left.key_by("user"), foreign.key_by("who"))


def test_event_time_needs_both_sides() -> None:
    job, left, right = streams()
    marked, right_marked = left.watermark("ts"), right.watermark("ts")
    one = marked.key_by("user").connect(right.key_by("who")).process(Both(), uid="one")
    two = marked.key_by("user").connect(right_marked.key_by("who")).process(Both(), uid="two")
    assert watermarks_of(one._node) == ()
    assert [mark.parent.uid for mark in watermarks_of(two._node)] == ["left", "right"]
    assert job.graph().nodes


def test_both_sides_count_for_guarantees_and_the_fingerprint() -> None:
    def graph(right_key: str) -> Any:
        job, left, right = streams(right="who string, whom string")
        left.key_by("user").connect(right.key_by(right_key)).process(Both(), uid="both").sink(
            MemorySink(), uid="out"
        )
        return job.graph()

    assert fingerprint(graph("who")) == fingerprint(graph("who"))
    assert fingerprint(graph("who")) != fingerprint(graph("whom"))
    declared = graph("who")
    right = next(node for node in declared.sources if node.uid == "right")
    right.source.replayable = False
    sink = statements(declared, Guarantee.EXACTLY_ONCE)[-1]
    assert "its rows come from ['right'], which cannot replay" in sink.reason


def joined(left: Any, right: Any, **options: Any) -> Any:
    return left.key_by("user").interval_join(
        right.key_by("who"), **{"on": "ts", "within": ("-5m", "10m"), "uid": "join", **options}
    )


def test_a_join_says_its_columns_without_spark() -> None:
    job, left, right = streams()
    made = joined(left.watermark("ts"), right.watermark("ts"), how="full")
    made.sink(MemorySink(), uid="out")
    made.late().sink(MemorySink(), uid="late")
    assert told(job) == ""
    assert known_schema(made._node).names == ["user", "at", "ts", "amount", "ts_right"]
    assert known_schema(made.late()._node).names == ["side", "left", "right", "watermark"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"within": None},
            "within=None is not two bounds, and a join without them would keep every row; give",
        ),
        ({"within": "5m"}, "within='5m' is not two bounds"),
        (
            {"within": ("5m", "-5m")},
            "within=('5m', '-5m') ends before it begins; give the smaller bound first",
        ),
        ({"within": ("5", "6m")}, "within: '5' is not a duration; write a number and a unit"),
        ({"within": ("0s", "100000000d")}, "within: '100000000d' is longer than 73,000 years; give"),
        ({"how": "outer"}, "how='outer' is not known; say how='full'"),
        ({"on": "at"}, "column 'at' of the left stream is long, not timestamp; make one with transform"),
        (
            {"on": ("ts", "when")},
            "the right stream has no column 'when'; there are who, amount, ts; name one",
        ),
        ({"on": None}, "on=None does not name a column of each side; give 'ts' or ('ts', 'at')"),
    ],
)
def test_what_cannot_be_joined_is_refused(options: dict[str, Any], said: str) -> None:
    job, left, right = streams()
    joined(left.watermark("ts"), right.watermark("ts"), **options).sink(MemorySink(), uid="out")
    assert said in told(job)


def test_a_join_needs_a_watermark_on_both_sides() -> None:
    job, left, right = streams()
    joined(left.watermark("ts"), right).sink(MemorySink(), uid="out")
    assert "the right stream has no watermark, so its rows would be kept without end; declare" in told(job)


def test_times_of_two_kinds_are_refused() -> None:
    job, left, right = streams(right="who string, ts timestamp_ntz")
    joined(left.watermark("ts"), right.watermark("ts")).sink(MemorySink(), uid="out")
    assert "the times are timestamp and timestamp_ntz; cast one of them" in told(job)


def test_a_column_that_would_be_there_twice_is_refused() -> None:
    job, left, right = streams("user string, ts timestamp, ts_right long", "who string, ts timestamp")
    joined(left.watermark("ts"), right.watermark("ts")).sink(MemorySink(), uid="out")
    assert "its output would have the column 'ts_right' twice; rename one" in told(job)


def windowed(left: Any, right: Any, window: Any = None, **options: Any) -> Any:
    return left.key_by("user").window_join(
        right.key_by("who"), window or hf.tumbling("5m"), **{"on": "ts", "uid": "join", **options}
    )


def test_a_window_join_says_its_columns_without_spark() -> None:
    job, left, right = streams()
    made = windowed(left.watermark("ts"), right.watermark("ts"), how="full")
    made.sink(MemorySink(), uid="out")
    made.late().sink(MemorySink(), uid="late")
    assert told(job) == ""
    names = ["user", "window_start", "window_end", "at", "ts", "amount", "ts_right"]
    assert known_schema(made._node).names == names
    assert known_schema(made.late()._node).names == ["side", "left", "right", "watermark"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": hf.session("5m")}, "a session has no bounds of its own: which rows of one side lie in"),
        ({"window": hf.count_window(5)}, "counted windows go by no time, so that rows of two sides do not"),
        ({"window": "5m"}, "'5m' is not a window; give hf.tumbling('5m') or another one"),
        ({"window": hf.sliding("5m", every="6m")}, "a window of 5m every 6m would leave rows out; give"),
        ({"how": "outer"}, "how='outer' is not known; say how='full'"),
        ({"on": "at"}, "column 'at' of the left stream is long, not timestamp; make one with transform"),
        ({"on": ("ts", "when")}, "the right stream has no column 'when'; there are who, amount, ts; name"),
        ({"on": ("ts",)}, "on=('ts',) does not name a column of each side; give 'ts' or ('ts', 'at')"),
    ],
)
def test_what_cannot_be_joined_by_windows_is_refused(options: dict[str, Any], said: str) -> None:
    job, left, right = streams()
    windowed(left.watermark("ts"), right.watermark("ts"), **options).sink(MemorySink(), uid="out")
    assert said in told(job)


def test_a_window_join_needs_a_watermark_on_both_sides() -> None:
    job, left, right = streams()
    windowed(left, right.watermark("ts")).sink(MemorySink(), uid="out")
    assert "the left stream has no watermark, so its rows would be kept without end; declare" in told(job)


def test_a_column_named_like_those_of_the_window_is_refused_on_the_left() -> None:
    job, left, right = streams("user string, ts timestamp, window_end long")
    windowed(left.watermark("ts"), right.watermark("ts")).sink(MemorySink(), uid="out")
    assert "its output would have the column 'window_end' twice; rename one" in told(job)


def test_another_window_counts_for_the_fingerprint() -> None:
    def graph(window: Any) -> Any:
        job, left, right = streams()
        windowed(left.watermark("ts"), right.watermark("ts"), window).sink(MemorySink(), uid="out")
        return job.graph()

    assert fingerprint(graph(hf.tumbling("5m"))) == fingerprint(graph(hf.tumbling("5m")))
    assert fingerprint(graph(hf.tumbling("5m"))) != fingerprint(graph(hf.tumbling("6m")))


def test_only_what_goes_by_time_has_late_rows() -> None:
    job, left, right = streams()
    both = left.key_by("user").connect(right.key_by("who")).process(Both(), uid="both")
    both.late().sink(MemorySink(), uid="late")
    assert "operator 'both' has no windows of time, so no row is late; leave out late()" in told(job)


@pytest.mark.parametrize("call", ["connect", "interval_join", "window_join"])
def test_a_right_side_without_keys_is_one_mistake(call: str) -> None:
    job = Declaration("job")
    left = job.source(MemorySource([], schema="id long, ts timestamp"), uid="left").watermark("ts")
    right = job.source(MemorySource([], schema="order long, at timestamp"), uid="right").watermark("at")
    keyed: Any = left.key_by("id")
    if call == "connect":
        made = keyed.connect(right).process(Both(), uid="both")
    elif call == "interval_join":
        made = keyed.interval_join(right, on=("ts", "at"), within=("0s", "1h"), uid="both")
    else:
        made = keyed.window_join(right, hf.tumbling("5m"), on=("ts", "at"), uid="both")
    made.sink(MemorySink(), uid="out")
    right.sink(MemorySink(), uid="unjoined")
    (line,) = [str(mistake) for mistake in mistakes(job.graph())]
    assert f" {call}: the stream that it was given has no keys; say key_by(...) on it first" in line


def test_what_was_given_is_named_without_its_address() -> None:
    job = Declaration("job")
    left = job.source(MemorySource([], schema="id long, ts timestamp"), uid="left").watermark("ts")
    other = Declaration("other").source(MemorySource([], schema="id long"), uid="left")
    keyed: Any = left.key_by("id")
    keyed.connect(other.key_by("id")).process(Both(), uid="foreign").sink(MemorySink(), uid="a")
    keyed.connect(keyed).process(MemorySink(), uid="sink").sink(MemorySink(), uid="b")
    keyed.connect(lambda: None).process(Both(), uid="function").sink(MemorySink(), uid="c")
    keyed.process(Alone(), uid="one", on_error="fail").late().sink(MemorySink(), uid="d")
    said = told(job)
    assert " at 0x" not in said
    assert "!late" not in said
    assert "connect: a KeyedStream of job 'other' is not a keyed stream of this job" in said
    assert "operator 'sink': MemorySink is not a function of two streams" in said
    assert "connect: the function <lambda> is not a keyed stream of this job" in said
    assert "late(): operator 'one' has no windows of time" in said


@pytest.mark.parametrize(
    ("how", "remedy"),
    [
        ("outer", "say how='full'"),
        ("full_outer", "say how='full'"),
        ("left_outer", "say how='left'"),
        ("rightouter", "say how='right'"),
        ("anti", "use one of 'inner', 'left', 'right', 'full'"),
        (None, "use one of 'inner', 'left', 'right', 'full'"),
    ],
)
def test_names_that_spark_has_for_a_join_are_told_which_one_is_meant(how: Any, remedy: str) -> None:
    job, left, right = streams()
    keyed = left.watermark("ts").key_by("user"), right.watermark("ts").key_by("who")
    keyed[0].interval_join(keyed[1], on="ts", within=("0s", "1h"), how=how, uid="join").sink(
        MemorySink(), uid="out"
    )
    assert f"how={how!r} is not known; {remedy}" in told(job)
