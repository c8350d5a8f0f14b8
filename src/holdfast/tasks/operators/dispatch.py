"""One door to the operators: what each kind of function stores, gives out, and how it is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.graph.aggregates import Aggregation
from holdfast.graph.columns import DEAD_LETTER_SCHEMA
from holdfast.graph.functions import BatchFunction, output_schema, side_schemas
from holdfast.state.cells.declarations import state_fields
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.tasks.operators.aggregate import run_aggregate
from holdfast.tasks.operators.batch_function import run_batch
from holdfast.tasks.operators.keyed_slice import KeyedSlice
from holdfast.tasks.operators.result import DEAD, MAIN, EpochContext, OperatorResult
from holdfast.tasks.operators.row_function import run_rows

if TYPE_CHECKING:
    from holdfast.graph.job_graph import StatefulFunction


def state_layout(uid: str, function: StatefulFunction, rows: pa.Schema, key: tuple[str, ...]) -> StateLayout:
    """The state that a function declares, over rows of this schema."""
    fields = (
        function.state_fields(rows) if isinstance(function, Aggregation) else state_fields(type(function))
    )
    return StateLayout(uid, pa.schema([rows.field(name) for name in key]), fields)


def output_schemas(function: StatefulFunction, rows: pa.Schema, key: tuple[str, ...]) -> dict[str, pa.Schema]:
    """The columns of everything that a function gives out, by output name."""
    if isinstance(function, Aggregation):
        return {MAIN: function.output_schema(rows, key)}
    return {MAIN: output_schema(function), **side_schemas(function), DEAD: DEAD_LETTER_SCHEMA}


def run_function(
    function: Any, layout: StateLayout, keyed: KeyedSlice, state: ShardState, ctx: EpochContext
) -> OperatorResult:
    """Run a keyed function over a shard's slice of an epoch."""
    if isinstance(function, Aggregation):
        return run_aggregate(function, layout, keyed, state, ctx)
    run = run_batch if isinstance(function, BatchFunction) else run_rows
    return run(function, layout, keyed, state, ctx)
