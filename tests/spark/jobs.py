"""Small jobs and runs that the tests on a real Spark share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain
from holdfast.cli.main import app
from holdfast.connectors.memory import SimulatedCrash
from holdfast.storage.urls import open_storage


class Sequence(hf.KeyedFunction):
    """Numbers the rows of each key: a gap or a repeat in `seq` shows a row lost or counted twice."""

    output = "user string, seq long, total long"
    seen = hf.ValueState("long", default=0)
    total = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        self.total.value += row.amount
        yield row.user, self.seen.value, self.total.value


ROWS = [(f"u{i % 7}", i) for i in range(210)]
SCHEMA = "user string, amount long"


def expected_totals(rows: list[tuple[str, int]] = ROWS) -> dict[str, tuple[int, int]]:
    """User -> (number of rows, sum), counted without Holdfast."""
    totals: dict[str, tuple[int, int]] = {}
    for user, amount in rows:
        count, total = totals.get(user, (0, 0))
        totals[user] = (count + 1, total + amount)
    return totals


def sequence_job(rows: list[Any], sink: Any, name: str = "sequences") -> hf.Job:
    job = hf.Job(name)
    source = hf.MemorySource(rows, schema=SCHEMA)
    job.source(source, uid="rows").key_by("user").process(Sequence(), uid="sequence").sink(sink, uid="out")
    return job


def check_sequences(rows: list[tuple[Any, ...]], expected: dict[str, tuple[int, int]]) -> None:
    """Every key was numbered 1, 2, 3, ... once each, and ends at its right total."""
    by_user: dict[str, list[int]] = {}
    last: dict[str, tuple[int, int]] = {}
    for user, seq, total in rows:
        by_user.setdefault(user, []).append(seq)
        last[user] = max(last.get(user, (0, 0)), (seq, total))
    for user, numbers in by_user.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), f"{user} was numbered {sorted(numbers)}"
    ended = {user: (last.get(user), expected.get(user)) for user in last.keys() | expected.keys()}
    wrong = {user: pair for user, pair in ended.items() if pair[0] != pair[1]}
    assert not wrong, f"ended as (is, should be): {wrong}"


def run(
    job: hf.Job, spark: SparkSession, checkpoint: Path, until: str = "exhausted", **options: Any
) -> list[str]:
    """Run a job to its end; gives back what it said."""
    said: list[str] = []
    options.setdefault("max_rows_per_epoch", 50)
    options.setdefault("working_dir", checkpoint.parent / "working")
    options.setdefault("restart", hf.NoRestart())
    job.run(checkpoint, spark=spark, until=until, on_message=said.append, **options)
    return said


def run_through_crashes(job: hf.Job, spark: SparkSession, checkpoint: Path, **options: Any) -> int:
    """Run a job whose input holds CRASH elements, again after each; gives back how often it crashed."""
    crashes = 0
    while True:
        try:
            run(job, spark, checkpoint, **options)
        except SimulatedCrash:
            crashes += 1
            continue
        return crashes


def commit_of(checkpoint: Path, epoch: int) -> int:
    """The newest commit that ends with this epoch."""
    done = CliRunner().invoke(app, ["checkpoints", "list", "--checkpoint", str(checkpoint), "--json"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return int(max(row["commit"] for row in rows if row["last_epoch"] == epoch and row["retained"]))


def rewind(checkpoint: Path, epoch: int) -> dict[str, Any]:
    """Go to the commit that ends with this epoch, by the command."""
    to = str(commit_of(checkpoint, epoch))
    done = CliRunner().invoke(app, ["rewind", "--checkpoint", str(checkpoint), "--to", to, "--yes", "--json"])
    assert done.exit_code == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert Chain(open_storage(str(checkpoint))).load().last_epoch == epoch
    return told
