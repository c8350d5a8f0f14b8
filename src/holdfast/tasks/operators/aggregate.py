"""Runs an Aggregation over a shard's slice: whole columns, one row out per touched key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.graph.aggregates import ACCUMULATOR, Aggregation
from holdfast.state.cells.value_cells import read_column
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.types import relaxed, type_ddl
from holdfast.state.files.delta import Changes, ValueChange
from holdfast.tasks.operators.folding import Overflow, fold
from holdfast.tasks.operators.keyed_slice import KeyedSlice, cut
from holdfast.tasks.operators.result import MAIN, EpochContext, OperatorResult, user_error


def run_aggregate(
    aggregation: Aggregation,
    layout: StateLayout,
    rows: pa.Table,
    groups: npt.NDArray[Any],
    key_columns: Sequence[str],
    order_by: Sequence[str],
    state: ShardState,
    ctx: EpochContext,
) -> OperatorResult:
    """Bring the aggregates of every key in the rows up to date, and emit them.

    UserCodeError where a sum overflows.
    """
    keyed = cut(layout, _as_stored(aggregation, rows), groups, key_columns, order_by)
    schema = aggregation.output_schema(keyed.rows.schema, key_columns)
    changes = Changes(list(keyed.keys), keyed.groups, keyed.bases)
    outputs = {MAIN: schema.empty_table()}
    if keyed.rows.num_rows:
        field = layout.field(ACCUMULATOR)
        kept, _ = read_column(field, keyed.bases, state)
        accumulators, results = _folded(aggregation, keyed, kept, ctx)
        struct = pa.StructArray.from_arrays(accumulators, fields=list(field.type))
        changes.values[ACCUMULATOR] = ValueChange(np.arange(keyed.key_count), struct)
        outputs[MAIN] = pa.Table.from_arrays([*keyed.keys, *results], schema=schema)
    return OperatorResult(outputs, changes, keyed.rows.num_rows)


def _as_stored(aggregation: Aggregation, rows: pa.Table) -> pa.Table:
    """The rows, nested columns that are aggregated in the types that state has: Spark says `not null` within
    them, and names what is in an array, in its own way.
    """
    columns = {each.column for each in aggregation.aggregates.values()}
    for place, field in enumerate(rows.schema):
        if field.name in columns and pa.types.is_nested(field.type):
            type = relaxed(field.type)
            rows = rows.set_column(place, pa.field(field.name, type), rows.column(place).cast(type))
    return rows


def _folded(
    aggregation: Aggregation, keyed: KeyedSlice, kept: pa.Array, ctx: EpochContext
) -> tuple[list[pa.Array], list[pa.Array]]:
    fields = dict(zip((field.name for field in kept.type), kept.flatten(), strict=True))
    accumulators: list[pa.Array] = []
    results: list[pa.Array] = []
    for name, aggregate in aggregation.aggregates.items():
        column = None
        if aggregate.column is not None:
            column = keyed.rows.column(aggregate.column).combine_chunks()
        own = [fields[field.name] for field in aggregate.accumulator(name, keyed.rows.schema)]
        try:
            parts, result = fold(aggregate, own, column, keyed.index, keyed.key_count)
        except Overflow as overflow:
            key = tuple(column[overflow.key].as_py() for column in keyed.keys)
            text = f"{name!r} is {overflow.value}, too large for {type_ddl(own[0].type)}"
            raise user_error(ctx, key[0] if len(key) == 1 else key, "(any of this key)", text) from overflow
        accumulators += parts
        results.append(result)
    return accumulators, results
