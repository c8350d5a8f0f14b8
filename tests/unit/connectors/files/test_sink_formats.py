from __future__ import annotations

import csv
import datetime
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.files.sink_formats import FORMATS, check_columns, encode
from holdfast.errors import DefinitionError

TIMESTAMP = pa.timestamp("us", tz="UTC")


def shown(values: list[Any], type: pa.DataType) -> list[Any]:
    """The values of a column as a JSON file has them."""
    data = encode("json", [pa.table({"x": pa.array(values, type)})])
    return [json.loads(line)["x"] for line in data.decode().split("\n")[:-1]]


def broken_text() -> pa.Array:
    """What Spark hands over for `cast(X'61FF' as string)`, among others: text that is no UTF-8."""
    offsets = np.array([0, 2, 4, 4, 6], np.int32)
    valid = pa.py_buffer(bytes([0b1011]))
    return pa.Array.from_buffers(
        pa.string(), 4, [valid, pa.py_buffer(offsets), pa.py_buffer(b"a\xff\xc3\xa9ok")]
    )


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "1970-01-01T00:00:00"),
        (-1, "1969-12-31T23:59:59.999999"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999"),
        (253_402_300_800_000_000, "+10000-01-01T00:00:00"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00"),
        (-62_135_596_800_000_001, "0000-12-31T23:59:59.999999"),
        (-62_167_219_200_000_001, "-0001-12-31T23:59:59.999999"),
        (-(2**63), "-290308-12-21T19:59:05.224192"),
        (951_782_400_000_000, "2000-02-29T00:00:00"),
    ],
)
def test_a_timestamp_of_any_year_is_iso_8601(micros: int, text: str) -> None:
    assert shown([micros, None], pa.timestamp("us")) == [text, None]
    assert shown([micros, None], TIMESTAMP) == [f"{text}+00:00", None]
    assert shown([micros], pa.timestamp("us", tz="Asia/Tokyo")) == [f"{text}+00:00"], "the instant, in UTC"


def test_times_of_every_kind_are_iso_8601() -> None:
    assert shown([2**31 - 1, -(2**31), -1, None], pa.date32()) == [
        "+5881580-07-11",
        "-5877641-06-23",
        "1969-12-31",
        None,
    ]
    nanos = [0, 1, 1_000, 43_200_000_000_000, 86_399_999_999_999, None]
    assert shown(nanos, pa.time64("ns")) == [
        "00:00:00",
        "00:00:00.000000001",
        "00:00:00.000001",
        "12:00:00",
        "23:59:59.999999999",
        None,
    ]
    micros = [0, 93_784_000_005, -93_784_000_000, 2**63 - 1, -(2**63), None]
    assert shown(micros, pa.duration("us")) == [
        "P0DT0H0M0S",
        "P1DT2H3M4.000005S",
        "-P1DT2H3M4S",
        "P106751991DT4H0M54.775807S",
        "-P106751991DT4H0M54.775808S",
        None,
    ]


def test_a_time_out_of_its_range_is_shown_as_what_it_is() -> None:
    assert shown([-1], pa.time64("ns")) == ["<value out of range: -1>"]


def test_numbers_are_exact_and_what_json_lacks_is_text() -> None:
    doubles = [1.0, -0.0, 0.1, 5e-324, 1e300, 1e15, float("nan"), float("inf"), float("-inf"), None]
    found = shown(doubles, pa.float64())
    assert found == [1.0, -0.0, 0.1, 5e-324, 1e300, 1e15, "NaN", "Infinity", "-Infinity", None]
    assert all(isinstance(value, float) for value in found[:6]), "a reader must not take them for integers"
    assert shown([0.1, None], pa.float32()) == [0.1, None]
    assert shown([2**63 - 1, -(2**63)], pa.int64()) == [2**63 - 1, -(2**63)]
    assert shown([Decimal("1.10"), Decimal("-0.05"), None], pa.decimal128(38, 2)) == ["1.10", "-0.05", None]


@pytest.mark.parametrize(
    "text", ['a"b', "back\\slash", "line\nfeed", "\0\x1f\x7f", "é€😀\u2028", "", '"', "\\"]
)
def test_text_comes_back_from_json_and_csv(text: str) -> None:
    assert shown([text, None, "plain"], pa.string()) == [text, None, "plain"]
    assert shown([[(text, text)]], pa.map_(pa.string(), pa.string())) == [{text: text}]
    table = pa.table({text: [text, "plain"], "n": [1, 2]})
    assert json.loads(encode("json", [table.slice(0, 1)])) == {text: text, "n": 1}
    read = csv.reader(io.StringIO(encode("csv", [table]).decode(), newline=""))
    assert list(read) == [[text, "n"], [text, "1"], ["plain", "2"]]


@pytest.mark.parametrize(
    ("keys", "type", "names"),
    [
        ([1, -2], pa.int64(), ["1", "-2"]),
        ([True, False], pa.bool_(), ["true", "false"]),
        ([0.5, float("nan")], pa.float64(), ["0.5", "NaN"]),
        ([datetime.date(2024, 2, 29), 2**31 - 1], pa.date32(), ["2024-02-29", "+5881580-07-11"]),
        ([0, 2**63 - 1], TIMESTAMP, ["1970-01-01T00:00:00+00:00", "+294247-01-10T04:00:54.775807+00:00"]),
        ([0, 1_500_000], pa.duration("us"), ["P0DT0H0M0S", "P0DT0H0M1.500000S"]),
        ([b"", b"\x00\xff"], pa.binary(), ["", "AP8="]),
        ([Decimal("1.5"), Decimal("-2.0")], pa.decimal128(5, 1), ["1.5", "-2.0"]),
    ],
)
def test_a_map_is_an_object_whose_names_are_the_texts_of_its_keys(
    keys: list[Any], type: pa.DataType, names: list[str]
) -> None:
    pairs = list(zip(keys, [1, None], strict=True))
    map_type = pa.map_(type, pa.int64())
    assert shown([pairs, [], None], map_type) == [dict(zip(names, [1, None], strict=True)), {}, None]


def test_a_map_with_nested_keys_is_an_array_of_entries() -> None:
    structs = pa.map_(pa.struct([("a", pa.int32())]), pa.string())
    assert shown([[({"a": 1}, "x"), ({"a": None}, None)], None], structs) == [
        [{"key": {"a": 1}, "value": "x"}, {"key": {"a": None}, "value": None}],
        None,
    ]


def test_of_a_key_that_a_map_holds_twice_the_last_counts() -> None:
    maps = pa.map_(pa.string(), pa.int64())
    data = encode("json", [pa.table({"x": pa.array([[("a", 1), ("b", 2), ("a", 3)], [("a", 4)]], maps)})])
    assert data == b'{"x":{"b":2,"a":3}}\n{"x":{"a":4}}\n'


@pytest.mark.parametrize("format", FORMATS)
def test_a_part_of_a_table_is_encoded_as_its_rows_alone_would_be(format: str) -> None:
    type = pa.struct([("l", pa.list_(pa.string())), ("m", pa.map_(pa.date32(), pa.list_(pa.int64())))])
    rows: list[Any] = [
        {"l": ["a", None], "m": [(1, [1]), (2, None)]},
        None,
        {"l": None, "m": []},
        {"l": [], "m": [(3, [2, 3])]},
    ]
    table = pa.table({"s": pa.array(rows, type), "t": pa.array(["p", None, "q", "r"])})
    plain = table if format != "csv" else table.select(["t", "t"]).rename_columns(["t", "u"])
    part = plain.slice(1, 3)
    alone = pa.Table.from_pylist(part.to_pylist(), part.schema)
    assert encode(format, [part]) == encode(format, [alone])


def test_text_that_is_not_utf_8_is_shown_with_replacement_characters(tmp_path: Path) -> None:
    text = broken_text()
    wanted = ["a\ufffd", "é", None, "ok"]
    pairs = pa.MapArray.from_arrays([0, 1, 2, 2, 2], text.slice(0, 2), text.slice(0, 2))
    lists = pa.ListArray.from_arrays([0, 2, 2, 3, 4], text)
    structs = pa.StructArray.from_arrays([text], ["t"])
    table = pa.table({"text": text, "list": lists, "map": pairs, "struct": structs})
    assert [json.loads(line) for line in encode("json", [table]).splitlines()] == [
        {"text": wanted[0], "list": wanted[:2], "map": {"a\ufffd": "a\ufffd"}, "struct": {"t": wanted[0]}},
        {"text": "é", "list": [], "map": {"é": "é"}, "struct": {"t": "é"}},
        {"text": None, "list": [None], "map": {}, "struct": {"t": None}},
        {"text": "ok", "list": ["ok"], "map": {}, "struct": {"t": "ok"}},
    ]
    assert encode("csv", [table.select(["text", "text"]).rename_columns(["a", "b"])]).decode() == (
        '"a","b"\n"a\ufffd","a\ufffd"\n"é","é"\n,\n"ok","ok"\n'
    )
    file = tmp_path / "x.parquet"
    for part in (table, table.slice(1)):
        file.write_bytes(encode("parquet", [part]))
        assert pq.read_table(file).schema == table.schema
        read = duckdb.sql(f"select text, list, struct.t from '{file}'").fetchall()
        assert (
            read
            == [
                (wanted[0], wanted[:2], wanted[0]),
                ("é", [], "é"),
                (None, [None], None),
                ("ok", ["ok"], "ok"),
            ][4 - part.num_rows :]
        )


def test_csv_has_one_header_and_tells_null_from_empty() -> None:
    table = pa.table(
        {
            'a "b"': pa.array(['say "hi"', "", None]),
            "at": pa.array([0, None, 2**63 - 1], TIMESTAMP),
            "raw": pa.array([b"\xff", None, b""]),
            "x": pa.array([float("inf"), 2.0, None]),
            "nothing": pa.nulls(3),
        }
    )
    assert encode("csv", [table.slice(0, 1), table.slice(1)]).decode().splitlines() == [
        '"a ""b""","at","raw","x","nothing"',
        '"say ""hi""",1970-01-01T00:00:00+00:00,"/w==",Infinity,',
        '"",,,2.0,',
        ',+294247-01-10T04:00:54.775807+00:00,"",,',
    ]


def test_a_null_that_is_alone_in_its_line_is_not_an_empty_line() -> None:
    assert encode("csv", [pa.table({"n": pa.array([1, None, 3])})]) == b'"n"\n1\n""\n3\n'


def test_plain_readers_understand_what_is_usual(tmp_path: Path) -> None:
    at = datetime.datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "instant": pa.array([at, at.replace(microsecond=0)], TIMESTAMP),
            "day": pa.array([at.date(), None]),
            "x": pa.array([1.0, float("nan")]),
            "price": pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
        }
    )
    for format in FORMATS:
        file = tmp_path / f"x.{format}"
        file.write_bytes(encode(format, [table]))
        read = duckdb.sql(
            f"select epoch_us(instant::timestamptz), day::date, x::double, price::decimal(9,2) from '{file}'"
        ).fetchall()
        assert read[0] == (1_709_209_800_000_005, at.date(), 1.0, Decimal("1.10")), format
        assert str(read[1]) == "(1709209800000000, None, nan, None)", format


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (pa.schema([]), "rows without columns; select at least one"),
        (pa.schema([("a", pa.int64()), ("a", pa.string())]), "of one name apart, here 'a'; rename"),
        (
            pa.schema([("n", pa.int64()), ("x", pa.month_day_nano_interval())]),
            r"'x' \(month_day_nano_interval\)",
        ),
        (pa.schema([("x", pa.timestamp("ns"))]), r"'x' \(timestamp\[ns\]\); cast to a type of Spark SQL"),
        (pa.schema([("x", pa.list_(pa.struct([])))]), r"'x' \(list<item: struct<>>\)"),
        (
            pa.schema([("x", pa.list_(pa.struct([("a", pa.int64()), ("a", pa.int64())])))]),
            "of one name apart, here 'a'",
        ),
    ],
)
def test_columns_that_no_file_can_hold_are_refused(format: str, schema: pa.Schema, problem: str) -> None:
    with pytest.raises(DefinitionError, match=rf"{format} files cannot .*{problem}") as refused:
        check_columns(format, schema)
    assert "\n" not in str(refused.value)


def test_csv_refuses_nested_columns_by_name_and_type() -> None:
    columns = {"n": pa.int64(), "tags": pa.list_(pa.string()), "m": pa.map_(pa.date32(), pa.int64())}
    with pytest.raises(
        DefinitionError,
        match=r"'tags' \(list<item: string>\), 'm' \(map<date32\[day\], int64>\); use format='json'",
    ):
        check_columns("csv", pa.schema(list(columns.items())))
