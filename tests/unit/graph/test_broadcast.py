"""Streams that are broadcast: what a declaration may say, and what it means for the graph."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.column_types import known_schema, state_layout
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.guarantees import Guarantee, statements
from holdfast.graph.job_graph import BroadcastConnectNode
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import mistakes

ROWS, RULES = "user string, n long, ts timestamp", "rule string, most long, ts timestamp"


class Judge(hf.BroadcastFunction):
    output = "user string, n long"
    outputs = {"side": "n long"}  # noqa: RUF012
    rules = hf.BroadcastState("string", "struct<most:long>")
    seen = hf.ValueState("long", default=0)
    more = hf.BroadcastState("long", "string", was="other")

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.rules[row.rule] = (row.most,)

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.user, self.seen.value

    def on_timer(self, at: Any, ctx: Any) -> Any:
        yield ctx.key, 0


class NoRules(hf.BroadcastFunction):
    output = "user string"

    def process_broadcast(self, row: Any, ctx: Any) -> Any: ...

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


class OneHandler(hf.BroadcastFunction):
    output = "user string"
    rules = hf.BroadcastState("string", "long")

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


class Both(hf.CoFunction):
    output = "user string"
    rules = hf.BroadcastState("string", "long")

    def process_left(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)

    def process_right(self, row: Any, ctx: Any) -> Any:
        yield (row.rule,)


def streams() -> tuple[Declaration, Any, Any]:
    job = Declaration("job")
    sources = [MemorySource([], schema=schema) for schema in (ROWS, RULES)]
    return job, job.source(sources[0], uid="rows"), job.source(sources[1], uid="rules")


def told(job: Declaration) -> str:
    return "\n".join(map(str, mistakes(job.graph())))


def judged(rows: Any, rules: Any, function: Any = None, **options: Any) -> Any:
    made = rows.key_by("user").connect(rules).process(function or Judge(), **{"uid": "judge", **options})
    made.sink(MemorySink(), uid="out")
    return made


def test_the_broadcast_half_is_an_operator_of_its_own() -> None:
    job, rows, rules = streams()
    made = judged(rows, rules.broadcast(order_by="most"))
    made.output("side").sink(MemorySink(), uid="side")
    assert told(job) == ""
    half, whole = job.graph().operators
    assert (half.uid, whole.uid) == ("judge.broadcast", "judge")
    assert isinstance(whole, BroadcastConnectNode)
    assert (whole.broadcast, half.order_by) == (half, ("most",))
    assert known_schema(made._node).names == ["user", "n"]


def test_broadcast_states_are_kept_apart_from_those_of_keys() -> None:
    rows = known_schema(streams()[1]._node)
    keyed = state_layout("judge", Judge(), rows, ("user",))
    assert [field.name for field in keyed.fields if field.kind.value != "timed"] == ["seen"]
    half = state_layout("judge.broadcast", BroadcastSide(Judge()), rows, ())
    assert [(field.id, field.name, field.kind.value) for field in half.fields] == [
        (1, "rules", "list"),
        (2, "more", "list"),
    ]
    assert BroadcastSide(Judge()).states()["more"].was == "other"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (NoRules(), "NoRules declares no broadcast state; add a line such as rules = hf.BroadcastState("),
        (OneHandler(), "OneHandler has no process_broadcast method; write one"),
        (
            Both(),
            "is not a function of a keyed stream and a broadcast one; derive its class from hf.",
        ),
        (Judge, "Judge is a class; give an instance: Judge()"),
    ],
)
def test_functions_that_do_not_fit_are_refused(function: Any, said: str) -> None:
    job, rows, rules = streams()
    judged(rows, rules.broadcast(), function)
    assert said in told(job)


def test_a_broadcast_function_needs_a_broadcast_stream() -> None:
    job, rows, rules = streams()
    judged(rows, rules.key_by("rule"))
    remedy = "; say keyed.connect(other.broadcast()).process(...)"
    assert f"is not a function of two streams{remedy}" in told(job)
    job, rows, _ = streams()
    rows.key_by("user").process(Judge(), uid="judge").sink(MemorySink(), uid="out")
    assert f"is not a function of a keyed stream{remedy}" in told(job)


def test_other_functions_have_no_broadcast_state() -> None:
    job, rows, rules = streams()
    judged(rows, rules.key_by("rule"), Both())
    assert "Both.rules is a BroadcastState, which only a BroadcastFunction has; derive Both from it" in told(
        job
    )


@pytest.mark.parametrize("key", ["double", "float", "array<string>", "struct<a:int>", "map<string,int>"])
def test_a_type_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(hf.DefinitionError, match="cannot be the key of a broadcast state; use a plain type"):
        hf.BroadcastState(key, "long")


def test_only_streams_of_the_same_job_can_be_broadcast() -> None:
    job, rows, _ = streams()
    _, _, foreign = streams()
    judged(rows, foreign.broadcast())
    assert "is not a broadcast stream of this job" in told(job)


def test_wrong_columns_uids_and_settings_are_told_once() -> None:
    job, rows, rules = streams()
    judged(rows, rules.broadcast(order_by="when"), uid=None, on_error="ignore")
    found = told(job).splitlines()
    assert len(found) == 3, found
    assert "order_by column 'when' does not exist" in "\n".join(found)
    job, rows, rules = streams()
    rows.key_by("user").aggregate(uid="judge.broadcast", n=hf.count()).sink(MemorySink(), uid="n")
    judged(rows, rules.broadcast())
    assert "uid 'judge.broadcast' is taken by the operator 'judge.broadcast'" in told(job)


def test_keys_that_are_saved_on_their_own_are_refused() -> None:
    job, rows, rules = streams()
    protection = hf.Uncoordinated(storage=hf.FileStateStorage("/nowhere"))
    judged(rows, rules.broadcast(), protection=protection)
    assert "after a loss a key would go back while the broadcast states that it has seen do not" in told(job)


def test_a_broadcast_stream_holds_time_back_only_where_it_has_a_watermark() -> None:
    _, rows, rules = streams()
    marked, rules_marked = rows.watermark("ts"), rules.watermark("ts")

    def sources(left: Any, right: Any) -> list[str]:
        made = left.key_by("user").connect(right.broadcast()).process(Judge(), uid="judge")
        return [mark.parent.uid for mark in watermarks_of(made._node)]

    assert sources(marked, rules) == ["rows"]
    assert sources(marked, rules_marked) == ["rows", "rules"]
    assert sources(rows, rules_marked) == []


def test_both_streams_count_for_guarantees_and_the_fingerprint() -> None:
    def graph(order_by: str) -> Any:
        job, rows, rules = streams()
        judged(rows, rules.broadcast(order_by=order_by))
        return job.graph()

    assert fingerprint(graph("most")) == fingerprint(graph("most"))
    assert fingerprint(graph("most")) != fingerprint(graph("ts"))
    declared = graph("most")
    next(node for node in declared.sources if node.uid == "rules").source.replayable = False
    sink = statements(declared, Guarantee.EXACTLY_ONCE)[-1]
    assert "its rows come from ['rules'], which cannot replay" in sink.reason
