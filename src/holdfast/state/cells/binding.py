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
from holdfast.state.cells.value_cells import (
    AggregatingCell,
    Cell,
    PlainValueCell,
    ReducingCell,
    SettledValueCell,
)
from holdfast.state.contract import ShardState
from holdfast.state.encoding.coercion import is_plain
from holdfast.state.encoding.layout import StateField, StateLayout


def bind(function: object, layout: StateLayout, bases: Sequence[bytes], state: ShardState) -> list[Cell]:
    """Put a cell under every declared name of this very instance; reads the values of all keys."""
    cells = []
    for name, declared in declared_states(type(function)).items():
        cell = _cell(declared, layout.field(name), bases, state)
        vars(function)[name] = cell
        cells.append(cell)
    return cells


def _cell(declared: DeclaredState, field: StateField, bases: Sequence[bytes], state: ShardState) -> Cell:
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
