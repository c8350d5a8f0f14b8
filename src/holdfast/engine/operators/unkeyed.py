"""Runs an OperatorFunction over a shard's slice: row by row, with the shard's lists.

Always true: a row that is set aside as a dead letter leaves nothing behind, neither in lists nor in output.
Same rows in the same order and same lists, same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.operators.result import EpochContext
from holdfast.engine.operators.rows import RowContext, RowsRun
from holdfast.engine.operators.slices import KeyedSlice
from holdfast.graph.functions import OperatorFunction
from holdfast.state.layout import StateLayout
from holdfast.state.lists import OperatorListCell
from holdfast.state.redistribute import ShardList


class ShardContext(RowContext):
    """What `process` knows besides its row. There is no key; `shard` is one of `shards`, from 0."""

    __slots__ = ("shard", "shards")

    def __init__(
        self, shard: int, shards: int, epoch: int, timestamp: int, sides: dict[str, list[Any]]
    ) -> None:
        super().__init__(epoch, timestamp, sides)
        self.shard, self.shards = shard, shards


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
