from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.contract import Arrived, Slice, Waiting
from holdfast.connectors.files.source import LOOK_MS, FileReader, FileSource
from holdfast.errors import DefinitionError, InputVanished

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
    for name in (".a.json", "_b.json", "c.json.tmp", "d.csv", "e.json._COPYING_", "f.json.filepart"):
        put(tmp_path, name)
    (tmp_path / "directory.json").mkdir()
    reader = source(tmp_path, pattern="*.json*").reader([])
    assert reader.next(None, None, 0) is None
    (tmp_path / "e.json._COPYING_").rename(tmp_path / "e.json")
    assert planned(reader).notes == ("e.json",)


def test_a_name_that_cannot_be_read_is_set_aside_and_said_once_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.json", "w") as file:
        file.write('{"n": 1}\n')
    put(tmp_path, "a.json")
    reader = source(tmp_path).reader([])
    slice = planned(reader)
    assert slice.notes == ("a.json",)
    (text,) = reader.news()
    assert "SET ASIDE" in text
    assert "'\\udcff.json'" in text
    assert "rename" in text
    assert reader.waiting(slice.end).files == 1, "it waits for another name"
    assert reader.next(slice.end, None, 0) is None
    assert not reader.news()
    os.rename(os.fsencode(tmp_path) + b"/\xff.json", tmp_path / "b.json")
    assert planned(reader, slice.end).notes == ("b.json",)


def test_a_directory_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    put(tmp_path, "file")
    for path, wrong in ((tmp_path / "inn", "does not exist"), (tmp_path / "file", "is no directory")):
        with pytest.raises(DefinitionError, match=f"{path} {wrong}; correct the path"):
            source(path).check()
    source(tmp_path).check()


def test_a_directory_that_goes_away_is_said_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    reader = source(tmp_path / "in").reader([])
    reader.next(None, None, 0), reader.news()
    (tmp_path / "in").rmdir()
    assert reader.next(None, None, 0) is None
    assert reader.next(None, None, 0) is None
    assert [text.partition(": ")[2] for text in reader.news()] == [
        "does not exist any more; restore the directory"
    ]
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", "a.json")
    assert planned(reader).notes == ("a.json",)
    assert "is there again" in reader.news()[0]


def test_an_empty_directory_is_said_once(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    reader = source(tmp_path, pattern="*.json").reader([])
    assert reader.next(None, None, 0) is None
    assert reader.next(None, None, 0) is None
    (text,) = reader.news()
    assert "no file to read yet: none matches pattern '*.json'" in text


def test_a_run_that_finds_only_files_that_were_read_before_says_so(tmp_path: Path) -> None:
    put(tmp_path, "a.json")
    reader = source(tmp_path).reader(["a.json"])
    assert reader.next(1, None, 0) is None
    (text,) = reader.news()
    assert "nothing new: 1 files there were read before; rows added to such a file are not read" in text


def test_subdirectories_are_said_once_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in ("2024", "2025", ".git", "_spark_metadata"):
        (tmp_path / name).mkdir()
    put(tmp_path, "a.json")
    reader = source(tmp_path).reader([])
    slice = planned(reader)
    assert reader.next(slice.end, None, 0) is None
    (text,) = reader.news()
    assert "subdirectories are not read: '2024', '2025'; " in text


def test_rows_appended_to_a_file_that_was_read_are_said_once(tmp_path: Path) -> None:
    put(tmp_path, "a.json"), put(tmp_path, "b.json")
    reader = source(tmp_path).reader([])
    slice = planned(reader)
    put(tmp_path, "a.json", 7, '{"n": 1}\n{"n": 2}\n')
    assert reader.next(slice.end, None, 0) is None
    assert reader.next(slice.end, None, 0) is None
    (text,) = reader.news()
    assert "file 'a.json' has grown by 9 bytes since it was planned: that is not read" in text


def test_what_waits_is_counted_as_of_a_look_that_is_never_old(tmp_path: Path) -> None:
    put(tmp_path, "a.json", 1), put(tmp_path, "b.json", 2)
    reader = source(tmp_path).reader([])
    assert reader.waiting(None) is None, "it has not looked yet"
    first = planned(reader, max_rows=1)
    assert reader.waiting(first.end) == Waiting(1, 9)
    put(tmp_path, "c.json", 3)
    second = reader.next(first.end, 1, LOOK_MS)
    assert second is not None
    assert second.notes == ("b.json",)
    assert reader.waiting(second.end) == Waiting(1, 9)


def test_an_end_is_what_is_there_now_and_the_same_end_in_another_run(tmp_path: Path) -> None:
    put(tmp_path, "a.json", 1), put(tmp_path, "b.json", 2), put(tmp_path, "c.json", 3)
    reader = source(tmp_path).reader([])
    first = planned(reader, max_rows=1)
    end = reader.end_at(first.end, 0, None)
    put(tmp_path, "d.json", 4)
    second = planned(reader, first.end, max_rows=1)
    again = source(tmp_path).reader(list(first.notes))
    assert again.end_at(first.end, 0, end) == end
    rests = ((reader, second.end, ("c.json",)), (again, first.end, ("b.json", "c.json")))
    for ended, after, left in rests:
        last = planned(ended, after)
        assert (last.end, last.notes) == (end, left)
        assert ended.next(end, None, 2 * LOOK_MS) is None


def test_a_file_that_changes_after_spark_was_given_it_is_found_before_the_commit(
    tmp_path: Path, no_spark: MagicMock
) -> None:
    changes: dict[str, Callable[[Path], object]] = {
        "size 9 then, 18 now": lambda path: path.write_text('{"n": 1}\n{"n": 2}\n'),
        "000000001 UTC then": lambda path: os.utime(path, ns=(7, 7)),
        "is gone": lambda path: path.unlink(),
        "another file of the same size is in its place": lambda path: replaced(path, '{"n": 2}\n'),
    }
    for number, (wrong, change) in enumerate(changes.items()):
        directory = tmp_path / str(number)
        directory.mkdir()
        put(directory, "a.json")
        reader = source(directory).reader([])
        slice = planned(reader)
        reader.frame(no_spark, slice)
        reader.verify(slice)
        reader.frame(no_spark, slice)
        change(directory / "a.json")
        with pytest.raises(InputVanished, match=f"'a.json' of source path {directory} .*{wrong}"):
            reader.verify(slice)


def replaced(path: Path, text: str) -> None:
    """Another file with the size and time of the first."""
    put(path.parent, "new.json", 1, text)
    (path.parent / "new.json").rename(path)


def test_a_new_mode_or_a_link_is_not_a_change(tmp_path: Path, no_spark: MagicMock) -> None:
    put(tmp_path, "a.json")
    reader = source(tmp_path).reader([])
    slice = planned(reader)
    reader.frame(no_spark, slice)
    (tmp_path / "a.json").chmod(0o400)
    os.link(tmp_path / "a.json", tmp_path / "_b.json")
    reader.verify(slice)


def test_a_file_that_vanished_before_it_was_planned_does_not_matter(tmp_path: Path) -> None:
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
    first = planned(reader, max_rows=200)
    assert (len(first.notes), first.rows) == (2, 200)
    (tmp_path / "d.parquet").write_bytes(b"no Parquet")
    assert planned(reader, first.end, max_rows=200).rows == 100
    assert planned(reader, 3, max_rows=200).rows is None, "Spark will tell"
    assert planned(source(tmp_path, format="parquet").reader([])).rows is None
    put(tmp_path / "..", "a.json", text='{"n": 1}\n' * 3)
    assert planned(source(tmp_path.parent).reader([]), max_rows=9).rows is None, "an estimate"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_text("longer than before"), "size 9 then, 18 now"),
        (lambda path: os.utime(path, ns=(7, 7)), "000000001 UTC then, 1970-01-01 00:00:00.000000007 UTC now"),
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
    assert "`holdfast skip --file a.json --checkpoint ...`" in str(error.value)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="json, csv, parquet"):
        source(tmp_path, format="xml")


def test_files_arrived_when_they_were_modified_and_weigh_by_their_size(tmp_path: Path) -> None:
    put(tmp_path, "a.json", 5_000_000, '{"n": 1}\n' * 3)
    put(tmp_path, "b.json", 7_500_000)
    reader = source(tmp_path).reader([])
    assert reader.arrived(planned(reader)) == [Arrived(27, 5, 5), Arrived(9, 7.5, 7.5)]
    in_bucket = Slice(None, 1, detail=[["c.json", 9, None]])
    assert reader.arrived(in_bucket) == []
