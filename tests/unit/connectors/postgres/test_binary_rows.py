"""The bytes of a binary COPY: read back here as the server reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.postgres.binary_rows import CHUNK_ROWS, binary_chunks

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def numeric(data: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from(">hhHh", data)
    digits = struct.unpack_from(f">{count}h", data, 8)
    assert len(data) == 8 + 2 * count
    assert all(0 <= digit < 10_000 for digit in digits)
    with localcontext(prec=100):
        value = sum((Decimal(10_000) ** (weight - i) * each for i, each in enumerate(digits)), Decimal())
        return (-value if sign else value).quantize(Decimal(1).scaleb(-scale))


READ: dict[str, Callable[[bytes], Any]] = {
    "bool": lambda data: struct.unpack(">?", data)[0],
    "int2": lambda data: struct.unpack(">h", data)[0],
    "int4": lambda data: struct.unpack(">i", data)[0],
    "int8": lambda data: struct.unpack(">q", data)[0],
    "float8": lambda data: struct.unpack(">d", data)[0],
    "date": lambda data: EPOCH.date() + timedelta(days=struct.unpack(">i", data)[0]),
    "timestamptz": lambda data: EPOCH + timedelta(microseconds=struct.unpack(">q", data)[0]),
    "text": lambda data: data.decode(),
    "jsonb": lambda data: data.removeprefix(b"\x01").decode(),
    "bytea": bytes,
    "numeric": numeric,
}


def rows_in(table: pa.Table, kinds: list[str]) -> list[list[Any]]:
    data, rows, at = b"".join(binary_chunks(table, kinds)), [], 0
    while at < len(data):
        (columns,) = struct.unpack_from(">h", data, at)
        assert columns == len(kinds)
        row, at = [], at + 2
        for kind in kinds:
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if length < 0 else READ[kind](data[at : at + length]))
            at += max(0, length)
        rows.append(row)
    return rows


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int2": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "int4": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int8": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float8": (pa.float64(), st.floats(allow_nan=False)),
    "date": (pa.date32(), st.dates()),
    "timestamptz": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "text": (pa.string(), st.text()),
    "jsonb": (pa.string(), st.text()),
    "bytea": (pa.binary(), st.binary()),
}


@given(st.data())
@settings(deadline=None)
def test_every_value_comes_back(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    count = data.draw(st.integers(0, 6))
    columns = []
    for kind in kinds:
        type, values = KINDS[kind]
        drawn = st.lists(st.none() | values, min_size=count + 1, max_size=count + 1)
        # A slice: its buffers begin before its values.
        columns.append(pa.array(data.draw(drawn), type).slice(1))
    table = pa.table(columns, names=[f"c{i}" for i in range(len(kinds))])
    assert rows_in(table, kinds) == [list(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("type", [pa.decimal128(18, 0), pa.decimal128(38, 10), pa.decimal128(9, 9)], ids=str)
@given(st.data())
@settings(deadline=None)
def test_decimals_come_back_whether_or_not_they_fit_into_64_bits(
    type: pa.Decimal128Type, data: st.DataObject
) -> None:
    most = 10**type.precision - 1
    numbers = st.integers(-most, most) | st.integers(-99_999, 99_999) | st.none()
    with localcontext(prec=100):
        values = [
            None if each is None else Decimal(each).scaleb(-type.scale)
            for each in data.draw(st.lists(numbers, min_size=1))
        ]
        column = pa.array(values, type)
    assert rows_in(pa.table({"d": column.slice(1)}), ["numeric"]) == [[each] for each in values[1:]]


def test_rows_of_several_chunks_stay_in_their_order() -> None:
    count = CHUNK_ROWS + 3
    table = pa.table({"n": pa.array(range(count)), "t": pa.array(str(n) for n in range(count))})
    assert rows_in(table, ["int8", "text"]) == [[n, str(n)] for n in range(count)]


def test_what_a_type_cannot_hold_is_sent_as_what_the_server_refuses() -> None:
    lowest = pa.table({"at": pa.array([-(2**63)]).cast(pa.timestamp("us")), "d": [date.min]})
    data = b"".join(binary_chunks(lowest, ["timestamp", "date"]))
    assert struct.unpack_from(">q", data, 6) == (1 - 2**63,)
