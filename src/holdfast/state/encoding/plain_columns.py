"""Whole columns in the plain form that msgpack holds: see `msgpack_forms`, which has it for single values.

Always true: what comes out is what `Form.to_plain` makes of each value, made of whole columns: numbers and
times are taken out of Arrow's memory, and only what holds them is built value by value.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.state.encoding.arrow_values import masked, pairs, spans
from holdfast.state.encoding.msgpack_forms import form_of


def plain_values(column: pa.Array) -> list[Any]:
    """The plain forms of a column, None for null."""
    type = column.type
    if pa.types.is_struct(type):
        names = [field.name for field in type]
        fields = [plain_values(field) for field in column.flatten()]
        rows = zip(*fields, strict=True) if fields else [()] * len(column)
        return masked((dict(zip(names, row, strict=True)) for row in rows), column)
    if pa.types.is_map(type):
        start, ends = spans(column)
        keys, items = (plain_values(part[start : ends[-1]]) for part in (column.keys, column.items))
        entries = list(zip(keys, items, strict=True))
        return masked((entries[a - start : b - start] for a, b in pairs(start, ends)), column)
    if pa.types.is_list(type):
        start, ends = spans(column)
        items = plain_values(column.values[start : ends[-1]])
        return masked((items[a - start : b - start] for a, b in pairs(start, ends)), column)
    if pa.types.is_decimal(type):
        to_plain = form_of(type).to_plain
        return [None if value is None else to_plain(value) for value in column.to_pylist()]
    return _leaves(_as_numbers(column))


def _as_numbers(column: pa.Array) -> pa.Array:
    """Dates and times as the integers that they are stored as."""
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column


def _leaves(column: pa.Array) -> list[Any]:
    numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    found: list[Any] = column.to_numpy().tolist() if numeric and not column.null_count else column.to_pylist()
    return found
