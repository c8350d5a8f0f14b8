from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError
from holdfast.state.types import parse_schema, parse_type, schema_ddl, type_ddl


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
