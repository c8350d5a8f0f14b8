"""A job in parts on a real Spark: rows, time and ends cross channels; barriers cut all parts at one place."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import claim
from holdfast.ids import CommitNumber
from holdfast.runtime import driver
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.parts.channel_source import ChannelReader, Position
from holdfast.runtime.parts.part_jobs import PartJob, checked_parts, enter_checkpoint
from holdfast.storage.urls import open_storage

DEADLINE_SECONDS = 120
START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = 7


class Number(hf.KeyedFunction):
    """Numbers the rows of a key."""

    output = "key long, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.n.value += 1
        yield row.key, self.n.value


class Meet(hf.CoFunction):
    """Counts what came on each of two ways."""

    output = "key long, way string, n long"
    short = hf.ValueState("long", default=0)
    long = hf.ValueState("long", default=0)

    def process_left(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.short.value += 1
        yield row.key, "short", self.short.value

    def process_right(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.long.value += 1
        yield row.key, "long", self.long.value


def diamond(out: Path, source: hf.Source, **limits: int) -> hf.Job:
    """Rows come to part `joined` on a short way and on a long one, through part `numbered`."""
    job = hf.Job("diamond")
    numbered, joined = job.part("numbered"), job.part("joined")
    rows = job.source(source, uid="rows")
    numbers = rows.into(numbered, uid="long-way").key_by("key").process(Number(), uid="number")
    left = rows.into(joined, uid="short-way", **limits).key_by("key")
    met = left.connect(numbers.into(joined).key_by("key")).process(Meet(), uid="meet")
    met.sink(hf.FileSink(out, format="parquet"), uid="out")
    return job


def rows_of(count: int) -> hf.MemorySource:
    return hf.MemorySource([(n % KEYS,) for n in range(count)], schema="key long")


def shown(out: Path) -> Counter[tuple[Any, ...]]:
    table = pq.read_table(out)
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def met(count: int) -> Counter[tuple[Any, ...]]:
    """What the diamond gives of so many rows."""
    numbers = [(n % KEYS, n // KEYS + 1) for n in range(count)]
    return Counter((key, way, n) for key, n in numbers for way in ("short", "long"))


def highest(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, Any], int]:
    """The last number that each key has on each way."""
    found: dict[tuple[Any, Any], int] = {}
    for key, way, n in rows:
        found[key, way] = max(n, found.get((key, way), 0))
    return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for: {what}"
        time.sleep(0.02)


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    given = {"parallelism": 2, "working_dir": tmp_path / "working", "restart": hf.NoRestart()}
    return {**given, "max_rows_per_epoch": 40, "until": "exhausted", **more}


def started(job: hf.Job, checkpoint: Path, spark: SparkSession, **given: Any) -> hf.PartsHandle:
    handle = job.start(checkpoint, spark=spark, on_message=lambda text: None, **given)
    assert isinstance(handle, hf.PartsHandle)
    return handle


def test_a_job_in_parts_gives_what_it_gives_in_one(spark: SparkSession, tmp_path: Path) -> None:
    out, given = tmp_path / "out", options(tmp_path)
    started(diamond(out, rows_of(200)), tmp_path / "ck", spark, **given).wait(DEADLINE_SECONDS)
    assert shown(out) == met(200)
    # What comes later is read by all parts, though their channels had ended before.
    started(diamond(out, rows_of(300)), tmp_path / "ck", spark, **given).wait(DEADLINE_SECONDS)
    assert shown(out) == met(300)


def test_event_time_crosses_a_channel(spark: SparkSession, tmp_path: Path) -> None:
    events = [(n % 3, START + timedelta(seconds=n ^ 1)) for n in range(120)]
    results = []
    for in_parts in (False, True):
        job, out = hf.Job(f"windows-{in_parts}".lower()), tmp_path / f"out-{in_parts}"
        source = job.source(hf.MemorySource(events, schema="key long, ts timestamp"), uid="events")
        stream = source.watermark("ts", delay="2s").transform(lambda df: df.where("key < 2"))
        if in_parts:
            stream = stream.into(job.part("windows"), uid="events-in")
        counted = (
            stream.key_by("key").window(hf.tumbling("10s"), on="ts").aggregate(uid="counted", n=hf.count())
        )
        counted.transform(lambda df: df.drop("revision")).sink(hf.FileSink(out, format="parquet"), uid="out")
        given = options(tmp_path, max_rows_per_epoch=20)
        job.run(tmp_path / f"ck-{in_parts}", spark=spark, on_message=lambda text: None, **given)
        results.append(shown(out))
    assert results[0] == results[1]
    assert sum(row[-1] for row in results[1]) == 80


def part(jobs: list[PartJob], name: str) -> PartJob:
    return next(job for job in jobs if job.part == name)


def test_a_part_that_is_not_read_stops_and_goes_on_when_it_is(spark: SparkSession, tmp_path: Path) -> None:
    out, given = tmp_path / "out", options(tmp_path)
    graph = diamond(out, rows_of(400), limit_epochs=2).graph()
    root = str(tmp_path / "ck")
    jobs = checked_parts(graph, root, given)
    enter_checkpoint(graph, str(root), given, lambda: spark)
    said: list[str] = []
    handles = {
        name: part(jobs, name).start_as(
            Wishes(), part(jobs, name).checkpoint, spark, None, said.append, given
        )
        for name in ("main", "numbered")
    }  # fmt: skip
    wait_for(
        lambda: handles["main"].status().channels.get("short-way", {}).get("full", False), "a full channel"
    )
    stood_at = handles["main"].status().epoch
    assert stood_at < 10
    assert any(text.startswith("FULL: channel 'short-way'") for text in said)
    last = part(jobs, "joined")
    handles["joined"] = last.start_as(Wishes(), last.checkpoint, spark, None, said.append, given)
    for handle in handles.values():
        handle.wait(DEADLINE_SECONDS)
    assert shown(out) == met(400)


def test_a_part_that_goes_back_changes_nothing_of_its_channels(spark: SparkSession, tmp_path: Path) -> None:
    """After a rewind the part computes its epochs again; what was once in a channel stays as it was."""
    out, given = tmp_path / "out", options(tmp_path)
    started(diamond(out, rows_of(200)), tmp_path / "ck", spark, **given).wait(DEADLINE_SECONDS)
    main = open_storage(str(tmp_path / "ck" / "parts" / "main"))
    chain = Chain(main)
    head = chain.load()
    term = claim(main, "test", "here", 1, head.clock_ms)
    assert isinstance(
        chain.rewind(head.head, CommitNumber(head.number - 3), term=term, run="test"), Committed
    )
    assert History(main).load().last_epoch < head.last_epoch
    before = {uid: list(channel.files) for uid, channel in head.channels.items()}
    assert {uid: list(each.files) for uid, each in History(main).load().channels.items()} == before
    started(diamond(out, rows_of(260)), tmp_path / "ck", spark, **given).wait(DEADLINE_SECONDS)
    assert shown(out) == met(260)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_job_that_begins_with_a_savepoint_of_all_parts_goes_on_from_one_cut(
    guarantee: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Aligned, a row is before the barrier on both ways or on neither. Else some may be counted twice."""
    given = options(tmp_path, guarantee=guarantee, max_rows_per_epoch=20)
    first = started(diamond(tmp_path / "first", rows_of(600)), tmp_path / "ck", spark, **given)
    wait_for(lambda: first.parts["joined"].status().epoch >= 2, "epochs of the last part")
    taken = first.savepoint(tmp_path / "sp")
    first.stop()
    first.wait(DEADLINE_SECONDS)
    assert set(taken.commits) == {"main", "numbered", "joined"}
    again = diamond(tmp_path / "second", rows_of(600))
    moved = options(tmp_path, guarantee=guarantee, from_savepoint=tmp_path / "sp")
    started(again, tmp_path / "ck2", spark, **moved).wait(DEADLINE_SECONDS)
    ends, wanted = highest(shown(tmp_path / "second")), highest(met(600))
    if guarantee == "exactly-once":
        assert ends == wanted
    else:
        assert all(ends[each] >= wanted[each] for each in wanted)


def test_a_part_that_has_begun_with_its_savepoint_waits_for_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = started(diamond(tmp_path / "out", rows_of(300)), tmp_path / "ck", spark, **options(tmp_path))
    wait_for(lambda: first.parts["joined"].status().epoch >= 2, "epochs of the last part")
    first.stop(savepoint=tmp_path / "sp")
    first.wait(DEADLINE_SECONDS)
    looked, read, begin = threading.Event(), ChannelReader.next, driver.seed

    def looking(reader: ChannelReader, *given: Any) -> Any:
        try:
            return read(reader, *given)
        finally:
            if reader.part == "numbered":
                looked.set()

    def begun_late(checkpoint: Checkpoint, *given: Any) -> None:
        if checkpoint.job.job == "diamond.numbered":
            assert looked.wait(DEADLINE_SECONDS)
        begin(checkpoint, *given)

    monkeypatch.setattr(ChannelReader, "next", looking)
    monkeypatch.setattr(driver, "seed", begun_late)
    moved = options(tmp_path, from_savepoint=tmp_path / "sp")
    again = diamond(tmp_path / "second", rows_of(600))
    started(again, tmp_path / "ck2", spark, **moved).wait(DEADLINE_SECONDS)
    assert highest(shown(tmp_path / "second")) == highest(met(600))


def test_a_job_that_stops_with_a_savepoint_ends_all_parts_at_its_barrier(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = options(tmp_path, max_rows_per_epoch=20)
    first = started(diamond(tmp_path / "out", rows_of(600)), tmp_path / "ck", spark, **given)
    wait_for(lambda: first.parts["joined"].status().epoch >= 1, "an epoch of the last part")
    first.stop(savepoint=tmp_path / "sp")
    first.wait(DEADLINE_SECONDS)
    views = {
        name: History(open_storage(str(tmp_path / "ck" / "parts" / name))).load()
        for name in ("main", "numbered", "joined")
    }
    assert views["joined"].positions["short-way"] == [views["main"].last_epoch, 0]
    assert views["joined"].positions["number-to-joined"] == [views["numbered"].last_epoch, 0]
    ends = Counter(way for _, way, _ in shown(tmp_path / "out").elements())
    assert ends["short"] == ends["long"] > 0


def test_a_damaged_epoch_of_a_channel_is_computed_again_for_the_part_that_has_not_read_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, given = tmp_path / "out", options(tmp_path)
    graph = diamond(out, rows_of(200), limit_epochs=3).graph()
    root = str(tmp_path / "ck")
    jobs = checked_parts(graph, root, given)
    enter_checkpoint(graph, str(root), given, lambda: spark)
    said: list[str] = []

    def start(name: str) -> hf.JobHandle:
        job = part(jobs, name)
        return job.start_as(Wishes(), job.checkpoint, spark, None, said.append, given)

    def has_read(epoch: int) -> bool:
        reader = History(open_storage(part(jobs, "numbered").checkpoint)).load()
        return Position.of(reader.positions.get("long-way")) >= Position(epoch)

    handles = {name: start(name) for name in ("main", "numbered")}
    wait_for(
        lambda: handles["main"].status().channels.get("short-way", {}).get("full", False), "a full channel"
    )
    main = open_storage(part(jobs, "main").checkpoint)
    file = next(each for each in History(main).load().channels["short-way"].files if each.epoch == 2)
    wait_for(lambda: has_read(file.epoch), "another part that has read it")
    (tmp_path / "ck/parts/main" / file.extent.object).write_bytes(b"damaged")
    handles["joined"] = start("joined")
    for handle in handles.values():
        handle.wait(DEADLINE_SECONDS)
    assert shown(out) == met(200)
    assert any("epoch 2 of channel 'short-way', sent by part 'main'" in text for text in said), said
    records = [History(main).record(number) for number in History(main).numbers()]
    lost = [record.channels for record in records if record.rewind_to and record.channels]
    assert [{uid: state.lost for uid, state in each.items()} for each in lost] == [
        {"short-way": (2,), "long-way": ()}
    ]
