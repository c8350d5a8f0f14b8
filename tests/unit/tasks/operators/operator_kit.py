"""A shard's state over a dict, and a harness that runs an operator epoch after epoch on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.graph.aggregates import Aggregation
from holdfast.graph.functions import BatchFunction
from holdfast.graph.partials import Partials
from holdfast.state.cells.declarations import state_fields
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.delta import to_entries
from holdfast.tasks.operators.aggregate import run_aggregate
from holdfast.tasks.operators.batch_function import run_batch
from holdfast.tasks.operators.result import EpochContext, OperatorResult
from holdfast.tasks.operators.row_function import run_rows
from holdfast.tasks.operators.shard_rows import cut


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

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        return iter([entry for entry in sorted(self.entries.items()) if entry[0].startswith(prefix)])


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
        is_aggregation = isinstance(function, Aggregation)
        fields = function.state_fields(schema) if is_aggregation else state_fields(type(function))
        self.layout = StateLayout("op", pa.schema([schema.field(name) for name in key]), fields)

    def compute(self, rows: Sequence[Any]) -> OperatorResult:
        """Run without applying."""
        columns = [
            pa.array(list(column), field.type)
            for column, field in zip(zip(*rows, strict=True), self.schema, strict=bool(rows))
        ] or [pa.array([], field.type) for field in self.schema]
        return self.compute_table(pa.Table.from_arrays(columns, schema=self.schema))

    def compute_table(self, table: pa.Table, partials: Partials | None = None) -> OperatorResult:
        groups = key_groups_of(routing_hash([table.column(name).combine_chunks() for name in self.key]), 128)
        ctx = EpochContext("op", self.epoch + 1, 1_000, 0, self.on_error)
        keyed = cut(self.layout, table, groups, self.key, () if partials else self.order_by)
        if isinstance(self.function, Aggregation):
            return run_aggregate(self.function, self.layout, keyed, self.state, ctx, partials)
        run = run_batch if isinstance(self.function, BatchFunction) else run_rows
        return run(self.function, self.layout, keyed, self.state, ctx)

    def epoch_of(self, rows: Sequence[Any]) -> OperatorResult:
        """Run one epoch and apply its changes."""
        return self._applied(self.compute(rows))

    def epoch_of_table(self, table: pa.Table, partials: Partials | None = None) -> OperatorResult:
        """Run one epoch of rows, or of partial rows, and apply its changes."""
        return self._applied(self.compute_table(table, partials))

    def _applied(self, result: OperatorResult) -> OperatorResult:
        self.epoch += 1
        for key, value in to_entries(self.layout, result.changes):
            if value is None:
                self.state.entries.pop(key, None)
            else:
                self.state.entries[key] = value
        return result

    def rows_of(self, rows: Sequence[Any], output: str = "") -> list[tuple[Any, ...]]:
        """Run one epoch; the sorted rows of one output."""
        return sorted(tuple(row.values()) for row in self.epoch_of(rows).outputs[output].to_pylist())
