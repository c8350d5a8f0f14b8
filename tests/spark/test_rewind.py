"""A user goes back to a retained commit, and the job goes on from there, on a real Spark."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence as Several
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.admin import brief_term
from holdfast.cli.main import app
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.files.sink import FilePublisher
from holdfast.errors import SinkFailed
from holdfast.inspect.stored_state import open_stored, state_tables
from tests.spark.jobs import (
    ROWS,
    SCHEMA,
    Sequence,
    check_sequences,
    expected_totals,
    rewind,
    run,
    sequence_job,
)

EPOCH = 50
"""Rows in each epoch."""


@pytest.fixture(autouse=True)
def no_leader_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)


def shown(directory: Path) -> Counter[tuple[Any, ...]]:
    """The rows that a FileSink shows, and how often each."""
    rows = [row for path in directory.glob("out-*.parquet") for row in pq.read_table(path).to_pylist()]
    return Counter(tuple(row.values()) for row in rows)


def numbered_rows(directory: Path) -> Counter[tuple[str, int]]:
    """User and number of each row that a FileSink shows."""
    return Counter((user, seq) for user, seq, _ in shown(directory).elements())


def totals(checkpoint: Path) -> dict[str, tuple[int, int]]:
    """User -> what the newest commit remembers of it: number of rows, sum."""
    found = [
        row for table in state_tables(open_stored(str(checkpoint)), "sequence") for row in table.to_pylist()
    ]
    return {row["user"]: (int(row["seen"]), int(row["total"])) for row in found}


def test_a_job_that_went_back_shows_the_same_rows_as_one_that_did_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, out = tmp_path / "ck", tmp_path / "out"
    sink = hf.FileSink(out, format="parquet")
    publish = FilePublisher.publish

    def stuck(publisher: FilePublisher, epoch: int, parts: Several[StagedPart]) -> None:
        if epoch == 3:
            raise OSError("no room")
        publish(publisher, epoch, parts)

    with monkeypatch.context() as patch:
        patch.setattr(FilePublisher, "publish", stuck)
        with pytest.raises(SinkFailed):
            run(sequence_job(ROWS[: 3 * EPOCH], sink), spark, checkpoint)
    # Epochs 1 to 3 are committed, and the third is not shown.
    before = shown(out)
    assert sum(before.values()) == 2 * EPOCH
    told = rewind(checkpoint, 1)
    assert (told["to_epoch"], told["replayed"], told["sinks"]["out"]) == (1, 2, 2)
    assert totals(checkpoint) == expected_totals(ROWS[:EPOCH])
    assert shown(out) == before
    # Planned again, these epochs would have fewer rows, and the sink would lack some.
    said = run(sequence_job(ROWS[: 3 * EPOCH], sink), spark, checkpoint, max_rows_per_epoch=EPOCH - 10)
    check_sequences(list(shown(out).elements()), expected_totals(ROWS[: 3 * EPOCH]))
    assert any("REPLAY: sinks show epochs up to 3" in line for line in said), said
    assert totals(checkpoint) == expected_totals(ROWS[: 3 * EPOCH])

    # Back twice in a row, and forward again; then the input goes on, and another sink is new.
    rewind(checkpoint, 2)
    rewind(checkpoint, 1)
    assert totals(checkpoint) == expected_totals(ROWS[:EPOCH])
    assert rewind(checkpoint, 3)["replayed"] == 0
    assert totals(checkpoint) == expected_totals(ROWS[: 3 * EPOCH])
    rewind(checkpoint, 2)
    again, job = hf.MemorySink(), hf.Job("sequences")
    numbered = job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").key_by("user")
    rows = numbered.process(Sequence(), uid="sequence")
    rows.sink(sink, uid="out")
    rows.sink(again, uid="again")
    run(job, spark, checkpoint)
    check_sequences(list(shown(out).elements()), expected_totals())
    assert totals(checkpoint) == expected_totals()
    # A sink that the job did not have begins after the commit that was gone back to.
    assert len(again.rows()) == len(ROWS) - 2 * EPOCH

    plain = tmp_path / "plain"
    run(sequence_job(ROWS, hf.FileSink(plain / "out", format="parquet")), spark, plain / "ck")
    # Which of a key's rows comes first within an epoch is not promised, and the sums so far follow from that.
    assert numbered_rows(out) == numbered_rows(plain / "out")


class Wider(Sequence):
    """Later code: a wider state, and a new one."""

    total = hf.ValueState("decimal(20,0)", default=Decimal(0))
    largest = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.largest.value = max(self.largest.value, row.amount)
        for user, seq, total in super().process(row, ctx):
            yield user, seq, int(total)


def test_before_an_upgrade_both_the_older_and_the_newer_code_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, out = tmp_path / "ck", tmp_path / "out"

    def job(rows: int, function: hf.KeyedFunction) -> hf.Job:
        made = hf.Job("sequences")
        keyed = made.source(hf.MemorySource(ROWS[:rows], schema=SCHEMA), uid="rows").key_by("user")
        keyed.process(function, uid="sequence").sink(hf.FileSink(out, format="parquet"), uid="out")
        return made

    run(job(EPOCH, Sequence()), spark, checkpoint)
    run(job(2 * EPOCH, Wider()), spark, checkpoint)
    assert rewind(checkpoint, 1)["other_schemas"] == ["sequence"]
    # The older code fits again, which it would not without going back.
    run(job(3 * EPOCH, Sequence()), spark, checkpoint)
    assert totals(checkpoint) == expected_totals(ROWS[: 3 * EPOCH])
    rewind(checkpoint, 1)
    said = run(job(len(ROWS), Wider()), spark, checkpoint)
    assert any("UPGRADE: state 'total' of operator 'sequence'" in line for line in said), said
    assert totals(checkpoint) == expected_totals()
    check_sequences(list(shown(out).elements()), expected_totals())


def test_rows_that_should_not_have_come_in_are_taken_out_of_the_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, out = tmp_path / "ck", tmp_path / "out"
    sink = hf.FileSink(out, format="parquet")
    run(sequence_job(ROWS[: 2 * EPOCH], sink), spark, checkpoint)
    before = shown(out)
    rewind(checkpoint, 1)
    given_up = CliRunner().invoke(app, ["skip", "--checkpoint", str(checkpoint), "--epoch", "2", "--yes"])
    assert given_up.exit_code == 0, given_up.stderr
    run(sequence_job(ROWS[: 3 * EPOCH], sink), spark, checkpoint)
    assert totals(checkpoint) == expected_totals(ROWS[:EPOCH] + ROWS[2 * EPOCH : 3 * EPOCH])
    assert before <= shown(out), "a sink keeps what it has shown"
    assert sum(shown(out).values()) == 3 * EPOCH


class Chance(hf.KeyedFunction):
    """Gives each row a name that no other run of the same rows gives it."""

    seen = hf.ValueState("long", default=0)
    output = "user string, seq long, name string"

    def process(self, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield row.user, self.seen.value, uuid.uuid4().hex


def test_two_sinks_show_the_same_rows_though_the_function_is_not_deterministic(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is behind when the job goes back, and the epochs are computed again with another parallelism."""
    checkpoint, first, second = tmp_path / "ck", tmp_path / "first", tmp_path / "second"
    publish = FilePublisher.publish

    def job(rows: int) -> hf.Job:
        made = hf.Job("chances")
        keyed = made.source(hf.MemorySource(ROWS[:rows], schema=SCHEMA), uid="rows").key_by("user")
        named = keyed.process(Chance(), uid="chance")
        named.sink(hf.FileSink(first, format="parquet"), uid="first")
        named.sink(hf.FileSink(second, format="parquet"), uid="second")
        return made

    def stuck(publisher: FilePublisher, epoch: int, parts: Several[StagedPart]) -> None:
        if epoch == 3 and publisher._uid == "second":
            raise OSError("no room")
        publish(publisher, epoch, parts)

    def rows_in(directory: Path) -> Counter[tuple[Any, ...]]:
        tables = [pq.read_table(path).to_pylist() for path in directory.glob("*-*.parquet")]
        return Counter(tuple(row.values()) for rows in tables for row in rows)

    with monkeypatch.context() as patch:
        patch.setattr(FilePublisher, "publish", stuck)
        with pytest.raises(SinkFailed):
            run(job(3 * EPOCH), spark, checkpoint)
    assert (sum(rows_in(first).values()), sum(rows_in(second).values())) == (3 * EPOCH, 2 * EPOCH)
    assert rewind(checkpoint, 1)["waiting"]["second"] == 3
    run(job(4 * EPOCH), spark, checkpoint, parallelism=3)
    assert sum(rows_in(first).values()) == 4 * EPOCH
    assert rows_in(first) == rows_in(second)
