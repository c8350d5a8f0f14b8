"""A shard's rows of one epoch, and the distinct keys in them.

Always true: keys are numbered by their first row; `index[r]` is the number of row r's key; two rows have the
same number if and only if their keys encode to the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.encoding.keys import GROUP_COLUMN, KeyCodec
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.delta import Changes

Index = npt.NDArray[np.int32]
_DIGIT_BITS = 16
_DIGIT = (1 << _DIGIT_BITS) - 1


@dataclass(frozen=True, slots=True)
class KeyedSlice:
    """Rows without their column of key groups, the key of each; distinct keys with their groups and bases."""

    key_columns: tuple[str, ...]
    rows: pa.Table
    index: Index
    keys: tuple[pa.Array, ...]
    groups: npt.NDArray[np.uint16]
    bases: list[bytes]

    @property
    def key_count(self) -> int:
        return len(self.bases)

    def no_changes(self) -> Changes:
        """Changes to the state of its keys, none so far."""
        return Changes(list(self.keys), self.groups, self.bases)


def cut(
    layout: StateLayout,
    rows: pa.Table,
    groups: npt.NDArray[Any],
    key_columns: tuple[str, ...],
    order_by: Sequence[str],
) -> KeyedSlice:
    """Find the distinct keys of some rows; sort the rows where an order is asked for: stable, nulls first."""
    if GROUP_COLUMN in rows.column_names:
        rows = rows.drop_columns([GROUP_COLUMN])
    if order_by:
        order = in_order(rows, order_by)
        rows, groups = rows.take(order), groups[order.to_numpy()]
    columns = [_whole(rows.column(name)) for name in key_columns]
    codec = KeyCodec(layout.key)
    index, keys = distinct(codec, columns)
    key_count = len(keys[0])
    group_of_key = np.empty(key_count, dtype=np.uint16)
    group_of_key[index] = groups
    bases = codec.encode(keys, group_of_key)
    return KeyedSlice(key_columns, rows, index, tuple(keys), group_of_key, bases)


def by_key(index: Index, key_count: int) -> npt.NDArray[np.intp]:
    """The row numbers, key by key, rows of a key in their order."""
    # numpy sorts 16-bit integers by radix, eight times faster than it merges 32-bit ones.
    order = np.argsort((index & _DIGIT).astype(np.uint16), kind="stable")
    if key_count > _DIGIT:
        order = order[np.argsort((index[order] >> _DIGIT_BITS).astype(np.uint16), kind="stable")]
    return order


def in_order(rows: pa.Table, order_by: Sequence[str]) -> pa.Array:
    """The numbers of the rows, sorted by some columns: stable, nulls first."""
    # Arrow puts nulls last; Spark, and so we, put them first.
    columns: dict[str, Any] = {}
    for number, name in enumerate(order_by):
        columns |= {f"{number}v": rows.column(name).is_valid(), f"{number}": rows.column(name)}
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])


def distinct(codec: KeyCodec, columns: Sequence[pa.Array]) -> tuple[Index, list[pa.Array]]:
    """The number of the key of each row, and the keys, from their columns in the rows."""
    columns = [column.cast(field.type) for column, field in zip(columns, codec.schema, strict=True)]
    if len(columns) == 1 and _groups_by_value(columns[0].type):
        encoded = columns[0].dictionary_encode(null_encoding="encode")
        return encoded.indices.to_numpy(), [encoded.dictionary]
    if all(_groups_by_value(column.type) for column in columns):
        index = _numbered(columns)
    else:
        # Floats (-0.0 is 0.0, NaN is NaN) and nested keys are equal when their bytes are.
        index = pa.array(codec.key_bytes(columns), pa.binary()).dictionary_encode().indices.to_numpy()
    first = firsts(index)
    return index, [column.take(pa.array(first)) for column in columns]


def numbered(values: npt.NDArray[np.int64]) -> Index:
    """A number for each distinct value, by its first place."""
    numbers: Index = pa.array(values).dictionary_encode().indices.to_numpy()
    return numbers


def firsts(index: Index) -> npt.NDArray[np.int64]:
    """Where each number of an index is first."""
    first = np.empty(int(index.max()) + 1 if len(index) else 0, dtype=np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    return first


def _numbered(columns: list[pa.Array]) -> Index:
    index: Index = columns[0].dictionary_encode(null_encoding="encode").indices.to_numpy()
    for column in columns[1:]:
        more = column.dictionary_encode(null_encoding="encode")
        pairs = index.astype(np.int64) * len(more.dictionary) + more.indices.to_numpy()
        index = numbered(pairs)
    return index


def _groups_by_value(type: pa.DataType) -> bool:
    return not (pa.types.is_nested(type) or pa.types.is_floating(type))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
