"""Broadcast state on a real Spark: every key judges by the same rules, whatever fails in between."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.cli.main import app
from holdfast.connectors.memory import SimulatedCrash
from holdfast.inspect.stored_state import lists_of_operator, open_stored
from holdfast.runtime.epoch import runner
from holdfast.steps import Step
from holdfast.storage.urls import open_storage
from tests.spark.jobs import run

DEADLINE_SECONDS = 180
CHARGES = [(f"u{n % 7}", n) for n in range(60)]
LIMITS = [(f"r{n % 4}", n) for n in range(20)]


class Judge(hf.BroadcastFunction):
    """Numbers the rows of a user, and says by which rules each was judged; says of each rule when it came."""

    output = "user string, n long, seq long, epoch long, rules string"
    rules = hf.BroadcastState("string", "struct<limit:int>")
    seen = hf.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        if row.limit < 0:
            raise ValueError("a rule that cannot be")
        self.rules[row.rule] = (row.limit,)
        yield "rule", row.limit, 0, ctx.epoch, row.rule

    def process(self, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield row.user, row.n, self.seen.value, ctx.epoch, shown(self.rules)


class NotingJudge(Judge):
    """The same job a release later: its rules have grown."""

    rules = hf.BroadcastState("string", "struct<limit:long,note:string>")

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.rules[row.rule] = (row.limit, "noted")
        yield "rule", row.limit, 0, ctx.epoch, row.rule


def shown(rules: Any) -> str:
    return ",".join(f"{rule}={rules[rule].limit}" for rule in sorted(rules))


def judge_job(charges: list[Any], limits: list[Any], sink: Any, function: Any = None) -> hf.Job:
    job = hf.Job("judge")
    rules = job.source(hf.MemorySource(limits, schema="rule string, limit int"), uid="limits")
    rows = job.source(hf.MemorySource(charges, schema="user string, n long"), uid="charges")
    keyed = rows.key_by("user", order_by="n")
    keyed.connect(rules.broadcast()).process(function or Judge(), uid="judge").sink(sink, uid="out")
    return job


def expect_judged(rows: list[Any], charges: list[Any], limits: list[Any]) -> None:
    """Every charge and every rule once, and each charge judged by the rules up to its epoch."""
    rules = sorted((n, epoch, name) for user, n, _, epoch, name in rows if user == "rule")
    assert [(name, n) for n, _, name in rules] == limits
    judged = [row for row in rows if row[0] != "rule"]
    assert sorted((n, user) for user, n, *_ in judged) == sorted((n, user) for user, n in charges)
    for user in {row[0] for row in judged}:
        own = sorted(row[1:3] for row in judged if row[0] == user)
        assert [seq for _, seq in own] == list(range(1, len(own) + 1))
    for user, n, _, epoch, by in judged:
        known = {name: limit for limit, since, name in rules if since <= epoch}
        assert by == ",".join(f"{name}={known[name]}" for name in sorted(known)), (user, n, epoch)


def kept(place: Path) -> dict[str, Any]:
    """The rules as the newest commit, or the savepoint, has them."""
    (held,) = lists_of_operator(open_stored(str(place)), "judge.broadcast")
    return dict(held.items)


def crash_at(patch: pytest.MonkeyPatch, step: Step, count: int) -> None:
    """End the run when its driver comes to a step for the `count`-th time."""
    reached, left = runner.reached, [count]

    def crashing(here: Step) -> None:
        left[0] -= here is step
        if here is step and left[0] == 0:
            raise SimulatedCrash(f"at {step}")
        reached(here)

    patch.setattr(runner, "reached", crashing)


def test_rules_are_those_of_the_commit_through_crashes_a_savepoint_and_rescaling(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, checkpoint = hf.MemorySink(), tmp_path / "ck"
    options: dict[str, Any] = {"max_rows_per_epoch": 12, "working_dir": tmp_path / "working"}
    half = judge_job(CHARGES[:30], LIMITS[:15], sink)
    for step, count in ((Step.RESULTS_CHOSEN, 3), (Step.BUNDLE_WRITTEN, 1)):
        # Epoch 3, both times: its rules were written by their task, and nothing of it is committed.
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, step, count)
            with pytest.raises(SimulatedCrash):
                run(half, spark, checkpoint, parallelism=2, **options)
        assert open_stored(str(checkpoint)).view.last_epoch == 2
        assert kept(checkpoint) == {"r0": (8,), "r1": (9,), "r2": (10,), "r3": (11,)}
    handle = half.start(checkpoint, spark=spark, parallelism=2, **options)
    give_up = time.monotonic() + DEADLINE_SECONDS
    while len(sink.rows()) < 45:
        assert handle.running, handle.status().error
        assert time.monotonic() < give_up
        time.sleep(0.02)
    handle.stop(savepoint=tmp_path / "sp")
    handle.wait(DEADLINE_SECONDS)
    expect_judged(sink.rows(), CHARGES[:30], LIMITS[:15])
    assert {row[3] for row in sink.rows() if row[0] == "rule"} == {1, 3}
    assert kept(tmp_path / "sp") == {"r0": (12,), "r1": (13,), "r2": (14,), "r3": (11,)}

    shown_state = CliRunner().invoke(app, ["state", "show", str(tmp_path / "sp"), "--json"]).stdout
    assert '"operator": "judge.broadcast", "state": "rules", "shard": 0, "count": 4' in shown_state

    rest = hf.MemorySink()
    whole = judge_job(CHARGES, LIMITS, rest, NotingJudge())
    said = run(whole, spark, tmp_path / "ck-2", from_savepoint=tmp_path / "sp", parallelism=3, **options)
    assert any("state 'rules' of operator 'judge.broadcast' is converted" in text for text in said)
    expect_judged([*sink.rows(), *rest.rows()], CHARGES, LIMITS)
    assert kept(tmp_path / "ck-2")["r3"] == (19, "noted")


def test_rules_behind_a_transform_and_rules_that_fail(spark: SparkSession, tmp_path: Path) -> None:
    sink, dead = hf.MemorySink(), hf.MemorySink()
    job = hf.Job("judge")
    bad = [("r0", 1), ("r1", -1), ("r0", 2), ("r2", None)]
    rules = job.source(hf.MemorySource(bad, schema="rule string, limit int"), uid="limits")
    fitting = rules.transform(lambda df: df.where("limit is not null"))
    rows = job.source(hf.MemorySource(CHARGES[:20], schema="user string, n long"), uid="charges")
    made = (
        rows.key_by("user").connect(fitting.broadcast()).process(Judge(), uid="judge", on_error="dead-letter")
    )
    made.sink(sink, uid="out")
    made.dead_letters().sink(dead, uid="dead")
    run(job, spark, tmp_path / "ck", max_rows_per_epoch=10)
    assert {row[4] for row in sink.rows() if row[0] != "rule"} == {"r0=2"}
    ((row, _, error, epoch),) = dead.rows()
    assert (row, epoch) == ('{"rule":"r1","limit":-1}', 1)
    assert "a rule that cannot be" in error
    assert kept(tmp_path / "ck") == {"r0": (2,)}
    staged = History(open_storage(str(tmp_path / "ck"))).record(1).staged
    parts = [(file.stream, file.part) for file in staged]
    assert len(set(parts)) == len(parts), "sinks may tell the parts of an epoch apart by their numbers"


def test_rules_where_no_state_is_saved(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    job = judge_job(CHARGES[:20], LIMITS[:5], sink)
    run(job, spark, tmp_path / "ck", guarantee="at-most-once", max_rows_per_epoch=10)
    expect_judged(sink.rows(), CHARGES[:20], LIMITS[:5])


def test_rows_of_files_count_once_whichever_stage_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    job, sink = hf.Job("judge"), hf.MemorySink()
    for name, lines in (("limits", ['{"rule": "r0", "limit": 1}'] * 3), ("charges", ['{"user": "u"}'] * 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_text("\n".join(lines))
    rules = job.source(
        hf.FileSource(str(tmp_path / "limits"), format="json", schema="rule string, limit int"), uid="limits"
    )
    charges = job.source(
        hf.FileSource(str(tmp_path / "charges"), format="json", schema="user string, n long"), uid="charges"
    )
    keyed = charges.key_by("user")
    keyed.connect(rules.broadcast()).process(Judge(), uid="judge").sink(sink, uid="out")
    keyed.aggregate(uid="counts", n=hf.count()).sink(hf.MemorySink(), uid="counted")
    run(job, spark, tmp_path / "ck")
    assert History(open_storage(str(tmp_path / "ck"))).load().rows == 8
