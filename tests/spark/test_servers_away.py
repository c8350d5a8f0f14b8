"""Servers of sinks and sources that are not there for a while, with the whole engine on a real Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.connectors.memory import MemoryPublisher, MemoryReader
from holdfast.runtime.epoch import outages, sink_queues
from holdfast.storage.urls import open_storage
from tests.spark.jobs import ROWS, SCHEMA, Sequence, check_sequences, expected_totals, run

DEADLINE_SECONDS = 240.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "MOST_SECONDS", 0.2)


class Server:
    """Is there, or not; `tries` counts who came in vain."""

    def __init__(self) -> None:
        self.away = threading.Event()
        self.tries = 0

    def reach(self) -> None:
        if self.away.is_set():
            self.tries += 1
            raise hf.Unavailable("no connection to server.example")


class ServedSink(hf.MemorySink):
    def __init__(self) -> None:
        super().__init__()
        self.server = Server()

    def publisher(self, job: str, uid: str) -> MemoryPublisher:
        opened, server = super().publisher(job, uid), self.server

        class Served(MemoryPublisher):
            def publish(self, epoch: int, parts: Any) -> None:
                server.reach()
                super().publish(epoch, parts)

        return Served(opened._shown)


class ServedSource(hf.MemorySource):
    """`hurt`: the calls that need the server."""

    def __init__(self, rows: list[Any], hurt: tuple[str, ...]) -> None:
        super().__init__(rows, schema=SCHEMA)
        self.server, self.hurt = Server(), hurt

    def reader(self, notes: Any) -> Any:
        return ServedReader(super().reader(notes), self)


class ServedReader:
    def __init__(self, real: MemoryReader, source: ServedSource) -> None:
        self._real, self._source = real, source
        self.exhausted, self.lag = real.exhausted, real.lag

    def _reach(self, call: str) -> None:
        if call in self._source.hurt:
            self._source.server.reach()

    def next(self, after: Any, max_rows: int | None, now_ms: int) -> hf.Slice | None:
        self._reach("next")
        return self._real.next(after, max_rows, now_ms)

    def frame(self, spark: SparkSession, slice: hf.Slice) -> Any:
        self._reach("frame")
        return self._real.frame(spark, slice)

    def verify(self, slice: hf.Slice) -> None:
        self._reach("verify")


def job_of(source: Any, **sinks: hf.MemorySink) -> hf.Job:
    job = hf.Job("served")
    stream = job.source(source, uid="rows").key_by("user").process(Sequence(), uid="sequence")
    for uid, sink in sinks.items():
        stream.sink(sink, uid=uid)
    return job


def started(job: hf.Job, spark: SparkSession, root: Path, **options: Any) -> hf.JobHandle:
    handle = job.start(
        root / "ck", spark=spark, max_rows_per_epoch=30, working_dir=root / "working",
        restart=hf.NoRestart(), on_message=lambda text: None, **options,
    )  # fmt: skip
    assert isinstance(handle, hf.JobHandle)
    return handle


def wait_until(handle: hf.JobHandle, condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert handle.running, f"the run ended before {what}: {handle.status().error}"
        assert time.monotonic() < give_up, f"waited {DEADLINE_SECONDS} s for {what}"
        time.sleep(0.05)


@pytest.fixture
def memory() -> hf.MemorySource:
    return hf.MemorySource(list(ROWS), schema=SCHEMA)


def test_a_dead_sink_holds_up_no_other_a_stop_names_it_and_the_next_start_shows_the_rest(
    spark: SparkSession, tmp_path: Path, memory: hf.MemorySource
) -> None:
    dead, alive = ServedSink(), ServedSink()
    dead.server.away.set()
    job = job_of(memory, dead=dead, alive=alive)
    handle = started(job, spark, tmp_path, stop_within="10ms")
    wait_until(handle, lambda: len(alive.rows()) == len(ROWS), "the other sink has shown all")
    wait_until(handle, lambda: dead.server.tries > 1, "the dead one was tried again")
    wait_until(handle, lambda: handle.status().sinks["dead"]["epochs"] == 7, "all of it is told")
    told = handle.status().sinks
    assert told["dead"]["unavailable"]["reason"] == "no connection to server.example"
    taken = handle.savepoint(tmp_path / "beside")
    assert taken.waiting.startswith("7 epochs for sink 'dead' are still to be shown and are not in it")
    assert "'alive'" not in taken.waiting
    handle.stop(savepoint=tmp_path / "sp")
    with pytest.raises(hf.Unpublished, match="7 epochs unpublished in sink 'dead'") as ended:
        handle.wait(DEADLINE_SECONDS)
    assert "no savepoint was left" in str(ended.value)
    assert not (tmp_path / "sp").exists()
    storage = open_storage(str(tmp_path / "ck"))
    ending = newest_ending(storage)
    assert ending is not None
    assert (ending.ending, ending.published) == ("stopped", False)
    assert History(storage).load().published_through == {"dead": 0, "alive": 7}
    assert dead.rows() == []

    dead.server.away.clear()
    run(job, spark, tmp_path / "ck", working_dir=tmp_path / "working")
    for sink in (dead, alive):
        check_sequences(sink.rows(), expected_totals())


def test_a_full_queue_stops_reading_until_its_sink_is_back(
    spark: SparkSession, tmp_path: Path, memory: hf.MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 2)
    dead, alive = ServedSink(), ServedSink()
    dead.server.away.set()
    handle = started(job_of(memory, dead=dead, alive=alive), spark, tmp_path, until="exhausted")
    wait_until(handle, lambda: handle.status().sinks.get("dead", {}).get("full", False), "it is full")
    tries = dead.server.tries
    wait_until(handle, lambda: dead.server.tries > tries + 3, "time has passed")
    assert handle.status().epoch < 7, "it was to read no more"
    dead.server.away.clear()
    assert handle.wait(DEADLINE_SECONDS).restarts == 0
    for sink in (dead, alive):
        check_sequences(sink.rows(), expected_totals())


@pytest.mark.parametrize("hurt", ["next", "frame", "verify"])
def test_a_source_whose_server_goes_away_is_waited_for(
    spark: SparkSession, tmp_path: Path, hurt: str
) -> None:
    sink, source = hf.MemorySink(), ServedSource(list(ROWS), (hurt,))
    source.server.away.set()
    handle = started(job_of(source, out=sink), spark, tmp_path, until="exhausted")
    wait_until(handle, lambda: source.server.tries > 3, "it was tried again")
    told = handle.status().sources["rows"]["unavailable"]
    assert told["reason"] == "no connection to server.example"
    source.server.away.clear()
    assert handle.wait(DEADLINE_SECONDS).restarts == 0
    check_sequences(sink.rows(), expected_totals())


@pytest.mark.parametrize("hurt", ["next", "verify"])
def test_a_stop_while_a_source_is_waited_for_ends_in_good_order(
    spark: SparkSession, tmp_path: Path, hurt: str
) -> None:
    sink, source = hf.MemorySink(), ServedSource(list(ROWS), (hurt,))
    source.server.away.set()
    handle = started(job_of(source, out=sink), spark, tmp_path)
    wait_until(handle, lambda: source.server.tries > 1, "it is waited for")
    handle.stop()
    assert handle.wait(DEADLINE_SECONDS).phase == "stopped"
    assert sink.rows() == []
    source.server.away.clear()
    run(job_of(source, out=sink), spark, tmp_path / "ck", working_dir=tmp_path / "working")
    check_sequences(sink.rows(), expected_totals())
