"""A FileSink that is written lane by lane: files of fixed names, marks, directories of partitions."""

from __future__ import annotations

import json
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.files import sink_lanes
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.sink_lanes import OpenFileLanes
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result
from holdfast.errors import DefinitionError, StorageError, UnknownOutcome
from holdfast.testing import conformance

Rows = list[dict[str, Any]]


def lanes_in(place: Path, format: str = "json", **how: Any) -> OpenFileLanes:
    writer = FileSink(place, format=format, **{"max_file_rows": 3, **how}).lane_writer("job", "out")
    assert writer is not None
    return pickle.loads(pickle.dumps(writer)).open(1)


BEGUN = LaneMark(0)


def rows(count: int, epoch: int = 1, lane: int = 2, before: LaneMark = BEGUN, **more: Any) -> LaneRows:
    table = pa.table({"user": [f"u{n % 2}" for n in range(count)], "n": range(count)})
    cut = [table.slice(0, 2), table.slice(2)]
    parts = [StagedPart(number, part.num_rows, lambda part=part: part) for number, part in enumerate(cut)]
    return LaneRows(lane, epoch, before, count, 1, more.get("input", f"slices of {epoch}"), tuple(parts))


def shown(place: Path) -> dict[str, list[int]]:
    found = {}
    for path in sorted(place.rglob("*.json")):
        found[path.relative_to(place).as_posix()] = [json.loads(line)["n"] for line in path.open()]
    return found


def test_a_lane_is_cut_into_files_named_by_their_first_rows(tmp_path: Path) -> None:
    lanes = lanes_in(tmp_path)
    lanes.begin(0)
    assert lanes.write(rows(7)).outcome is Outcome.WRITTEN
    assert shown(tmp_path) == {
        "out-000000000001-02-000000000000.json": [0, 1, 2],
        "out-000000000001-02-000000000003.json": [3, 4, 5],
        "out-000000000001-02-000000000006.json": [6],
    }
    marks = lanes_in(tmp_path).marks()
    assert marks[2] == LaneMark(1, 7)
    assert marks[2].input == "slices of 1"
    assert [mark for lane, mark in marks.items() if lane != 2] == [LaneMark(0)] * (LANES - 1)


@pytest.mark.parametrize("puts", range(1, 7))
def test_a_lane_that_was_left_in_the_middle_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, puts: int
) -> None:
    """After each file and each mark: done and not heard of."""
    lanes = lanes_in(tmp_path)
    lanes.begin(0)
    put, count = lanes._storage.put_new, 0

    def unheard(name: str, data: bytes) -> Any:
        nonlocal count
        count += 1
        found = put(name, data)
        if count == puts:
            raise UnknownOutcome("no answer")
        return found

    monkeypatch.setattr(lanes._storage, "put_new", unheard)
    first = lanes.write(rows(7))
    assert first.outcome is Outcome.UNAVAILABLE
    assert first.reason.endswith("no answer")
    assert lanes_in(tmp_path).marks()[2] <= LaneMark(1, 7), "never more than is shown"
    again = lanes_in(tmp_path).write(rows(7))
    assert again.outcome in (Outcome.WRITTEN, Outcome.ALREADY)
    assert sorted(n for numbers in shown(tmp_path).values() for n in numbers) == list(range(7))
    assert lanes_in(tmp_path).write(rows(7)).outcome is Outcome.ALREADY


class Together:
    """Stands in for `put_new`: lets a put through once so many are under way."""

    def __init__(self, put: Any, count: int) -> None:
        self.put, self.barrier = put, threading.Barrier(count, timeout=60)

    def __call__(self, name: str, data: bytes) -> Any:
        self.barrier.wait()
        return self.put(name, data)


def test_marks_are_begun_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_in(tmp_path)
    owned, put = tmp_path / "_holdfast-out", lanes._storage.put_new
    together = Together(put, 2)
    monkeypatch.setattr(
        lanes._storage, "put_new", lambda *given: (together if owned.exists() else put)(*given)
    )
    lanes.begin(7)
    assert lanes.marks() == dict.fromkeys(range(LANES), LaneMark(7))


def test_files_of_a_cut_are_written_at_the_same_time_and_their_mark_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = lanes_in(tmp_path, partition_by=["user"], max_file_rows=100)
    lanes.begin(0)
    put, names = lanes._storage.put_new, []
    together = Together(put, 2)

    def noted(name: str, data: bytes) -> Any:
        done = put(name, data) if name.startswith("_holdfast") else together(name, data)
        names.append(name)
        return done

    monkeypatch.setattr(lanes._storage, "put_new", noted)
    assert lanes.write(rows(6)).outcome is Outcome.WRITTEN
    assert [name.split("/")[0] for name in sorted(names[:2])] == ["user=u0", "user=u1"]
    assert names[2:] == ["_holdfast/out/lanes/02/000000000001-000000000006"]


def test_the_next_cut_is_made_while_one_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_in(tmp_path, max_file_rows=2)
    lanes.begin(0)
    given, put, second = rows(4), lanes._storage.put_new, threading.Event()
    first_part, second_part = given.parts

    def load() -> pa.Table:
        second.set()
        return second_part.load()

    def waits(name: str, data: bytes) -> Any:
        assert second.wait(60), "the second cut is not loaded before the first is written"
        return put(name, data)

    monkeypatch.setattr(lanes._storage, "put_new", waits)
    assert lanes.write(replace(given, parts=(first_part, replace(second_part, load=load)))).mark == given.end
    assert sorted(n for numbers in shown(tmp_path).values() for n in numbers) == list(range(4))


def test_a_file_that_is_refused_leaves_no_mark_and_nothing_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = lanes_in(tmp_path, partition_by=["user"], max_file_rows=100)
    lanes.begin(0)
    put, begun, refused, ended = lanes._storage.put_new, threading.Event(), threading.Event(), []

    def once(name: str, data: bytes) -> Any:
        if name.startswith("user=u0"):
            assert begun.wait(60)
            refused.set()
            raise StorageError("it is full")
        begun.set()
        assert refused.wait(60)
        done = put(name, data)
        ended.append(name)
        return done

    monkeypatch.setattr(lanes._storage, "put_new", once)
    why = f"sink path {tmp_path} cannot be used now: it is full"
    assert lanes.write(rows(6)) == Result(Outcome.UNAVAILABLE, reason=why)
    assert [name.split("/")[0] for name in ended] == ["user=u1"], "it was waited for"
    monkeypatch.setattr(lanes._storage, "put_new", put)
    assert lanes.marks()[2] == LaneMark(0)
    assert lanes.write(rows(6)).outcome is Outcome.WRITTEN
    assert sorted(n for numbers in shown(tmp_path).values() for n in numbers) == list(range(6))


def test_files_may_be_taken_away_once_the_mark_has_passed_them(tmp_path: Path) -> None:
    lanes = lanes_in(tmp_path)
    lanes.begin(0)
    lanes.write(rows(7))
    for path in tmp_path.rglob("*.json"):
        path.unlink()
    assert lanes_in(tmp_path).write(rows(7)).outcome is Outcome.ALREADY
    assert lanes_in(tmp_path).write(rows(1, epoch=5, before=LaneMark(1, 7))).outcome is Outcome.WRITTEN
    assert shown(tmp_path) == {"out-000000000005-02-000000000000.json": [0]}


def test_a_directory_that_lost_its_marks_or_has_others_is_told(tmp_path: Path) -> None:
    lanes = lanes_in(tmp_path)
    assert lanes.marks() == {}
    assert lanes.write(rows(1)).outcome is Outcome.WENT_BACK
    lanes.begin(4)
    assert lanes.write(rows(1, epoch=9, before=LaneMark(8, 1))).outcome is Outcome.WENT_BACK
    lanes.write(rows(2, epoch=9))
    assert lanes.write(rows(2, epoch=9, input="other slices")).outcome is Outcome.OTHER_ROWS
    assert shown(tmp_path) == {"out-000000000009-02-000000000000.json": [0, 1]}


def test_few_marks_are_left_however_many_epochs_pass(tmp_path: Path) -> None:
    lanes = lanes_in(tmp_path)
    lanes.begin(0)
    for epoch in range(1, 9):
        lanes.write(rows(4, epoch=epoch))
    marks = [path.name for path in (tmp_path / "_holdfast" / "out" / "lanes" / "02").iterdir()]
    assert len(marks) <= 4
    assert max(marks) == "000000000008-000000000004"


def test_storage_that_is_away_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_in(tmp_path)

    def away(prefix: str) -> Any:
        raise StorageError("cannot list it; try again")

    monkeypatch.setattr(lanes._storage, "list", away)
    result = lanes.write(rows(1))
    assert result.outcome is Outcome.UNAVAILABLE
    assert result.reason.endswith("cannot be used now: cannot list it; try again")


VALUES = ["a b/c=%é", None, "", "x" * 400, "x" * 399 + "y", "ö" * 300, "..", "tab\tand \\ back"]


def test_rows_are_in_directories_of_their_values_for_any_reader(tmp_path: Path) -> None:
    lanes = lanes_in(tmp_path, "parquet", partition_by=["user", "big"], max_file_rows=100)
    lanes.begin(0)
    table = pa.table({"user": VALUES, "big": [True, False] * 4, "n": range(8)})
    lanes.write(LaneRows(0, 1, LaneMark(0), 8, 1, "", (StagedPart(0, 8, lambda: table),)))
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet"))
    assert len(files) == 8, "values that are cut stay apart"
    assert "user=a b%2Fc%3D%25%C3%A9/big=true/out-000000000001-00-000000000000.parquet" in files
    query = f"select user, n from read_parquet('{tmp_path}/**/*.parquet', hive_partitioning=true)"
    found = {n: user for user, n in duckdb.sql(query).fetchall()}
    assert sorted(found) == list(range(8))
    assert [found[n] for n in (0, 1, 6, 7)] == ["a b/c=%é", None, "..", "tab\tand \\ back"]


def written_by_value(place: Path, values: pa.Array, column: str = "user") -> dict[str, list[int]]:
    """What is shown where a row of each value was written."""
    lanes = lanes_in(place, partition_by=[column], max_file_rows=100)
    lanes.begin(0)
    count = len(values)
    table = pa.table({column: values, "n": range(count)})
    lanes.write(LaneRows(0, 1, LaneMark(0), count, 1, "", (StagedPart(0, count, lambda: table),)))
    return {name.split("/")[0]: numbers for name, numbers in shown(place).items()}


def test_values_that_look_like_the_name_of_another_keep_their_rows(tmp_path: Path) -> None:
    """A file that is there is taken for shown: two values in one directory would lose the rows of one."""
    long = "x" * 400
    cut = sink_lanes._segment(long)
    found = written_by_value(tmp_path, pa.array([None, sink_lanes.NULL, long, cut, "a~b"]))
    assert found == {
        "user=__HIVE_DEFAULT_PARTITION__": [0],
        "user=%5F_HIVE_DEFAULT_PARTITION__": [1],
        f"user={cut}": [2],
        f"user={cut.replace('~', '%7E')}": [3],
        "user=a~b": [4],
    }


def test_values_that_are_no_text_are_shown_as_readers_can_read_them(tmp_path: Path) -> None:
    raw = pa.array([b"\xff", b"ok", b"\xfe"], pa.binary())
    found = written_by_value(tmp_path, pa.Array.from_buffers(pa.string(), 3, raw.buffers()))
    assert found == {"user=%EF%BF%BD": [0, 2], "user=ok": [1]}


@pytest.mark.parametrize("column", ["../up", "a/b", ".dot"])
def test_a_column_of_any_name_is_one_directory(tmp_path: Path, column: str) -> None:
    (directory,) = written_by_value(tmp_path, pa.array(["v"]), column)
    assert directory.endswith("=v")
    assert (tmp_path / directory).is_dir()


def test_pandas_reads_them_too(tmp_path: Path) -> None:
    lanes = lanes_in(tmp_path, "parquet", partition_by=["user"])
    lanes.begin(0)
    lanes.write(rows(7))
    found = pd.read_parquet(tmp_path)
    assert sorted(zip(found["user"], found["n"], strict=True)) == sorted((f"u{n % 2}", n) for n in range(7))


def test_how_rows_are_cut_counts_for_good(tmp_path: Path) -> None:
    lanes_in(tmp_path).begin(0)
    for changed in ({"max_file_rows": 4}, {"partition_by": ["user"]}):
        with pytest.raises(
            DefinitionError, match=r"'out': .* was begun with format=json, max_file_rows=3, not"
        ):
            lanes_in(tmp_path, **changed).marks()
    with pytest.raises(DefinitionError, match="not with one file per epoch"):
        FileSink(tmp_path, format="json").publisher("job", "out")
    other = tmp_path / "other"
    FileSink(other, format="json").publisher("job", "out").begin(0)
    with pytest.raises(DefinitionError, match="was begun with one file per epoch, not with"):
        lanes_in(other).marks()


def test_a_directory_that_was_begun_anew_with_another_cut_is_not_written_by_who_knew_the_former(
    tmp_path: Path,
) -> None:
    """Names tell first rows: with another cut, files of both would overlap."""
    former = lanes_in(tmp_path)
    former.begin(0)
    (tmp_path / "_holdfast-out").unlink()
    lanes_in(tmp_path, max_file_rows=5).begin(0)
    refused = former.write(rows(7))
    assert refused.outcome is Outcome.REFUSED
    assert "was begun with format=json, max_file_rows=5, not" in refused.reason
    assert shown(tmp_path) == {}


@pytest.mark.parametrize("how", [{}, {"partition_by": ["user"]}], ids=["lanes", "partitions"])
def test_lanes_of_files_keep_what_is_promised(tmp_path: Path, how: dict[str, Any]) -> None:
    def read(place: str) -> list[tuple[Any, ...]]:
        files = [str(path) for path in (tmp_path / place).rglob("*.parquet")]
        query = "select user, total from read_parquet(?, hive_partitioning=true)"
        return duckdb.execute(query, [files]).fetchall() if files else []

    def make(place: str) -> FileSink:
        return FileSink(tmp_path / place, format="parquet", max_file_rows=2, **how)

    conformance.check_lanes(make, read)
    conformance.check_sink(make, read, only=["zombie", "two-at-once", "crash-while-publishing", "uids-apart"])


def test_what_cannot_be_is_refused_when_it_is_declared(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="max_file_rows=0"):
        FileSink(tmp_path, format="json", max_file_rows=0)
    sink = FileSink(tmp_path, format="json", partition_by=["at"])
    with pytest.raises(DefinitionError, match="not partitioned by column 'at'"):
        sink.check_schema(pa.schema([("at", pa.date32()), ("n", pa.int64())]))
    assert (sink.atomic, sink.max_file_rows) == ("chunk", sink_lanes.FILE_ROWS)
    assert FileSink(tmp_path, format="json").atomic == "epoch"
