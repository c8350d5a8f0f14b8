"""Runs an OperatorFunction over a shard's slice: row by row, with the shard's lists.

Always true: a row that is set aside as a dead letter leaves nothing behind, neither in lists nor in output.
Same rows in the same order and same lists, same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from holdfast.graph.contexts import ShardContext
from holdfast.graph.functions import OperatorFunction
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.shard_list import OperatorListCell
from holdfast.state.encoding.layout import StateLayout
from holdfast.tasks.operators.keyed_slice import KeyedSlice
from holdfast.tasks.operators.result import EpochContext
from holdfast.tasks.operators.row_function import RowsRun


@dataclass(frozen=True, slots=True)
class UnkeyedResult:
    """Outputs by name, and the lists that are no longer what they were, by state."""

    outputs: dict[str, pa.Table]
    lists: dict[str, ShardList]


def run_unkeyed_rows(
    function: OperatorFunction,
    layout: StateLayout,
    rows: pa.Table,
    lists: Mapping[str, ShardList],
    shards: int,
    ctx: EpochContext,
) -> UnkeyedResult:
    """Run the function over the rows of a shard. UserCodeError where its code fails, or a dead letter."""
    cells = {
        field.name: OperatorListCell(field, lists.get(field.name, ShardList())) for field in layout.fields
    }

    def bind(own: object) -> list[OperatorListCell]:
        vars(own).update(cells)
        return list(cells.values())

    # To the loop over keys a shard's slice is the slice of one key, which is None.
    index = np.zeros(rows.num_rows, dtype=np.int32)
    whole = KeyedSlice(rows, index, (pa.nulls(1),), np.zeros(1, dtype=np.uint16), [b""])
    run = RowsRun(function, whole, ctx, bind, partial(ShardContext, ctx.shard, shards))
    run.run()
    changed = {name: cell.held() for name, cell in cells.items() if cell.changed}
    return UnkeyedResult(run.outputs(), changed)
