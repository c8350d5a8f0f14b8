from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError
from holdfast.state.encoding.codec import ValueCodec
from holdfast.state.encoding.types import parse_type


@pytest.mark.parametrize(
    ("ddl", "value", "stored"),
    [
        ("long", None, ""),
        ("long", 258, "0201000000000000"),
        ("int", -1, "ffffffff"),
        ("byte", -1, "ff"),
        ("boolean", True, "01"),
        ("double", 1.0, "000000000000f03f"),
        ("date", dt.date(1970, 1, 2), "01000000"),
        ("timestamp", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "40420f0000000000"),
        ("decimal(5,2)", Decimal("1.00"), "64" + "00" * 15),
        ("interval day to second", dt.timedelta(seconds=-1), "c0bdf0ffffffffff"),
        ("time(6)", dt.time(0, 0, 0, 1), "e803000000000000"),
        ("void", None, ""),
        ("variant", {"value": b"\x0c", "metadata": b"\x01"}, "82a576616c7565c4010ca86d65746164617461c40101"),
        ("array<time(6)>", [dt.time(0, 0, 0, 1)], "91cd03e8"),
        ("array<interval day>", [dt.timedelta(microseconds=5)], "9105"),
        ("string", "", "01"),
        ("string", "hé", "0168c3a9"),
        ("binary", b"\x00", "0100"),
        ("struct<sum:long,count:int>", {"sum": 1, "count": 2}, "03010000000000000002000000"),
        ("struct<sum:long,count:int>", {"sum": None, "count": 2}, "02000000000000000002000000"),
        ("array<int>", [1, None], "9201c0"),
        ("map<string,long>", {"a": 1}, "9192a16101"),
        ("struct<a:string>", {"a": "x"}, "81a161a178"),
        ("array<date>", [dt.date(1970, 1, 2)], "9101"),
        ("array<decimal(5,2)>", [Decimal("1.5")], "91a4312e3530"),
    ],
)
def test_stored_value_bytes_never_change(ddl: str, value: Any, stored: str) -> None:
    codec = ValueCodec(parse_type(ddl))
    assert codec.encode_one(value).hex() == stored
    assert codec.decode_one(bytes.fromhex(stored)) == value
    rows = list(value.items()) if isinstance(value, dict) and ddl.startswith("map") else value
    assert codec.encode(pa.array([rows], codec.type))[0].hex() == stored


def test_nothing_stored_reads_as_null() -> None:
    for ddl in ("long", "boolean", "string", "struct<a:long,b:double>", "array<int>", "decimal(10,2)"):
        codec = ValueCodec(parse_type(ddl))
        assert codec.decode([None, b"", None]).equals(pa.nulls(3, codec.type))
        assert codec.decode([]).equals(pa.array([], codec.type))


def test_a_record_with_more_than_eight_fields_keeps_every_null() -> None:
    type = parse_type("struct<" + ",".join(f"f{i}:int" for i in range(10)) + ">")
    rows = [{f"f{i}": None if i in (0, 8) else i for i in range(10)}, None, {f"f{i}": i for i in range(10)}]
    codec = ValueCodec(type)
    assert codec.decode(codec.encode(pa.array(rows, type))).to_pylist() == rows


def test_null_slots_never_leak_what_lay_under_them() -> None:
    dirty = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\x00"), pa.py_buffer(b"secret!!")])
    record = pa.StructArray.from_arrays([dirty], names=["a"])
    assert ValueCodec(record.type).encode(record) == [b"\x00" + bytes(8)]


def test_null_structs_and_lists_never_leak_what_lay_under_them() -> None:
    codec = ValueCodec(parse_type("struct<a:string,b:array<long>>"))
    fields = [pa.array(["x", "secret"]), pa.array([[1], [2]], pa.list_(pa.int64()))]
    dirty = pa.StructArray.from_arrays(fields, names=["a", "b"], mask=pa.array([False, True]))
    assert codec.encode(dirty) == [codec.encode_one({"a": "x", "b": [1]}), b""]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), dirty, mask=pa.array([True, False]))
    assert ValueCodec(lists.type).encode(lists) == [b"", bytes.fromhex("91c0")]


def test_a_part_of_a_column_is_encoded_alone() -> None:
    type = parse_type("array<struct<at:timestamp,in:map<string,array<date>>>>")
    rows: list[Any] = [
        [{"at": dt.datetime(2024, 1, day, tzinfo=dt.UTC), "in": [("d", [dt.date(1970, 1, day), None])]}, None]
        for day in range(1, 5)
    ]
    codec = ValueCodec(type)
    assert codec.encode(pa.array(rows, type)[1:3]) == [codec.encode_one(row) for row in rows[1:3]]


def test_times_that_python_cannot_hold_are_kept_within_other_values() -> None:
    """Spark's timestamps reach beyond the year 9999, and columns of them pass through no Python object."""
    year_12000 = 316_516_032_000_000_000
    times = pa.array([year_12000], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), times)
    codec = ValueCodec(lists.type)
    assert codec.decode(codec.encode(lists)) == lists


def test_structs_may_be_given_in_field_order() -> None:
    codec = ValueCodec(parse_type("struct<a:int,b:string>"))
    assert codec.encode_one((1, "x")) == codec.encode_one({"a": 1, "b": "x"})


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("int", 2**31),
        ("long", "7"),
        ("long", 1.5),
        ("boolean", 1),
        ("decimal(3,1)", Decimal("100")),
        ("struct<a:int,b:int>", (1,)),
        ("struct<a:int,b:int>", {"a": 1, "c": 2}),
        ("struct<a:string>", {"a": 5}),
        ("array<byte>", [128]),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused(ddl: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        ValueCodec(parse_type(ddl)).encode_one(value)


@pytest.mark.parametrize("ddl", ["long", "struct<a:long,b:long>", "array<int>", "decimal(5,1)"])
def test_bytes_of_another_type_are_refused(ddl: str) -> None:
    with pytest.raises(CorruptionError, match="not of type"):
        ValueCodec(parse_type(ddl)).decode([b"\x93\x01\x02"])


def test_nan_keeps_its_bits() -> None:
    codec = ValueCodec(pa.float64())
    odd = bytes.fromhex("010000000000f8ff")
    assert codec.encode(codec.decode([odd])) == [odd]
    assert math.isnan(codec.decode_one(odd))


def test_a_naive_time_for_a_timestamp_is_utc_whatever_the_machine_says() -> None:
    codec = ValueCodec(parse_type("timestamp"))
    assert codec.encode_one(dt.datetime(2024, 1, 1)) == codec.encode_one(
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    )
