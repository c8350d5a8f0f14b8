"""Every sink keeps what is promised of it, and a sink that says less than exactly-once says so."""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.console import ConsoleSink
from holdfast.connectors.contract import Sink, StagedPart
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.memory import MemorySink
from holdfast.testing import conformance

Row = tuple[str, int]


@dataclass(frozen=True)
class Case:
    """Sinks by the names of their places, what a plain reader sees there, how rows are taken away."""

    make: Callable[[str], Sink]
    shown: Callable[[str], list[tuple[Any, ...]]]
    take_away: Callable[[str], object] | None = None


def memory_case(directory: Path) -> Case:
    sinks: dict[str, MemorySink] = defaultdict(MemorySink)
    return Case(sinks.__getitem__, lambda place: sinks[place].rows())


def file_case(format: str, read: Callable[[Path], pa.Table]) -> Callable[[Path], Case]:
    def case(directory: Path) -> Case:
        def files(place: str) -> list[Path]:
            return sorted((directory / place).glob(f"*.{format}"))

        def shown(place: str) -> list[tuple[Any, ...]]:
            return [tuple(row.values()) for path in files(place) for row in read(path).to_pylist()]

        return Case(
            lambda place: FileSink(directory / place, format=format),
            shown,
            lambda place: [path.unlink() for path in files(place)],
        )

    return case


def read_json(path: Path) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])


CASES = {
    "memory": memory_case,
    "parquet": file_case("parquet", pq.read_table),
    "json": file_case("json", read_json),
    "csv": file_case("csv", pyarrow.csv.read_csv),
}
NOT_ASKED = {
    "memory": {
        "mark-before-begin", "mark-follows", "mark-never-goes-back", "taken-away",
        "check-schema-touches-nothing", "check-schema",
    },
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return CASES[request.param](tmp_path)


def part(number: int, *rows: Row) -> StagedPart:
    users, totals = [user for user, _ in rows], [total for _, total in rows]
    table = pa.table({"user": pa.array(users, pa.string()), "total": pa.array(totals, pa.int64())})
    return StagedPart(number, len(rows), lambda: table)


@pytest.mark.parametrize("sort", CASES)
def test_a_sink_keeps_what_is_promised(sort: str, tmp_path: Path) -> None:
    case = CASES[sort](tmp_path)
    report = conformance.check_sink(case.make, case.shown, take_away=case.take_away)
    assert set(report.not_asked) == NOT_ASKED.get(sort, set())


def test_the_sink_knows_the_newest_epoch_it_shows_also_in_another_run(case: Case) -> None:
    publisher = case.make("a").publisher("job", "out")
    publisher.publish(1, [part(0, ("a", 1))])
    publisher.publish(12, [part(0, ("b", 2))])
    publisher.close()
    assert case.make("a").publisher("job", "out").published_through() == 12


def test_rows_are_shown_in_the_order_of_epochs_and_parts(case: Case) -> None:
    publisher = case.make("a").publisher("job", "out")
    publisher.publish(1, [part(0, ("a", 1)), part(1, ("b", 2), ("c", 3))])
    publisher.publish(2, [part(0, ("d", 4))])
    assert case.shown("a") == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


def test_a_terminal_shows_what_it_accepts_and_is_not_asked_to_show_it_once() -> None:
    report = conformance.check_sink(
        lambda place: ConsoleSink(), lambda place: (), only=["sink", "accepted-is-shown", "zombie"]
    )
    assert report.kept == ("sink", "accepted-is-shown")
    assert report.not_asked["zombie"] == "it says exactly_once = False"


def test_a_terminal_promises_no_more_than_at_least_once(capsys: pytest.CaptureFixture[str]) -> None:
    sink: Sink = ConsoleSink(max_rows=1)
    publisher = sink.publisher("job", "out")
    publisher.publish(3, [part(0, ("anna", 1), ("bob", 22))])
    publisher.publish(4, [])
    assert not sink.exactly_once
    assert publisher.published_through() == 0
    assert capsys.readouterr().out == ("out, epoch 3: 2 rows\n  user  total\n  anna  1\n  ... and 1 more\n")


def test_a_terminal_shows_any_columns_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    table = pa.Table.from_arrays([pa.array(["é", None]), pa.array([[1], []])], ["x", "x"])
    ConsoleSink().publisher("job", "out").publish(1, [StagedPart(0, 2, lambda: table)])
    terminal.seek(0)
    assert terminal.read() == "out, epoch 1: 2 rows\n  x     x\n  \\xe9  [1]\n  null  []\n"
