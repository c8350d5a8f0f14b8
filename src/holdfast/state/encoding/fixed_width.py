"""Fixed-width values as numpy cells, and structs of them as packed records.

A record is one bit per field (1 = not null, field 0 in the lowest bit of the first byte), then every field
little-endian at its own width, zeros for null. This is the accumulator of `aggregate`, so it never touches
single values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.encoding.msgpack_forms import form_of, struct_parts

_FORMATS: dict[pa.DataType, str] = {
    pa.bool_(): "u1",
    pa.int8(): "i1",
    pa.int16(): "<i2",
    pa.int32(): "<i4",
    pa.int64(): "<i8",
    pa.float32(): "<f4",
    pa.float64(): "<f8",
    pa.date32(): "<i4",
}


def fixed_format(type: pa.DataType) -> str | None:
    """The numpy format of a fixed-width type; None for others."""
    if pa.types.is_timestamp(type) or pa.types.is_duration(type) or pa.types.is_time64(type):
        return "<i8"
    if pa.types.is_decimal128(type):
        return "V16"
    return _FORMATS.get(type)


def fixed_width_bytes(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The cells of a fixed-width column, nulls as zeros. May share memory with it: do not write to them."""
    source = array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array
    cells = np.frombuffer(source.buffers()[1], dtype=dtype, count=len(source) + source.offset)[
        source.offset :
    ]
    if source.null_count:
        cells = cells.copy()
        cells[source.is_null().to_numpy(zero_copy_only=False)] = np.zeros(1, dtype)[0]
    return cells


def fixed_width_array(
    cells: npt.NDArray[Any], type: pa.DataType, valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """The column of some cells; `valid` says which are not null (None: all)."""
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = (
        np.packbits(cells != 0, bitorder="little")
        if pa.types.is_boolean(type)
        else np.ascontiguousarray(cells)
    )
    return pa.Array.from_buffers(type, len(cells), [bitmap, pa.py_buffer(data.view(np.uint8))])


def filled(stored: Sequence[bytes | None], blank: bytes) -> tuple[bytes, npt.NDArray[np.bool_] | None]:
    """All stored values end to end, `blank` for nulls; and which were not null (None: all)."""
    if all(stored):
        return b"".join(stored), None  # type: ignore[arg-type]
    valid = np.fromiter(map(bool, stored), np.bool_, len(stored))
    return b"".join([value or blank for value in stored]), valid


def split(cells: npt.NDArray[Any], array: pa.Array) -> list[bytes]:
    """The cells of a column one by one, nothing for nulls: what `filled` puts together."""
    stored: list[bytes] = cells.view(f"V{cells.dtype.itemsize}").tolist()
    if array.null_count:
        valid = array.is_valid().to_pylist()
        return [value if present else b"" for value, present in zip(stored, valid, strict=True)]
    return stored


class RecordForm:
    """Structs whose fields are all of fixed width."""

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.fields = [type.field(i) for i in range(type.num_fields)]
        self.bitmap_bytes = (len(self.fields) + 7) // 8
        formats = [fixed_format(field.type) for field in self.fields]
        cells: list[Any] = [(f"f{i}", format) for i, format in enumerate(formats)]
        self.dtype = np.dtype([("valid", "u1", (self.bitmap_bytes,)), *cells])
        self.blank = bytes(self.dtype.itemsize)
        self.all_valid = np.packbits(np.ones(len(self.fields), np.bool_), bitorder="little")
        self.forms = [form_of(field.type) for field in self.fields]
        self.names = [field.name for field in self.fields]
        self.places = [self.dtype.fields[f"f{i}"][1] for i in range(len(self.fields))]  # type: ignore[index]
        self.widths = [self.dtype[f"f{i}"].itemsize for i in range(len(self.fields))]

    def encode(self, array: pa.Array) -> list[bytes]:
        records = np.empty(len(array), self.dtype)
        records["valid"] = self.all_valid
        for i in range(len(self.fields)):
            column = array.field(i)
            records[f"f{i}"] = fixed_width_bytes(column, self.dtype[f"f{i}"])
            if column.null_count:
                rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
                records["valid"][rows, i // 8] &= ~np.uint8(1 << i % 8)
        return split(records, array)

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        data, valid = filled(stored, self.blank)
        if len(data) != len(stored) * self.dtype.itemsize:
            raise ValueError(f"records are not {self.dtype.itemsize} bytes each")
        records = np.frombuffer(data, self.dtype)
        columns = []
        for i, field in enumerate(self.fields):
            present = (records["valid"][:, i // 8] >> (i % 8)) & 1
            mask = None if present.all() else present.astype(np.bool_)
            columns.append(fixed_width_array(records[f"f{i}"], field.type, mask))
        nulls = None if valid is None else pa.array(~valid)
        return pa.StructArray.from_arrays(columns, fields=self.fields, mask=nulls)

    def encode_one(self, value: Any) -> bytes:
        if value is None:
            return b""
        bits, cells = 0, []
        for i, part in enumerate(struct_parts(value, self.names)):
            if part is None:
                cells.append(bytes(self.widths[i]))
            else:
                bits |= 1 << i
                cells.append(self.forms[i].pack(part))
        return bits.to_bytes(self.bitmap_bytes, "little") + b"".join(cells)

    def decode_one(self, stored: bytes) -> Any:
        if not stored:
            return None
        bits = int.from_bytes(stored[: self.bitmap_bytes], "little")
        return {
            name: form.unpack(stored[place : place + width]) if bits >> i & 1 else None
            for i, (name, form, place, width) in enumerate(
                zip(self.names, self.forms, self.places, self.widths, strict=True)
            )
        }
