"""Jobs on a real Spark, end to end: what a user declares is what comes out, whole and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain
from holdfast.errors import RestoreError
from holdfast.storage.urls import open_storage
from tests.spark.jobs import (
    ROWS,
    SCHEMA,
    Sequence,
    check_sequences,
    expected_totals,
    run,
    run_through_crashes,
    sequence_job,
)


def test_every_row_takes_effect_once(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    run(sequence_job(ROWS, sink), spark, tmp_path / "ck")
    check_sequences(sink.rows(), expected_totals())


def test_crashes_of_the_driver_repeat_and_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Any] = [*ROWS[:60], hf.CRASH, *ROWS[60:61], hf.CRASH, *ROWS[61:]]
    sink = hf.MemorySink()
    assert run_through_crashes(sequence_job(rows, sink), spark, tmp_path / "ck") == 2
    check_sequences(sink.rows(), expected_totals())


def test_a_start_knows_how_old_the_newest_commit_is(spark: SparkSession, tmp_path: Path) -> None:
    job, told = sequence_job(ROWS, hf.MemorySink()), list[hf.Progress]()
    run(job, spark, tmp_path / "ck")
    newest = Chain(open_storage(str(tmp_path / "ck"))).load()
    run(job, spark, tmp_path / "ck", on_progress=told.append)
    first = next(each for each in told if each.committed_epoch == newest.last_epoch)
    assert first.committed_ms == newest.clock_ms


@pytest.mark.parametrize("working", ["kept", "lost"])
def test_state_is_restored_whether_or_not_working_state_survives(
    spark: SparkSession, tmp_path: Path, working: str
) -> None:
    sink = hf.MemorySink()
    rows: list[Any] = [*ROWS[:100], hf.CRASH, *ROWS[100:]]
    job = sequence_job(rows, sink)
    with pytest.raises(Exception, match="crash"):
        run(job, spark, tmp_path / "ck", working_dir=tmp_path / "first")
    run(job, spark, tmp_path / "ck", working_dir=tmp_path / ("first" if working == "kept" else "second"))
    check_sequences(sink.rows(), expected_totals())


@pytest.mark.parametrize("order", [(1, 3), (4, 2), (2, 5)])
def test_parallelism_may_change_at_restart(
    spark: SparkSession, tmp_path: Path, order: tuple[int, int]
) -> None:
    sink = hf.MemorySink()
    rows: list[Any] = [*ROWS[:100], hf.CRASH, *ROWS[100:150], hf.CRASH, *ROWS[150:]]
    job = sequence_job(rows, sink)
    for parallelism in order:
        with pytest.raises(Exception, match="crash"):
            run(job, spark, tmp_path / "ck", parallelism=parallelism)
    run(job, spark, tmp_path / "ck", parallelism=3, working_dir=tmp_path / "elsewhere")
    check_sequences(sink.rows(), expected_totals())


def test_several_epochs_share_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    run(sequence_job(ROWS, sink), spark, tmp_path / "ck", checkpoint_interval="1h")
    check_sequences(sink.rows(), expected_totals())
    chain = Chain(open_storage(str(tmp_path / "ck")))
    epochs = [len(chain.record(number).attempts) for number in chain.numbers()]
    assert epochs[0] > 1
    assert epochs[1:] == [0], "the last one only says that everything is published"


def test_a_crash_between_barriers_rolls_back_to_the_last_one(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    rows: list[Any] = [*ROWS[:120], hf.CRASH, *ROWS[120:]]
    job = sequence_job(rows, sink)
    assert run_through_crashes(job, spark, tmp_path / "ck", checkpoint_interval="1h") == 1
    check_sequences(sink.rows(), expected_totals())


def test_at_least_once_shows_every_row(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    rows: list[Any] = [*ROWS[:120], hf.CRASH, *ROWS[120:]]
    run_through_crashes(sequence_job(rows, sink), spark, tmp_path / "ck", guarantee="at-least-once")
    assert {(user, total) for user, _, total in sink.rows()} >= {
        (user, total) for user, (_, total) in expected_totals().items()
    }


def test_at_most_once_keeps_no_state_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    rows: list[Any] = [*ROWS[:100], hf.CRASH, *ROWS[100:]]
    run_through_crashes(sequence_job(rows, sink), spark, tmp_path / "ck", guarantee="at-most-once")
    assert len(sink.rows()) <= len(ROWS)
    highest = max(seq for _, seq, _ in sink.rows())
    assert highest < len(ROWS) // 7, "state survived the crash"
    assert not list((tmp_path / "ck").glob("data/*/*delta*"))


class Tag(hf.KeyedFunction):
    """Second operator in a row: counts what the first gave out."""

    output = "user string, n long"
    outputs = {"big": "user string, total long"}  # noqa: RUF012
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.n.value += 1
        if row.total > 1_000:
            ctx.emit_to("big", (row.user, row.total))
        yield row.user, self.n.value


def test_saved_state_is_given_up_for_good_by_a_run_that_saves_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    def go(rows: int, **options: Any) -> list[int]:
        sink = hf.MemorySink()
        run(sequence_job([("u", n) for n in range(rows)], sink), spark, tmp_path / "ck", **options)
        return sorted(seq for _, seq, _ in sink.rows())

    assert go(2) == [1, 2]
    with pytest.raises(RestoreError, match="holds state of operator 'sequence', and at-most-once saves none"):
        go(4, guarantee="at-most-once")
    assert go(4, guarantee="at-most-once", allow_dropped_state=True) == [1, 2]
    assert go(6) == [1, 2], "neither the state from before, nor the one that was not saved"


def test_operators_sinks_unions_and_side_outputs_work_together(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("wide")
    left = job.source(hf.MemorySource(ROWS[:100], schema=SCHEMA), uid="left")
    right = job.source(hf.MemorySource(ROWS[100:], schema=SCHEMA), uid="right")
    rows = left.union(right).transform(lambda df: df.where("amount >= 0"), materialize=True)
    sequences = rows.key_by("user").process(Sequence(), uid="sequence")
    tagged = sequences.key_by("user").process(Tag(), uid="tag")
    plain, first, second, counts, big = (hf.MemorySink() for _ in range(5))
    rows.sink(plain, uid="plain")
    sequences.sink(first, uid="first")
    sequences.sink(second, uid="second")
    tagged.sink(counts, uid="counts")
    tagged.output("big").sink(big, uid="big")
    run(job, spark, tmp_path / "ck")
    assert sorted(plain.rows()) == sorted(ROWS)
    check_sequences(first.rows(), expected_totals())
    assert first.rows() == second.rows()
    assert max(n for _, n in counts.rows()) == len(ROWS) // 7
    assert sorted(big.rows()) == sorted((user, total) for user, _, total in first.rows() if total > 1_000)


def test_aggregates_emit_each_touched_key_once_per_epoch(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("aggregates")
    sink = hf.MemorySink()
    job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").key_by("user").aggregate(
        uid="totals", n=hf.count(), total=hf.sum("amount"), top=hf.max("amount"), mean=hf.mean("amount")
    ).sink(sink, uid="out")
    run(job, spark, tmp_path / "ck")
    last = {user: (n, total) for user, n, total, _, _ in sink.rows()}
    assert last == expected_totals()
    assert len(sink.rows()) == 7 * 5


def test_file_sink_shows_whole_committed_epochs(spark: SparkSession, tmp_path: Path) -> None:
    run(sequence_job(ROWS, hf.FileSink(tmp_path / "out", format="parquet")), spark, tmp_path / "ck")
    table = pq.read_table(tmp_path / "out")
    check_sequences(
        list(zip(*(column.to_pylist() for column in table.columns), strict=True)), expected_totals()
    )
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(ROWS)


def test_dead_letters_are_committed_with_the_epoch(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("letters")
    good, dead = hf.MemorySink(), hf.MemorySink()
    stream = job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").key_by("user")
    operator = stream.process(Picky(), uid="picky", on_error="dead-letter")
    operator.sink(good, uid="good")
    operator.dead_letters().sink(dead, uid="dead")
    run(job, spark, tmp_path / "ck")
    assert len(good.rows()) == len(ROWS) - 3
    assert len(dead.rows()) == 3
    assert "ValueError" in dead.rows()[0][2]


class Picky(hf.KeyedFunction):
    output = "user string, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.n.value += 1
        if row.amount in (13, 77, 180):
            raise ValueError(f"{row.amount} is unlucky")
        yield row.user, self.n.value


def test_a_failing_function_is_named_with_row_key_and_epoch(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("failing")
    stream = job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").key_by("user")
    stream.process(Picky(), uid="picky").sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.UserCodeError) as failure:
        run(job, spark, tmp_path / "ck")
    text = str(failure.value)
    assert "'picky'" in text
    assert "epoch 1" in text
    assert "u6" in text
    assert "13 is unlucky" in text
    assert "\n" not in text


def test_a_checkpoint_of_another_job_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    run(sequence_job(ROWS[:10], hf.MemorySink()), spark, tmp_path / "ck")
    with pytest.raises(hf.RestoreError, match="sequences"):
        run(sequence_job(ROWS[:10], hf.MemorySink(), name="another"), spark, tmp_path / "ck")


def test_changed_key_groups_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    run(sequence_job(ROWS[:10], hf.MemorySink()), spark, tmp_path / "ck")
    with pytest.raises(hf.RestoreError, match="128"):
        run(sequence_job(ROWS[:10], hf.MemorySink()), spark, tmp_path / "ck", key_groups=64)


def test_snapshots_take_over_from_deltas_and_restore(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    rows: list[Any] = [*ROWS[:200], hf.CRASH, *ROWS[200:]]
    job = sequence_job(rows, sink)
    with pytest.raises(Exception, match="crash"):
        run(job, spark, tmp_path / "ck", max_rows_per_epoch=5)
    assert list((tmp_path / "ck").glob("snapshots/*/*"))
    run(job, spark, tmp_path / "ck", working_dir=tmp_path / "elsewhere")
    check_sequences(sink.rows(), expected_totals())
