"""State of operators over time, as two runs have it alike however their epochs were cut."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.chaos.comparable_state import comparable
from holdfast.checkpoint.store.records import OperatorSchema
from holdfast.checkpoint.store.schemas import record_of
from holdfast.graph.column_types import state_layout
from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.job_graph import OperatorNode
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN
from holdfast.runtime.epoch.schemas_in_force import declaration
from holdfast.state.files.evolution import Declared

ROWS = pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
KEY = ("a",)


def schema_of(window: Any, **more: Any) -> OperatorSchema:
    job = hf.Job("windows")
    rows = job.source(hf.MemorySource([], schema="user string, ts timestamp, n long"), uid="in")
    timed = rows.watermark("ts", delay="1s").key_by("user").window(window, on="ts", **more)
    timed.aggregate(uid="op", rows=hf.count())
    node = next(node for node in job.graph().nodes if isinstance(node, OperatorNode))
    return record_of(declaration(node, state_layout("op", node.function, ROWS, ("user",))).begun)


def test_the_epochs_of_panes_and_what_is_due_early_are_left_out() -> None:
    schema = schema_of(hf.tumbling("1m"), emit_every="10s")
    one = {KEY: {"panes": {"12:00": {"rows": 3, "revision": 7}}, "emissions": {"13:00": 1}}}
    other = {KEY: {"panes": {"12:00": {"rows": 3, "revision": 9}}}}
    assert comparable(one, schema) == comparable(other, schema)
    wrong = {KEY: {"panes": {"12:00": {"rows": 4, "revision": 7}}}}
    assert comparable(one, schema) != comparable(wrong, schema)
    assert comparable({KEY: {"emissions": {"13:00": 1}}}, schema) == {}


def test_the_epochs_of_sessions_are_left_out_and_their_bounds_are_not() -> None:
    schema = schema_of(hf.session("1m"))
    session = {"__start_us": 1, "__last_us": 2, "__emitted": 4, "rows": 3, "revision": 4}
    one = {KEY: {"sessions": [session], "closings": {"12:00": True}}}
    other = {KEY: {"sessions": [{**session, "__emitted": 0, "revision": 9}], "closings": {"12:00": True}}}
    assert comparable(one, schema) == comparable(other, schema)
    for wrong in ({**session, "__start_us": 0}, {**session, "rows": 4}):
        assert comparable({KEY: {"sessions": [wrong], "closings": {"12:00": True}}}, schema) != comparable(
            one, schema
        )


def test_of_rows_that_wait_in_a_join_the_order_within_a_time_does_not_count() -> None:
    sides = pa.schema([(side, pa.struct(list(ROWS))) for side in (LEFT_COLUMN, RIGHT_COLUMN)])
    join = IntervalJoin(("ts", "ts"), ("0s", "1s"), "full", ("user",))
    rows = pa.schema([("user", pa.string()), *sides])
    schema = record_of(Declared(state_layout("op", join, rows, ("user",))).begun)
    one = {KEY: {"left_rows": {"12:00": [{"n": 1}, {"n": 2}]}}}
    other = {KEY: {"left_rows": {"12:00": [{"n": 2}, {"n": 1}]}}}
    assert comparable(one, schema) == comparable(other, schema)
    assert comparable(one, schema) != comparable({KEY: {"left_rows": {"12:00": [{"n": 1}]}}}, schema)


@pytest.mark.parametrize("values", [{"revision": 3}, {"emissions": {"1": 2}}, {"seq": 1}])
def test_the_state_of_any_other_function_is_compared_as_it_is(values: dict[str, Any]) -> None:
    schema = OperatorSchema(uid="op", key=(("user", "string"),), states=())
    assert comparable({KEY: values}, schema) == {KEY: values}
