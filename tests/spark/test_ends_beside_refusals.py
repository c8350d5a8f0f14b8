"""How runs and stops end beside a sink that refuses, in every guarantee: the whole engine on a real Spark."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.connectors.contract import StagedPart
from holdfast.errors import SinkRefused
from holdfast.runtime.epoch import sink_queues
from holdfast.runtime.parts.channel_source import ChannelReader
from holdfast.storage.urls import open_storage
from tests.spark.jobs import ROWS, SCHEMA

DEADLINE_SECONDS = 240.0
EPOCH_ROWS = 30
WHY = "no room for you here; grant it"


class StrictSink:
    """Refuses every epoch from the second on, until it is mended."""

    def __init__(self, exactly_once: bool) -> None:
        self.exactly_once, self.mended = exactly_once, threading.Event()
        self.epochs: dict[int, list[Any]] = {}
        self.shown: list[int] = []

    def publisher(self, job: str, uid: str) -> StrictSink:
        return self

    def published_through(self) -> int:
        return max(self.epochs, default=0) if self.exactly_once else 0

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        rows = [tuple(row.values()) for part in parts for row in part.load().to_pylist()]
        if epoch > 1 and not self.mended.is_set():
            raise hf.DefinitionError(WHY)
        if not self.exactly_once or epoch not in self.epochs:
            self.shown.append(epoch)
        self.epochs[epoch] = rows

    def close(self) -> None: ...

    def rows(self) -> list[Any]:
        return [row for rows in self.epochs.values() for row in rows]


class Made:
    """A job with a sink that refuses and one that does not."""

    def __init__(self, spark: SparkSession, root: Path, guarantee: str) -> None:
        self.spark, self.root, self.guarantee = spark, root, guarantee
        self.strict, self.alive = StrictSink(guarantee == "exactly-once"), hf.MemorySink()
        self.said: list[str] = []

    def start(self, **options: Any) -> hf.JobHandle:
        job = hf.Job("ends")
        rows = job.source(hf.MemorySource(list(ROWS), schema=SCHEMA), uid="rows")
        rows.sink(self.strict, uid="strict")
        rows.sink(self.alive, uid="alive")
        handle = job.start(
            self.root / "ck", spark=self.spark, max_rows_per_epoch=EPOCH_ROWS, restart=hf.NoRestart(),
            working_dir=self.root / "working", on_message=self.said.append, guarantee=self.guarantee,
            **options,
        )  # fmt: skip
        assert isinstance(handle, hf.JobHandle)
        return handle

    @property
    def committed(self) -> int:
        return History(open_storage(str(self.root / "ck"))).load().last_epoch

    def check_whole(self) -> None:
        """Mended, the next start shows the rest: nothing is lost."""
        self.strict.mended.set()
        self.start(until="exhausted").wait(DEADLINE_SECONDS)
        assert sorted(self.alive.rows()) == sorted(ROWS)
        assert sorted(self.strict.rows()) == sorted(ROWS)


def refused(handle: hf.JobHandle) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not handle.status().sinks.get("strict", {}).get("refused"):
        assert time.monotonic() < give_up, "nothing is refused"
        time.sleep(0.05)


@pytest.mark.parametrize("drain", [False, True], ids=["until exhausted", "drained"])
def test_with_at_least_once_a_run_ends_with_the_newest_commit_and_the_next_start_reads_the_rest(
    spark: SparkSession, tmp_path: Path, drain: bool
) -> None:
    made = Made(spark, tmp_path, "at-least-once")
    handle = made.start(**({} if drain else {"until": "exhausted"}))
    if drain:
        refused(handle)
        handle.stop(drain=True)
        with pytest.raises(
            hf.Unpublished, match=r"1 epoch unpublished in sink 'strict', .* not committed"
        ) as stop:
            handle.wait(DEADLINE_SECONDS)
        assert stop.value.uncommitted >= 1
    else:
        with pytest.raises(hf.DefinitionError, match=f"epoch 2, which is committed only after that: {WHY}"):
            handle.wait(DEADLINE_SECONDS)
    assert (made.committed, handle.status().committed_epoch) == (1, 1)
    assert sorted(made.alive.rows()) == sorted(ROWS[:EPOCH_ROWS])
    made.check_whole()
    assert made.strict.shown == list(range(1, 8))


@pytest.mark.parametrize("drain", [False, True], ids=["until exhausted", "drained"])
def test_a_run_ends_when_the_queue_of_a_sink_that_refuses_is_full(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 2)
    made = Made(spark, tmp_path, "exactly-once")
    handle = made.start(**({} if drain else {"until": "exhausted"}))
    if drain:
        refused(handle)
        handle.stop(drain=True)
        with pytest.raises(hf.Unpublished, match=r"[2-5] epochs unpublished in sink 'strict', though all"):
            handle.wait(DEADLINE_SECONDS)
    else:
        with pytest.raises(hf.DefinitionError, match=f"epoch 2, which is committed: {WHY}"):
            handle.wait(DEADLINE_SECONDS)
    shown = made.committed
    assert 3 <= shown < 7
    assert sorted(made.alive.rows()) == sorted(ROWS[: shown * EPOCH_ROWS])
    assert any(text.startswith("ENDING before all is read: ") for text in made.said)
    made.check_whole()
    assert made.strict.shown == list(range(1, 8))


def test_parts_come_to_their_end_though_a_sink_of_another_refuses_at_its_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel is still full of rows when the part before has ended."""
    strict, alive, reads = StrictSink(exactly_once=True), hf.MemorySink(), threading.Event()
    read_next = ChannelReader.next

    def later(self: ChannelReader, *given: Any) -> hf.Slice | None:
        return read_next(self, *given) if reads.is_set() else None

    monkeypatch.setattr(ChannelReader, "next", later)

    def declared() -> hf.Job:
        job = hf.Job("parts")
        rows = job.source(hf.MemorySource(list(ROWS), schema=SCHEMA), uid="rows")
        rows.sink(strict, uid="strict")
        rows.into(job.part("archive"), uid="to-archive").sink(alive, uid="alive")
        return job

    given: Any = {
        "spark": spark, "max_rows_per_epoch": EPOCH_ROWS, "working_dir": tmp_path / "working",
        "restart": hf.NoRestart(), "until": "exhausted", "on_message": lambda text: None,
    }  # fmt: skip
    handle = declared().start(tmp_path / "ck", **given)
    assert isinstance(handle, hf.PartsHandle)
    give_up = time.monotonic() + DEADLINE_SECONDS
    while handle.parts["main"].running:
        assert time.monotonic() < give_up, "the first part does not end"
        time.sleep(0.05)
    assert handle.parts["archive"].running
    reads.set()
    with pytest.raises(SinkRefused, match=f"sink 'strict' cannot show epoch 2, which is committed: {WHY}"):
        handle.wait(DEADLINE_SECONDS)
    assert sorted(alive.rows()) == sorted(ROWS)
    assert [part.status().phase for part in handle.parts.values()] == ["stopped", "stopped"]
    strict.mended.set()
    declared().start(tmp_path / "ck", **given).wait(DEADLINE_SECONDS)
    assert sorted(strict.rows()) == sorted(ROWS)
    assert sorted(alive.rows()) == sorted(ROWS)
