"""What makes tasks of several replicas come to the same bytes, and how these are named.

Always true: rows that are the same, however often each is there and in whichever order Spark brings them,
come to an operator in one order. A version that is named by content is the same for every replica that has
come to the same changes and the same rows from the same version before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.contract import Version
from holdfast.storage.checksums import checksum
from holdfast.tasks.messages import Output, Payload


def in_one_order(rows: pa.Table, replicated: bool) -> pa.Table:
    """The rows, sorted by all of their columns where others are to have them in the same order. Which order
    that is has no meaning."""
    if not replicated or rows.num_rows < 2:
        return rows
    columns = {str(number): _sortable(column) for number, column in enumerate(rows.columns)}
    keys = [(name, "ascending") for name in columns]
    return rows.take(pc.sort_indices(pa.table(columns), sort_keys=keys)).combine_chunks()


def without_hidden_bytes(rows: pa.Table) -> pa.Table:
    """The same rows, with the same bytes behind every null: what stands there means nothing, and may differ
    from replica to replica."""
    columns = [column if not _may_hide(column) else _shown(column) for column in rows.columns]
    return pa.table(columns, schema=rows.schema)


def content_of(parent: Version, delta: Payload | None, outputs: Iterable[Output]) -> str:
    """Names what a task has made of the state of version `parent`."""
    made = [(output.name, output.rows, output.payload.checksum) for output in outputs]
    named: Any = (parent, delta.checksum if delta is not None else "", made)
    return checksum(msgspec.json.encode(named))[:32]


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that Arrow can sort, in which only values are equal that are the same to the last bit."""
    type = column.type
    if pa.types.is_floating(type):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type.bit_width]
        return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)
    if pa.types.is_nested(type) or pa.types.is_null(type) or pa.types.is_interval(type):
        return pa.chunked_array([pa.array(map(_packed, _in_numbers(column).to_pylist()), pa.binary())])
    return column


def _may_hide(column: pa.ChunkedArray) -> bool:
    # The last byte of booleans may have bits that are none of theirs.
    hides = pa.types.is_nested(column.type) or pa.types.is_boolean(column.type)
    return hides or bool(column.null_count)


def _shown(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Only what can be seen of a column."""
    type = column.type
    if pa.types.is_nested(type) or pa.types.is_dictionary(type):
        plain = _in_numbers(column)
        made = (pa.array(chunk.to_pylist(), plain.type) for chunk in plain.chunks)
        return pa.chunked_array([each if plain is column else each.view(type) for each in made], type)
    # What is taken is copied value by value, and a null leaves its place as it was made: empty.
    return pa.chunked_array([chunk.take(pa.array(np.arange(len(chunk)))) for chunk in column.chunks], type)


def _in_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same nested values with numbers for times, of which Python's own have no year after 9999."""
    type = _numbers(column.type)
    # Arrow makes nulls without a type wrong where it looks at them as another one.
    if type == column.type or _has_void(type):
        return column
    return pa.chunked_array([chunk.view(type) for chunk in column.chunks], type)


def _numbers(type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_numbers(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_numbers(type.key_type), _numbers(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(_numbers(type.value_type))
    if pa.types.is_temporal(type) and not pa.types.is_interval(type):
        return {32: pa.int32(), 64: pa.int64()}[type.bit_width]
    return type


def _has_void(type: pa.DataType) -> bool:
    return pa.types.is_null(type) or any(_has_void(type.field(n).type) for n in range(type.num_fields))


def _packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=str)
