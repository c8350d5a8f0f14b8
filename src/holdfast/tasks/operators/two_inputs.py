"""Runs a CoFunction over a shard's rows of two streams: key after key, left rows before right ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.contexts import FunctionContext
from holdfast.graph.functions import CoFunction
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.tasks.operators.result import EpochContext, OperatorResult
from holdfast.tasks.operators.row_function import RowsRun, row_objects, run_rows
from holdfast.tasks.operators.shard_rows import KeyedSlice, by_key, in_order


@dataclass(frozen=True, slots=True)
class SideOrder:
    """The columns by which the rows of either stream are sorted."""

    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    def arranged(self, rows: pa.Table) -> pa.Table:
        """The rows in the order in which a function sees those of a key: interleaved where both streams are
        sorted, otherwise left ones first. Stable, nulls first."""
        is_right = rows[LEFT_COLUMN].is_null()
        left = [_of_side(rows, LEFT_COLUMN, name) for name in self.left]
        right = [_of_side(rows, RIGHT_COLUMN, name) for name in self.right]
        if left and right:
            both = [pc.if_else(is_right, theirs, ours) for ours, theirs in zip(left, right, strict=True)]
            columns = [*both, is_right]
        else:
            columns = [is_right, *left, *right]
        names = [str(number) for number in range(len(columns))]
        return rows.take(in_order(pa.table(columns, names=names), names))


def run_sides(
    function: CoFunction, layout: StateLayout, keyed: KeyedSlice, state: ShardState, ctx: EpochContext
) -> OperatorResult:
    """Run the function over the rows of a shard, which are arranged, then over the timers that are due.
    UserCodeError where its code fails, or a dead letter."""
    return run_rows(function, layout, keyed, state, ctx, _SidesRun)


def side_rows(rows: pa.Table, side: str) -> pa.Table:
    """The rows of one stream, with the columns that they have there."""
    column = rows[side].combine_chunks()
    own = column.filter(column.is_valid())
    return pa.Table.from_arrays(own.flatten(), schema=pa.schema(list(own.type)))


class _SidesRun(RowsRun):
    """As with rows of one stream; which of them a row is of decides the method that handles it."""

    _is_right = False

    def rows(self) -> Iterator[Any]:
        arranged = self.keyed.rows.take(pa.array(by_key(self.keyed.index, self.keyed.key_count)))
        left, right = (
            row_objects(side_rows(arranged, side), self.ctx) for side in (LEFT_COLUMN, RIGHT_COLUMN)
        )
        for is_right in arranged[LEFT_COLUMN].is_null().to_pylist():
            self._is_right = is_right
            yield next(right if is_right else left)

    def process(self, row: Any, context: FunctionContext) -> Any:
        handle = self.function.process_right if self._is_right else self.function.process_left
        return handle(row, context)


def _of_side(rows: pa.Table, side: str, name: str) -> pa.ChunkedArray:
    return pc.struct_field(rows[side], rows.schema.field(side).type.get_field_index(name))
