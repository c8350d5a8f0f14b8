"""The Nexmark queries give, epoch by epoch and out of order, what DuckDB finds in all events at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from bench.nexmark.expected import differences, expected_rows
from bench.nexmark.generator import SCHEMA, write_json, write_parquet
from bench.nexmark.queries import QUERIES, job
from bench.nexmark.small_inputs import DENSE, GROUPS, small_input
from bench.nexmark.source import NexmarkSource
from tests.spark.jobs import run

EVENTS, PER_EPOCH = 5_000, 1_700


@pytest.fixture(scope="module")
def emitted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], pa.Table]:
    """What a query emits; those of its group have run with it."""

    @cache
    def run_group(queries: tuple[int, ...]) -> dict[int, pa.Table]:
        sinks = {query: hf.MemorySink() for query in queries}
        settings = small_input(queries[0])
        nexmark = job(NexmarkSource(settings, EVENTS), sinks, settings.disorder_us)
        run(nexmark, spark, tmp_path_factory.mktemp("nexmark") / "ck", max_rows_per_epoch=PER_EPOCH)
        return {query: sink.table() for query, sink in sinks.items()}

    return lambda query: next(run_group(group)[query] for group in GROUPS if query in group)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_duckdb_finds(query: int, emitted: Callable[[int], pa.Table]) -> None:
    events = small_input(query).table(0, EVENTS)
    assert expected_rows(query, events).num_rows, "an empty result proves nothing"
    assert differences(query, events, emitted(query)) == []


def test_events_as_files_are_the_events_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    made = NexmarkSource(DENSE, 300)
    reader = made.reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    assert reader.exhausted(slice.end)
    from_tasks = sorted(map(str, reader.frame(spark, slice).collect()))
    assert len(from_tasks) == 300
    for format, write in (("parquet", write_parquet), ("json", write_json)):
        write(tmp_path / format, DENSE, 300, 200)
        files = hf.FileSource(tmp_path / format, format=format, schema=SCHEMA).reader([])
        whole = files.next(None, None, 0)
        assert whole is not None
        assert sorted(map(str, files.frame(spark, whole).collect())) == from_tasks, format
