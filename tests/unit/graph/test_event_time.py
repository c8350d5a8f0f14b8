"""Mistakes in what a job says of event time, each with its remedy."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import holdfast as hf
from holdfast.errors import DefinitionError
from holdfast.graph.event_time import source_of, watermark_nodes, watermarks_of
from holdfast.graph.job_graph import TransformNode
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check, mistakes

NO_DURATION = " is not a duration; write a number and a unit, such as '500ms', '5s' or '2m'"
SCHEMA = "user string, value long, day date, ts timestamp, local timestamp_ntz"


class Timed(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        return None

    def on_timer(self, at: Any, ctx: Any) -> Any:
        yield (ctx.key,)


def declared(uid: str = "rows", job: Declaration | None = None) -> tuple[Declaration, Any]:
    job = job or Declaration("job")
    return job, job.source(hf.MemorySource([], schema=SCHEMA), uid=uid)


def said(job: Declaration) -> list[str]:
    """Every mistake, without its place."""
    return [str(mistake).partition(": ")[2] for mistake in mistakes(job.graph())]


def used(stream: Any, uid: str = "op", function: Any = None, **more: Any) -> Any:
    out = stream.key_by("user").process(function or Timed(), uid=uid, **more)
    out.sink(hf.MemorySink(), uid=f"out-{uid}")
    return out


@pytest.mark.parametrize("column", ["ts", "local"])
@pytest.mark.parametrize("delay", ["0s", "10s", "1.5h"])
def test_a_timestamp_of_either_kind_is_event_time(column: str, delay: str) -> None:
    job, rows = declared()
    used(rows.watermark(column, delay, idle_after="1m"))
    check(job.graph())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nope",), "there is no column 'nope'; there are user, value, day, ts, local; name one of these"),
        (
            ("value",),
            "column 'value' is long, not timestamp; make one with transform(...), such as "
            "timestamp_millis(column)",
        ),
        (("day",), "column 'day' is date, not timestamp; make one with transform(...)"),
        ((7,), "7 is not the name of a column; give its name, such as 'ts'"),
        (("ts", "soon"), "delay: 'soon'" + NO_DURATION),
        (("ts", 10), "delay=10 is not text; write a duration such as '10s'"),
        (("ts", "-1s"), "delay: '-1s' is negative; give a duration such as '10s'"),
        (("ts", "1s", "0s"), "idle_after='0s' is no time at all; give at least '1ms', or leave it out"),
        (("ts", "1s", "x"), "idle_after: 'x'" + NO_DURATION),
    ],
)  # fmt: skip
def test_what_is_no_event_time(arguments: tuple[Any, ...], text: str) -> None:
    job, rows = declared()
    used(rows.watermark(*arguments))
    assert said(job) == [text]


def test_behind_a_transform_the_column_is_not_judged_before_it_is_known() -> None:
    job, rows = declared()
    used(rows.transform(lambda frame: frame).watermark("nope"))
    check(job.graph())


def test_after_an_operator_it_is_refused() -> None:
    job, rows = declared()
    out = used(rows)
    used(out.watermark("ts"), uid="second")
    used(out.transform(lambda frame: frame).watermark("ts"), uid="third")
    text = (
        "it is declared after operator 'op'; declare it on the streams of the sources before: "
        "operators carry it on"
    )
    assert [line for line in said(job) if "declared after" in line] == [text, text]


def test_after_a_side_output_it_is_refused() -> None:
    class Sides(Timed):
        outputs: ClassVar = {"late": "user string, ts timestamp"}

    job, rows = declared()
    out = used(rows, function=Sides())
    used(out.output("late").watermark("ts"), uid="second")
    assert "it is declared after operator 'op'" in said(job)[0]


def test_after_a_union_it_is_refused() -> None:
    job, rows = declared()
    _, more = declared("more", job)
    used(rows.union(more).watermark("ts"))
    assert said(job) == [
        "it is declared after a union; declare it on each of the streams that come together here"
    ]


@pytest.mark.parametrize("chained", [True, False])
def test_two_on_one_source_are_refused(chained: bool) -> None:
    job, rows = declared()
    first = rows.watermark("ts")
    second = (first if chained else rows).transform(lambda frame: frame).watermark("ts", "5s")
    used(first)
    used(second, uid="second")
    assert said(job) == ["source 'rows' has two watermarks; declare one, and use its stream for both"]


def test_streams_carry_it_on_through_transforms_and_operators_and_unions_need_it_everywhere() -> None:
    job, rows = declared()
    _, more = declared("more", job)
    a, b = rows.transform(lambda frame: frame).watermark("ts"), more.watermark("local")
    both = used(a.union(b).transform(lambda frame: frame))
    half = used(a.union(more), uid="half")
    graph = job.graph()
    assert watermarks_of(both._node) == (a._node, b._node)
    assert watermarks_of(half._node) == ()
    assert watermark_nodes(graph) == {"rows": a._node, "more": b._node}
    assert isinstance(a._node.parent, TransformNode)
    source = source_of(a._node)
    assert source is not None
    assert source.uid == "rows"


def test_timers_and_keys_that_are_saved_on_their_own_do_not_go_together() -> None:
    job, rows = declared()
    used(
        rows.watermark("ts"), protection=hf.Uncoordinated(every="1s", storage=hf.FileStateStorage("/nowhere"))
    )
    assert said(job) == [
        "its keys are saved on their own, each at its own time, and after a loss a timer could "
        "fire twice or not at all; leave out protection, or on_timer"
    ]


@pytest.mark.parametrize("name", ["event_timers", "processing_timers"])
def test_a_state_may_not_have_the_name_under_which_timers_are_kept(name: str) -> None:
    given = hf.ValueState("long")
    function = type("Named", (Timed,), {name: given})
    job, rows = declared()
    used(rows.watermark("ts"), function=function())
    (line,) = said(job)
    assert f"Named.{name} has the name under which timers are kept; give it another" in line
    plain = type("Plain", (hf.KeyedFunction,), {"output": "a long", "process": Timed.on_timer, name: given})
    job, rows = declared()
    used(rows, function=plain())
    assert said(job) == []


def test_every_mistake_is_told_at_once() -> None:
    job, rows = declared()
    used(rows.watermark("nope", delay="x", idle_after="y"))
    with pytest.raises(DefinitionError) as refused:
        check(job.graph())
    assert str(refused.value).count("watermark") == 3
