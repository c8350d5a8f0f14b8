"""Between Python objects and Arrow columns of a declared type.

Always true: a value either fits its declared type without loss or is refused; nothing is reinterpreted (Arrow
itself would take 1.5 for a long as 1, and bytes for a string). Structs and maps are dicts, arrays are lists.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_NONE = type(None)
_NOT_LISTS = (str, bytes, bytearray, Mapping, Iterator)


class Misfit(ValueError):
    """The value at `index` does not fit the declared type."""

    def __init__(self, index: int, value: object, declared: pa.DataType) -> None:
        super().__init__(index, value, declared)
        self.index, self.value, self.declared = index, value, declared


def column_of(values: Sequence[object], declared: pa.DataType) -> pa.Array:
    """Convert Python values (None is null) exactly, or raise the first Misfit."""
    expected = _exact_class(declared)
    if expected is None or not set(map(type, values)) <= {expected, _NONE}:
        _refuse_misfits(values, declared)
    try:
        return pa.array(values, type=declared)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        _refuse_misfits(values, declared)
        raise


def objects_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert a column to Python objects, null to None."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    declared = column.type
    if (pa.types.is_integer(declared) or pa.types.is_floating(declared)) and column.null_count == 0:
        objects: list[Any] = column.to_numpy().tolist()
    elif pa.types.is_nested(declared):
        objects = column.to_pylist(maps_as_pydicts="strict")
    else:
        objects = column.to_pylist()
    return objects


def fits(value: object, declared: pa.DataType) -> bool:
    """Whether the value can be kept as this type without loss. None fits every type."""
    if value is None:
        return True
    if pa.types.is_struct(declared):
        names = {field.name for field in declared}
        return (
            isinstance(value, Mapping)
            and value.keys() <= names
            and all(fits(value.get(field.name), field.type) for field in declared)
        )
    if pa.types.is_map(declared):
        return isinstance(value, Mapping) and all(
            key is not None and fits(key, declared.key_type) and fits(item, declared.item_type)
            for key, item in value.items()
        )
    if pa.types.is_list(declared):
        return (
            isinstance(value, Iterable)
            and not isinstance(value, _NOT_LISTS)
            and all(fits(item, declared.value_type) for item in value)
        )
    return _right_class(value, declared) and _converts(value, declared)


def checker(declared: pa.DataType) -> Callable[[object], bool]:
    """`fits` for one type, fast for the values that are usual for it."""
    expected = _exact_class(declared)
    if expected is None or pa.types.is_float32(declared):
        return lambda value: fits(value, declared)
    if expected is int:
        low, high = -(1 << (declared.bit_width - 1)), (1 << (declared.bit_width - 1)) - 1
        return lambda value: (value.__class__ is int and low <= value <= high) or fits(value, declared)
    if expected is str:
        # A lone surrogate is a str that no UTF-8 holds.
        return lambda value: (value.__class__ is str and value.isascii()) or fits(value, declared)
    return lambda value: value.__class__ is expected or fits(value, declared)


def is_immutable(declared: pa.DataType) -> bool:
    """Whether Python's objects of this type cannot be changed in place."""
    return not pa.types.is_nested(declared)


def copied(value: Any) -> Any:
    """An independent copy of a value as `objects_of` makes them."""
    kind = value.__class__
    if kind is list:
        return [copied(item) for item in value]
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    return value


def _exact_class(declared: pa.DataType) -> Any:
    """The class whose instances Arrow converts exactly or refuses by itself; None where one has to look."""
    if pa.types.is_integer(declared):
        return int
    if pa.types.is_floating(declared):
        return float
    if pa.types.is_string(declared) or pa.types.is_large_string(declared):
        return str
    if pa.types.is_boolean(declared):
        return bool
    if pa.types.is_binary(declared):
        return bytes
    return None


def _right_class(value: object, declared: pa.DataType) -> bool:
    if pa.types.is_integer(declared):
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if pa.types.is_floating(declared):
        return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if pa.types.is_string(declared):
        return isinstance(value, str)
    if pa.types.is_boolean(declared):
        return isinstance(value, bool | np.bool_)
    if pa.types.is_binary(declared):
        return isinstance(value, bytes | bytearray)
    if pa.types.is_duration(declared):
        return isinstance(value, dt.timedelta)
    if pa.types.is_time(declared):
        return isinstance(value, dt.time)
    return True


def _converts(value: object, declared: pa.DataType) -> bool:
    try:
        pa.scalar(value, type=declared)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
    return True


def _refuse_misfits(values: Iterable[object], declared: pa.DataType) -> None:
    for index, value in enumerate(values):
        if not fits(value, declared):
            raise Misfit(index, value, declared)
