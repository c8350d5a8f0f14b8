"""How one value of a key is written as bytes, by type.

Every value starts with a tag, 0x00 for null (and nothing more) or 0x01, then: numbers, booleans, dates,
times, timestamps and intervals as 8 bytes that sort as the value does; decimals as 16; strings and binary as
length (4, big-endian) and bytes; structs as their fields; arrays as count (4, big-endian) and elements. Each
form ends where it says, so none is a prefix of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from itertools import pairwise
from operator import add
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.encoding.routing import canonical_doubles

ABSENT = 0x00
PRESENT = 0x01
FIXED_BYTES = 9
"""A tag and eight bytes."""
FIXED_TEXT_BYTES = 5
"""What a string has besides its own bytes: a tag and a length."""

Reader: TypeAlias = Callable[[bytes, int], tuple[object, int]]
"""Reads the value that starts at a place: the value in its plain form, and the place after it."""

Words: TypeAlias = npt.NDArray[np.uint64]

_NULL = bytes([ABSENT])
_SIGN = np.uint64(1 << 63)
_DECIMAL_SIGN = 1 << 127
_EXACT = Context(prec=77)
_TAGGED_WORD = np.dtype([("tag", "u1"), ("word", ">u8")])
_TAGGED_LENGTH = np.dtype([("tag", "u1"), ("length", ">u4")])


def is_fixed(type: pa.DataType) -> bool:
    """Whether a value of this type, when not null, takes exactly `FIXED_BYTES`."""
    return bool(
        pa.types.is_integer(type)
        or pa.types.is_boolean(type)
        or pa.types.is_floating(type)
        or pa.types.is_date(type)
        or pa.types.is_timestamp(type)
        or pa.types.is_duration(type)
        or pa.types.is_time64(type)
    )


def is_text(type: pa.DataType) -> bool:
    """Whether values are written as length and bytes."""
    return bool(pa.types.is_string(type) or pa.types.is_binary(type))


def ordered_words(column: pa.Array) -> Words:
    """Values of a fixed type as unsigned numbers that sort as the values do; nulls come out as anything."""
    type = column.type
    if pa.types.is_floating(type):
        doubles = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        bits = canonical_doubles(doubles).view(np.uint64)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN)
    if pa.types.is_date(type):
        column = column.cast(pa.int32())
    longs = column.cast(pa.int64())
    numbers = np.frombuffer(longs.buffers()[1], np.uint64, longs.offset + len(longs))[longs.offset :]
    return numbers ^ _SIGN


def words_to_array(words: Words, type: pa.DataType) -> pa.Array:
    """The inverse of `ordered_words`."""
    if pa.types.is_floating(type):
        bits = np.where(words & _SIGN, words ^ _SIGN, ~words)
        return pa.array(bits.view(np.float64)).cast(type)
    return _of_longs(pa.array((words ^ _SIGN).view(np.int64)), type)


def encode_column(column: pa.Array) -> list[bytes]:
    """The bytes of every value, tag first."""
    encoded = _encode_present(column)
    if column.null_count:
        valid = column.is_valid().to_pylist()
        return [value if present else _NULL for value, present in zip(encoded, valid, strict=True)]
    return encoded


def _encode_present(column: pa.Array) -> list[bytes]:
    type = column.type
    if pa.types.is_null(type):
        return [_NULL] * len(column)
    if is_fixed(type):
        words = np.full(len(column), PRESENT, dtype=_TAGGED_WORD)
        words["tag"] = PRESENT
        words["word"] = ordered_words(column)
        encoded: list[bytes] = words.view(f"V{_TAGGED_WORD.itemsize}").tolist()
        return encoded
    if is_text(type):
        texts = column.cast(pa.binary()).fill_null(b"").to_pylist()
        return list(map(add, _tagged([*map(len, texts)]), texts))
    if pa.types.is_decimal(type):
        return _encode_decimals(column)
    if pa.types.is_struct(type):
        children = [encode_column(child) for child in column.flatten()]
        tags = [bytes([PRESENT])] * len(column)
        return list(map(b"".join, zip(tags, *children, strict=True)))
    elements = encode_column(column.values)
    offsets = column.offsets.to_pylist()
    counts = [end - start for start, end in pairwise(offsets)]
    return [
        head + b"".join(elements[start : start + count])
        for head, start, count in zip(_tagged(counts), offsets, counts, strict=False)
    ]


def _tagged(lengths: list[int]) -> list[bytes]:
    heads = np.empty(len(lengths), dtype=_TAGGED_LENGTH)
    heads["tag"] = PRESENT
    heads["length"] = lengths
    encoded: list[bytes] = heads.view(f"V{_TAGGED_LENGTH.itemsize}").tolist()
    return encoded


def _encode_decimals(column: pa.Array) -> list[bytes]:
    # Counted: the buffer of an empty column may hold some bytes all the same.
    end = column.offset + len(column)
    words = np.frombuffer(column.buffers()[1], np.uint8, 16 * end).reshape(-1, 16)[column.offset :]
    rows = np.empty((len(column), 17), dtype=np.uint8)
    rows[:, 0] = PRESENT
    rows[:, 1:] = words[:, ::-1]
    rows[:, 1] ^= 0x80
    encoded: list[bytes] = rows.view("V17").ravel().tolist()
    return encoded


def reader(type: pa.DataType) -> Reader:
    """What reads a value of this type back: dates and times as integers, the rest as Python objects."""
    read = _present_reader(type)

    def read_nullable(data: bytes, place: int) -> tuple[object, int]:
        tag = data[place]
        if tag == ABSENT:
            return None, place + 1
        if tag != PRESENT:
            raise ValueError(f"tag {tag}")
        return read(data, place + 1)

    return read_nullable


def _present_reader(type: pa.DataType) -> Reader:
    if pa.types.is_floating(type):
        return _read_double
    if pa.types.is_boolean(type):
        return lambda data, place: (bool(_unsigned(data, place, 8) - (1 << 63)), place + 8)
    if is_fixed(type):
        return lambda data, place: (_unsigned(data, place, 8) - (1 << 63), place + 8)
    if pa.types.is_decimal(type):
        scale = type.scale
        return lambda data, place: (
            Decimal(_unsigned(data, place, 16) - _DECIMAL_SIGN).scaleb(-scale, _EXACT),
            place + 16,
        )
    if pa.types.is_struct(type):
        return _struct_reader(type)
    if pa.types.is_list(type):
        return _list_reader(type)
    return _string_reader(pa.types.is_string(type))


def _unsigned(data: bytes, place: int, size: int) -> int:
    if place + size > len(data):
        raise ValueError("the bytes end too early")
    return int.from_bytes(data[place : place + size], "big")


def _read_double(data: bytes, place: int) -> tuple[object, int]:
    word = np.array([_unsigned(data, place, 8)], dtype=np.uint64)
    return words_to_array(word, pa.float64())[0].as_py(), place + 8


def _string_reader(text: bool) -> Reader:
    def read(data: bytes, place: int) -> tuple[object, int]:
        start = place + 4
        end = start + _unsigned(data, place, 4)
        if end > len(data):
            raise ValueError("the bytes end too early")
        value = data[start:end]
        return (value.decode() if text else value), end

    return read


def _struct_reader(type: pa.DataType) -> Reader:
    fields = [(type.field(i).name, reader(type.field(i).type)) for i in range(type.num_fields)]

    def read(data: bytes, place: int) -> tuple[object, int]:
        value = {}
        for name, read_field in fields:
            value[name], place = read_field(data, place)
        return value, place

    return read


def _list_reader(type: pa.DataType) -> Reader:
    read_element = reader(type.value_type)

    def read(data: bytes, place: int) -> tuple[object, int]:
        count, place = _unsigned(data, place, 4), place + 4
        value = []
        for _ in range(count):
            element, place = read_element(data, place)
            value.append(element)
        return value, place

    return read


def arrays_of(schema: pa.Schema, rows: Sequence[Sequence[object]]) -> list[pa.Array]:
    """Columns of a schema from rows of plain forms."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return [pa.array(list(column), type=field.type) for column, field in zip(columns, schema, strict=True)]


def _of_longs(longs: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_date(type):
        return longs.cast(pa.int32()).cast(type)
    return longs.cast(type)
