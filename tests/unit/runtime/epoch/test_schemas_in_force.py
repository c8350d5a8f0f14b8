"""Declared state and stored schemas: what is written of it, and what older records say."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from holdfast.checkpoint.store.records import OperatorSchema, StateSchema
from holdfast.checkpoint.store.schemas import lineage_of, record_of
from holdfast.graph import aggregates as hf
from holdfast.graph.aggregates import ACCUMULATOR, Aggregate, Aggregation
from holdfast.graph.column_types import state_layout
from holdfast.runtime.epoch.schemas_in_force import examine
from holdfast.state.files.evolution import Declared

ROWS = pa.schema([("k", pa.string()), ("a", pa.int64()), ("b", pa.int64())])


def declared(**aggregates: Aggregate) -> Declared:
    function = Aggregation(aggregates)
    return Declared(state_layout("op", function, ROWS, ("k",)), aggregates={ACCUMULATOR: function.computed})


def in_force(now: Declared, stored: tuple[OperatorSchema, ...] = (), **options: Any) -> tuple[Any, list[str]]:
    found, problems = examine({"op": now}, stored, **{"allow_dropped_state": False, **options})
    return found.records, problems


def unknown(schema: OperatorSchema) -> OperatorSchema:
    """The record as it was before aggregates were kept in it."""
    states = tuple(msgspec.structs.replace(state, aggregates={}) for state in schema.states)
    return msgspec.structs.replace(schema, states=states)


def test_kind_and_column_of_every_aggregate_are_in_the_stored_schema() -> None:
    records, _ = in_force(declared(n=hf.count(), x=hf.max("a"), m=hf.mean("b"), c=hf.collect("a", 5)))
    (state,) = records[0].states
    assert state.aggregates == {
        "n": "count()",
        "x": "max(a)",
        "m__sum": "mean(b)",
        "m__count": "mean(b)",
        "c": "collect(a)",
    }
    assert record_of(lineage_of(records[0])) == records[0]


@pytest.mark.parametrize("now", [hf.sum("b"), hf.sum("a"), hf.max("b"), hf.first("a")])
def test_another_kind_or_column_under_the_same_name_is_refused(now: Aggregate) -> None:
    stored, _ = in_force(declared(x=hf.max("a"), y=hf.sum("b")))
    _, problems = in_force(declared(x=now, y=hf.sum("b")), stored, allow_dropped_state=True)
    assert [problem.split(";")[0] for problem in problems] == [
        f"state 'accumulator' of operator 'op' holds max(a) in 'x', which is declared as {now}"
    ]


def test_the_limit_of_a_collection_and_the_order_of_aggregates_may_change() -> None:
    stored, _ = in_force(declared(c=hf.collect("a", 5), x=hf.max("a")))
    assert in_force(declared(x=hf.max("a"), c=hf.collect("a", 7)), stored)[1] == []


def test_a_mean_of_another_column_is_refused() -> None:
    stored, _ = in_force(declared(m=hf.mean("a")))
    (problem,) = in_force(declared(m=hf.mean("b")), stored)[1]
    assert "holds mean(a) in 'm__sum', which is declared as mean(b)" in problem


def test_a_record_without_them_restores_and_knows_them_from_then_on() -> None:
    stored, _ = in_force(declared(x=hf.max("a")))
    older = unknown(stored[0])
    assert b"aggregates" not in msgspec.json.encode(older)
    records, problems = in_force(declared(x=hf.sum("b")), (older,))
    assert problems == []
    assert records[0].states[0].aggregates == {"x": "sum(b)"}
    assert records[0].generation == older.generation
    assert len(in_force(declared(x=hf.max("a")), records)[1]) == 1


def test_the_field_is_read_as_it_was_written() -> None:
    state = StateSchema(id=1, name="s", kind="value", type="long", aggregates={"x": "max(a)"})
    assert msgspec.json.decode(msgspec.json.encode(state), type=StateSchema) == state
    plain = b'{"id":1,"name":"s","kind":"value","type":"long"}'
    assert msgspec.json.decode(plain, type=StateSchema).aggregates == {}
