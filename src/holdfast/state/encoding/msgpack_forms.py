"""Python objects of a declared type in the plain form that msgpack holds, and at fixed width.

Plain forms: dates as days, timestamps as microseconds since 1970 (UTC, or the wall clock's for
timestamp_ntz), intervals as microseconds, times as nanoseconds, decimals as text, structs as mappings by
field name, maps as lists of [key, value], the rest as it is.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

_DAY_ZERO = dt.date(1970, 1, 1).toordinal()
_NTZ_ZERO = dt.datetime(1970, 1, 1)
_UTC_ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_EXACT = Context(prec=77, rounding=ROUND_HALF_UP)
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def _refused(value: Any) -> bytes:
    raise TypeError(f"{value!r} is of no fixed-width type")


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Form:
    """How one type moves between Python objects, plain forms and fixed-width bytes. Never given a null."""

    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]
    to_cell: Callable[[Any], Any] = _as_it_is
    """From the plain form to what `pa.array` takes for the type."""
    direct: bool = False
    """Whether the plain form is what `pa.array` takes for the type, all the way down."""
    pack: Callable[[Any], bytes] = _refused
    unpack: Callable[[bytes], Any] = _refused


def form_of(type: pa.DataType) -> Form:
    """The form of a type. Objects that do not fit it raise ValueError or TypeError saying so."""
    if type in _INTEGER_BITS:
        return _integer(type)
    if pa.types.is_boolean(type):
        return _leaf(_boolean, bool, lambda v: b"\x01" if _boolean(v) else b"\x00", lambda b: b != b"\x00")
    if pa.types.is_float32(type):
        return _leaf(_float32, float, _FLOAT.pack, lambda b: _FLOAT.unpack(b)[0])
    if pa.types.is_float64(type):
        return _leaf(float, float, _DOUBLE.pack, lambda b: _DOUBLE.unpack(b)[0])
    if pa.types.is_date(type):
        return _via_integer("<i", _days, lambda days: dt.date.fromordinal(days + _DAY_ZERO))
    if pa.types.is_timestamp(type):
        zero = _NTZ_ZERO if type.tz is None else _UTC_ZERO
        return _via_integer("<q", _micros_since(zero), lambda micros: zero + micros * _MICROSECOND)
    if pa.types.is_duration(type):
        return _via_integer("<q", lambda span: span // _MICROSECOND, lambda micros: micros * _MICROSECOND)
    if pa.types.is_time64(type):
        return _via_integer("<q", _nanos, _time_of)
    if pa.types.is_null(type):
        return Form(_refused, _refused)
    if pa.types.is_decimal(type):
        return _decimal(type)
    if pa.types.is_struct(type):
        return _struct(type)
    if pa.types.is_list(type):
        return _list(type)
    if pa.types.is_map(type):
        return _map(type)
    return _leaf(_text, str) if pa.types.is_string(type) else _leaf(bytes, bytes)


def _leaf(
    to_plain: Callable[[Any], Any],
    from_plain: Callable[[Any], Any],
    pack: Callable[[Any], bytes] = _refused,
    unpack: Callable[[bytes], Any] = _refused,
) -> Form:
    return Form(to_plain, from_plain, direct=True, pack=pack, unpack=unpack)


def _integer(type: pa.DataType) -> Form:
    bits = _INTEGER_BITS[type]
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    packer = struct.Struct({8: "<b", 16: "<h", 32: "<i", 64: "<q"}[bits])
    plain_pack = packer.pack

    def checked(value: Any) -> int:
        number = value.__index__()
        if not low <= number <= high:
            raise ValueError(f"{number} does not fit in {bits} bits")
        return int(number)

    def pack(value: Any) -> bytes:
        try:
            return plain_pack(value)
        except struct.error:
            return plain_pack(checked(value))

    return _leaf(checked, int, pack, lambda stored: packer.unpack(stored)[0])


def _via_integer(code: str, to: Callable[[Any], int], back: Callable[[int], Any]) -> Form:
    packer = struct.Struct(code)
    return Form(
        to,
        back,
        direct=True,
        pack=lambda v: packer.pack(to(v)),
        unpack=lambda b: back(packer.unpack(b)[0]),
    )


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a boolean")
    return value


def _float32(value: Any) -> float:
    rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return rounded


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _days(value: dt.date) -> int:
    return value.toordinal() - _DAY_ZERO


def _micros_since(zero: dt.datetime) -> Callable[[dt.datetime], int]:
    def micros(value: dt.datetime) -> int:
        # A naive time for a timestamp is taken as UTC: the worker's own time zone must never decide.
        aware = value.replace(tzinfo=zero.tzinfo) if value.tzinfo is None else value
        return (aware - zero) // _MICROSECOND

    return micros


def _nanos(value: dt.time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1_000


def _time_of(nanos: int) -> dt.time:
    if nanos % 1_000:
        raise ValueError(f"a time of {nanos} nanoseconds is finer than Python's microseconds")
    return (_NTZ_ZERO + nanos // 1_000 * _MICROSECOND).time()


def _decimal(type: pa.DataType) -> Form:
    quantum = Decimal(1).scaleb(-type.scale)
    limit = 10**type.precision

    def unscaled(value: Any) -> int:
        number = int(Decimal(value).quantize(quantum, context=_EXACT).scaleb(type.scale, _EXACT))
        if abs(number) >= limit:
            raise ValueError(f"{value} does not fit in decimal({type.precision},{type.scale})")
        return number

    def scaled(number: int) -> Decimal:
        return Decimal(number).scaleb(-type.scale, _EXACT)

    return Form(
        to_plain=lambda value: str(scaled(unscaled(value))),
        from_plain=Decimal,
        to_cell=Decimal,
        pack=lambda value: unscaled(value).to_bytes(16, "little", signed=True),
        unpack=lambda stored: scaled(int.from_bytes(stored, "little", signed=True)),
    )


def _nullable(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else function(value)


def _struct(type: pa.DataType) -> Form:
    fields = [type.field(i) for i in range(type.num_fields)]
    forms = [form_of(field.type) for field in fields]
    names = [field.name for field in fields]
    to_each = [_nullable(form.to_plain) for form in forms]
    from_each = [_nullable(form.from_plain) for form in forms]
    cell_of = [_nullable(form.to_cell) for form in forms]

    def to_plain(value: Any) -> dict[str, Any]:
        parts = struct_parts(value, names)
        return {name: to(part) for name, to, part in zip(names, to_each, parts, strict=True)}

    def from_plain(value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: back(value.get(name)) for name, back in zip(names, from_each, strict=True)}

    def to_cell(value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: cell(value.get(name)) for name, cell in zip(names, cell_of, strict=True)}

    return Form(to_plain, from_plain, to_cell, direct=all(form.direct for form in forms))


def struct_parts(value: Any, names: list[str]) -> list[Any]:
    """The fields of a struct given as a mapping or as a sequence in field order."""
    if isinstance(value, Mapping):
        if unknown := value.keys() - set(names):
            raise ValueError(f"{sorted(unknown)} are not fields of struct({', '.join(names)})")
        return [value.get(name) for name in names]
    parts = list(value)
    if len(parts) != len(names):
        raise ValueError(f"{value!r} does not have the {len(names)} fields {', '.join(names)}")
    return parts


def _list(type: pa.DataType) -> Form:
    form = form_of(type.value_type)
    to, back, cell = _nullable(form.to_plain), _nullable(form.from_plain), _nullable(form.to_cell)
    return Form(
        lambda value: [to(element) for element in value],
        lambda value: [back(element) for element in value],
        lambda value: [cell(element) for element in value],
        direct=form.direct,
    )


def _map(type: pa.DataType) -> Form:
    keys, items = form_of(type.key_type), form_of(type.item_type)
    to, back, cell = _nullable(items.to_plain), _nullable(items.from_plain), _nullable(items.to_cell)

    def to_plain(value: Any) -> list[tuple[Any, Any]]:
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(keys.to_plain(key), to(item)) for key, item in pairs]

    def from_plain(value: list[tuple[Any, Any]]) -> dict[Any, Any]:
        return {keys.from_plain(key): back(item) for key, item in value}

    def to_cell(value: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return [(keys.to_cell(key), cell(item)) for key, item in value]

    return Form(to_plain, from_plain, to_cell)
