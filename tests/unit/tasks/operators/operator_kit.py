"""A shard's state over a dict, and a harness that runs an operator epoch after epoch on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.graph.column_types import state_layout
from holdfast.graph.partials import Partials
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN, connected_schema
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.tasks.operators.dispatch import run_function
from holdfast.tasks.operators.result import EpochContext, EventTime, OperatorResult
from holdfast.tasks.operators.shard_rows import cut
from holdfast.tasks.operators.two_inputs import SideOrder

ALL_GROUPS = KeyGroupRange(KeyGroup(0), KeyGroup(128))


class DictState:
    """The reading half of a shard's state; counts how it is read."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.gets = self.scans = self.get_manys = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets += 1
        return self.entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.get_manys += 1
        return [self.entries.get(key) for key in keys]

    def scan(
        self, prefix: bytes, end: bytes | None = None, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        found = sorted(entry for entry in self.entries.items() if entry[0].startswith(prefix))
        first = prefix + start
        return iter([entry for entry in found if entry[0] >= first and (end is None or entry[0] < end)])


class Harness:
    """Runs a function over one epoch of rows after another and applies its changes."""

    def __init__(
        self,
        function: Any,
        schema: pa.Schema,
        key: Sequence[str],
        *,
        order_by: Sequence[str] = (),
        on_error: Any = "fail",
    ) -> None:
        self.function, self.schema, self.key, self.order_by = function, schema, tuple(key), tuple(order_by)
        self.on_error, self.epoch, self.state = on_error, 0, DictState()
        self.layout = state_layout("op", function, schema, self.key)

    def compute(
        self, rows: Sequence[Any], time: EventTime | None = None, clock_ms: int = 1_000
    ) -> OperatorResult:
        """Run without applying."""
        return self.compute_table(self.table(rows), None, time, clock_ms)

    def compute_table(
        self,
        table: pa.Table,
        partials: Partials | None = None,
        time: EventTime | None = None,
        clock_ms: int = 1_000,
    ) -> OperatorResult:
        groups = key_groups_of(routing_hash([table.column(name).combine_chunks() for name in self.key]), 128)
        ctx = EpochContext("op", self.epoch + 1, clock_ms, 0, self.on_error, time, ALL_GROUPS)
        keyed = cut(self.layout, table, groups, self.key, () if partials else self.order_by)
        return run_function(self.function, self.layout, keyed, self.state, ctx, partials)

    def table(self, rows: Sequence[Any]) -> pa.Table:
        """Rows as the operator gets them."""
        columns = [
            pa.array(list(column), field.type)
            for column, field in zip(zip(*rows, strict=True), self.schema, strict=bool(rows))
        ] or [pa.array([], field.type) for field in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def epoch_of(
        self, rows: Sequence[Any], time: EventTime | None = None, clock_ms: int = 1_000
    ) -> OperatorResult:
        """Run one epoch and apply its changes."""
        return self._applied(self.compute(rows, time, clock_ms))

    def epoch_of_table(self, table: pa.Table, partials: Partials | None = None) -> OperatorResult:
        """Run one epoch of rows, or of partial rows, and apply its changes."""
        return self._applied(self.compute_table(table, partials))

    def _applied(self, result: OperatorResult) -> OperatorResult:
        self.epoch += 1
        for key, value in result.entries(self.layout):
            if value is None:
                self.state.entries.pop(key, None)
            else:
                self.state.entries[key] = value
        return result

    def rows_of(self, rows: Sequence[Any], output: str = "") -> list[tuple[Any, ...]]:
        """Run one epoch; the sorted rows of one output."""
        return sorted(tuple(row.values()) for row in self.epoch_of(rows).outputs[output].to_pylist())


class SidesHarness(Harness):
    """The same for an operator over two streams: rows are given as ("left", row) and ("right", row)."""

    def __init__(
        self,
        function: Any,
        left: pa.Schema,
        right: pa.Schema,
        key: Sequence[str],
        right_key: Sequence[str] = (),
        *,
        order: SideOrder | None = None,
        on_error: Any = "fail",
    ) -> None:
        super().__init__(function, connected_schema(left, right, key), key, on_error=on_error)
        self.right_key, self.order = tuple(right_key or key), order or SideOrder()
        self.sides = {"left": (LEFT_COLUMN, left, self.key), "right": (RIGHT_COLUMN, right, self.right_key)}

    def table(self, rows: Sequence[Any]) -> pa.Table:
        made = []
        for side, values in rows:
            column, schema, key = self.sides[side]
            row = dict(zip(schema.names, values, strict=True))
            made.append({column: row, **{ours: row[own] for ours, own in zip(self.key, key, strict=True)}})
        return self.order.arranged(pa.Table.from_pylist(made, schema=self.schema))
