"""Values of state as bytes, by declared type.

    null                              b""
    number, boolean, date, time, timestamp, interval, decimal     the value, little-endian, at its own width
    struct of such fields             one bit per field (1 = not null), then the fields, nulls as zeros
    string, binary                    0x01, then the bytes
    everything else                   msgpack of the plain form (see msgpack_forms, plain_columns)

Always true: `decode(encode(a))` equals `a`, to the last bit of a NaN; `encode_one` gives the bytes that
`encode` gives.
Never here: pickle, or anything else that runs code when read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptionError
from holdfast.state.encoding.fixed_width import (
    RecordForm,
    filled,
    fixed_format,
    fixed_width_array,
    fixed_width_bytes,
    split,
)
from holdfast.state.encoding.msgpack_forms import Form, form_of
from holdfast.state.encoding.plain_columns import plain_values
from holdfast.state.encoding.types import type_ddl

_TEXT_TAG = b"\x01"


class ValueCodec:
    """Turns values of one type into bytes and back, whole columns at a time or one by one."""

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self._form = _form(type)
        self.encode_one = self._form.encode_one
        """The bytes of one Python object (`None` gives b""). Structs: a mapping, or fields in order."""
        self.decode_one = self._form.decode_one
        """The Python object of some bytes: structs and maps as dict, arrays as list, decimals as Decimal."""

    def encode(self, values: pa.Array) -> list[bytes]:
        """The bytes of every value."""
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return self._form.encode(array if array.type == self.type else array.cast(self.type))

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        """The values of some bytes, aligned; `None` (nothing stored) and b"" both give null."""
        try:
            return self._form.decode(stored)
        except (ValueError, pa.ArrowException, msgspec.MsgspecError) as cause:
            raise CorruptionError(f"stored state is not of type {type_ddl(self.type)}: {cause}") from cause


class _Form(Protocol):
    def encode(self, array: pa.Array) -> list[bytes]: ...
    def decode(self, stored: Sequence[bytes | None]) -> pa.Array: ...
    def encode_one(self, value: Any) -> bytes: ...
    def decode_one(self, stored: bytes) -> Any: ...


def _form(type: pa.DataType) -> _Form:
    type_ddl(type)
    if fixed_format(type) is not None:
        return _FixedForm(type)
    if pa.types.is_struct(type) and all(fixed_format(type.field(i).type) for i in range(type.num_fields)):
        return RecordForm(type)
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return _TextForm(type)
    return _MsgpackForm(type)


class _FixedForm:
    def __init__(self, type: pa.DataType) -> None:
        format = fixed_format(type)
        assert format is not None
        self.type, self.dtype = type, np.dtype(format)
        self.plain = form_of(type)
        self.blank = bytes(self.dtype.itemsize)

    def encode(self, array: pa.Array) -> list[bytes]:
        return split(fixed_width_bytes(array, self.dtype), array)

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        data, valid = filled(stored, self.blank)
        if len(data) != len(stored) * self.dtype.itemsize:
            raise ValueError(f"values are not {self.dtype.itemsize} bytes each")
        return fixed_width_array(np.frombuffer(data, self.dtype), self.type, valid)

    def encode_one(self, value: Any) -> bytes:
        return b"" if value is None else self.plain.pack(value)

    def decode_one(self, stored: bytes) -> Any:
        return self.plain.unpack(stored) if stored else None


class _TextForm:
    def __init__(self, type: pa.DataType) -> None:
        self.type, self.text = type, pa.types.is_string(type)

    def encode(self, array: pa.Array) -> list[bytes]:
        values = array.cast(pa.binary()).to_pylist()
        return [b"" if value is None else _TEXT_TAG + value for value in values]

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        values = [value[1:] if value else None for value in stored]
        return pa.array(values, pa.binary()).cast(self.type)

    def encode_one(self, value: Any) -> bytes:
        if value is None:
            return b""
        return _TEXT_TAG + (value.encode() if self.text else bytes(value))

    def decode_one(self, stored: bytes) -> Any:
        if not stored:
            return None
        return stored[1:].decode() if self.text else stored[1:]


class _MsgpackForm:
    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.plain: Form = form_of(type)
        self.encoder = msgspec.msgpack.Encoder()
        self.decoder = msgspec.msgpack.Decoder()

    def encode(self, array: pa.Array) -> list[bytes]:
        write = self.encoder.encode
        return [b"" if value is None else write(value) for value in plain_values(array)]

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        read, to_cell = self.decoder.decode, self.plain.to_cell
        plain = [read(value) if value else None for value in stored]
        if self.plain.direct:
            return pa.array(plain, self.type)
        return pa.array([None if value is None else to_cell(value) for value in plain], self.type)

    def encode_one(self, value: Any) -> bytes:
        return b"" if value is None else self.encoder.encode(self.plain.to_plain(value))

    def decode_one(self, stored: bytes) -> Any:
        return self.plain.from_plain(self.decoder.decode(stored)) if stored else None
