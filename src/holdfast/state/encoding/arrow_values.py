"""Between Python objects and Arrow columns of a declared type.

Always true: a value either fits its declared type without loss or is refused; nothing is reinterpreted (Arrow
itself would take 1.5 for a long as 1, and bytes for a string). What is read fits, and is read the same again.
Arrays are lists, maps are dicts, structs are rows (see structs). Within the key of a map arrays are tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.encoding.coercion import Misfit, exact_class, hashable, settler
from holdfast.state.encoding.row_objects import Row, row_class
from holdfast.state.encoding.types import UTC_NAMES

_NONE = type(None)
_EPOCH = datetime(1970, 1, 1)
FIRST_US, LAST_US = ((edge - _EPOCH) // timedelta(microseconds=1) for edge in (datetime.min, datetime.max))
"""The times that Python has, in µs since 1970."""


def column_of(values: Sequence[object], declared: pa.DataType) -> pa.Array:
    """Convert Python values (None is null) exactly, or raise the first Misfit."""
    if pa.types.is_nested(declared):
        return pa.array(_settled_all(values, declared), type=declared)
    expected = exact_class(declared)
    if expected is None or not set(map(type, values)) <= {expected, _NONE}:
        _settled_all(values, declared)
    try:
        return pa.array(values, type=declared)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        _settled_all(values, declared)
        raise


def objects_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert a column to Python objects, null to None."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    declared = column.type
    if (pa.types.is_integer(declared) or pa.types.is_floating(declared)) and column.null_count == 0:
        numbers: list[Any] = column.to_numpy().tolist()
        return numbers
    if pa.types.is_struct(declared):
        return masked(_rows_of(column), column)
    if pa.types.is_map(declared):
        start, ends = spans(column)
        keys, items = (objects_of(part[start : ends[-1]]) for part in (column.keys, column.items))
        keys = [hashable(key) for key in keys] if pa.types.is_nested(declared.key_type) else keys
        entries = list(zip(keys, items, strict=True))
        return masked((_dict_of(entries[a - start : b - start]) for a, b in pairs(start, ends)), column)
    if pa.types.is_list(declared):
        start, ends = spans(column)
        items = objects_of(column.values[start : ends[-1]])
        return masked((items[a - start : b - start] for a, b in pairs(start, ends)), column)
    if pa.types.is_timestamp(declared) and column.null_count == 0 and len(column):
        return _times_of(column)
    objects: list[Any] = column.to_pylist()
    return objects


def _times_of(column: pa.Array) -> list[Any]:
    """Timestamps as Arrow gives them, several times faster where their zone has no other hour than UTC."""
    first = column[0].as_py()
    numbers = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    edges = pc.min_max(numbers)
    within = edges["min"].as_py() >= FIRST_US and edges["max"].as_py() <= LAST_US
    if not within or column.type.tz not in (None, *UTC_NAMES) or column.type.unit == "ns":
        objects: list[Any] = column.to_pylist()
        return objects
    times: list[Any] = numbers.to_numpy().view("datetime64[us]").tolist()
    return times if column.type.tz is None else [at.replace(tzinfo=first.tzinfo) for at in times]


def is_immutable(declared: pa.DataType) -> bool:
    """Whether Python's objects of this type, as they are read, cannot be changed in place."""
    if pa.types.is_struct(declared):
        return all(is_immutable(field.type) for field in declared)
    return not pa.types.is_nested(declared)


def copied(value: Any) -> Any:
    """An independent copy of a value as `objects_of` makes them."""
    kind = value.__class__
    if kind is list:
        return [copied(item) for item in value]
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, Row):
        return tuple.__new__(kind, map(copied, value))
    return value


def unchanged(value: Any, copy: Any) -> bool:
    """Whether a copy that `copied` made of the value is still that: the same leaves in the same places."""
    kind = value.__class__
    if kind is not copy.__class__:
        return False
    if kind is list or isinstance(value, Row):
        return len(value) == len(copy) and all(map(unchanged, value, copy))
    if kind is dict:
        return len(value) == len(copy) and all(
            key is other and unchanged(value[key], copy[other])
            for key, other in zip(value, copy, strict=True)
        )
    return value is copy


def _settled_all(values: Iterable[object], declared: pa.DataType) -> list[Any]:
    settle, made = settler(declared), []
    for index, value in enumerate(values):
        try:
            made.append(settle(value))
        except Misfit as misfit:
            raise misfit.at(index) from None
    return made


def _rows_of(column: pa.StructArray) -> Iterator[Any]:
    fields = [objects_of(field) for field in column.flatten()]
    parts = zip(*fields, strict=True) if fields else repeat((), len(column))
    return map(tuple.__new__, repeat(row_class(tuple(field.name for field in column.type))), parts)


def _dict_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"a map has a key twice: {[key for key, _ in pairs]!r}; a dict has each once")
    return made


def spans(column: pa.Array) -> tuple[int, list[int]]:
    """Where the first element begins, and where each one ends, in the flat values."""
    start, *ends = column.offsets.to_pylist() or [0]
    return start, ends or [start]


def pairs(start: int, ends: list[int]) -> Iterator[tuple[int, int]]:
    """Where each element begins and ends, of what `spans` gave."""
    return zip([start, *ends[:-1]], ends, strict=True)


def masked(objects: Iterable[Any], column: pa.Array) -> list[Any]:
    """The objects, None where the column has a null; no more of them than it has values."""
    if not column.null_count:
        return list(objects)[: len(column)]
    valid = column.is_valid().to_pylist()
    return [value if there else None for value, there in zip(objects, valid, strict=False)]
