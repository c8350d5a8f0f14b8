"""Runs the halves of a BroadcastFunction: the broadcast rows in one place, then the keyed rows of a shard.

Always true: the keyed half changes nothing of the broadcast states; the broadcast half sees no key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.contexts import BroadcastContext, FunctionContext
from holdfast.graph.functions import BroadcastFunction
from holdfast.state.cells.broadcast_cells import BroadcastCell, BroadcastView
from holdfast.state.cells.declarations import broadcast_states
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.value_cells import Cell
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateField, StateLayout
from holdfast.tasks.operators.result import EpochContext, OperatorResult
from holdfast.tasks.operators.row_function import DueTimers, RowsRun, UnkeyedResult, run_rows
from holdfast.tasks.operators.shard_rows import KeyedSlice

BroadcastEntries = Mapping[str, dict[Any, Any]]
"""The broadcast states by name; one that is not there is empty."""


def run_broadcast_rows(
    side: BroadcastSide,
    fields: Sequence[StateField],
    rows: pa.Table,
    lists: Mapping[str, ShardList],
    ctx: EpochContext,
) -> UnkeyedResult:
    """Run `process_broadcast` over the broadcast rows of an epoch, in their order. UserCodeError where it
    fails, or a dead letter."""
    cells = {
        field.name: BroadcastCell(field, dict(lists.get(field.name, ShardList()).items)) for field in fields
    }

    def bind(own: object) -> list[BroadcastCell]:
        vars(own).update(cells)
        return list(cells.values())

    index = np.zeros(rows.num_rows, dtype=np.int32)
    whole = KeyedSlice((), rows, index, (pa.nulls(1),), np.zeros(1, dtype=np.uint16), [b""])
    run = _BroadcastRun(side.function, whole, ctx, bind, BroadcastContext)
    run.run()
    changed = {name: ShardList(cell.items_held()) for name, cell in cells.items() if cell.changed}
    return UnkeyedResult(run.outputs(), changed)


def run_with_broadcast(
    function: BroadcastFunction,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
    broadcast: BroadcastEntries,
) -> OperatorResult:
    """Run `process` over the rows of a shard, then `on_timer` over what is due, with the broadcast states as
    they are after the broadcast rows of the epoch."""
    return run_rows(function, layout, keyed, state, ctx, partial(_ReadingRun, broadcast))


class _BroadcastRun(RowsRun):
    """The rows of a broadcast stream, as if they were those of one key."""

    @property
    def process(self) -> Callable[[Any, FunctionContext], Any]:
        handle: Callable[[Any, FunctionContext], Any] = self.function.process_broadcast
        return handle


class _ReadingRun(RowsRun):
    """As with rows of one stream; the function finds the broadcast states under their names."""

    def __init__(
        self,
        broadcast: BroadcastEntries,
        function: BroadcastFunction,
        keyed: KeyedSlice,
        ctx: EpochContext,
        bind: Callable[[object], Sequence[Cell]],
        timers: DueTimers | None = None,
    ) -> None:
        views: dict[str, Cell] = {
            name: BroadcastView(state.field(number), broadcast.get(name, {}))
            for number, (name, state) in enumerate(broadcast_states(type(function)).items(), 1)
        }

        def bind_all(own: object) -> list[Cell]:
            vars(own).update(views)
            return [*bind(own), *views.values()]

        super().__init__(function, keyed, ctx, bind_all, timers=timers)
