"""A run that fails and goes on by itself, and one that goes on with another number of shards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import holdfast as hf
from holdfast.checkpoint.log.incidents import read_failures
from holdfast.runtime.restart_strategy import POISON_FAILURES
from holdfast.storage.urls import open_storage
from tests.spark.jobs import run

DEADLINE_SECONDS = 120


class Numbered(hf.KeyedFunction):
    output = "key long, seq long"
    seq = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.seq.value += 1
        yield row.key, self.seq.value


class Failing(Numbered):
    """Fails on one row for as long as a file is there."""

    def __init__(self, obstacle: Path) -> None:
        self.obstacle = str(obstacle)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        if row.value == 120 and Path(self.obstacle).exists():
            raise ValueError("an obstacle")
        yield from super().process(row, ctx)


def job_of(sink: hf.MemorySink, source: hf.Source, function: hf.KeyedFunction | None = None) -> hf.Job:
    job = hf.Job("restarts")
    rows = job.source(source, uid="rows")
    rows.key_by("key").process(function or Numbered(), uid="numbered").sink(sink, uid="out")
    return job


def rows(count: int, *crashes: int) -> list[Any]:
    found: list[Any] = [(i % 7, i) for i in range(count)]
    for at in sorted(crashes, reverse=True):
        found.insert(at, hf.CRASH)
    return found


def expect_each_once(sink: hf.MemorySink, count: int) -> None:
    numbers: dict[int, list[int]] = {}
    for key, seq in sink.rows():
        numbers.setdefault(key, []).append(seq)
    assert sum(map(len, numbers.values())) == count
    for key, seen in numbers.items():
        assert sorted(seen) == list(range(1, len(seen) + 1)), f"key {key} was numbered {sorted(seen)}"


def wait_until(handle: hf.JobHandle, condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert handle.running, f"the run ended before {what}: {handle.status().error}"
        assert time.monotonic() < give_up, f"waited {DEADLINE_SECONDS} s for {what}"
        time.sleep(0.05)


def test_a_job_that_crashes_goes_on_by_itself_and_tells_of_it(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    source = hf.MemorySource(rows(300, 60, 210), schema="key long, value long")
    said = run(job_of(sink, source), spark, tmp_path / "ck", restart=hf.FixedDelay(attempts=2, delay="10ms"))
    expect_each_once(sink, 300)
    assert sum("FAILURE" in text for text in said) == 2
    history = read_failures(open_storage(str(tmp_path / "ck")))
    assert [record.decision for record in history] == ["restart", "restart", "stopped"]
    assert "SimulatedCrash" in history[0].kind


def test_a_poison_epoch_ends_the_run_and_the_mended_job_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    sink, obstacle = hf.MemorySink(), tmp_path / "obstacle"
    obstacle.touch()
    source = hf.MemorySource(rows(300), schema="key long, value long")
    quick = hf.ExponentialDelay(initial="10ms")
    with pytest.raises(hf.UserCodeError, match="an obstacle"):
        run(job_of(sink, source, Failing(obstacle)), spark, tmp_path / "ck", restart=quick)
    history = read_failures(open_storage(str(tmp_path / "ck")))
    assert [record.decision for record in history] == ["restart", "restart", "give-up"]
    assert (history[-1].epoch, history[-1].poison) == (3, True)

    obstacle.unlink()
    run(job_of(sink, source, Failing(obstacle)), spark, tmp_path / "ck", restart=quick)
    expect_each_once(sink, 300)


def test_a_poison_epoch_is_named_also_when_others_wait_for_the_same_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    def bad_row(frame: DataFrame) -> DataFrame:
        return frame.selectExpr(
            "key", "if(value = 120, cast(raise_error('bad row') as long), value) as value"
        )

    job, sink = hf.Job("poison"), hf.MemorySink()
    source = hf.MemorySource(rows(300), schema="key long, value long")
    job.source(source, uid="rows").transform(bad_row).sink(sink, uid="out")
    quick = hf.ExponentialDelay(initial="10ms")
    with pytest.raises(hf.PoisonEpoch, match="bad row") as error:
        run(job, spark, tmp_path / "ck", restart=quick, checkpoint_interval="1h")
    assert error.value.epoch == 3
    assert sink.rows() == []


class Killed(Numbered):
    """Its worker is killed on one row, for as many times as there are files left to take away."""

    def __init__(self, bullets: Path) -> None:
        self.bullets = str(bullets)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        if row.value == 120:
            for bullet in sorted(Path(self.bullets).iterdir())[:1]:
                bullet.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        yield from super().process(row, ctx)


def test_workers_that_are_killed_again_and_again_make_no_epoch_poison(
    spark: SparkSession, tmp_path: Path
) -> None:
    """More often than makes an epoch poison; the run goes on when the killing ends."""
    sink, bullets = hf.MemorySink(), tmp_path / "bullets"
    bullets.mkdir()
    for number in range(POISON_FAILURES + 1):
        (bullets / str(number)).touch()
    source = hf.MemorySource(rows(300), schema="key long, value long")
    said = run(
        job_of(sink, source, Killed(bullets)), spark, tmp_path / "ck",
        restart=hf.ExponentialDelay(initial="10ms", multiplier=1),
    )  # fmt: skip
    expect_each_once(sink, 300)
    failures = [text for text in said if "FAILURE" in text]
    assert len(failures) == POISON_FAILURES + 1
    assert "a Python worker was killed (out of memory?)" in failures[0]
    assert all("the same again" in text for text in failures[1:])
    history = read_failures(open_storage(str(tmp_path / "ck")))
    assert {(record.kind, record.epoch) for record in history[:-1]} == {("EpochInterrupted", 0)}


def test_a_malformed_line_is_told_with_its_file_and_is_not_tried_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.json").write_text('{"key": 1, "value": 1}\n{"key": 1, "value": oops}\n')
    source = hf.FileSource(tmp_path / "in", format="json", schema="key long, value long")
    with pytest.raises(hf.MalformedInput, match=r"bad\.json(.|\n)*oops") as error:
        run(
            job_of(hf.MemorySink(), source), spark, tmp_path / "ck",
            restart=hf.ExponentialDelay(initial="10ms"),
        )  # fmt: skip
    assert "collectToPython" not in str(error.value)
    history = read_failures(open_storage(str(tmp_path / "ck")))
    assert len(history) == 1, "it will not become well formed"


def test_what_a_transform_raises_is_told_by_its_last_line(spark: SparkSession, tmp_path: Path) -> None:
    @udf("long")
    def reciprocal(value: int) -> int:
        return 1 // (value - 120)

    job = hf.Job("raising")
    source = hf.MemorySource(rows(300), schema="key long, value long")
    stream = job.source(source, uid="rows").transform(lambda frame: frame.select("key", reciprocal("value")))
    stream.sink(hf.MemorySink(), uid="out")
    with pytest.raises(
        hf.EpochFailed, match="in Spark: ZeroDivisionError: integer division or modulo by zero;"
    ):
        run(job, spark, tmp_path / "ck")


def _committed(handle: hf.JobHandle, epoch: int) -> bool:
    return handle.status().committed_epoch >= epoch


def _has_shards(handle: hf.JobHandle, shards: int) -> bool:
    return handle.status().parallelism == shards


def test_a_running_job_is_rescaled_without_stopping(spark: SparkSession, tmp_path: Path) -> None:
    sink, total = hf.MemorySink(), 4_000
    source = hf.GeneratorSource(["id % 97", "id"], schema="key long, value long", total=total)
    handle = job_of(sink, source).start(
        tmp_path / "ck", spark=spark, until="exhausted", parallelism=1, max_rows_per_epoch=100,
        working_dir=tmp_path / "working", restart=hf.NoRestart(),
    )  # fmt: skip
    for shards in (2, 4, 3):
        enough = handle.status().committed_epoch + 4
        wait_until(handle, partial(_committed, handle, enough), "epochs to be committed")
        handle.rescale(shards)
        wait_until(handle, partial(_has_shards, handle, shards), f"{shards} shards")
    handle.wait(DEADLINE_SECONDS)
    assert handle.status().phase == "stopped"
    expect_each_once(sink, total)


def test_a_number_of_shards_that_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = hf.MemorySource(rows(10), schema="key long, value long")
    handle = job_of(hf.MemorySink(), source).start(
        tmp_path / "ck", spark=spark, until="exhausted", working_dir=tmp_path / "working"
    )
    with pytest.raises(hf.DefinitionError, match="129"):
        handle.rescale(129)
    handle.wait(DEADLINE_SECONDS)


def test_auto_follows_the_cores(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.runtime import driver

    sink, cores = hf.MemorySink(), [2]
    monkeypatch.setattr(driver, "default_parallelism", lambda spark: cores[0])
    monkeypatch.setattr(driver, "TERM_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(driver, "SCALE_CHECK_SECONDS", 0.3)
    source = hf.MemorySource(rows(3_000), schema="key long, value long")
    handle = job_of(sink, source).start(
        tmp_path / "ck", spark=spark, until="exhausted", parallelism="auto", max_rows_per_epoch=100,
        working_dir=tmp_path / "working",
    )  # fmt: skip
    wait_until(handle, lambda: handle.status().committed_epoch >= 2, "the first epochs")
    assert handle.status().parallelism == 2
    cores[0] = 3
    wait_until(handle, lambda: handle.status().parallelism == 3, "the job to follow the cores")
    handle.wait(DEADLINE_SECONDS)
    expect_each_once(sink, 3_000)
