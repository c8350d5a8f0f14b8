"""A savepoint of a running job, and the jobs that start from one."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.savepoints.stored_savepoint import read_savepoint, verify_savepoint
from holdfast.clock import SystemClock
from holdfast.runtime.control.request_client import ask_leader, wait_for_end
from holdfast.storage.urls import open_storage

DEADLINE_SECONDS = 120
KEYS = 53


class Numbered(hf.KeyedFunction):
    output = "key long, value long, seq long"
    seq = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int, int]]:
        self.seq.value += 1
        yield row.key, row.value, self.seq.value


def job_of(out: Path, total: int, name: str = "numbering") -> hf.Job:
    job = hf.Job(name)
    source = hf.GeneratorSource([f"id % {KEYS}", "id"], schema="key long, value long", total=total)
    numbered = job.source(source, uid="rows").key_by("key").process(Numbered(), uid="numbered")
    numbered.sink(hf.FileSink(out, format="parquet"), uid="out")
    return job


class Runs:
    """Starts jobs in one directory and on one session."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark, self.root = spark, root
        self.said: list[str] = []

    def start(self, job: hf.Job, checkpoint: str, **options: Any) -> hf.JobHandle:
        settings: dict[str, Any] = {
            "max_rows_per_epoch": 200,
            "until": "exhausted",
            "working_dir": self.root / f"working-{checkpoint}",
            "restart": hf.NoRestart(),
            **options,
        }
        return job.start(self.root / checkpoint, spark=self._spark, on_message=self.said.append, **settings)

    def finish(self, job: hf.Job, checkpoint: str, **options: Any) -> hf.Progress:
        return self.start(job, checkpoint, **options).wait(DEADLINE_SECONDS)


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> Runs:
    return Runs(spark, tmp_path)


def wait_until(handle: hf.JobHandle, condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert handle.running, f"the run ended before {what}: {handle.status().error}"
        assert time.monotonic() < give_up, f"waited {DEADLINE_SECONDS} s for {what}"
        time.sleep(0.02)


def rows_of(*outs: Path) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for out in outs:
        for file in sorted(out.glob("*.parquet")):
            table = pq.read_table(file)
            found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return found


def expect_all_once(rows: list[tuple[int, int, int]], total: int, first: int = 0) -> None:
    """Each value once, and the numbers of each key without gap or repeat, from `first` values on."""
    assert sorted(value for _, value, _ in rows) == list(range(first, total))
    start = Counter(value % KEYS for value in range(first))
    for key in range(KEYS):
        numbers = sorted(seq for k, _, seq in rows if k == key)
        assert numbers == list(range(start[key] + 1, start[key] + len(numbers) + 1)), f"key {key}: {numbers}"


def test_a_savepoint_of_a_running_job_starts_two_others(runs: Runs) -> None:
    """Taken while the job goes on, moved elsewhere, restored with more shards and with fewer."""
    root, total = runs.root, 3_000
    handle = runs.start(job_of(root / "out", total), "ck", parallelism=2)
    wait_until(handle, lambda: handle.status().committed_epoch >= 3, "some epochs")
    taken = handle.savepoint(root / "sp")
    assert handle.running, "the job must go on"
    handle.wait(DEADLINE_SECONDS)
    expect_all_once(rows_of(root / "out"), total)

    shutil.move(root / "sp", root / "moved")
    shutil.rmtree(root / "ck")
    assert verify_savepoint(open_storage(str(root / "moved"))) == []
    had = taken.manifest.rows
    assert 600 <= had < total
    for name, shards in (("a", 3), ("b", 1)):
        done = runs.finish(
            job_of(root / f"out-{name}", total, f"trial-{name}"),
            f"ck-{name}",
            from_savepoint=root / "moved",
            parallelism=shards,
        )
        assert done.rows == total
        expect_all_once(rows_of(root / f"out-{name}"), total, first=had)
    assert read_savepoint(open_storage(str(root / "moved"))).id == taken.id, "nobody claimed it"


def test_whoever_claims_the_savepoint_of_a_stopped_job_goes_on_with_its_sinks(runs: Runs) -> None:
    root, total = runs.root, 6_000
    handle = runs.start(job_of(root / "out", total), "ck", parallelism=2)
    wait_until(handle, lambda: handle.status().committed_epoch >= 3, "some epochs")
    handle.stop(savepoint=root / "sp")
    stopped = handle.wait(DEADLINE_SECONDS)
    assert stopped.phase == "stopped"
    assert stopped.rows < total
    with pytest.raises(hf.DefinitionError, match="holds output of job"):
        runs.finish(job_of(root / "out", total), "ck-copy", from_savepoint=root / "sp")

    runs.finish(job_of(root / "out", total), "ck-new", from_savepoint=root / "sp", claim=True, parallelism=3)
    expect_all_once(rows_of(root / "out"), total)
    left = list(open_storage(str(root / "sp")).list(""))
    assert left == [], "a claimed savepoint is removed once it is not needed"
    with pytest.raises(hf.RestoreError):
        runs.finish(job_of(root / "out", total), "ck-late", from_savepoint=root / "sp", claim=True)


def test_drain_reads_what_is_at_hand_and_ends(runs: Runs) -> None:
    root, total = runs.root, 2_000
    handle = runs.start(job_of(root / "out", total), "ck", until="stopped")
    wait_until(handle, lambda: handle.status().committed_epoch >= 1, "an epoch")
    handle.stop(savepoint=root / "sp", drain=True)
    assert handle.wait(DEADLINE_SECONDS).rows == total
    expect_all_once(rows_of(root / "out"), total)
    assert read_savepoint(open_storage(str(root / "sp"))).manifest.rows == total


def test_drain_ends_on_a_source_that_always_has_more(runs: Runs) -> None:
    came = hf.GeneratorSource({"n": "id"}, schema="n long")
    job, sink = hf.Job("endless"), hf.MemorySink()
    job.source(came, uid="rows").sink(sink, uid="out")
    handle = runs.start(job, "ck", until="stopped", max_rows_per_epoch=2_000)
    wait_until(handle, lambda: handle.status().committed_epoch >= 1, "an epoch")
    handle.stop(drain=True)
    ended = handle.wait(DEADLINE_SECONDS)
    assert (ended.phase, handle.running) == ("stopped", False)
    assert sorted(n for (n,) in sink.rows()) == list(range(ended.rows))


def test_requests_through_storage_reach_the_leader(runs: Runs) -> None:
    root, total, clock = runs.root, 20_000, SystemClock()
    handle = runs.start(job_of(root / "out", total), "ck", parallelism=2)
    storage = open_storage(str(root / "ck"))
    wait_until(handle, lambda: handle.status().committed_epoch >= 2, "some epochs")

    def asked(verb: str, **arguments: Any) -> Any:
        request = ask_leader(storage, verb, arguments, clock, by="a test")
        return wait_for_end(storage, request.id, clock, taken_within=30.0, ended_within=60.0)

    assert asked("savepoint", url=str(root / "sp")).state == "done"
    assert verify_savepoint(open_storage(str(root / "sp"))) == []
    assert asked("rescale", parallelism=3).state == "done"
    wait_until(handle, lambda: handle.status().parallelism == 3, "three shards")
    refused = asked("rescale", parallelism=1_000)
    assert refused.state == "refused"
    assert "1000" in refused.answer.error
    ended: list[Any] = []
    asking = threading.Thread(target=lambda: ended.append(asked("stop")))
    asking.start()
    assert handle.wait(DEADLINE_SECONDS).phase == "stopped"
    asking.join(DEADLINE_SECONDS)
    assert ended[0].state == "done"
    rows = rows_of(root / "out")
    expect_all_once(rows, len(rows))


def test_a_canonical_savepoint_is_plain_parquet_and_starts_a_job(runs: Runs) -> None:
    root, total = runs.root, 4_000
    handle = runs.start(job_of(root / "out", total), "ck", parallelism=2)
    wait_until(handle, lambda: handle.status().committed_epoch >= 3, "some epochs")
    taken = handle.savepoint(root / "sp", format="canonical")
    handle.stop()
    handle.wait(DEADLINE_SECONDS)
    assert taken.format == "canonical"
    assert list(open_storage(str(root / "sp.native")).list("")) == [], "only made on the way"
    runs.finish(job_of(root / "out-a", total, "other"), "ck-a", from_savepoint=root / "sp", backend="memory")
    expect_all_once(rows_of(root / "out-a"), total, first=taken.manifest.rows)


def test_a_place_that_is_taken_is_refused_before_anything_stops(runs: Runs) -> None:
    root, total = runs.root, 2_000
    (root / "taken").mkdir()
    (root / "taken" / "file").touch()
    handle = runs.start(job_of(root / "out", total), "ck")
    wait_until(handle, lambda: handle.status().committed_epoch >= 1, "an epoch")
    with pytest.raises(hf.RestoreError, match="not empty"):
        handle.stop(savepoint=root / "taken")
    with pytest.raises(hf.RestoreError, match="not empty"):
        handle.savepoint(root / "taken")
    assert handle.wait(DEADLINE_SECONDS).rows == total
