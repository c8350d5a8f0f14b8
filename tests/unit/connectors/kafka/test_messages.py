"""Rows as messages of Kafka: keys, values, headers and times, by columns."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from holdfast.connectors.kafka.messages import MessageForm, Messages
from holdfast.errors import DefinitionError

AT = datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=UTC)
ROWS = pa.table(
    {
        "user": pa.array(["anna", None, 'b"n'], pa.string()),
        "n": pa.array([1, None, -3], pa.int64()),
        "at": pa.array([AT, None, AT], pa.timestamp("us", "UTC")),
    }
)


def messages(table: pa.Table, format: str = "json", **more: Any) -> Messages:
    form = MessageForm(format, **more)
    form.check(table.schema)
    return form.messages([table])


def test_json_has_all_columns_but_those_that_go_elsewhere() -> None:
    found = messages(ROWS, timestamp="at", key=("user",))
    assert found.values == [b'{"user":"anna","n":1}', b'{"user":null,"n":null}', b'{"user":"b\\"n","n":-3}']
    assert found.keys == [b"anna", None, b'b"n']
    assert found.headers is None
    assert found.times == [int(AT.timestamp() * 1000), 0, int(AT.timestamp() * 1000)]


@pytest.mark.parametrize("micros", [-1, 0, 999])
def test_a_time_that_no_message_can_have_is_refused(micros: int) -> None:
    """One at the very beginning of 1970 would become that of its sending."""
    table = pa.table({"n": [1, 2], "at": pa.array([5_999, micros], pa.timestamp("us"))})
    assert messages(table.slice(0, 1), timestamp="at").times == [5]
    with pytest.raises(DefinitionError, match="row 1 has a time that is not after the beginning of 1970"):
        messages(table, timestamp="at")


def test_keys_are_raw_or_text_or_several_as_json() -> None:
    table = pa.table({"raw": [b"\xff", None], "n": [7, 8], "user": ["anna", "ben"]})
    assert messages(table.select(["raw", "n"]), key=("raw",)).keys == [b"\xff", None]
    assert messages(table, key=("n",)).keys == [b"7", b"8"]
    assert messages(table, key=("user", "n")).keys == [b'{"user":"anna","n":7}', b'{"user":"ben","n":8}']


def test_bytes_are_one_column_as_it_is_and_null_is_a_tombstone() -> None:
    table = pa.table({"k": ["a", "b"], "doc": pa.array([b"\x00", None], pa.binary())})
    assert messages(table, "bytes", key=("k",)).values == [b"\x00", None]
    with pytest.raises(DefinitionError, match="k string, doc binary; name it with value="):
        messages(table, "bytes")
    with pytest.raises(DefinitionError, match="n int64"):
        messages(ROWS, "bytes", value=("n",))


@pytest.mark.parametrize(
    "type",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ],
)
def test_headers_are_a_map_or_an_array_as_the_source_has_them(type: pa.DataType) -> None:
    pairs: list[Any] = [None, [("a", b"x"), ("b", None)], [], [("c", b"z")]]
    if pa.types.is_list(type):
        pairs = [each and [dict(zip(("key", "value"), pair, strict=True)) for pair in each] for each in pairs]
    table = pa.table({"n": range(4), "more": pa.array(pairs, type)})
    expected = [None, [("a", b"x"), ("b", None)], [], [("c", b"z")]]
    assert messages(table, headers="more").headers == expected
    assert messages(table.slice(1, 3), headers="more").headers == expected[1:], "of a slice, its own"
    assert messages(table, headers="more").values[0] == b'{"n":0}'


def test_a_column_that_cannot_be_what_it_is_named_for_is_refused() -> None:
    for more, said in (
        ({"key": ("nobody",)}, "the column 'nobody'"),
        ({"headers": "n"}, "headers of messages are a column of type int64"),
        ({"timestamp": "n"}, "name a column of timestamps"),
    ):
        with pytest.raises(DefinitionError, match=said):
            messages(ROWS, **more)
    with pytest.raises(DefinitionError, match="each name once"):
        messages(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"]))


AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "n", "type": ["null", "int"]},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}


def test_avro_is_what_its_readers_find() -> None:
    table = ROWS.append_column("paid", pa.array([Decimal("1.50")] * 3, pa.decimal128(9, 2)))
    found = messages(table, "avro", schema=json.dumps(AVRO))
    assert found.values[0] is not None
    read = fastavro.schemaless_reader(io.BytesIO(found.values[0]), fastavro.parse_schema(AVRO), None)
    assert read == {
        "user": "anna", "at": AT.replace(microsecond=123_000), "n": 1, "paid": Decimal("1.50"),
    }  # fmt: skip


def test_rows_that_are_no_such_records_are_refused() -> None:
    required = {"type": "record", "name": "row", "fields": [{"name": "user", "type": "string"}]}
    with pytest.raises(DefinitionError, match="row 1 is no record of the Avro schema"):
        messages(ROWS, "avro", schema=json.dumps(required))
    small = {"type": "record", "name": "row", "fields": [{"name": "n", "type": ["null", "int"]}]}
    with pytest.raises(DefinitionError, match="column 'n' does not fit the Avro schema"):
        messages(pa.table({"n": [1 << 40]}), "avro", schema=json.dumps(small))
    with pytest.raises(DefinitionError, match="has the field 'user'"):
        messages(ROWS.select(["n"]), "avro", schema=json.dumps(required))
    with pytest.raises(DefinitionError, match="the Avro schema wants string"):
        messages(
            pa.table({"user": pa.array([[1]], pa.list_(pa.int64()))}), "avro", schema=json.dumps(required)
        )


def test_several_tables_are_one_list_and_rows_may_be_left_out() -> None:
    form = MessageForm("json", key=("n",))
    found = form.messages([pa.table({"n": [1, 2]}), pa.table({"n": [3]})])
    assert found.keys == [b"1", b"2", b"3"]
    assert found.after(2).values == [b'{"n":3}']
    assert found.after(0) is found
    assert [*found.after(1).in_tuples()] == [(b"2", b'{"n":2}', None, 0), (b"3", b'{"n":3}', None, 0)]


def test_the_largest_message_is_found() -> None:
    found = messages(pa.table({"k": ["a", "long key", "b"], "v": ["x", "y", "zz"]}), key=("k",))
    assert (found.largest, found.size(1)) == (1, len(b"long key") + len(b'{"k":"long key","v":"y"}'))
