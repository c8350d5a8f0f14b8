"""A standby warms up with the job's own plans, and touches nothing of the job."""

from __future__ import annotations

from collections.abc import Sequence as Notes
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.runtime.epoch.program import compile_graph
from holdfast.runtime.parts.part_jobs import part_jobs
from holdfast.runtime.placement import Placement, every_shard
from holdfast.runtime.settings import check_settings
from holdfast.runtime.warm_up import warm_up
from tests.spark.jobs import SCHEMA, Sequence


class Unopened(hf.MemorySource):
    """A source that must not be opened."""

    def reader(self, notes: Notes[Any]) -> Any:
        raise AssertionError("a warm-up opened the source")


class Unshown(hf.MemorySink):
    """A sink that must not be opened."""

    def publisher(self, job: str, uid: str) -> Any:
        raise AssertionError("a warm-up opened the sink")


class Latest(hf.OperatorFunction):
    output = "user string"
    latest = hf.ListState("string")

    def process(self, row: Any, ctx: Any) -> Any:
        raise AssertionError("a warm-up has no rows")


def test_every_kind_of_stage_is_warmed_up_and_nothing_is_opened_or_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    planned: list[DataFrame] = []

    def doubled(frame: DataFrame) -> DataFrame:
        planned.append(frame)
        return frame.selectExpr("user", "amount * 2 as amount")

    job = hf.Job("warmed-up")
    rows = job.source(Unopened([("u", 1)], schema=SCHEMA), uid="rows").transform(doubled, materialize=True)
    keyed = rows.key_by("user").process(Sequence(), uid="sequence")
    keyed.sink(Unshown(), uid="numbered")
    known = rows.lookup(
        lambda spark: spark.range(3).selectExpr("string(id) as user", "id"), on="user", uid="users"
    )
    known.sink(Unshown(), uid="known")
    rows.process(Latest(), uid="latest").sink(Unshown(), uid="shown")
    program = compile_graph(job.graph(), spark)
    compiled = len(planned)
    settings = check_settings(tmp_path / "ck", {"working_dir": tmp_path / "working", "key_groups": 8})
    warm_up(spark, program, settings, shards=3, rounds=2)
    assert len(planned) == compiled + 2, "each round plans the job's transforms"
    assert list(tmp_path.rglob("*")) == [], "something was written"


class Topic(Unopened):
    partition_column = "user"


def test_event_time_and_rows_set_aside_are_warmed_up_too(spark: SparkSession, tmp_path: Path) -> None:
    """Of partitions, of files, and of what comes through a channel: each asks its reader for more."""
    job = hf.Job("warmed-up")
    part = job.part("after")
    (tmp_path / "in").mkdir()
    files = hf.FileSource(str(tmp_path / "in"), format="json", schema="user string, at timestamp")
    lines = job.source(files, uid="lines", on_error="dead-letter")
    lines.dead_letters().sink(Unshown(), uid="bad")
    topic = job.source(Topic([], schema="user string, at timestamp"), uid="topic").watermark("at")
    both = lines.watermark("at").union(topic).into(part, uid="in")
    windows = both.key_by("user").window(hf.tumbling("1m"), on="at")
    windows.aggregate(uid="count", n=hf.count()).sink(Unshown(), uid="out")
    settings = check_settings(tmp_path / "ck", {"working_dir": tmp_path / "working", "key_groups": 8})
    for each in part_jobs(job.graph(), str(tmp_path / "ck")):
        warm_up(spark, compile_graph(each.graph(), spark), settings, shards=2, rounds=1)
    assert list(tmp_path.rglob("*")) == [tmp_path / "in"], "something was written"


def test_shards_that_were_followed_are_looked_for_where_they_are(spark: SparkSession) -> None:
    """A standby and the epochs after it make placements of their own, and Spark knows both as one."""
    assert not every_shard(spark, 5).storageLevel.useMemory
    followed = Placement(spark)
    followed.single_executor = False
    assert sorted(row.shard for row in followed.shard_rows(5, [1, 4]).collect()) == [1, 4]
    assert every_shard(spark, 5).storageLevel.useMemory
    assert not every_shard(spark, 6).storageLevel.useMemory


def test_with_one_executor_each_wanted_shard_is_a_task_of_its_own(spark: SparkSession) -> None:
    rows = Placement(spark).shard_rows(5, [1, 4])
    assert sorted(row.shard for row in rows.collect()) == [1, 4]
    assert rows.rdd.getNumPartitions() == 2
