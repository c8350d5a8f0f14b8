"""What every sink that says exactly-once promises, and what a sink that does not must still keep."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.console import ConsoleSink
from holdfast.connectors.contract import SelectiveSink, Sink, StagedPart
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.memory import MemorySink
from holdfast.errors import DefinitionError

Row = tuple[str, int]


@dataclass(frozen=True)
class Case:
    """A sink, and what a plain reader sees of it."""

    sink: Sink
    shown: Callable[[], list[Row]]


def memory_case(directory: Path) -> Case:
    sink = MemorySink()
    return Case(sink, lambda: [(user, total) for user, total in sink.rows()])


def file_case(format: str, read: Callable[[Path], pa.Table]) -> Callable[[Path], Case]:
    def case(directory: Path) -> Case:
        def shown() -> list[Row]:
            tables = [read(path) for path in sorted(directory.glob(f"*.{format}"))]
            return [(row["user"], row["total"]) for table in tables for row in table.to_pylist()]

        return Case(FileSink(directory, format=format), shown)

    return case


def read_json(path: Path) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])


CASES = {
    "memory": memory_case,
    "parquet": file_case("parquet", pq.read_table),
    "json": file_case("json", read_json),
    "csv": file_case("csv", pyarrow.csv.read_csv),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return CASES[request.param](tmp_path)


def part(number: int, *rows: Row) -> StagedPart:
    users, totals = [user for user, _ in rows], [total for _, total in rows]
    table = pa.table({"user": pa.array(users, pa.string()), "total": pa.array(totals, pa.int64())})
    return StagedPart(number, len(rows), lambda: table)


def broken_part(number: int) -> StagedPart:
    def load() -> pa.Table:
        raise OSError("storage is away")

    return StagedPart(number, 1, load)


def test_a_sink_is_a_sink(case: Case) -> None:
    assert isinstance(case.sink, Sink)
    assert case.sink.exactly_once


def test_an_epoch_is_shown_whole_with_all_its_parts(case: Case) -> None:
    case.sink.publisher("job", "out").publish(1, [part(0, ("a", 1)), part(1, ("b", 2), ("c", 3))])
    assert case.shown() == [("a", 1), ("b", 2), ("c", 3)]


def test_publishing_an_epoch_again_changes_nothing(case: Case) -> None:
    publisher = case.sink.publisher("job", "out")
    publisher.publish(1, [part(0, ("a", 1))])
    publisher.publish(2, [part(0, ("b", 2))])
    publisher.publish(1, [part(0, ("a", 1))])
    case.sink.publisher("job", "out").publish(2, [part(0, ("b", 2))])
    assert case.shown() == [("a", 1), ("b", 2)]


def test_the_sink_knows_the_newest_epoch_it_shows_also_in_another_run(case: Case) -> None:
    publisher = case.sink.publisher("job", "out")
    assert publisher.published_through() == 0
    publisher.publish(1, [part(0, ("a", 1))])
    publisher.publish(12, [part(0, ("b", 2))])
    publisher.close()
    assert case.sink.publisher("job", "out").published_through() == 12


def test_uids_that_begin_alike_are_not_mixed_up(case: Case) -> None:
    case.sink.publisher("job", "out-late").publish(7, [part(0, ("a", 1))])
    assert case.sink.publisher("job", "out").published_through() == 0


def test_an_epoch_without_rows_shows_nothing(case: Case) -> None:
    publisher = case.sink.publisher("job", "out")
    publisher.publish(1, [])
    publisher.publish(2, [part(0)])
    assert case.shown() == []
    publisher.publish(3, [part(0), part(1, ("a", 1))])
    assert case.shown() == [("a", 1)]


def test_an_epoch_that_cannot_be_loaded_whole_is_not_shown_at_all(case: Case) -> None:
    publisher = case.sink.publisher("job", "out")
    with pytest.raises(OSError, match="away"):
        publisher.publish(1, [part(0, ("a", 1)), broken_part(1)])
    assert case.shown() == []
    assert publisher.published_through() == 0
    publisher.publish(1, [part(0, ("a", 1)), part(1, ("b", 2))])
    assert case.shown() == [("a", 1), ("b", 2)]


def test_a_terminal_promises_no_more_than_at_least_once(capsys: pytest.CaptureFixture[str]) -> None:
    sink: Sink = ConsoleSink(max_rows=1)
    publisher = sink.publisher("job", "out")
    publisher.publish(3, [part(0, ("anna", 1), ("bob", 22))])
    publisher.publish(4, [])
    assert not sink.exactly_once
    assert publisher.published_through() == 0
    assert capsys.readouterr().out == ("out, epoch 3: 2 rows\n  user  total\n  anna  1\n  ... and 1 more\n")


EXTREMES: dict[str, pa.Array] = {
    "year 294247": pa.array([2**63 - 1], pa.timestamp("us", tz="UTC")),
    "long before year 1": pa.array([-(2**63)], pa.timestamp("us")),
    "last date": pa.array([2**31 - 1], pa.date32()),
    "longest interval": pa.array([-(2**63)], pa.duration("us")),
    "nanosecond": pa.array([86_399_999_999_999], pa.time64("ns")),
    "not a number": pa.array([float("nan")]),
    "binary": pa.array([b"\xff"]),
    "no UTF-8": pa.array([b"a\xff"]).view(pa.string()),
    "nothing": pa.nulls(1),
    "lists": pa.array([[2**63 - 1]], pa.list_(pa.timestamp("us"))),
    "date keys": pa.array([[(2**31 - 1, 1)]], pa.map_(pa.date32(), pa.int64())),
    "binary keys": pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int64())),
    "struct keys": pa.array([[({"a": 1}, 1)]], pa.map_(pa.struct([("a", pa.int64())]), pa.int64())),
    "a key twice": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("sort", [*CASES, "console"])
@pytest.mark.parametrize("column", EXTREMES)
def test_what_a_sink_accepts_it_shows_whatever_the_values(sort: str, column: str, tmp_path: Path) -> None:
    sink: Sink = ConsoleSink() if sort == "console" else CASES[sort](tmp_path).sink
    table = pa.table({"n": [1], column: EXTREMES[column]})
    if sort == "csv" and pa.types.is_nested(EXTREMES[column].type):
        with pytest.raises(DefinitionError, match=f"here {column!r}"):
            FileSink(tmp_path, format=sort).check_schema(table.schema)
        return
    if isinstance(sink, SelectiveSink):
        sink.check_schema(table.schema)
    sink.publisher("job", "out").publish(1, [StagedPart(0, 1, lambda: table)])


def test_a_terminal_shows_any_columns_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    table = pa.Table.from_arrays([pa.array(["é", None]), pa.array([[1], []])], ["x", "x"])
    ConsoleSink().publisher("job", "out").publish(1, [StagedPart(0, 2, lambda: table)])
    terminal.seek(0)
    assert terminal.read() == "out, epoch 1: 2 rows\n  x     x\n  \\xe9  [1]\n  null  []\n"
