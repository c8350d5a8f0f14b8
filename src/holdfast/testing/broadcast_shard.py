"""The only shard of a BroadcastFunction in a test, with its broadcast half.

Broadcast states are packed after every run, as a job stores them; a restore starts from these bytes alone.
Always true: a run that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.column_types import state_layout
from holdfast.graph.functions import BroadcastFunction
from holdfast.graph.job_graph import BroadcastConnectNode
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.shard_list import pack_list, unpack_list
from holdfast.tasks.operators.broadcast import run_broadcast_rows
from holdfast.tasks.operators.result import EpochContext
from holdfast.tasks.operators.shard_rows import in_order
from holdfast.testing.one_shard import KeyedShard


class BroadcastShard(KeyedShard):
    """All key groups of an operator over a keyed stream and a broadcast one."""

    def __init__(self, node: BroadcastConnectNode, rows: pa.Schema, broadcast_rows: pa.Schema) -> None:
        assert isinstance(node.function, BroadcastFunction)
        super().__init__(
            node.function, node.key, node.order_by, state_layout(node.uid, node.function, rows, node.key)
        )
        assert isinstance(node.broadcast.function, BroadcastSide)
        self._node, self._side, self._rows = node.broadcast, node.broadcast.function, rows
        self._half = state_layout(node.broadcast.uid, node.broadcast.function, broadcast_rows, ())
        self._packed: Mapping[str, bytes] = {}
        self._durable: Mapping[str, bytes] = {}

    def run_broadcast(self, rows: pa.Table, ctx: EpochContext) -> dict[str, pa.Table]:
        """Run the broadcast half over some rows, then what is due; gives the outputs of both by name."""
        lists = {name: ShardList(list(held.items())) for name, held in self.broadcast_state().items()}
        ordered = rows.take(in_order(rows, self._node.order_by)) if self._node.order_by else rows
        done = run_broadcast_rows(
            self._side, self._half.fields, ordered, lists, replace(ctx, uid=self._node.uid)
        )
        before = self._packed
        changed = {
            name: pack_list(self._half.operator, self._half.field(name), held.items)
            for name, held in done.lists.items()
        }
        self._take({**before, **changed})
        try:
            outputs = self.run(self._rows.empty_table(), ctx)
        except BaseException:
            self._take(before)
            raise
        parts = {
            name: [each[name] for each in (done.outputs, outputs) if name in each] for name in done.outputs
        }
        return {name: pa.concat_tables(tables) for name, tables in parts.items()}

    def broadcast_state(self) -> dict[str, dict[Any, Any]]:
        """The broadcast states by name; one of which nothing was ever stored is not there."""
        return {
            name: dict(unpack_list(data, self._half.field(name), "what the harness keeps"))
            for name, data in self._packed.items()
        }

    def checkpoint(self) -> None:
        super().checkpoint()
        self._durable = self._packed

    def restore(self) -> None:
        super().restore()
        self._take(self._durable)

    def _take(self, packed: Mapping[str, bytes]) -> None:
        self._packed = packed
        self.broadcast_entries = self.broadcast_state()
