"""Whatever columns a file format accepts it can hold, with any values, and a plain reader gets them back."""

from __future__ import annotations

import base64
import json
import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.files.sink_formats import FORMATS, check_columns, encode
from holdfast.errors import DefinitionError
from holdfast.state.encoding.types import parse_type
from tests.property.state_values import exact, present, types

_SECOND, _DAY = 10**6, 86_400 * 10**6
_LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, -1])
_INTS = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), 2**31 - 1])

nested_keys = st.tuples(types(maps=False, depth=1), types(maps=True, depth=1)).map(
    lambda pair: f"map<{pair[0]},{pair[1]}>"
)


def raw(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type as Arrow stores them: times as numbers, over the whole range; nulls among them."""
    if pa.types.is_timestamp(type) or pa.types.is_duration(type):
        found: st.SearchStrategy[Any] = _LONGS
    elif pa.types.is_date(type):
        found = _INTS
    elif pa.types.is_time(type):
        found = st.integers(0, 86_400 * 10**9 - 1) | st.integers(0, 86_399).map(lambda s: s * 10**9)
    elif pa.types.is_floating(type):
        # Text has one NaN.
        found = present(type).map(lambda value: math.nan if math.isnan(value) else value)
    elif pa.types.is_struct(type):
        found = st.fixed_dictionaries({field.name: raw(field.type) for field in type})
    elif pa.types.is_list(type):
        found = st.lists(raw(type.value_type), max_size=4)
    elif pa.types.is_map(type):
        pairs = st.tuples(raw(type.key_type).filter(lambda key: key is not None), raw(type.item_type))
        found = st.lists(pairs, max_size=4, unique_by=lambda pair: repr(pair[0]))
    else:
        found = present(type)
    return st.none() | found


@st.composite
def tables(draw: st.DrawFn, ddl: st.SearchStrategy[str]) -> tuple[list[Any], pa.Table]:
    """A column in two parts of some slice, and its raw values."""
    type = parse_type(draw(ddl))
    rows = draw(st.lists(raw(type), min_size=1, max_size=8))
    first, end = sorted(draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    table = pa.table({"n": pa.array(range(len(rows))), "x": pa.array(rows, type)})
    return rows[first:end], table.slice(first, end - first)


def days(text: str) -> int:
    """Since 1970, by counting: 365 days a year, and the leap days."""
    match = re.fullmatch(r"([+-]\d{4,}|\d{4})-(\d\d)-(\d\d)", text)
    assert match, text
    year, month, day = map(int, match.groups())
    before = (year - 1) * 365 + (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = [31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    assert 1 <= day <= lengths[month - 1]
    return before + sum(lengths[: month - 1]) + day - 1 - 719_162


def within_day(text: str, digits: int) -> int:
    match = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{6}|\d{9}))?", text)
    assert match, text
    hours, minutes, seconds = map(int, match.groups()[:3])
    assert (hours, minutes, seconds) < (24,)
    assert max(minutes, seconds) < 60
    return ((hours * 60 + minutes) * 60 + seconds) * 10**digits + int((match[4] or "0").ljust(digits, "0"))


def interval(text: str) -> int:
    match = re.fullmatch(r"(-?)P(\d+)DT(\d+)H(\d+)M(\d+)(?:\.(\d{6}))?S", text)
    assert match, text
    d, h, m, s = map(int, match.groups()[1:5])
    size = (((d * 24 + h) * 60 + m) * 60 + s) * _SECOND + int(match[6] or 0)
    return -size if match[1] else size


def leaf(text: Any, type: pa.DataType) -> Any:
    """The raw value of a plain text, or of a value of JSON."""
    if text is None or pa.types.is_string(type):
        return text
    if pa.types.is_boolean(type):
        return text if isinstance(text, bool) else {"true": True, "false": False}[text]
    if pa.types.is_integer(type):
        return int(text)
    if pa.types.is_float32(type):
        return float(np.float32(text))
    if pa.types.is_float64(type):
        return float(text)
    if pa.types.is_decimal(type):
        return Decimal(text)
    if pa.types.is_binary(type):
        return base64.b64decode(text, validate=True)
    if pa.types.is_date(type):
        return days(text)
    if pa.types.is_time(type):
        return within_day(text, 9)
    if pa.types.is_duration(type):
        return interval(text)
    assert pa.types.is_timestamp(type), type
    assert text.endswith("+00:00") is (type.tz is not None)
    day, time = text.removesuffix("+00:00").split("T")
    return days(day) * _DAY + within_day(time, 6)


def from_json(value: Any, type: pa.DataType) -> Any:
    """What JSON holds, as `raw` has it."""
    if value is None:
        return None
    if pa.types.is_struct(type):
        assert list(value) == [field.name for field in type]
        return {field.name: from_json(value[field.name], field.type) for field in type}
    if pa.types.is_list(type):
        return [from_json(item, type.value_type) for item in value]
    if pa.types.is_map(type):
        if isinstance(value, list):
            pairs = [(entry["key"], entry["value"]) for entry in value]
            return [(from_json(k, type.key_type), from_json(v, type.item_type)) for k, v in pairs]
        return [(leaf(name, type.key_type), from_json(v, type.item_type)) for name, v in value.items()]
    return leaf(value, type)


def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "a name comes twice"
    return dict(pairs)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@given(tables(types(maps=True) | nested_keys))
def test_json_holds_every_value_of_every_type(drawn: tuple[list[Any], pa.Table]) -> None:
    rows, table = drawn
    check_columns("json", table.schema)
    lines = encode("json", [table, table]).decode().split("\n")
    assert lines.pop() == ""
    read = [json.loads(line, object_pairs_hook=strict, parse_constant=refuse)["x"] for line in lines]
    assert exact([from_json(value, table.schema.field("x").type) for value in read]) == exact([*rows, *rows])


@given(tables(types(maps=True) | nested_keys))
def test_parquet_holds_every_value_of_every_type(drawn: tuple[list[Any], pa.Table]) -> None:
    _, table = drawn
    check_columns("parquet", table.schema)
    read = pq.read_table(pa.BufferReader(encode("parquet", [table, table])))
    assert read.schema.equals(table.schema)
    assert encode("json", [read]) == encode("json", [table, table])


@given(tables(types(maps=False, depth=0) | st.just("void")))
def test_csv_holds_every_value_of_every_plain_type(drawn: tuple[list[Any], pa.Table]) -> None:
    rows, table = drawn
    check_columns("csv", table.schema)
    as_text = pyarrow.csv.ConvertOptions(
        column_types={"n": pa.string(), "x": pa.string()},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    read = pyarrow.csv.read_csv(
        pa.BufferReader(encode("csv", [table, table])),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=as_text,
    )
    found = [leaf(text, table.schema.field("x").type) for text in read["x"].to_pylist()]
    assert exact(found) == exact([*rows, *rows])


@given(types(maps=True))
def test_only_nested_columns_in_csv_are_refused(ddl: str) -> None:
    schema = pa.schema([("x", parse_type(ddl))])
    for format in FORMATS:
        if format == "csv" and pa.types.is_nested(schema.field(0).type):
            with pytest.raises(DefinitionError, match=r"'x' \(.*; use format='json' or 'parquet'"):
                check_columns(format, schema)
        else:
            check_columns(format, schema)
