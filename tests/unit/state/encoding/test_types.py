from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError
from holdfast.state.encoding.coercion import fits
from holdfast.state.encoding.types import (
    DAY_TIME,
    TIME,
    VARIANT,
    is_variant,
    parse_schema,
    parse_type,
    relaxed,
    schema_ddl,
    type_ddl,
)


@pytest.mark.parametrize(
    ("ddl", "type"),
    [
        ("boolean", pa.bool_()),
        ("TINYINT", pa.int8()),
        ("smallint", pa.int16()),
        ("Integer", pa.int32()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(20, 4)", pa.decimal128(20, 4)),
        ("varchar(10)", pa.string()),
        ("char(3)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("void", pa.null()),
        ("interval day to second", pa.duration("us")),
        ("INTERVAL HOUR", pa.duration("us")),
        ("interval day to minute", pa.duration("us")),
        ("time", pa.time64("ns")),
        ("time(3)", pa.time64("ns")),
        ("variant", VARIANT),
        ("array<variant>", pa.list_(VARIANT)),
        ("struct<time:time(6),interval:interval day>", pa.struct([("time", TIME), ("interval", DAY_TIME)])),
        ("array<int>", pa.list_(pa.int32())),
        ("map<string, array<long>>", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("struct<a:int,b:string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        (
            "struct<a: int not null, `b c`: date>",
            pa.struct([pa.field("a", pa.int32(), False), ("b c", pa.date32())]),
        ),
    ],
)
def test_spark_types_are_understood(ddl: str, type: pa.DataType) -> None:
    assert parse_type(ddl) == type
    assert parse_type(type_ddl(type)) == type


def test_schemas_keep_order_names_and_nullability() -> None:
    schema = parse_schema("user string not null, `the total` long, tags array<string>")
    assert schema == pa.schema(
        [pa.field("user", pa.string(), False), ("the total", pa.int64()), ("tags", pa.list_(pa.string()))]
    )
    assert parse_schema(schema_ddl(schema)) == schema


@pytest.mark.parametrize(
    ("ddl", "place", "problem"),
    [
        ("strin", 1, "a type expected"),
        ("", 1, "the text ends"),
        ("array<int", 10, "'>' expected"),
        ("array<>", 7, "a type expected"),
        ("struct<a:int,a:long>", 3, "used twice"),
        ("decimal(39,2)", 1, "out of range"),
        ("decimal(5,6)", 1, "out of range"),
        ("int int", 5, "end of the type expected"),
        ("string collate UTF8_LCASE", 8, "collated strings"),
        ("long; drop", 5, "is not expected"),
        ("map<string>", 11, "',' expected"),
        ("interval year to month", 1, "Spark hands no year-month interval to Python"),
        ("struct<a:interval month>", 10, "Spark hands no year-month interval to Python"),
        ("interval", 1, "Spark hands no calendar interval to Python"),
        ("interval second to day", 20, "a smaller unit than 'second' expected"),
        ("geometry(4326)", 1, "Spark hands no geometry to Python"),
        ("time(10)", 1, "out of range"),
    ],
)
def test_a_mistake_is_refused_with_its_place(ddl: str, place: int, problem: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_type(ddl)
    assert problem in str(refused.value)
    if "twice" not in problem:
        assert f"at character {place};" in str(refused.value)


def test_types_that_state_cannot_hold_are_refused_by_name() -> None:
    with pytest.raises(DefinitionError, match="uint8"):
        type_ddl(pa.uint8())


@pytest.mark.parametrize(
    ("ddl", "right", "wrong"),
    [
        ("interval day to second", dt.timedelta(days=-3), 5),
        ("time(6)", dt.time(1, 2, 3, 4), dt.datetime(2024, 1, 1)),
        ("void", None, 0),
        ("variant", {"value": b"", "metadata": b""}, "text"),
    ],
)
def test_python_objects_fit_their_type_or_not(ddl: str, right: object, wrong: object) -> None:
    assert fits(right, parse_type(ddl))
    assert not fits(wrong, parse_type(ddl))


def test_a_variant_is_told_from_a_struct_that_looks_like_it() -> None:
    struct = parse_type("struct<value:binary,metadata:binary>")
    assert struct == VARIANT
    assert (type_ddl(VARIANT), type_ddl(struct)) == ("variant", "struct<value:binary,metadata:binary>")
    assert is_variant(parse_type("variant"))
    assert not is_variant(struct)


def test_every_field_of_a_relaxed_type_may_be_null() -> None:
    strict = parse_type("struct<a:int not null,b:array<struct<c:int not null>>,d:map<string,variant>>")
    loose = "struct<a:int,b:array<struct<c:int>>,d:map<string,variant>>"
    assert type_ddl(relaxed(strict)) == loose
