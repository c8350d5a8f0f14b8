"""Latency as the bench sees it from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.latency import CONTENDERS, Watcher, fed, latencies, of_holdfast, of_spark, ratios


def arrived(directory: Path, *times: float) -> None:
    for number, at in enumerate(times):
        path = directory / f"{number:06d}.parquet"
        path.touch()
        os.utime(path, (at, at))


def test_a_file_is_shown_when_output_with_its_number_or_a_later_one_is(tmp_path: Path) -> None:
    arrived(tmp_path, 100, 101, 102, 103, 104)
    found = latencies(tmp_path, [(102.5, 1), (103, 0), (106, 3)], since=100.5, until=104.5)
    # 1 after 1.5 s, 2 after 4, 3 after 3; 4 was not shown by the end.
    assert found == {"p50": 2.25, "p95": 3.85, "p99": 3.97, "files": 4, "not_shown": 1}


def test_output_counts_from_when_a_reader_may_see_it(tmp_path: Path) -> None:
    def put(path: Path, number: int) -> None:
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"number": [0, number]}), path)

    put(tmp_path / "epoch-1.parquet", 7)
    put(tmp_path / "batch=0" / "part-0.parquet", 8)
    put(tmp_path / "batch=1" / "part-0.parquet", 9)
    (tmp_path / "batch=0" / "_SUCCESS").touch()
    watchers = [Watcher(lambda: of_holdfast(tmp_path)), Watcher(lambda: of_spark(tmp_path))]
    while not all(watcher.seen for watcher in watchers):
        time.sleep(0.01)
    assert [[number for _, number in watcher.end()] for watcher in watchers] == [[7], [8]]


def test_the_feed_numbers_its_files_and_puts_them_in_place_whole(tmp_path: Path) -> None:
    with fed(tmp_path / "in", rate=50):
        while len(files := sorted((tmp_path / "in").glob("*.parquet"))) < 3:
            time.sleep(0.01)
    tables = [pq.read_table(path) for path in files[:3]]
    assert [table["number"].to_pylist() for table in tables] == [[number] * 5 for number in range(3)]
    assert tables[0].column_names == ["k", "value", "number"]


def test_ratios_say_how_many_times_as_long_it_takes_with_spark() -> None:
    results = [
        {"name": name, "rate": 100, "p50": each, "p95": each, "p99": each}
        for each, name in enumerate(CONTENDERS, 1)
    ]
    found = ratios(results)
    assert found["spark, fastest / holdfast, 100 rows/s, p99"] == pytest.approx(4)
    assert found["spark, default trigger / holdfast, target 1 s, 100 rows/s, p50"] == pytest.approx(1.5)
