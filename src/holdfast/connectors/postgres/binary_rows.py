"""Arrow tables as the bytes of a binary COPY: whole columns at a time, no row is a Python object.

Binary COPY does no casts: the bytes are those of the column's own type (see `wire_type`).
Always true: a value that the column's type cannot hold is sent as one that the server refuses, never as
another value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
CHUNK_ROWS = 16_384

Numbers = np.ndarray[Any, Any]

_EPOCH_DAYS = 10_957
_EPOCH_US = _EPOCH_DAYS * 86_400_000_000
"""Postgres counts from the year 2000."""

_TEXTS = ("text", "varchar", "bpchar", "citext", "name", "json", "enum")
_WIRE: dict[str, tuple[pa.DataType, tuple[pa.DataType, ...]]] = {
    "bool": (pa.bool_(), (pa.bool_(),)),
    "int2": (pa.int16(), (pa.int8(), pa.int16())),
    "int4": (pa.int32(), (pa.int8(), pa.int16(), pa.int32())),
    "int8": (pa.int64(), (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    "float4": (pa.float32(), (pa.float32(),)),
    "float8": (pa.float64(), (pa.float32(), pa.float64())),
    "date": (pa.date32(), (pa.date32(),)),
    "bytea": (pa.large_binary(), (pa.binary(), pa.large_binary())),
    "jsonb": (pa.large_binary(), (pa.string(), pa.large_string())),
    **{name: (pa.large_binary(), (pa.string(), pa.large_string())) for name in _TEXTS},
}
"""Postgres type -> the Arrow type that is sent, and those that it takes."""


def takes(kind: str, given: pa.DataType) -> bool:
    """Whether a column of a Postgres type holds every value of an Arrow type, but for extremes that the
    server refuses."""
    if pa.types.is_timestamp(given):
        return kind == ("timestamp" if given.tz is None else "timestamptz")
    if pa.types.is_decimal(given):
        return kind == "numeric"
    return kind in _WIRE and given in _WIRE[kind][1]


def binary_chunks(table: pa.Table, kinds: Sequence[str]) -> Iterator[memoryview]:
    """The rows, without header and trailer. `kinds` are the Postgres types of the columns."""
    for start in range(0, table.num_rows, CHUNK_ROWS):
        piece = table.slice(start, CHUNK_ROWS).combine_chunks()
        columns = [_column(piece.column(i), kind) for i, kind in enumerate(kinds)]
        yield _interleaved(columns, piece.num_rows)


@dataclass(frozen=True)
class _Column:
    """`lengths` are those of the values, -1 for null. `values`: numbers, one for each row; or bytes, none
    for a null."""

    lengths: Numbers | int
    values: Numbers | pa.LargeBinaryArray


def _interleaved(columns: Sequence[_Column], rows: int) -> memoryview:
    """Row after row. What has the same width in all rows lies side by side in one array; bytes of any length
    are joined between such arrays by Arrow."""
    pieces: list[pa.LargeBinaryArray] = []
    beside: list[tuple[np.dtype[Any], Numbers | int]] = [(np.dtype(">i2"), len(columns))]
    for column in columns:
        beside.append((np.dtype(">i4"), column.lengths))
        if isinstance(column.values, np.ndarray):
            beside.append((column.values.dtype.newbyteorder(">"), column.values))
        else:
            pieces += [_side_by_side(beside, rows), column.values]
            beside = []
    if beside:
        pieces.append(_side_by_side(beside, rows))
    joined = pieces[0]
    if len(pieces) > 1:
        joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    return memoryview(joined.buffers()[2])


def _side_by_side(fields: Sequence[tuple[np.dtype[Any], Numbers | int]], rows: int) -> pa.LargeBinaryArray:
    """The bytes of some fields of each row."""
    packed = _packed(fields, rows)
    return _bytes_array(np.arange(rows + 1) * packed.itemsize, packed)


def _packed(fields: Sequence[tuple[np.dtype[Any], Numbers | int]], rows: int) -> Numbers:
    packed = np.empty(rows, [(str(place), kind) for place, (kind, _) in enumerate(fields)])
    for place, (_, values) in enumerate(fields):
        packed[str(place)] = values
    return packed


def _bytes_array(ends: Numbers, data: Numbers) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers)


def _column(values: pa.ChunkedArray, kind: str) -> _Column:
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if kind == "numeric":
        if (small := _small_decimals(array)) is not None:
            return _fixed(small, array)
        array = pa.array(
            [None if each is None else _numeric(each) for each in array.to_pylist()], pa.large_binary()
        )
        return _variable(array)
    if kind in _WIRE and _WIRE[kind][0] == pa.large_binary():
        if kind == "jsonb":
            array = pc.binary_join_element_wise(
                pa.scalar(b"\x01", pa.large_binary()), _bytes_of(array), pa.scalar(b"", pa.large_binary())
            )
        return _variable(_bytes_of(array))
    return _fixed(_numbers(array, kind), array)


def _numbers(array: pa.Array, kind: str) -> Numbers:
    """As the server counts."""
    if kind in ("timestamp", "timestamptz"):
        given = _filled(array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64()), 0)
        # What would wrap around becomes the lowest number that is no infinity: the server refuses it.
        low = np.iinfo(np.int64).min
        return np.maximum(given, low + 1 + _EPOCH_US) - _EPOCH_US
    if kind == "date":
        days = _filled(array.view(pa.int32()), 0).astype(np.int64) - _EPOCH_DAYS
        return np.maximum(days, np.iinfo(np.int32).min + 1).astype(np.int32)
    if kind == "bool":
        return _filled(array, False).astype(np.uint8)
    return _filled(array.cast(_WIRE[kind][0]), 0)


def _filled(array: pa.Array, blank: object) -> Numbers:
    filled = array.fill_null(blank) if array.null_count else array
    found: Numbers = filled.to_numpy(zero_copy_only=False)
    return found


def _fixed(numbers: Numbers, array: pa.Array) -> _Column:
    width = numbers.dtype.itemsize
    if not array.null_count:
        return _Column(width, numbers)
    valid = np.asarray(array.is_valid())
    ends = np.concatenate([[0], np.cumsum(valid) * width])
    sent = numbers[valid].astype(numbers.dtype.newbyteorder(">"))
    return _Column(np.where(valid, width, -1), _bytes_array(ends, sent))


def _bytes_of(array: pa.Array) -> pa.LargeBinaryArray:
    return (
        array.cast(pa.binary()).cast(pa.large_binary())
        if array.type == pa.string()
        else array.cast(pa.large_binary())
    )


def _variable(array: pa.LargeBinaryArray) -> _Column:
    lengths = pc.binary_length(array)
    if not array.null_count:
        return _Column(lengths.to_numpy(), array)
    return _Column(lengths.fill_null(-1).to_numpy(), array.fill_null(b""))


def _small_decimals(array: pa.Decimal128Array) -> Numbers | None:
    """Decimals whose digits fit into 64 bits, as the server has them: all with as many digits to the base of
    10,000 as the longest. It strips zeros by itself. None: they do not fit."""
    scale = array.type.scale
    if array.type.bit_width != 128 or scale < 0:
        return None
    after = -(-scale // 4)
    raised = 10 ** (after * 4 - scale)
    array = array.fill_null(0) if array.null_count else array
    words = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset)
    number, above = words[::2], words[1::2]
    most = np.iinfo(np.int64).max // raised
    if (above != number >> 63).any() or (number < -most).any() or (number > most).any():
        return None
    rest: Numbers = np.abs(number) * raised
    groups: list[Numbers] = []
    while rest.any():
        rest, low = np.divmod(rest, 10_000)
        groups.insert(0, low)
    head = (len(groups), len(groups) - after - 1, np.where(number < 0, 0x4000, 0), scale)
    return _packed([(np.dtype(np.int16), values) for values in (*head, *groups)], len(array))


def _numeric(value: Decimal) -> bytes:
    """A sign, a weight and digits to the base of 10,000."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    number = int("".join(map(str, digits)) or "0") * 10 ** max(0, exponent)
    whole, rest = divmod(number, 10**scale)
    after = -(-scale // 4)
    rest *= 10 ** (after * 4 - scale)
    groups = [*_groups(whole), *[rest // 10000 ** (after - 1 - i) % 10000 for i in range(after)]]
    weight = len(groups) - after - 1
    while groups and not groups[0]:
        groups.pop(0)
        weight -= 1
    while groups and not groups[-1]:
        groups.pop()
    head = struct.pack(">hhHh", len(groups), weight if groups else 0, 0x4000 if sign else 0, scale)
    return head + struct.pack(f">{len(groups)}h", *groups)


def _groups(whole: int) -> list[int]:
    found: list[int] = []
    while whole:
        whole, low = divmod(whole, 10000)
        found.insert(0, low)
    return found
