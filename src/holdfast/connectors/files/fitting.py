"""Columns of Parquet files as the types that their source declares.

A value is never another one afterwards: numbers become wider, times of another unit, texts stay texts. What
would have to be parsed, rounded or cut is refused, by column and type, as Spark's own reader does.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types


def fitted(column: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    """The column as the wanted type. ValueError: it is not of such a type."""
    found = column.type
    if found == wanted:
        return column
    if types.is_dictionary(found):
        return fitted(column.dictionary_decode(), wanted, name)
    if types.is_struct(found) and types.is_struct(wanted):
        return _struct(column, wanted, name)
    if types.is_map(found) and types.is_map(wanted):
        keys = fitted(column.keys, wanted.key_type, f"{name}.key")
        items = fitted(column.items, wanted.item_type, f"{name}.value")
        return pa.MapArray.from_arrays(_offsets(column), keys, items, wanted, mask=column.is_null())
    if _is(found, _LISTS) and types.is_list(wanted):
        if not types.is_list(found):
            return fitted(column.cast(pa.list_(found.value_type)), wanted, name)
        values = fitted(column.values, wanted.value_type, f"{name}[]")
        return pa.ListArray.from_arrays(_offsets(column), values, wanted, mask=column.is_null())
    if types.is_null(found) or _widens(found, wanted):
        return column.cast(wanted)
    raise ValueError(f"column {name!r} is declared {wanted}, found {found}")


def _offsets(column: pa.Array) -> pa.Array:
    # A copy: Arrow takes no mask beside the offsets of a slice.
    return pa.array(column.offsets.to_numpy())


def _struct(column: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    there = {field.name.lower(): place for place, field in enumerate(column.type)}
    if len(there) < column.type.num_fields:
        raise ValueError(f"column {name!r} has fields whose names differ in case alone")
    parts = column.flatten()
    fields = [
        fitted(parts[there[field.name.lower()]], field.type, f"{name}.{field.name}")
        if field.name.lower() in there
        else pa.nulls(len(column), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=column.is_null())


Kinds = tuple[Callable[[pa.DataType], bool], ...]
_LISTS: Kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
_TEXTS: Kinds = (types.is_string, types.is_large_string)
_BYTES: Kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
_ALIKE: tuple[tuple[Kinds, Kinds], ...] = (
    ((types.is_date,), (types.is_date,)),
    ((types.is_time,), (types.is_time,)),
    ((types.is_duration,), (types.is_duration,)),
    (_TEXTS, _TEXTS),
    ((*_TEXTS, *_BYTES), _BYTES),
)
"""Types of which one holds what the other does; Arrow refuses single values that would be cut."""


def _is(type: pa.DataType, kinds: Kinds) -> bool:
    return any(kind(type) for kind in kinds)


def _widens(found: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_integer(found):
        room: int = wanted.bit_width if types.is_integer(wanted) else 0
        # An unsigned number needs a bit more.
        if types.is_unsigned_integer(found):
            return room > int(found.bit_width)
        exact = types.is_float64(wanted) and found.bit_width <= 32
        return bool(room >= found.bit_width or exact)
    if types.is_floating(found):
        return bool(types.is_floating(wanted) and wanted.bit_width >= found.bit_width)
    if types.is_decimal(found) and types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= found.precision - found.scale
        return bool(whole and wanted.scale >= found.scale)
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        # Times of no zone are those of UTC, as Spark takes them; the other way round a zone would be lost.
        return found.tz is None or wanted.tz is not None
    return any(_is(found, ours) and _is(wanted, theirs) for ours, theirs in _ALIKE)
