"""A stream joined with a table that changes: every epoch has the copy that its plan names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.checkpoint import open_checkpoint, read_job
from holdfast.checkpoint.savepoints.take import take_savepoint
from holdfast.cli.checkpoints import copies_of
from holdfast.clock import SystemClock
from holdfast.runtime.epoch import runner
from holdfast.steps import Step
from holdfast.storage.urls import open_storage
from tests.spark.jobs import run

FILLING = 3_000
"""Rows of the table that match nothing: with them a copy is too large for a result row."""
ROWS = [("a", 1), ("b", 2), ("c", 3), (None, 4)]
"""One epoch of them; of the next ones `n` goes on."""


class Killed(Exception):
    """The driver died here."""


def write_prices(path: Path, of: float) -> None:
    """The prices of a and b, of b two, and of a null."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    items = ["a", "b", "b", None, *(f"other {n}" for n in range(FILLING))]
    prices = [of, of + 0.25, of + 0.5, of, *([0.0] * FILLING)]
    columns = {"id": items, "price": prices, "n": [f"note of {of} on {item}" for item in items]}
    pq.write_table(pa.table(columns), path / "part.parquet")


def expected(epoch: int, of: float) -> list[tuple[Any, ...]]:
    n = 4 * (epoch - 1)
    found = [("a", n + 1, of), ("b", n + 2, of + 0.25), ("b", n + 2, of + 0.5)]
    notes = [(item, number, price, f"note of {of} on {item}") for item, number, price in found]
    return [*notes, ("c", n + 3, None, None), (None, n + 4, None, None)]


class Priced:
    """So many epochs of rows, joined with the prices in a path; and the sum of the prices of each item."""

    def __init__(self, prices: Path, sinks: tuple[Any, Any], epochs: int, refresh: str) -> None:
        rows = [(item, n + 4 * epoch) for epoch in range(epochs) for item, n in ROWS]
        self.job = hf.Job("priced")
        stream = self.job.source(hf.MemorySource(rows, schema="item string, n long"), uid="rows")
        read = str(prices)
        priced = stream.lookup(
            lambda spark: spark.read.parquet(read),
            on=("item", "id"),
            how="left",
            refresh=refresh,
            uid="prices",
        )
        priced.sink(sinks[0], uid="out")
        priced.key_by("item").aggregate(total=hf.sum("price"), uid="totals").sink(sinks[1], uid="sums")


def shown(sink: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, sink.rows()), key=repr)


def test_an_epoch_that_runs_again_has_the_table_as_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices, checkpoint = tmp_path / "prices", tmp_path / "ck"
    sinks = hf.MemorySink(), hf.MemorySink()

    def go_on(epochs: int, refresh: str = "1ms", **options: Any) -> list[str]:
        job = Priced(prices, sinks, epochs, refresh).job
        return run(job, spark, options.pop("at", checkpoint), max_rows_per_epoch=4, **options)

    with pytest.raises(hf.DefinitionError, match=r"lookup 'prices': its table cannot be read \(Analysis"):
        go_on(1)
    write_prices(prices, of=1.0)
    go_on(1)
    write_prices(prices, of=2.0)

    def dying(step: Step) -> None:
        if step is Step.BUNDLE_WRITTEN:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(runner, "reached", dying)
        with pytest.raises(Killed):
            go_on(2)
    assert shown(sinks[0]) == sorted(expected(1, 1.0), key=repr), "epoch 2 ran, and was not committed"
    write_prices(prices, of=3.0)
    go_on(3)
    by_epoch = [*expected(1, 1.0), *expected(2, 2.0), *expected(3, 3.0)]
    assert shown(sinks[0]) == sorted(by_epoch, key=repr), "epoch 2 has the prices that it was planned with"
    last = {row[0]: row[1] for row in sinks[1].rows()}
    assert last == {"a": 6.0, "b": 14.25, "c": None, None: None}

    # The table is gone: the job goes on with its copy, here and from a savepoint.
    shutil.rmtree(prices)
    said = go_on(4)
    assert [text for text in said if text.startswith("LOOKUP: ") and "cannot be read" in text]
    assert shown(sinks[0]) == sorted([*by_epoch, *expected(4, 3.0)], key=repr)
    stored = open_storage(str(checkpoint))
    clock = SystemClock()
    opened = open_checkpoint(stored, "priced", read_job(stored).key_groups, clock, identity="unused")
    view = opened.chain.load()
    assert view.tables["prices"].rows == FILLING + 4
    assert view.tables["prices"].objects <= {copy.name for copy in copies_of(view)}, "verify looks at it"
    savepoint = open_storage(str(tmp_path / "sp"))
    take_savepoint(opened, None, savepoint, id="sp", stopped=False, clock=clock, holder="test")
    shutil.rmtree(checkpoint)
    sinks = hf.MemorySink(), hf.MemorySink()
    go_on(5, "30d", at=tmp_path / "other", from_savepoint=str(tmp_path / "sp"))
    assert shown(sinks[0]) == sorted(expected(5, 3.0), key=repr)


def test_columns_and_keys_are_compared_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    write_prices(tmp_path / "prices", of=1.0)

    def refusal(table: Any, schema: str = "item string, n long", **options: Any) -> str:
        job = hf.Job("refused")
        stream = job.source(hf.MemorySource([], schema=schema), uid="rows")
        stream.lookup(table, **{"on": ("item", "id"), "uid": "prices", **options}).sink(
            hf.MemorySink(), uid="out"
        )
        with pytest.raises(hf.DefinitionError) as refused:
            run(job, spark, tmp_path / "ck")
        return str(refused.value)

    path = str(tmp_path / "prices")
    assert "the table has no column 'item'; there are id, price, n" in refusal(path, on="item")
    assert "column 'item' of the stream is int, 'id' of the table is string; cast" in refusal(
        path, "item int, n long"
    )
    assert "would have the column 'n_right' twice" in refusal(path, "item string, n long, n_right long")
    assert "its function gave back int; give back a DataFrame" in refusal(lambda spark: 5)
    assert "its table is a stream" in refusal(lambda spark: spark.readStream.format("rate").load())
    assert "its table has the column 'n' twice" in refusal(
        lambda spark: spark.read.parquet(path).selectExpr("id", "n", "price as N")
    )
