"""What the user's code gives for a declared type, checked and brought into the form in which it is read.

Always true: a value either fits its declared type without loss or is refused; nothing is reinterpreted (Arrow
itself would take 1.5 for a long as 1, and bytes for a string). A settled value is settled again as it is.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.encoding.row_objects import Row, names_of, row_class
from holdfast.state.encoding.types import type_ddl

_NOT_LISTS = (str, bytes, bytearray, Mapping, Iterator)
_SHOWN_CHARS_MAX = 500

Settle = Callable[[Any], Any]
"""From what the user gave to an independent copy, as it will be read; Misfit where it does not fit."""


class Misfit(ValueError):
    """A value does not fit the type: the one at `index` of a column, at `path` within the value."""

    def __init__(self, value: object, declared: pa.DataType, path: str = "", index: int = 0) -> None:
        super().__init__(value, declared, path, index)
        self.value, self.declared, self.path, self.index = value, declared, path, index

    def within(self, step: str) -> Misfit:
        return Misfit(self.value, self.declared, step + self.path, self.index)

    def at(self, index: int) -> Misfit:
        return Misfit(self.value, self.declared, self.path, index)

    def text(self, what: str, declared: pa.DataType, suffix: str = "") -> str:
        """One line about `what`, which is declared as a whole to be of this type."""
        part = f" at {self.path.lstrip('.')}" if self.path else ""
        got = f"{short(repr(self.value))} ({type(self.value).__name__})"
        wanted = wanted_for(self.declared)
        return f"{what} is declared {type_ddl(declared)}{suffix} but got {got}{part}; give {wanted}"


def fits(value: object, declared: pa.DataType) -> bool:
    """Whether the value can be kept as this type without loss. None fits every type."""
    try:
        settler(declared)(value)
    except Misfit:
        return False
    return True


def settler(declared: pa.DataType) -> Settle:
    """What settles values of one type, fast for those that are usual for it. None fits every type."""
    if pa.types.is_struct(declared):
        return _struct_settler(declared)
    if pa.types.is_map(declared):
        return _map_settler(declared)
    if pa.types.is_list(declared):
        return _list_settler(declared)
    expected = exact_class(declared)
    # A lone surrogate is a str that no UTF-8 holds; -2**63 is the least long.
    if expected is str:
        return lambda v: v if v.__class__ is str and v.isascii() else _leaf(v, declared)
    if expected is int:
        low, high = -(1 << (declared.bit_width - 1)), (1 << (declared.bit_width - 1)) - 1
        return lambda v: v if v.__class__ is int and low <= v <= high else _leaf(v, declared)
    if expected is not None:
        return lambda v: v if v.__class__ is expected else _leaf(v, declared)
    return lambda v: _leaf(v, declared)


def is_plain(declared: pa.DataType) -> bool:
    """Whether values are Python objects that cannot change in place and are kept as they are given."""
    return exact_class(declared) is not None


def wanted_for(declared: pa.DataType) -> str:
    """What Python objects fit a type, in words."""
    if pa.types.is_struct(declared):
        return f"a dict, or a tuple in order, of {', '.join(field.name for field in declared)}"
    for holds, words in _WANTED:
        if holds(declared):
            return words
    return "another value"


_WANTED: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (lambda t: pa.types.is_integer(t) and t.bit_width < 64, "an int within its range"),
    (pa.types.is_integer, "an int"),
    (pa.types.is_floating, "a float"),
    (pa.types.is_boolean, "True or False"),
    (pa.types.is_string, "a str"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date, "a datetime.date"),
    (lambda t: pa.types.is_timestamp(t) and t.tz is None, "a datetime.datetime without time zone"),
    (pa.types.is_timestamp, "a datetime.datetime"),
    (pa.types.is_duration, "a datetime.timedelta"),
    (pa.types.is_time, "a datetime.time"),
    (pa.types.is_decimal, "a decimal.Decimal with digits enough"),
    (pa.types.is_map, "a dict"),
    (pa.types.is_list, "a list"),
    (pa.types.is_null, "None"),
]


def short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


def _struct_settler(declared: pa.DataType) -> Settle:
    names = tuple(field.name for field in declared)
    cls, settles = row_class(names), [settler(field.type) for field in declared]
    new, by_name = tuple.__new__, frozenset(names)

    def settle(value: Any) -> Any:
        if value is None:
            return None
        if value.__class__ is not cls:
            value = _in_place(value)
        made = []
        for place, settle_part in enumerate(settles):
            try:
                made.append(settle_part(value[place]))
            except Misfit as misfit:
                raise misfit.within(f".{names[place]}") from None
        return new(cls, made)

    def _in_place(value: Any) -> Sequence[Any]:
        if isinstance(value, Mapping):
            if value.keys() <= by_name:
                return [value.get(name) for name in names]
        elif isinstance(value, tuple | list) and len(value) == len(names):
            if isinstance(value, tuple) and set(given := names_of(value)) == by_name:
                parts = dict(zip(given, tuple(value), strict=True))
                return [parts[name] for name in names]
            return value
        raise Misfit(value, declared)

    return settle


def _map_settler(declared: pa.DataType) -> Settle:
    settle_key, settle_item = settler(declared.key_type), settler(declared.item_type)

    def settle(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise Misfit(value, declared)
        made = {}
        for key, item in value.items():
            try:
                if key is None:
                    raise Misfit(key, declared.key_type)
                made[hashable(settle_key(key))] = settle_item(item)
            except Misfit as misfit:
                raise misfit.within(f"[{key!r}]") from None
        return made

    return settle


def _list_settler(declared: pa.DataType) -> Settle:
    settle_item = settler(declared.value_type)

    def settle(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Iterable) or isinstance(value, _NOT_LISTS):
            raise Misfit(value, declared)
        made: list[Any] = []
        try:
            for item in value:
                made.append(settle_item(item))
        except Misfit as misfit:
            raise misfit.within(f"[{len(made)}]") from None
        return made

    return settle


def _leaf(value: Any, declared: pa.DataType) -> Any:
    if value is None:
        return None
    if not _right_class(value, declared):
        raise Misfit(value, declared)
    try:
        return pa.scalar(value, type=declared).as_py()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise Misfit(value, declared) from None


def exact_class(declared: pa.DataType) -> Any:
    """The class whose instances Arrow converts exactly or refuses by itself; None where one has to look."""
    if pa.types.is_integer(declared):
        return int
    if pa.types.is_float64(declared):
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
    if pa.types.is_date(declared):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if pa.types.is_timestamp(declared):
        # A time without zone is taken as UTC; one with a zone says more than timestamp_ntz can keep.
        return isinstance(value, dt.datetime) and (declared.tz is not None or value.tzinfo is None)
    if pa.types.is_decimal(declared):
        return isinstance(value, int | np.integer | Decimal) and not isinstance(value, bool)
    return True


def hashable(value: Any) -> Any:
    if value.__class__ is list:
        return tuple(map(hashable, value))
    return tuple.__new__(value.__class__, map(hashable, value)) if isinstance(value, Row) else value
