"""Columns of Parquet files as their declared types: wider, never other values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.files.fitting import fitted

WIDER = [
    (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
    (pa.array([200], pa.uint8()), pa.int16(), [200]),
    (pa.array([1], pa.int32()), pa.float64(), [1.0]),
    (pa.array([1.5], pa.float32()), pa.float64(), [1.5]),
    (pa.array([Decimal("1.10")], pa.decimal128(5, 2)), pa.decimal128(9, 4), [Decimal("1.1000")]),
    (pa.array(["a", "a"]).dictionary_encode(), pa.string(), ["a", "a"]),
    (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
    (pa.array(["a"]), pa.binary(), [b"a"]),
    (pa.nulls(1), pa.string(), [None]),
    (pa.array([5000], pa.timestamp("ms")), pa.timestamp("us", "UTC"), [dt.datetime.fromtimestamp(5, dt.UTC)]),
    (pa.array([[1], None], pa.large_list(pa.int32())), pa.list_(pa.int64()), [[1], None]),
    (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64()),
     [[("k", 1)], None]),
    (pa.array([{"X": 1}, None], pa.struct([("X", pa.int32())])),
     pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": None}, None]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "wanted", "values"), WIDER, ids=lambda each: str(each)[:30])
def test_a_column_takes_a_type_that_holds_all_its_values(column: Any, wanted: Any, values: list[Any]) -> None:
    for part in (column, pa.concat_arrays([column, column]).slice(len(column))):
        found = fitted(part, wanted, "c")
        assert found.type == wanted
        assert found.to_pylist() == values


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([1], pa.int64()), pa.int32()),
        (pa.array([1], pa.uint64()), pa.int64()),
        (pa.array([1], pa.int64()), pa.float64()),
        (pa.array([1], pa.int64()), pa.string()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([b"a"]), pa.string()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([Decimal("1.123")], pa.decimal128(5, 3)), pa.decimal128(5, 2)),
        (pa.array([5], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([{"x": "1"}]), pa.struct([("x", pa.int64())])),
    ],
    ids=str,
)
def test_what_would_have_to_be_parsed_or_rounded_is_refused(column: Any, wanted: Any) -> None:
    with pytest.raises(ValueError, match=r"column 'c.*' is declared .*, found"):
        fitted(column, wanted, "c")


def test_a_time_that_would_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="would lose data"):
        fitted(pa.array([1], pa.timestamp("ns")), pa.timestamp("us"), "c")
