from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.files.sink import FileSink
from holdfast.errors import DefinitionError


def staged(table: pa.Table, part: int = 0) -> StagedPart:
    return StagedPart(part, table.num_rows, lambda: table)


RICH = pa.table(
    {
        "day": pa.array([datetime.date(2024, 2, 29)]),
        "at": pa.array(
            [datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)], pa.timestamp("us", tz="UTC")
        ),
        "price": pa.array([decimal.Decimal("1.10")], pa.decimal128(10, 2)),
        "raw": pa.array([b"\x00\xff"]),
        "counts": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "tags": pa.array([["x", None]]),
    }
)


def test_each_part_is_a_row_group_of_the_one_file_of_its_epoch(tmp_path: Path) -> None:
    one, two = pa.table({"n": [1, 2]}), pa.table({"n": [3]})
    FileSink(tmp_path, format="parquet").publisher("job", "out").publish(3, [staged(two, 1), staged(one, 0)])
    (file,) = tmp_path.glob("*.parquet")
    assert file.name == "out-000000000003.parquet"
    assert pq.ParquetFile(file).num_row_groups == 2
    assert pq.read_table(tmp_path).column("n").to_pylist() == [1, 2, 3]


def test_json_holds_every_type(tmp_path: Path) -> None:
    FileSink(tmp_path, format="json").publisher("job", "out").publish(1, [staged(RICH)])
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text()) == {
        "day": "2024-02-29",
        "at": "2024-02-29T12:00:00+00:00",
        "price": "1.10",
        "raw": "AP8=",
        "counts": {"a": 1},
        "tags": ["x", None],
    }


def test_csv_keeps_null_and_empty_apart_and_has_one_header(tmp_path: Path) -> None:
    publisher = FileSink(tmp_path, format="csv").publisher("job", "out")
    publisher.publish(
        1, [staged(pa.table({"a": ["", None], "n": [1, 2]})), staged(pa.table({"a": ["x"], "n": [3]}), 1)]
    )
    (file,) = tmp_path.glob("*.csv")
    assert file.read_text() == '"a","n"\n"",1\n,2\n"x",3\n'


def test_csv_refuses_nested_columns_by_name(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"'counts' \(map.*'tags' \(list"):
        FileSink(tmp_path, format="csv").publisher("job", "out").publish(1, [staged(RICH)])


def test_another_job_with_the_same_uid_is_refused(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, format="json")
    sink.publisher("first", "out").begin(0)
    sink.publisher("second", "other").begin(0)
    with pytest.raises(DefinitionError, match="output of job 'first' under this uid, not of 'second'"):
        sink.publisher("second", "out")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="parquet, json, csv"):
        FileSink(tmp_path, format="xml")
