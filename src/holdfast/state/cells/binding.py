"""From declared states to the cells that stand for them over the keys of a slice."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import DefinitionError
from holdfast.state.cells.collection_cells import ListCell, MapCell
from holdfast.state.cells.declarations import (
    AggregatingState,
    DeclaredState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    declared_states,
)
from holdfast.state.cells.expiring_cells import ExpiringListCell, ReadMapCell
from holdfast.state.cells.live_entries import LiveEntries
from holdfast.state.cells.value_cells import (
    AggregatingCell,
    Cell,
    PlainValueCell,
    ReducingCell,
    SettledValueCell,
)
from holdfast.state.contract import StateReads
from holdfast.state.encoding.coercion import is_plain
from holdfast.state.encoding.layout import StateField, StateLayout
from holdfast.state.encoding.ttl import NO_INSTANTS, Instants


def bind(
    function: object,
    layout: StateLayout,
    bases: Sequence[bytes],
    state: StateReads,
    at: Instants = NO_INSTANTS,
) -> list[Cell]:
    """Put a cell under every declared name of this very instance; reads the values of all keys, of states
    with a ttl those that have not expired at that instant."""
    cells = []
    for name, declared in declared_states(type(function)).items():
        field = layout.field(name)
        if field.ttl is None:
            cell = _cell(declared, field, bases, state)
        else:
            cell = _live(declared, field, bases, state, at)
        vars(function)[name] = cell
        cells.append(cell)
    return cells


def _live(
    declared: DeclaredState, field: StateField, bases: Sequence[bytes], state: StateReads, at: Instants
) -> Cell:
    assert field.ttl is not None
    live = LiveEntries(state, field.ttl, at.now(field.ttl))
    match declared:
        case ValueState():
            # Whatever its type: one that is assigned what it was is written all the same.
            return SettledValueCell(declared, field, bases, live)
        case ListState():
            return ExpiringListCell(field, bases, state, live)
        case MapState() if field.ttl.since == "read":
            return ReadMapCell(field, bases, live)
    return _cell(declared, field, bases, live)


def _cell(declared: DeclaredState, field: StateField, bases: Sequence[bytes], state: StateReads) -> Cell:
    match declared:
        case ValueState() if is_plain(field.type):
            return PlainValueCell(declared, field, bases, state)
        case ValueState():
            return SettledValueCell(declared, field, bases, state)
        case ReducingState():
            return ReducingCell(declared, field, bases, state)
        case AggregatingState():
            return AggregatingCell(declared, field, bases, state)
        case ListState():
            return ListCell(field, bases, state)
        case MapState():
            return MapCell(field, bases, state)
    kind = type(declared).__name__
    raise DefinitionError(f"state {declared.name!r} is a {kind}; use one of Holdfast's own states")
