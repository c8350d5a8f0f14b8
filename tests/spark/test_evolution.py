"""Later code goes on from a checkpoint that earlier code wrote: from its snapshots, its deltas, and both."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.checkpoint import open_checkpoint, read_job
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.savepoints.take import take_savepoint
from holdfast.errors import RestoreError
from holdfast.runtime.epoch import snapshotter
from holdfast.storage.urls import open_storage
from holdfast.testing.clocks import ManualClock
from tests.fixtures.everything import FROZEN_EPOCHS, NAME, ROWS_PER_EPOCH, USERS
from tests.fixtures.everything import job as first_job
from tests.fixtures.evolved import Narrowed, Second, Third, expected, job

FROZEN = Path(__file__).parents[1] / "fixtures" / "v1"


def go_on(declared: hf.Job, spark: SparkSession, checkpoint: Path, working: Path, **options: Any) -> None:
    declared.run(
        checkpoint,
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=ROWS_PER_EPOCH,
        working_dir=working,
        restart=hf.NoRestart(),
        on_message=lambda _: None,
        **options,
    )


def listing(checkpoint: Path) -> list[str]:
    return [entry.name for entry in open_storage(str(checkpoint)).list("")]


def rows_from(sink: hf.MemorySink, epoch: int) -> list[tuple[Any, ...]]:
    """Rows of the epochs from `epoch` on. What was staged before has the columns of the code then."""
    return sorted(row for row in sink.rows() if row[1] >= (epoch - 1) * ROWS_PER_EPOCH)


@pytest.mark.parametrize("parallelism", [2, 3])
def test_state_outlives_two_upgrades(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    checkpoint = tmp_path / "ck"
    shutil.copytree(FROZEN, checkpoint)
    options = {"parallelism": parallelism, "allow_dropped_state": True}

    # Snapshots and deltas of the first code alone.
    sink, totals = hf.MemorySink(), hf.MemorySink()
    go_on(job(23, Second(), sink, totals), spark, checkpoint, tmp_path / "w1", **options)
    assert rows_from(sink, 21) == sorted(expected(21, 23, FROZEN_EPOCHS))
    last = {row[0]: row[1:] for row in totals.rows()}
    assert {user: row[0] for user, row in last.items()} == {
        f"u{u}": sum(n for n in range(23 * ROWS_PER_EPOCH) if n % USERS == u) for u in range(USERS)
    }
    # `top` came with the upgrade: it knows rows of the new epochs only, and they are the largest.
    assert all(row[2] >= 20 * ROWS_PER_EPOCH for row in last.values())
    view = Chain(open_storage(str(checkpoint))).load()
    generations = {schema.uid: schema.generation for schema in view.operators}
    assert generations == {"everything": 1, "sums": 1, "extra": 0}
    assert {file.schema.generation for file in view.snapshots["everything"] if file.schema} == {0}

    # Snapshots of the first code, deltas of the first and of the second. Then snapshots of the third.
    monkeypatch.setattr(snapshotter, "DELTAS_MIN", 2)
    monkeypatch.setattr(snapshotter, "DELTAS_MAX", 2)
    sink = hf.MemorySink()
    go_on(job(32, Third(), sink, hf.MemorySink()), spark, checkpoint, tmp_path / "w2", **options)
    assert rows_from(sink, 24) == sorted(expected(24, 32, FROZEN_EPOCHS))
    view = Chain(open_storage(str(checkpoint))).load()
    assert 2 in {file.schema.generation for file in view.snapshots["everything"] if file.schema}

    # Snapshots of the third: nothing is left to convert.
    sink = hf.MemorySink()
    go_on(job(34, Third(), sink, hf.MemorySink()), spark, checkpoint, tmp_path / "w3", **options)
    assert rows_from(sink, 33) == sorted(expected(33, 34, FROZEN_EPOCHS))


def test_working_state_of_older_code_is_not_misread(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, working = tmp_path / "ck", tmp_path / "working"
    shutil.copytree(FROZEN, checkpoint)
    options = {"parallelism": 2, "allow_dropped_state": True}
    go_on(job(22, Second(), hf.MemorySink(), hf.MemorySink()), spark, checkpoint, working, **options)
    sink = hf.MemorySink()
    go_on(job(24, Third(), sink, hf.MemorySink()), spark, checkpoint, working, **options)
    assert rows_from(sink, 23) == sorted(expected(23, 24, FROZEN_EPOCHS))


def test_an_operator_is_dropped_only_with_leave(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "ck"
    shutil.copytree(FROZEN, checkpoint)
    sink, totals = hf.MemorySink(), hf.MemorySink()
    renamed = job(22, Second(), sink, totals, uid="sums-anew")
    with pytest.raises(RestoreError) as refused:
        go_on(renamed, spark, checkpoint, tmp_path / "w1")
    assert "state of operator 'sums', which this job does not have" in str(refused.value)
    assert "state 'top' of operator 'everything' is in the checkpoint" in str(refused.value)
    with pytest.raises(RestoreError, match="7 rows of epochs 20 to 20 were committed for stream 'sums'"):
        go_on(renamed, spark, checkpoint, tmp_path / "w1", allow_dropped_state=True)
    go_on(first_job(FROZEN_EPOCHS, hf.MemorySink()), spark, checkpoint, tmp_path / "w0")
    go_on(renamed, spark, checkpoint, tmp_path / "w1", allow_dropped_state=True)
    assert rows_from(sink, 21) == sorted(expected(21, 22, FROZEN_EPOCHS))
    # The new operator began with nothing.
    assert max(row[2] for row in totals.rows()) <= -(-2 * ROWS_PER_EPOCH // USERS)
    assert "sums" not in Chain(open_storage(str(checkpoint))).load().snapshots


def test_what_cannot_follow_is_told_at_once_and_nothing_is_touched(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "ck"
    shutil.copytree(FROZEN, checkpoint)
    before = listing(checkpoint)
    with pytest.raises(RestoreError) as refused:
        go_on(job(30, Narrowed(), hf.MemorySink(), hf.MemorySink()), spark, checkpoint, tmp_path / "w")
    lines = str(refused.value).splitlines()
    assert len(lines) == 5
    for line in lines:
        assert "of operator 'everything'" in line
        assert "; declare it" in line
    assert listing(checkpoint) == before, "not even a term, which would fence out a leader that fits"


def test_another_aggregate_under_a_stored_name_is_refused_and_nothing_is_touched(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = hf.MemorySink()

    def aggregating(rows: int, **aggregates: Any) -> hf.Job:
        declared = hf.Job("aggregating")
        given = hf.MemorySource(
            [("u", n, 10 * n) for n in range(1, rows)], schema="user string, a long, b long"
        )
        kept = declared.source(given, uid="rows").key_by("user").aggregate(uid="kept", **aggregates)
        kept.sink(sink, uid="out")
        return declared

    go_on(aggregating(3, x=hf.max("a")), spark, tmp_path / "ck", tmp_path / "w")
    before = listing(tmp_path / "ck")
    with pytest.raises(RestoreError, match=r"holds max\(a\) in 'x', which is declared as sum\(b\);"):
        go_on(aggregating(5, x=hf.sum("b")), spark, tmp_path / "ck", tmp_path / "w")
    assert listing(tmp_path / "ck") == before
    go_on(aggregating(5, x=hf.max("a"), y=hf.sum("b")), spark, tmp_path / "ck", tmp_path / "w")
    assert sink.rows()[-1] == ("u", 4, 70)


def test_a_savepoint_that_does_not_fit_is_not_claimed(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, savepoint, fresh = tmp_path / "ck", tmp_path / "sp", tmp_path / "new"
    shutil.copytree(FROZEN, checkpoint)
    kept, clock = open_storage(str(checkpoint)), ManualClock()
    take_savepoint(
        open_checkpoint(kept, NAME, read_job(kept).key_groups, clock, identity="unused"),
        None,
        open_storage(str(savepoint)),
        id="sp",
        stopped=True,
        clock=clock,
        holder="test",
    )
    before = listing(savepoint)
    with pytest.raises(RestoreError, match="of operator 'everything'"):
        go_on(
            job(30, Narrowed(), hf.MemorySink(), hf.MemorySink()), spark, fresh, tmp_path / "w",
            from_savepoint=savepoint, claim=True,
        )  # fmt: skip
    assert listing(savepoint) == before
    assert listing(fresh) == []
