"""Partial rows that a task makes of rows: column for column what graph.partials has Spark make of them.

Always true: the rows of one batch give one partial row for each key, however many batches there are.
Never here: panes, which only rows with an event time have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.aggregates import Aggregate, AggregateKind, Aggregation
from holdfast.graph.partials import HALF_BITS, LOW_HALF, ROWS_COLUMN, SUM_EXTRA_DIGITS, Partials
from holdfast.state.encoding.keys import KeyCodec
from holdfast.tasks.operators.aggregate import counts, extremes, per_key, rows_at_the_end
from holdfast.tasks.operators.shard_rows import Index, distinct, in_order


@dataclass(frozen=True)
class Combined:
    """How a task combines the rows of an operator. `key_schema`: the key as state has it."""

    aggregation: Aggregation
    partials: Partials
    key: tuple[str, ...]
    key_schema: pa.Schema
    order_by: tuple[str, ...]

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The partial rows of some rows."""
        index, keys = distinct(KeyCodec(self.key_schema), [rows.column(name) for name in self.key])
        columns = dict(zip(self.key, keys, strict=True))
        columns[ROWS_COLUMN] = counts(None, index, len(keys[0]))
        for name, aggregate in self.aggregation.aggregates.items():
            made = _parts(aggregate, rows, index, len(keys[0]), self.order_by)
            columns |= dict(zip(self.partials.columns[name], made, strict=True))
        return pa.RecordBatch.from_pydict(columns)


def _parts(
    aggregate: Aggregate, rows: pa.RecordBatch, index: Index, key_count: int, order_by: Sequence[str]
) -> list[pa.Array]:
    """The parts of one aggregate, in the order of their columns."""
    column = None if aggregate.column is None else rows.column(aggregate.column)
    counted = aggregate.kind is AggregateKind.COUNT
    if counted or column is None:
        return [counts(column, index, key_count)]
    match aggregate.kind:
        case AggregateKind.SUM:
            return [per_key("sum", each, index) for each in _summands(column)]
        case AggregateKind.MEAN:
            values = column.cast(pa.float64(), safe=False)
            return [per_key("sum", values, index), counts(column, index, key_count)]
        case AggregateKind.MIN | AggregateKind.MAX as kind:
            return [extremes(kind, column, index)]
        case AggregateKind.FIRST | AggregateKind.LAST as kind:
            places = [rows.column(name) for name in order_by]
            return _at_the_end(kind, [column, *places], index, key_count)
    raise AssertionError(f"{aggregate} cannot be combined")


def _summands(column: pa.Array) -> list[pa.Array]:
    """What is summed, in types that no sum of an epoch's rows overflows."""
    if pa.types.is_floating(column.type):
        return [column.cast(pa.float64())]
    if pa.types.is_decimal(column.type):
        wide = pa.decimal128(column.type.precision + SUM_EXTRA_DIGITS, column.type.scale)
        return [column.cast(wide)]
    if column.type == pa.int64():
        return [pc.shift_right(column, HALF_BITS), pc.bit_wise_and(column, LOW_HALF)]
    return [column.cast(pa.int64())]


def _at_the_end(
    kind: AggregateKind, columns: Sequence[pa.Array], index: Index, key_count: int
) -> list[pa.Array]:
    """The first or last value of each key, and its place in the order where there is one."""
    value, *places = columns
    if places:
        order = in_order(pa.table(places, names=["at"]), ["at"]).to_numpy().astype(np.int64)
        found = rows_at_the_end(kind, value.take(pa.array(order)), index[order], key_count)
        found = np.where(found < 0, found, order[found])
    else:
        found = rows_at_the_end(kind, value, index, key_count)
    return [column.take(pa.array(found, mask=found < 0)) for column in columns]
