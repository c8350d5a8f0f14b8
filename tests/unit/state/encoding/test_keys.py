from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError, DefinitionError
from holdfast.state.encoding.keys import (
    BASE_BYTES_MAX,
    KeyCodec,
    key_groups_of,
    routing_expression,
    routing_hash,
)
from holdfast.state.encoding.types import parse_schema
from tests.unit.state.encoding.routing_cases import CASES, golden_hashes


def _codec(ddl: str) -> KeyCodec:
    return KeyCodec(parse_schema(ddl))


def _groups(*groups: int) -> np.ndarray:
    return np.array(groups, np.uint16)


@pytest.mark.parametrize("name", CASES)
def test_routing_hash_is_what_spark_computed(name: str) -> None:
    columns = [column.combine_chunks() for column in CASES[name].columns]
    assert (
        routing_hash([c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns]).tolist()
        == (golden_hashes()[name])
    )


def test_routing_hash_does_not_depend_on_how_a_column_is_sliced() -> None:
    for table in CASES.values():
        columns = [column.chunk(0) for column in table.columns]
        assert routing_hash([c.slice(1) for c in columns]).tolist() == routing_hash(columns)[1:].tolist()


def test_a_key_keeps_its_group_when_its_number_type_is_widened() -> None:
    narrow = [pa.array([1, -5, None], pa.int8()), pa.array([0.5, -0.0, math.nan], pa.float32())]
    wide = [narrow[0].cast(pa.int64()), narrow[1].cast(pa.float64())]
    assert routing_hash(narrow).tolist() == routing_hash(wide).tolist()


def test_key_groups_are_never_negative() -> None:
    hashes = np.array([-1, -128, -(2**63), 2**63 - 1, 0], np.int64)
    assert key_groups_of(hashes, 128).tolist() == [127, 0, 0, 127, 0]


@pytest.mark.parametrize("count", [0, 65537])
def test_a_group_count_that_two_bytes_cannot_hold_is_refused(count: int) -> None:
    with pytest.raises(DefinitionError, match="key_groups"):
        key_groups_of(np.zeros(1, np.int64), count)


@pytest.mark.parametrize("ddl", ["k map<int,int>", "k array<map<int,int>>", "k struct<a:map<int,int>>"])
def test_keys_with_maps_are_refused(ddl: str) -> None:
    with pytest.raises(DefinitionError, match="'k' holds a map"):
        routing_expression(parse_schema(ddl), ["k"])
    with pytest.raises(DefinitionError, match="'k' holds a map"):
        _codec(ddl)


@pytest.mark.parametrize("ddl", ["k variant", "k array<variant>", "k struct<a:variant>"])
def test_keys_with_variants_are_refused(ddl: str) -> None:
    with pytest.raises(DefinitionError, match=r"'k' holds a variant.*; key by a value taken out of it"):
        routing_expression(parse_schema(ddl), ["k"])
    with pytest.raises(DefinitionError, match="'k' holds a variant"):
        _codec(ddl)


def test_lengths_of_bases_are_those_of_the_bases_themselves() -> None:
    for ddl, values in [
        ("k long", [5, None]),
        ("k string", ["", "user", None, "x" * 500]),
        ("k array<int>", [[], [1, None], None]),
    ]:
        codec = _codec(ddl)
        bases = codec.encode([pa.array(values, codec.schema.field(0).type)], _groups(*[3] * len(values)))
        entries = [base + b"\x07tail" for base in bases]
        assert codec.base_lengths(entries) == [len(base) for base in bases]
        assert [codec.base_length(entry) for entry in entries] == [len(base) for base in bases]


@pytest.mark.parametrize(
    ("ddl", "row", "stored"),
    [
        ("k long", [1], "018000000000000001"),
        ("k int", [-1], "017fffffffffffffff"),
        ("k long", [None], "00"),
        ("k double", [-0.0], "018000000000000000"),
        ("k double", [-1.0], "01400fffffffffffff"),
        ("k string", ["hé"], "010000000368c3a9"),
        ("k string", [""], "0100000000"),
        ("k boolean", [True], "018000000000000001"),
        ("k interval day to second", [dt.timedelta(microseconds=-1)], "017fffffffffffffff"),
        ("k time(6)", [dt.time(0, 0, 0, 1)], "0180000000000003e8"),
        ("k void", [None], "00"),
        ("k decimal(5,2)", [-1], "017fffffffffffffffffffffffffffff9c"),
        ("k array<int>", [[7, None]], "010000000201800000000000000700"),
        ("k struct<a:int,b:binary>", [{"a": None, "b": b"z"}], "010001000000017a"),
        ("a string, b long", ["x", 2], "010000000178018000000000000002"),
    ],
)
def test_stored_key_bytes_never_change(ddl: str, row: list[object], stored: str) -> None:
    codec = _codec(ddl)
    columns = [pa.array([value], field.type) for value, field in zip(row, codec.schema, strict=True)]
    assert codec.encode(columns, _groups(0x0102)) == [bytes.fromhex("010200" + stored)]


def test_equal_keys_of_another_width_give_the_declared_bytes() -> None:
    codec = _codec("k long")
    assert codec.encode([pa.array([5], pa.int32())], _groups(1)) == codec.encode([pa.array([5])], _groups(1))


def test_nulls_between_values_keep_rows_aligned() -> None:
    for ddl, rows in (
        ("k long", [3, None, -3]),
        ("k string", ["a", None, ""]),
        ("k double", [None, 2.5, None]),
    ):
        codec = _codec(ddl)
        column = pa.array(rows, codec.schema.field(0).type)
        assert codec.decode(codec.encode([column], _groups(1, 2, 3)))[0].equals(column)


def test_the_longest_key_that_fits_is_kept_and_one_byte_more_is_shortened() -> None:
    codec = _codec("k string")
    column = pa.array(["x" * 395, "x" * 396])
    bases = codec.encode([column], _groups(1, 1))
    assert [len(base) for base in bases] == [BASE_BYTES_MAX, 3 + 33]
    assert bases[1][3] == 0xFF
    with pytest.raises(CorruptionError, match="missing"):
        codec.decode(bases)
    assert codec.decode(bases, {bases[1]: codec.key_bytes([column])[1]})[0].equals(column)


def test_shortening_does_not_depend_on_the_other_rows_or_columns() -> None:
    text, codec = "y" * 500, _codec("k string")
    alone = codec.encode([pa.array([text])], _groups(9))
    assert codec.encode([pa.array([text, None])], _groups(9, 9))[:1] == alone


@pytest.mark.parametrize("stored", ["000100010000000961", "00010007", "000100000000"])
def test_damaged_keys_are_refused(stored: str) -> None:
    with pytest.raises(CorruptionError):
        _codec("k string, j string").decode([bytes.fromhex(stored)])
