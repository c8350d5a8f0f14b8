"""Arrow tables as the bytes of a binary COPY: whole columns at a time, no row is a Python object.

Binary COPY does no casts: the bytes are those of the column's own type (see `wire_type`).
Always true: a value that the column's type cannot hold is sent as one that the server refuses, never as
another value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
CHUNK_ROWS = 16_384

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


def binary_chunks(table: pa.Table, kinds: Sequence[str]) -> Iterator[bytes]:
    """The rows, without header and trailer. `kinds` are the Postgres types of the columns."""
    for start in range(0, table.num_rows, CHUNK_ROWS):
        piece = table.slice(start, CHUNK_ROWS).combine_chunks()
        columns = [_column(piece.column(i), kind) for i, kind in enumerate(kinds)]
        yield _interleaved(columns, piece.num_rows)


class _Column:
    """`lengths` are those of the values, -1 for null; `put` writes the values to where they begin."""

    def __init__(self, lengths: np.ndarray[Any, Any], put: Callable[[Any, Any], None]) -> None:
        self.lengths, self.put = lengths, put


def _interleaved(columns: Sequence[_Column], rows: int) -> bytes:
    sizes = np.full(rows, 2 + 4 * len(columns), np.int64)
    for column in columns:
        sizes += np.maximum(column.lengths, 0)
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if rows else 0, np.uint8)
    place = ends - sizes
    out[place], out[place + 1] = len(columns) >> 8, len(columns) & 255
    place += 2
    for column in columns:
        _scatter(out, place, column.lengths.astype(">i4"))
        place += 4
        column.put(out, place)
        place += np.maximum(column.lengths, 0)
    return out.tobytes()


def _scatter(out: np.ndarray[Any, Any], place: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    """Fixed-width values to their places."""
    width = values.dtype.itemsize
    given = values.view(np.uint8).reshape(len(values), width)
    for byte in range(width):
        out[place + byte] = given[:, byte]


def _column(values: pa.ChunkedArray, kind: str) -> _Column:
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    valid = np.asarray(array.is_valid())
    if kind == "numeric":
        array = pa.array(
            [None if each is None else _numeric(each) for each in array.to_pylist()], pa.large_binary()
        )
        return _variable(array, valid)
    if kind in _WIRE and _WIRE[kind][0] == pa.large_binary():
        if kind == "jsonb":
            array = pc.binary_join_element_wise(
                pa.scalar(b"\x01", pa.large_binary()), _bytes_of(array), pa.scalar(b"", pa.large_binary())
            )
        return _variable(_bytes_of(array), valid)
    return _fixed(_numbers(array, kind), valid)


def _numbers(array: pa.Array, kind: str) -> Any:
    """Big-endian, as the server counts."""
    if kind in ("timestamp", "timestamptz"):
        given = pc.fill_null(array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64()), 0).to_numpy()
        # What would wrap around becomes the lowest number that is no infinity: the server refuses it.
        low = np.iinfo(np.int64).min
        return np.where(given < low + 1 + _EPOCH_US, low + 1, given - _EPOCH_US).astype(">i8")
    if kind == "date":
        days = pc.fill_null(array.view(pa.int32()), 0).to_numpy().astype(np.int64) - _EPOCH_DAYS
        return np.maximum(days, np.iinfo(np.int32).min + 1).astype(">i4")
    sent = array.cast(_WIRE[kind][0])
    if kind == "bool":
        return pc.fill_null(sent, False).to_numpy(zero_copy_only=False).astype(np.uint8)
    found = pc.fill_null(sent, 0).to_numpy(zero_copy_only=False)
    return found.astype(found.dtype.newbyteorder(">"))


def _fixed(numbers: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> _Column:
    lengths = np.where(valid, numbers.dtype.itemsize, -1)

    def put(out: np.ndarray[Any, Any], place: np.ndarray[Any, Any]) -> None:
        whole = bool(valid.all())
        _scatter(out, place if whole else place[valid], numbers if whole else numbers[valid])

    return _Column(lengths, put)


def _bytes_of(array: pa.Array) -> pa.Array:
    return (
        array.cast(pa.binary()).cast(pa.large_binary())
        if array.type == pa.string()
        else array.cast(pa.large_binary())
    )


def _variable(array: pa.Array, valid: np.ndarray[Any, Any]) -> _Column:
    filled = pc.fill_null(array, b"")
    _, offsets, data = filled.buffers()
    ends = np.frombuffer(offsets, np.int64, len(filled) + 1, filled.offset * 8)
    sizes = np.diff(ends)

    def put(out: np.ndarray[Any, Any], place: np.ndarray[Any, Any]) -> None:
        if data is None or ends[-1] == ends[0]:
            return
        source = np.frombuffer(data, np.uint8, int(ends[-1] - ends[0]), int(ends[0]))
        out[np.repeat(place - (ends[:-1] - ends[0]), sizes) + np.arange(len(source))] = source

    return _Column(np.where(valid, sizes, -1), put)


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
