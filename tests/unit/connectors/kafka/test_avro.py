"""Avro schemas as Spark's types, and bytes that are no Avro."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from holdfast.connectors.kafka.avro import AvroValues, record_type
from holdfast.errors import DefinitionError


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": type} for name, type in fields]}


def written(schema: Any, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


INNER = {"type": "record", "name": "inner", "fields": [{"name": "x", "type": "double"}]}
SCHEMA = record(
    ("n", "long"), ("who", ["null", "string"]), ("tags", {"type": "array", "items": "string"}),
    ("scores", {"type": "map", "values": "int"}), ("in", INNER), ("raw", "bytes"),
    ("kind", {"type": "enum", "name": "k", "symbols": ["A", "B"]}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("id", {"type": "string", "logicalType": "uuid"}),
)  # fmt: skip
ROW = {
    "n": 7, "who": None, "tags": ["a"], "scores": {"s": 1}, "in": {"x": 1.5}, "raw": b"\xff", "kind": "B",
    "at": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), "day": date(2026, 1, 2), "price": Decimal("12.34"),
    "id": "00000000-0000-0000-0000-000000000001",
}  # fmt: skip


def test_a_record_is_a_struct() -> None:
    ddl, arrow = record_type(SCHEMA)
    assert ddl == (
        "struct<`n`:bigint,`who`:string,`tags`:array<string>,`scores`:map<string,int>,"
        "`in`:struct<`x`:double>,`raw`:binary,`kind`:string,`at`:timestamp,`day`:date,`price`:decimal(9,2),`id`:string>"
    )
    assert arrow.num_fields == 11


def test_values_are_read_and_what_is_none_is_told_with_its_reason() -> None:
    good = written(SCHEMA, ROW)
    values, raw, reasons = (
        array for _, array in AvroValues(json.dumps(SCHEMA))([good, None, good[:3], good + b"x"])
    )
    read = values.to_pylist()
    assert {**read[0], "scores": dict(read[0]["scores"])} == ROW
    assert read[1:] == [None, None, None]
    assert raw.to_pylist() == [None, None, good[:3], good + b"x"]
    told = reasons.to_pylist()
    assert told[:2] == [None, None]
    assert "no Avro of the schema" in told[2]
    assert "1 bytes are left over" in told[3]


def test_messages_of_a_schema_registry_are_recognised_as_such() -> None:
    schema = record(("s", "string"), ("t", "string"))
    framed = b"\0\0\0\0\7" + written(schema, {"s": "abc", "t": "d"})
    _, _, reasons = AvroValues(json.dumps(schema))([framed])
    assert "schema registry" in reasons[1][0].as_py()


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("string", "no record"),
        (record(("u", ["int", "string"])), r"value\.u .* union of several types"),
        (record(("u", "other")), "'other'"),
        (record(("u", "null")), "'null'"),
    ],
)
def test_what_spark_has_no_type_for_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        record_type(schema)


def test_columns_have_the_types_that_spark_is_told() -> None:
    field, array = AvroValues(json.dumps(record(("n", "long"))))([b"\x0e"])[0]
    assert field.type == pa.struct([("n", pa.int64())]) == array.type
    assert array.to_pylist() == [{"n": 7}]
