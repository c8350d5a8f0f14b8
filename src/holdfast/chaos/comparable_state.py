"""State without what follows from how epochs are cut, so that two runs can be compared. Pure.

Left out are, of windows, in which epoch a pane or session was changed or shown, in which order rows came, and
when early results are due; of a join by time, in which order rows of the same time came.
"""

from __future__ import annotations

from typing import Any

from holdfast.chaos.independent_reader import State, Values, is_numbered
from holdfast.checkpoint.store.records import OperatorSchema
from holdfast.checkpoint.store.schemas import state_row
from holdfast.graph.window_functions import ROWS
from holdfast.graph.windows import EMISSIONS, REVISION, SESSION_EMITTED
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.row_objects import as_dicts
from holdfast.state.files.evolution import WINDOW_KEPT


def comparable(state: State, schema: OperatorSchema) -> State:
    """The state of one operator, as two runs have it alike."""
    of_windows = {each.name for each in schema.states if WINDOW_KEPT in each.aggregates}
    layout = StateLayout.of_rows(schema.uid, schema.key, map(state_row, schema.states))
    numbered = {field.name for field in layout.fields if is_numbered(field)}
    kept = {key: _kept(values, of_windows, numbered) for key, values in state.items()}
    return {key: values for key, values in kept.items() if values}


def _kept(values: Values, of_windows: set[str], numbered: set[str]) -> Values:
    kept: Values = {}
    for name, value in values.items():
        if name in of_windows:
            kept[name] = _without_epochs(as_dicts(value))
        elif name in numbered:
            kept[name] = {at: sorted(rows, key=repr) for at, rows in value.items()}
        elif not of_windows or name != EMISSIONS:
            kept[name] = value
    return kept


def _without_epochs(value: Any) -> Any:
    """Panes by their time, a list of sessions, or what is counted of a key."""
    if isinstance(value, list):
        return [_without_epochs(each) for each in value]
    if REVISION not in value:
        return {at: _without_epochs(pane) for at, pane in value.items()}
    left = {name: item for name, item in value.items() if name not in (REVISION, SESSION_EMITTED)}
    if isinstance(left.get(ROWS), list):
        left[ROWS] = sorted(left[ROWS], key=repr)
    return left
