"""Keys that are saved on their own, on a real Spark. Kills are in tests/chaos/test_uncoordinated.py."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import RestoreError
from holdfast.state.files.saved_key import unpack
from holdfast.storage.key_saves.files import FileStateStorage
from tests.contract.state_storage_suite import all_saves
from tests.services.servers import redis_server
from tests.spark.jobs import ROWS, SCHEMA, Sequence, check_sequences, expected_totals, run

HALF = len(ROWS) // 2
DEADLINE = 120.0


def job(rows: list[Any], sink: hf.MemorySink, states: Path, **settings: Any) -> hf.Job:
    protection = hf.Uncoordinated(storage=FileStateStorage(states), **(settings or {"every": "1h"}))
    made = hf.Job("carts")
    stream = made.source(hf.MemorySource(rows, schema=SCHEMA), uid="rows").key_by("user")
    stream.process(Sequence(), uid="carts", protection=protection).sink(sink, uid="out")
    return made


def saved_events(states: Path) -> dict[str, int]:
    saves = all_saves(FileStateStorage(states), "carts")
    return {id.key[5:].decode(): unpack(data, id).events for id, data in saves}


def test_nothing_is_checkpointed_and_a_run_that_ends_leaves_nothing_to_lose(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, states, shown = hf.MemorySink(), tmp_path / "states", list[hf.Progress]()
    run(job(ROWS[:70], sink, states), spark, tmp_path / "cp")
    assert not list((tmp_path / "cp").glob("snapshots/**/*"))
    run(job(ROWS[:140], sink, states), spark, tmp_path / "cp")
    assert saved_events(states) == Counter(user for user, _ in ROWS[:140])
    # The machine is replaced after a clean end.
    job(ROWS, sink, states).run(
        tmp_path / "cp", spark=spark, until="exhausted", max_rows_per_epoch=50, restart=hf.NoRestart(),
        working_dir=tmp_path / "another machine", on_progress=shown.append,
    )  # fmt: skip
    check_sequences(sink.rows(), expected_totals())
    counted = shown[-1].own_keys["carts"]
    assert counted["fetched"] == 7
    assert (counted["lost"], counted["unsaved"]) == (0, 0)
    assert max(progress.delta_bytes for progress in shown) == 0


def test_dirty_keys_are_saved_while_no_rows_come(spark: SparkSession, tmp_path: Path) -> None:
    states = tmp_path / "states"
    handle = job(ROWS[:50], hf.MemorySink(), states, every="2s").start(
        tmp_path / "cp",
        spark=spark,
        until="stopped",
        restart=hf.NoRestart(),
        working_dir=tmp_path / "working",
    )
    try:
        wait_for(lambda: len(saved_events(states)) == 7)
        assert handle.running
        wait_for(lambda: handle.status().own_keys["carts"]["unsaved"] == 0)
    finally:
        handle.stop()
        handle.wait()


def test_epochs_go_on_while_a_real_storage_hangs_and_saves_follow_when_it_is_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = hf.Job("carts")
    endless = hf.GeneratorSource(
        {"user": "concat('u', pmod(id, 7))", "amount": "id"}, schema=SCHEMA, total=1 << 40
    )
    stream = made.source(endless, uid="rows").key_by("user")
    with redis_server() as redis:
        states = hf.RedisStateStorage(redis.url, timeout_seconds=1)
        protection = hf.Uncoordinated(storage=states, every="1s")
        stream.process(Sequence(), uid="carts", protection=protection).sink(hf.MemorySink(), uid="out")
        handle = made.start(
            tmp_path / "cp", spark=spark, max_rows_per_epoch=50, epoch_interval="200ms",
            restart=hf.NoRestart(), working_dir=tmp_path / "working",
        )  # fmt: skip

        def counted(name: str) -> int:
            return handle.status().own_keys.get("carts", {}).get(name, 0)

        try:
            wait_for(lambda: counted("saved") >= 7)
            redis.signal(signal.SIGSTOP)
            try:
                epoch = handle.status().epoch
                wait_for(lambda: handle.status().epoch >= epoch + 10)
                wait_for(lambda: counted("failed") > 0)
            finally:
                redis.signal(signal.SIGCONT)
            saved = counted("saved")
            wait_for(lambda: counted("saved") >= saved + 7)
        finally:
            handle.stop()
            handle.wait()
        assert (counted("lost"), counted("unsaved")) == (0, 0)
        final = {id.key[5:].decode(): unpack(data, id).events for id, data in all_saves(states, "carts")}
        assert sum(final.values()) == handle.status().rows


def test_an_operator_cannot_change_between_the_two_under_one_uid(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.MemorySink()
    run(job(ROWS[:HALF], sink, tmp_path / "states"), spark, tmp_path / "cp")
    plain = hf.Job("carts")
    stream = plain.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").key_by("user")
    stream.process(Sequence(), uid="carts").sink(sink, uid="out")
    with pytest.raises(RestoreError, match="were saved on their own"):
        run(plain, spark, tmp_path / "cp")


def wait_for(condition: Any) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)
