"""Epochs that Spark can prove empty run as all others do: every shard's task runs, and state goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.runtime.epoch import runner
from holdfast.storage.urls import open_storage
from tests.spark.jobs import SCHEMA, Sequence, run

ROWS = [(f"u{i % 3}", i) for i in range(60)]
EPOCH_ROWS = 20


class Seen(hf.OperatorFunction):
    """Keeps every amount that it was given."""

    output = "amount long"
    amounts = hf.ListState("long")

    def process(self, row: Any, ctx: Any) -> Any:
        self.amounts.append(row.amount)
        yield (row.amount,)


def provably_empty(frame: DataFrame) -> DataFrame:
    return frame.where("false")


class EmptyOnce:
    """A frame that Spark proves empty in every second epoch."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: DataFrame) -> DataFrame:
        self.calls += 1
        return frame.where("false") if self.calls % 2 else frame


def without_match(frame: DataFrame) -> DataFrame:
    """A join that only rows of the first epoch survive, which Spark learns while the job runs."""
    known = frame.sparkSession.range(0, EPOCH_ROWS).selectExpr("id as amount").repartition(2)
    few = frame.where(f"amount + rand() < {EPOCH_ROWS}").repartition(3, "amount")
    return few.join(known, "amount").select("user", "amount")


def both_kinds(transform: Any, keyed: hf.MemorySink, unkeyed: hf.MemorySink) -> hf.Job:
    job = hf.Job("empty")
    rows = job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").transform(transform)
    rows.key_by("user").process(Sequence(), uid="keyed").sink(keyed, uid="out")
    rows.process(Seen(), uid="unkeyed").sink(unkeyed, uid="seen")
    return job


@pytest.fixture
def adaptive(spark: SparkSession) -> SparkSession:
    """A session of the user's that plans again while a job runs."""
    own = spark.newSession()
    own.conf.set("spark.sql.adaptive.enabled", "true")
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


def committed(checkpoint: Path) -> tuple[int, int]:
    view = History(open_storage(str(checkpoint))).load()
    return view.last_epoch, view.rows


def test_a_job_whose_every_frame_is_provably_empty_runs(spark: SparkSession, tmp_path: Path) -> None:
    keyed, unkeyed = hf.MemorySink(), hf.MemorySink()
    run(both_kinds(provably_empty, keyed, unkeyed), spark, tmp_path / "ck", max_rows_per_epoch=EPOCH_ROWS)
    assert keyed.rows() == unkeyed.rows() == []
    assert committed(tmp_path / "ck") == (3, len(ROWS))


def test_state_goes_on_after_epochs_that_a_join_left_empty(adaptive: SparkSession, tmp_path: Path) -> None:
    """The restarted job reads the state that was there before the empty epochs."""
    keyed, unkeyed = hf.MemorySink(), hf.MemorySink()
    job = both_kinds(without_match, keyed, unkeyed)
    run(job, adaptive, tmp_path / "ck", max_rows_per_epoch=EPOCH_ROWS)
    assert sorted(amount for (amount,) in unkeyed.rows()) == list(range(EPOCH_ROWS))
    assert sorted(seq for user, seq, _ in keyed.rows() if user == "u0") == list(range(1, 8))
    assert committed(tmp_path / "ck") == (3, len(ROWS))


def test_shards_that_are_placed_survive_an_empty_epoch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster: a shard's task is called with the row that keeps it on its executor."""
    monkeypatch.setattr("holdfast.runtime.placement.is_single_executor", lambda spark: False)
    keyed, unkeyed = hf.MemorySink(), hf.MemorySink()
    run(both_kinds(EmptyOnce(), keyed, unkeyed), spark, tmp_path / "ck", max_rows_per_epoch=EPOCH_ROWS)
    numbers = sorted(seq for user, seq, _ in keyed.rows() if user == "u0")
    assert numbers == list(range(1, len(numbers) + 1))
    assert committed(tmp_path / "ck") == (3, len(ROWS))


def test_results_that_are_lost_on_the_way_are_no_empty_epoch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose results did not all arrive is never taken for one without rows."""
    chosen, lost = runner.chosen_results, [0]

    def losing(job: Any, what: str) -> Any:
        results = chosen(job, what)
        lost[0] += 1
        return [] if lost[0] == 1 else results

    monkeypatch.setattr(runner, "chosen_results", losing)
    keyed, unkeyed = hf.MemorySink(), hf.MemorySink()
    job = both_kinds(lambda frame: frame, keyed, unkeyed)
    run(job, spark, tmp_path / "ck", max_rows_per_epoch=EPOCH_ROWS)
    assert len(keyed.rows()) == len(unkeyed.rows()) == len(ROWS)

    monkeypatch.setattr(runner, "chosen_results", lambda job, what: chosen(job, what)[:1])
    with pytest.raises(hf.EpochFailed, match="gave 1 results for 2 shards"):
        run(both_kinds(lambda frame: frame, keyed, unkeyed), spark, tmp_path / "ck2")
