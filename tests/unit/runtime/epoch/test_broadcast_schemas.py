"""Broadcast states when the code changes: what goes on, what is refused, before anything runs."""

from __future__ import annotations

from typing import Any

import holdfast as hf
from holdfast.checkpoint.store.records import OperatorSchema
from holdfast.graph.column_types import known_input, state_layout
from holdfast.runtime.epoch.schemas_in_force import InForce, declaration, examine


class Judge(hf.BroadcastFunction):
    output = "user string"
    rules = hf.BroadcastState("int", "struct<most:int>")
    seen = hf.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any: ...

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


class Grown(Judge):
    """Renamed, with wider keys and values and one more field."""

    rules = None
    limits = hf.BroadcastState("long", "struct<most:long,note:string>", was="rules")


class Other(Judge):
    rules = hf.BroadcastState("string", "struct<most:int>")


class KeyedRules(Judge):
    """What was broadcast is kept per key, and the other way round."""

    rules = hf.MapState("int", "struct<most:int>")
    seen = hf.BroadcastState("string", "long")


def compared(
    function: Any, stored: tuple[OperatorSchema, ...] = (), drop: bool = False
) -> tuple[InForce, list[str]]:
    job = hf.Job("job")
    rows, rules = (job.source(hf.MemorySource([], schema="user string"), uid=uid) for uid in ("a", "b"))
    rows.key_by("user").connect(rules.broadcast()).process(function, uid="judge")
    declared = {}
    for node in job.graph().operators:
        columns = known_input(node)
        assert columns is not None
        declared[node.uid] = declaration(node, state_layout(node.uid, node.function, columns, node.key))
    return examine(declared, stored, drop)


STORED = compared(Judge())[0].records


def test_the_same_code_goes_on() -> None:
    found, problems = compared(Judge(), STORED)
    assert (problems, found.news, found.records) == ([], [], STORED)


def test_states_are_renamed_widened_and_grow() -> None:
    found, problems = compared(Grown(), STORED)
    assert problems == []
    assert [text.partition(":")[0] for text in found.news] == [
        "state 'limits' of operator 'judge.broadcast' is converted"
    ]


def test_what_does_not_fit_is_refused() -> None:
    _, problems = compared(Other(), STORED)
    assert len(problems) == 1
    assert "state 'rules' of operator 'judge.broadcast' is declared as" in problems[0]


def test_broadcast_state_does_not_become_state_of_keys() -> None:
    _, problems = compared(KeyedRules(), STORED)
    assert any("'rules' of operator 'judge.broadcast'" in text for text in problems)
    assert any("'seen' of operator 'judge'" in text for text in problems)
    _, allowed = compared(KeyedRules(), STORED, drop=True)
    assert allowed == []


def test_an_operator_without_broadcast_leaves_its_states_behind_only_where_that_is_allowed() -> None:
    _, problems = examine({}, STORED, False)
    assert any("judge.broadcast" in text for text in problems)
