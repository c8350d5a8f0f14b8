"""Operators without keys on a real Spark: their lists survive crashes and every change of parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain
from holdfast.connectors.memory import SimulatedCrash
from holdfast.storage.urls import open_storage
from tests.spark.jobs import run, run_through_crashes

WORDS = [f"w{number:03d}" for number in range(60)]
SCHEMA = "word string"


class Seen(hf.OperatorFunction):
    """Keeps every word, once dealt out and once for everybody; shows its lists when it is asked to."""

    output = "word string, n long, shard int, shards int"
    outputs = {"lists": "shard int, mine array<string>, ours array<string>"}  # noqa: RUF012
    mine = hf.ListState("string")
    ours = hf.ListState("string", redistribute="union")

    def process(self, row: Any, ctx: Any) -> Any:
        if row.word == "show":
            ctx.emit_to("lists", (ctx.shard, list(self.mine), list(self.ours)))
            return
        if row.word == "bad":
            self.mine.append("half done")
            raise ValueError("a bad word")
        self.mine.append(row.word)
        self.ours.append(row.word)
        yield row.word, len(self.mine), ctx.shard, ctx.shards


class Words:
    """A job over words, and what its sinks show."""

    def __init__(self, rows: list[Any], on_error: Any = "fail", sinks: Any = None) -> None:
        self.sinks = sinks or [hf.MemorySink() for _ in range(4)]
        self.main, self.lists, self.counts, self.dead = self.sinks
        self.job = hf.Job("words")
        source = self.job.source(hf.MemorySource(rows, schema=SCHEMA), uid="rows")
        seen = source.transform(lambda df: df.where("word <> 'drop'")).process(
            Seen(), uid="seen", on_error=on_error
        )
        seen.sink(self.main, uid="main")
        seen.output("lists").sink(self.lists, uid="lists")
        seen.key_by("shards").aggregate(uid="count", n=hf.count()).sink(self.counts, uid="counts")
        if on_error == "dead-letter":
            seen.dead_letters().sink(self.dead, uid="dead")

    def shown(self) -> tuple[int, list[str], list[str]]:
        """What the only `show` of the input found, sorted."""
        ((shard, mine, ours),) = self.lists.rows()
        return shard, sorted(mine), sorted(ours)


def stored_shards(checkpoint: Path) -> dict[int, set[int]]:
    """Number of shards -> shards that the newest checkpoint has lists of."""
    files = Chain(open_storage(str(checkpoint))).load().lists["seen"]
    return {file.shards: {other.shard for other in files if other.shards == file.shards} for file in files}


def test_lists_go_through_two_three_and_one_shards(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "ck"
    two = Words(WORDS[:40])
    three, one = Words(WORDS[:41], sinks=two.sinks), Words([*WORDS, "show"], sinks=two.sinks)
    run(two.job, spark, checkpoint, parallelism=2, max_rows_per_epoch=20)
    assert stored_shards(checkpoint) == {2: {0, 1}}
    for shard in (0, 1):
        numbers = sorted(n for _, n, where, _ in two.main.rows() if where == shard)
        assert numbers, "rows are spread"
        assert numbers == list(range(1, len(numbers) + 1)), "a gap or a repeat is a row lost or counted twice"
    run(three.job, spark, checkpoint, parallelism=3)
    assert stored_shards(checkpoint) == {3: {0, 1, 2}}, "one row came, and all three shards were written"
    run(one.job, spark, checkpoint, parallelism=1)
    assert stored_shards(checkpoint) == {1: {0}}
    assert one.shown() == (0, WORDS, WORDS), "each word is there once, split or united"
    assert sorted(word for word, _, _, _ in one.main.rows()) == WORDS
    assert dict(one.counts.rows()) == {2: 40, 3: 1, 1: 19}


def test_crashes_lose_and_double_nothing_whatever_the_shards(spark: SparkSession, tmp_path: Path) -> None:
    words = Words([*WORDS[:25], hf.CRASH, *WORDS[25:45], hf.CRASH, *WORDS[45:], "show"])
    for parallelism in (2, 3):
        with pytest.raises(SimulatedCrash):
            run(words.job, spark, tmp_path / "ck", parallelism=parallelism, max_rows_per_epoch=10)
        ((shards, found),) = stored_shards(tmp_path / "ck").items()
        assert found == set(range(shards)), "a checkpoint has the lists of one parallelism, all of them"
    run(words.job, spark, tmp_path / "ck", parallelism=1)
    assert words.shown() == (0, WORDS, WORDS)
    assert sorted(word for word, _, _, _ in words.main.rows()) == WORDS


def test_a_crash_between_barriers_rolls_lists_back_to_the_last_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = Words([*WORDS[:40], hf.CRASH, *WORDS[40:], "show"])
    options: dict[str, Any] = {"checkpoint_interval": "1h", "parallelism": 1, "max_rows_per_epoch": 20}
    assert run_through_crashes(words.job, spark, tmp_path / "ck", **options) == 1
    assert words.shown() == (0, WORDS, WORDS)
    assert sorted(n for _, n, _, _ in words.main.rows()) == list(range(1, len(WORDS) + 1))


@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_epochs_without_rows_change_nothing(spark: SparkSession, tmp_path: Path, adaptive: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", adaptive)
    words = Words(["a", "drop", "drop", "b", hf.CRASH, "drop", "c", "show"])
    with pytest.raises(SimulatedCrash):
        run(words.job, session, tmp_path / "ck", parallelism=3, max_rows_per_epoch=1)
    run(words.job, session, tmp_path / "ck", parallelism=1, max_rows_per_epoch=1)
    assert words.shown() == (0, ["a", "b", "c"], ["a", "b", "c"])


def test_at_most_once_keeps_lists_in_memory_alone(spark: SparkSession, tmp_path: Path) -> None:
    words = Words([*WORDS[:30], hf.CRASH, *WORDS[30:], "show"])
    run_through_crashes(words.job, spark, tmp_path / "ck", guarantee="at-most-once", parallelism=1)
    _, mine, _ = words.shown()
    assert len(mine) == len(set(mine))
    assert set(mine) <= set(WORDS[30:]), "what was before the crash is gone"
    assert len(mine) > 1, "and what came after it is not"
    assert Chain(open_storage(str(tmp_path / "ck"))).load().lists == {}


def test_dead_letters_leave_nothing_in_lists(spark: SparkSession, tmp_path: Path) -> None:
    words = Words(["a", "bad", "b", "bad", "show"], on_error="dead-letter")
    run(words.job, spark, tmp_path / "ck", parallelism=1, max_rows_per_epoch=2)
    assert words.shown() == (0, ["a", "b"], ["a", "b"])
    assert [row for row, _, error, _ in words.dead.rows() if "a bad word" in error] == ['{"word":"bad"}'] * 2


def test_a_damaged_list_sends_history_back(spark: SparkSession, tmp_path: Path) -> None:
    words = Words([*WORDS[:30], hf.CRASH, *WORDS[30:], "show"])
    with pytest.raises(SimulatedCrash):
        run(words.job, spark, tmp_path / "ck", parallelism=2, max_rows_per_epoch=10)
    damaged = Chain(open_storage(str(tmp_path / "ck"))).load().lists["seen"][0].extent
    path = tmp_path / "ck" / damaged.object
    data = bytearray(path.read_bytes())
    data[damaged.offset + damaged.length // 2] ^= 1
    path.write_bytes(data)
    said = run(words.job, spark, tmp_path / "ck", parallelism=1)
    assert any("REWIND" in line for line in said), said
    assert words.shown() == (0, WORDS, WORDS)


def test_a_source_that_has_nothing_gives_no_shard_any_rows(spark: SparkSession, tmp_path: Path) -> None:
    job, sink, other = hf.Job("two-sources"), hf.MemorySink(), hf.MemorySink()
    job.source(hf.MemorySource([], schema=SCHEMA), uid="empty").process(Seen(), uid="seen").sink(
        sink, uid="out"
    )
    job.source(hf.MemorySource(WORDS[:2], schema=SCHEMA), uid="rows").sink(other, uid="rows-out")
    run(job, spark, tmp_path / "ck", parallelism=2)
    assert (sink.rows(), len(other.rows())) == ([], 2)
