"""The schemas of operators as a checkpoint stores them, and as the lineages that state is read by.

Always true: `record_of` and `lineage_of` are each other's inverse.
"""

from __future__ import annotations

from msgspec.structs import replace as changed

from holdfast.checkpoint.store.records import OperatorSchema, StateSchema, TtlSchema
from holdfast.state.encoding.layout import StateLayout, StateRow
from holdfast.state.files.schema_conversion import Generation, Lineage


def lineage_of(schema: OperatorSchema) -> Lineage:
    """Every layout that led to a stored schema, oldest first."""
    chain: list[OperatorSchema] = []
    at: OperatorSchema | None = schema
    while at is not None:
        chain.append(at)
        at = at.before
    return Lineage(tuple(map(_generation, reversed(chain))))


def record_of(lineage: Lineage) -> OperatorSchema:
    """The inverse of `lineage_of`."""
    record: OperatorSchema | None = None
    for generation in lineage.generations:
        record = _record(generation, record)
    assert record is not None
    return record


def file_schema(schema: OperatorSchema) -> OperatorSchema:
    """A schema as files carry it: the lineage is in the checkpoint."""
    return changed(schema, before=None)


def state_row(state: StateSchema) -> StateRow:
    """A stored state as `StateLayout.of_rows` takes it."""
    row = state.id, state.name, state.kind, state.type
    return row if state.ttl is None else (*row, (state.ttl.ms, state.ttl.since, state.ttl.clock))


def _generation(schema: OperatorSchema) -> Generation:
    layout = StateLayout.of_rows(schema.uid, schema.key, map(state_row, schema.states), schema.generation)
    fills = {state.id: bytes.fromhex(state.fill) for state in schema.states if state.fill}
    aggregates = {state.id: state.aggregates for state in schema.states if state.aggregates}
    return Generation(layout, fills, aggregates)


def _record(generation: Generation, before: OperatorSchema | None) -> OperatorSchema:
    layout = generation.layout
    key, states = layout.schema_rows()
    return OperatorSchema(
        uid=layout.operator,
        key=key,
        states=tuple(
            StateSchema(
                id=id,
                name=name,
                kind=kind,
                type=type,
                fill=generation.fills.get(id, b"").hex(),
                aggregates=dict(generation.aggregates.get(id, {})),
                ttl=next((TtlSchema(ms=ms, since=since, clock=clock) for ms, since, clock in ttl), None),
            )
            for id, name, kind, type, *ttl in states
        ),
        generation=layout.generation,
        before=before,
    )
