from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import DefinitionError, InputVanished
from holdfast.io.contract import Slice
from holdfast.io.file_source import FileReader, FileSource

NO_SPARK: Any = None


def source(directory: Path, **settings: Any) -> FileSource:
    return FileSource(directory, **{"format": "json", "schema": "n long", **settings})


def put(directory: Path, name: str, mtime: int = 1, text: str = '{"n": 1}\n') -> None:
    (directory / name).write_text(text)
    os.utime(directory / name, ns=(mtime, mtime))


def planned(reader: FileReader, after: int | None = None, max_rows: int | None = None) -> Slice:
    slice = reader.next(after, max_rows, 0)
    assert slice is not None
    return slice


def test_files_are_read_by_time_then_name_each_once(tmp_path: Path) -> None:
    put(tmp_path, "b.json", 5), put(tmp_path, "a.json", 5), put(tmp_path, "z.json", 1)
    reader = source(tmp_path).reader([])
    first = planned(reader)
    assert first.notes == ("z.json", "a.json", "b.json")
    put(tmp_path, "0.json", 0)
    second = planned(reader, first.end)
    assert (second.start, second.end, second.notes) == (3, 4, ("0.json",))
    assert reader.next(second.end, None, 0) is None


def test_unfinished_hidden_and_unwanted_files_are_passed_over(tmp_path: Path) -> None:
    for name in (".a.json", "_b.json", "c.json.tmp", "d.csv"):
        put(tmp_path, name)
    (tmp_path / "directory.json").mkdir()
    reader = source(tmp_path, pattern="*.json").reader([])
    assert reader.next(None, None, 0) is None
    put(tmp_path, "e.json")
    assert planned(reader).notes == ("e.json",)


def test_a_directory_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert source(tmp_path / "later").reader([]).next(None, None, 0) is None


def test_a_file_that_vanished_before_it_was_planned_is_no_matter(tmp_path: Path) -> None:
    put(tmp_path, "a.json", 1), put(tmp_path, "b.json", 2), put(tmp_path, "c.json", 3)
    reader = source(tmp_path).reader([])
    first = planned(reader, max_rows=1)
    (tmp_path / "b.json").unlink()
    assert planned(reader, first.end, max_rows=1).notes == ("c.json",)


def test_a_slice_has_at_least_one_file_however_large(tmp_path: Path) -> None:
    put(tmp_path, "a.json", 1, '{"n": 1}\n' * 1000), put(tmp_path, "b.json", 2)
    assert planned(source(tmp_path).reader([]), max_rows=10).notes == ("a.json",)


def test_parquet_files_are_counted_by_their_footer(tmp_path: Path) -> None:
    for name in "abc":
        pq.write_table(pa.table({"n": range(100)}), tmp_path / f"{name}.parquet")
    reader = source(tmp_path, format="parquet").reader([])
    assert len(planned(reader, max_rows=200).notes) == 2


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_text("longer than before"), "size 9 then, 18 now"),
        (lambda path: os.utime(path, ns=(7, 7)), "modified at 1 ns then, 7 ns now"),
    ],
)
def test_a_planned_file_that_changed_is_an_error_before_spark_is_asked(
    tmp_path: Path, change: Any, wrong: str
) -> None:
    put(tmp_path, "a.json")
    reader = source(tmp_path).reader([])
    slice = planned(reader)
    change(tmp_path / "a.json")
    with pytest.raises(InputVanished) as error:
        reader.frame(NO_SPARK, slice)
    assert wrong in str(error.value)
    assert f"'a.json' of source path {tmp_path}" in str(error.value)
    assert "`holdfast skip --file a.json`" in str(error.value)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="json, csv, parquet"):
        source(tmp_path, format="xml")
