"""Rows that a test sends to an operator over two streams, as the operator gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN, connected_schema
from holdfast.tasks.operators.two_inputs import SideOrder
from holdfast.testing.sent_rows import table_of_sent


@dataclass(frozen=True)
class Sides:
    """Two streams that are brought together by key: their columns, keys and orders."""

    left: pa.Schema
    right: pa.Schema
    key: tuple[str, ...]
    right_key: tuple[str, ...]
    order: SideOrder

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that the operator reads."""
        return connected_schema(self.left, self.right, self.key)

    def table(self, left: Sequence[Any], right: Sequence[Any]) -> pa.Table:
        """Rows of both, in the order in which the operator sees those of a key."""
        parts = [
            self._of_side(table_of_sent(left, self.left), self.key, LEFT_COLUMN),
            self._of_side(table_of_sent(right, self.right), self.right_key, RIGHT_COLUMN),
        ]
        return self.order.arranged(pa.concat_tables(parts))

    def _of_side(self, rows: pa.Table, key: Sequence[str], side: str) -> pa.Table:
        columns: dict[str, Any] = {
            name: rows[own].combine_chunks() for name, own in zip(self.key, key, strict=True)
        }
        for field in self.schema:
            if field.name == side:
                whole = [column.combine_chunks() for column in rows.columns]
                columns[side] = pa.StructArray.from_arrays(whole, fields=list(field.type))
            elif field.name not in columns:
                columns[field.name] = pa.nulls(rows.num_rows, field.type)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
