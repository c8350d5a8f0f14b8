"""Event time and timers on a real Spark: crashes, rescaling, savepoints, input that ends and goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.connectors.memory import CRASH, MemoryReader, SimulatedCrash
from holdfast.errors import DefinitionError
from holdfast.graph.event_time import micros_sql
from holdfast.runtime import job_handle as job_module
from holdfast.runtime.epoch import observed_times
from holdfast.storage.urls import open_storage
from holdfast.testing.clocks import ManualClock
from tests.spark.jobs import run

DEADLINE_SECONDS = 120
START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "user string, ts timestamp"
SIZE = 10
"""Seconds in a window."""

Event = tuple[str, datetime]


class Windows(hf.KeyedFunction):
    """Counts the rows of each ten seconds; tells when the watermark has passed them."""

    output = "user string, ts timestamp, n long"
    counts = hf.MapState("timestamp", "long")

    def process(self, row: Any, ctx: Any) -> Any:
        end = window_end(row.ts)
        self.counts[end] = self.counts.get(end, 0) + 1
        ctx.timers.event(end)

    def on_timer(self, at: datetime, ctx: Any) -> Any:
        yield ctx.key, at, self.counts[at]
        del self.counts[at]


def window_end(at: datetime) -> datetime:
    since = int((at.replace(tzinfo=UTC) - START).total_seconds()) // SIZE
    return START + timedelta(seconds=(since + 1) * SIZE)


def events(seconds: range) -> list[Event]:
    """A row each second, out of order by up to four seconds."""
    return [(f"u{n % 5}", START + timedelta(seconds=n ^ 3)) for n in seconds]


def expected(rows: list[Event]) -> Counter[tuple[Any, ...]]:
    counts = Counter((user, window_end(at)) for user, at in rows)
    return Counter({(user, end, n): 1 for (user, end), n in counts.items()})


def window_job(rows: list[Any], sink: hf.MemorySink, transform: Any = None, schema: str = SCHEMA) -> hf.Job:
    job = hf.Job("windows")
    timed = job.source(hf.MemorySource(rows, schema=schema), uid="rows").watermark("ts", delay="4s")
    timed = timed.transform(transform) if transform else timed
    timed.key_by("user").process(Windows(), uid="windows").sink(sink, uid="out")
    return job


def view_of(checkpoint: Path) -> CheckpointView:
    return History(open_storage(str(checkpoint))).load()


def wait_until(handle: hf.JobHandle, condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert handle.running, f"the run ended before {what}: {handle.status().error}"
        assert time.monotonic() < give_up, f"waited {DEADLINE_SECONDS} s for {what}"
        time.sleep(0.02)


def test_windows_close_once_and_whole_through_crashes_and_rescaling(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = events(range(100))
    sink, checkpoint = hf.MemorySink(), tmp_path / "ck"
    job = window_job([*rows[:15], CRASH, *rows[15:55], CRASH, *rows[55:]], sink)
    for parallelism in (2, 3):
        with pytest.raises(SimulatedCrash):
            run(job, spark, checkpoint, max_rows_per_epoch=10, parallelism=parallelism)
        assert not any(end > START + timedelta(seconds=60) for _, end, _ in sink.rows()), "not closed early"
    run(job, spark, checkpoint, max_rows_per_epoch=10, parallelism=1)
    assert Counter(sink.rows()) == expected(rows)
    closed = view_of(checkpoint)
    assert closed.closed_through == closed.last_epoch
    assert closed.watermarks["windows"] == round((max(at for _, at in rows).timestamp() - 4) * 1_000_000) - 1


def test_a_run_after_the_input_had_ended_goes_on_with_new_rows(spark: SparkSession, tmp_path: Path) -> None:
    """What was closed early counts once more for rows that came after."""
    rows, sink = events(range(60)), hf.MemorySink()
    run(window_job(rows[:32], sink), spark, tmp_path / "ck")
    first = Counter(sink.rows())
    assert first == expected(rows[:32])
    run(window_job(rows[:32], sink), spark, tmp_path / "ck")
    assert Counter(sink.rows()) == first, "nothing is new, and nothing is closed again"
    run(window_job(rows, sink), spark, tmp_path / "ck")
    assert Counter(sink.rows()) - first == expected(rows[32:])


@pytest.mark.parametrize("format", ["native", "canonical", "converted"])
def test_open_windows_and_the_watermark_go_on_from_a_savepoint(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    rows, sink = events(range(60)), hf.MemorySink()
    options: dict[str, Any] = {"spark": spark, "max_rows_per_epoch": 10, "on_message": lambda _: None}
    handle = window_job(rows[:34], sink).start(tmp_path / "ck", working_dir=tmp_path / "w", **options)
    wait_until(handle, lambda: handle.status().committed_epoch >= 5, "all rows, and what was due")
    handle.savepoint(tmp_path / "sp", format="native" if format == "native" else "canonical")
    handle.stop()
    handle.wait(DEADLINE_SECONDS)
    before = sink.rows()
    assert before
    hf.register_data_sources(spark)
    reader = spark.read.format("holdfast-state").option("checkpoint", str(tmp_path / "sp"))
    state = reader.option("uid", "windows").load().select("user", "event_timers").collect()
    in_window = {
        (user, window_end(at)) for user, at in rows[:34] if window_end(at) > START + timedelta(seconds=30)
    }
    assert {(row.user, at.replace(tzinfo=UTC)) for row in state for at in row.event_timers or ()} == in_window
    later, more = hf.MemorySink(), dict[str, Any]()
    if format == "converted":
        hf.Savepoint.open(str(tmp_path / "sp")).convert(str(tmp_path / "sp2"), spark, key_groups=50)
        more = {"key_groups": 50}
    place = tmp_path / ("sp2" if more else "sp")
    run(window_job(rows, later), spark, tmp_path / "ck2", from_savepoint=place, parallelism=3, **more)
    assert Counter(before) + Counter(later.rows()) == expected(rows)
    # The first plan of the new checkpoint is judged by the time that the old one had reached.
    old, new = (History(open_storage(str(tmp_path / name))) for name in ("ck", "ck2"))
    assert new.view_at(1).event_times == old.load().event_times
    assert new.view_at(1).watermarks == old.load().watermarks


def test_what_is_drained_is_closed_and_operators_in_a_row_have_all_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Tens(Windows):
        """The windows of each minute, as one."""

        output = "user string, ts timestamp, n long"

        def process(self, row: Any, ctx: Any) -> Any:
            end = row.ts.replace(second=0) + timedelta(minutes=1)
            self.counts[end] = self.counts.get(end, 0) + row.n
            ctx.timers.event(end)

    rows, out = events(range(150)), hf.MemorySink()
    job = hf.Job("minutes")
    timed = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="rows").watermark("ts", delay="4s")
    windows = timed.key_by("user").process(Windows(), uid="windows")
    minutes = windows.transform(lambda frame: frame.where("n > 0")).key_by("user").process(Tens(), uid="tens")
    minutes.sink(out, uid="out")
    handle = job.start(
        tmp_path / "ck", spark=spark, max_rows_per_epoch=20, on_message=lambda _: None,
        working_dir=tmp_path / "w",
    )  # fmt: skip
    wait_until(handle, lambda: handle.status().committed_epoch >= 8, "all rows")
    assert {end for _, end, _ in out.rows()} == {START + timedelta(minutes=minute) for minute in (1, 2)}
    handle.stop(drain=True)
    handle.wait(DEADLINE_SECONDS)
    wanted = Counter[tuple[str, datetime]]()
    for user, end, n in expected(rows):
        wanted[user, end.replace(second=0) + timedelta(minutes=1)] += n
    assert Counter(out.rows()) == Counter({(user, end, n): 1 for (user, end), n in wanted.items()})
    assert handle.status().rows == len(rows), "what timers give out is not read"


class Reminders(hf.KeyedFunction):
    """Tells a minute of processing time after a row, and again a minute after that."""

    output = "user string, kind string, again boolean"
    told = hf.ValueState("boolean", default=False)

    def process(self, row: Any, ctx: Any) -> Any:
        ctx.timers.processing(ctx.timestamp + 60_000)
        yield row.user, "row", False

    def on_timer(self, at: datetime, ctx: Any) -> Any:
        yield ctx.key, ctx.timer, self.told.value
        self.told.value = True
        ctx.timers.processing(at + timedelta(minutes=1))


def test_processing_timers_fire_while_no_rows_come_and_do_not_keep_a_job_from_ending(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_000_000_000_000)
    monkeypatch.setattr(job_module, "SystemClock", lambda: clock)
    sink = hf.MemorySink()
    job = hf.Job("reminders")
    source = job.source(hf.MemorySource([("ann", START)], schema=SCHEMA), uid="rows")
    source.key_by("user").process(Reminders(), uid="remind").sink(sink, uid="out")
    handle = job.start(tmp_path / "ck", spark=spark, working_dir=tmp_path / "w", on_message=lambda _: None)
    try:
        wait_until(handle, lambda: len(sink.rows()) == 1, "the row")
        epochs = handle.status().epoch
        clock.advance(timedelta(minutes=1))
        wait_until(handle, lambda: len(sink.rows()) == 2, "the reminder")
        assert handle.status().epoch == epochs + 1
        # Each look finds the next one due: an hour of them would come before the end.
        clock.advance(timedelta(hours=1))
    finally:
        handle.stop(drain=True)
        handle.wait(DEADLINE_SECONDS)
    told = sink.rows()
    assert told[:2] == [("ann", "row", False), ("ann", "processing", False)]
    assert set(told[2:]) == {("ann", "processing", True)}


def test_a_source_that_falls_silent_is_not_waited_for_and_that_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_000_000_000_000)
    monkeypatch.setattr(job_module, "SystemClock", lambda: clock)
    rows, sink, said = events(range(40)), hf.MemorySink(), list[str]()
    job = hf.Job("idle")
    fast = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="fast").watermark("ts", "4s")
    slow = job.source(hf.MemorySource([], schema=SCHEMA), uid="slow").watermark("ts", "4s", idle_after="1m")
    fast.union(slow).key_by("user").process(Windows(), uid="windows").sink(sink, uid="out")
    handle = job.start(tmp_path / "ck", spark=spark, working_dir=tmp_path / "w", on_message=said.append)
    try:
        wait_until(handle, lambda: handle.status().committed_epoch == 1, "the rows")
        assert handle.status().watermarks == {"windows": None}
        clock.advance(timedelta(seconds=61))
        wait_until(handle, lambda: bool(sink.rows()), "the windows")
        assert handle.status().idle_sources == ("slow",)
        assert handle.status().watermarks == {"windows": round((START.timestamp() + 35) * 1_000) - 1}
    finally:
        handle.stop()
        handle.wait(DEADLINE_SECONDS)
    assert [text for text in said if "IDLE" in text] == [
        "IDLE: source 'slow' has no rows; event time does not wait for it"
    ]
    ended = START + timedelta(seconds=40)
    assert Counter(sink.rows()) == Counter(each for each in expected(rows) if each[1] < ended)


def test_times_without_a_zone_and_transforms_before_and_after_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Local(Windows):
        output = "user string, ts timestamp_ntz, n long"
        counts = hf.MapState("timestamp_ntz", "long")

        def process(self, row: Any, ctx: Any) -> Any:
            end = window_end(row.local).replace(tzinfo=None)
            self.counts[end] = self.counts.get(end, 0) + 1
            ctx.timers.event(end)

    def local(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("user", "cast(ts as timestamp_ntz) as `at.local`")

    rows, sink = events(range(40)), hf.MemorySink()
    job = hf.Job("local")
    timed = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="rows").transform(local)
    timed = timed.watermark("at.local", delay="4s")
    timed = timed.transform(lambda frame: frame.toDF("user", "local").where("user != 'u3'"))
    timed.key_by("user").process(Local(), uid="windows").sink(sink, uid="out")
    run(job, spark, tmp_path / "ck", max_rows_per_epoch=15)
    wanted = expected([row for row in rows if row[0] != "u3"])
    assert Counter(sink.rows()) == Counter((user, end.replace(tzinfo=None), n) for user, end, n in wanted)
    # Rows that are filtered away after the watermark count for it.
    newest = max(at for _, at in rows)
    (times,) = view_of(tmp_path / "ck").event_times["rows"].values()
    assert times.newest_us == round(newest.timestamp() * 1_000_000)


def test_a_column_that_a_transform_does_not_give_is_found_before_anything_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    def seconds(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("user", "cast(ts as long) as ts")

    for column, text in (
        ("at", "there is no column 'at'; there are user, ts"),
        ("ts", "'ts' is long, not timestamp"),
    ):
        job = hf.Job("wrong")
        rows = job.source(hf.MemorySource(events(range(1)), schema=SCHEMA), uid="rows").transform(seconds)
        timed = rows.watermark(column)
        timed.key_by("user").process(Windows(), uid="windows").sink(hf.MemorySink(), uid="out")
        with pytest.raises(DefinitionError, match=rf"test_time\.py:\d+ watermark: .*{text}; "):
            run(job, spark, tmp_path / "ck")
    assert not (tmp_path / "ck" / "plans").exists()


def test_a_source_that_is_silent_and_rows_that_spark_proves_away(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower source holds time back until the end. Of rows that are proved away Spark tells nothing."""
    waits = list[str]()
    newest = observed_times.ObservedTimes.newest

    def counted(self: Any, uid: str) -> Any:
        found = newest(self, uid)
        waits.extend([uid] if found is None and uid in self._done else [])
        return found

    monkeypatch.setattr(observed_times.ObservedTimes, "newest", counted)
    rows, few, sink = events(range(60)), events(range(12)), hf.MemorySink()
    job = hf.Job("silent")
    fast = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="fast").watermark("ts", delay="4s")
    slow = job.source(hf.MemorySource(few, schema=SCHEMA), uid="slow").watermark("ts", delay="4s")
    gone = job.source(hf.MemorySource(rows, schema=SCHEMA), uid="gone").watermark("ts", delay="4s")
    gone = gone.transform(lambda frame: frame.where("false"))
    fast.union(slow, gone).key_by("user").process(Windows(), uid="windows").sink(sink, uid="out")
    gone.key_by("user").process(Windows(), uid="nothing").sink(hf.MemorySink(), uid="none")
    run(job, spark, tmp_path / "ck", max_rows_per_epoch=40)
    assert Counter(sink.rows()) == expected([*rows, *few])
    view = view_of(tmp_path / "ck")
    ends = {uid: max(at for _, at in each) for uid, each in (("fast", rows), ("slow", few), ("gone", rows))}
    found = {uid: times[""].newest_us for uid, times in view.event_times.items()}
    assert found == {uid: round(end.timestamp() * 1_000_000) for uid, end in ends.items()}
    assert view.watermarks["windows"] == found["slow"] - 4_000_001
    assert view.watermarks["nothing"] == found["gone"] - 4_000_001
    assert len(waits) <= 1, "Spark is waited for once, not in every epoch"


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu", "UTC"])
def test_a_time_without_a_zone_is_the_same_whatever_the_zone_of_the_session(
    spark: SparkSession, zone: str
) -> None:
    """In New York there is no half past two on 8 March 2026: that of an hour later would close windows early,
    and put rows into other panes than their tasks do."""
    times = [
        datetime(2026, 3, 8, 2, 30), datetime(2026, 11, 1, 1, 30), datetime(1582, 10, 10), datetime.min,
        datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime.max,
    ]  # fmt: skip
    ends = [-(1 << 63), -(1 << 63) + 59_999_999, -(1 << 63) + 60_000_000, (1 << 63) - 1]
    edges = pa.table({"at": pa.array(ends, pa.timestamp("us"))})
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame([(at,) for at in times], "`at.local` timestamp_ntz")
        found = [row[0] for row in frame.selectExpr(micros_sql("`at.local`", naive=True)).collect()]
        at = spark.createDataFrame(edges, "at timestamp_ntz")
        found_edges = [row[0] for row in at.selectExpr(micros_sql("at", naive=True)).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert found == [(at - datetime(1970, 1, 1)) // timedelta(microseconds=1) for at in times]
    assert found_edges == edges["at"].cast(pa.int64()).to_pylist()


class Topic(hf.MemorySource):
    """Rows of two partitions; `partition` says which."""

    partition_column = "partition"

    def reader(self, notes: Any) -> Any:
        return TopicReader(self)


class TopicReader(MemoryReader):
    def partitions(self, slice: Any) -> dict[str, bool]:
        found = {row[2] for row in self._source._rows[slice.start or 0 : slice.end]}
        return {str(partition): partition in found for partition in range(2)}


PARTITIONED = "user string, ts timestamp, partition int"


def topic_rows() -> list[Any]:
    """Partition 1 is 20 seconds behind: disorder beyond the delay, but none within a partition."""
    return [
        (user, at - timedelta(seconds=20 * (n % 2)), n % 2) for n, (user, at) in enumerate(events(range(60)))
    ]


def test_event_time_waits_for_the_slowest_partition(spark: SparkSession, tmp_path: Path) -> None:
    """Were it the newest time of all rows, those of partition 1 would find their windows closed."""
    rows, sink = topic_rows(), hf.MemorySink()
    job = hf.Job("topic")
    timed = job.source(Topic(rows, schema=PARTITIONED), uid="topic").watermark("ts", "4s")
    timed.key_by("user").process(Windows(), uid="windows").sink(sink, uid="out")
    run(job, spark, tmp_path, max_rows_per_epoch=10)
    assert Counter(sink.rows()) == expected([(user, at) for user, at, _ in rows])
    times = view_of(tmp_path).event_times["topic"]
    newest = {str(each): max(at for _, at, partition in rows if partition == each) for each in range(2)}
    named = {name: each.newest_us for name, each in times.items() if name}
    assert named == {name: round(at.timestamp() * 1_000_000) for name, at in newest.items()}


def test_a_transform_that_drops_the_partition_before_the_watermark_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = hf.Job("topic")
    rows = job.source(Topic(topic_rows(), schema=PARTITIONED), uid="topic").transform(
        lambda frame: frame.drop("partition")
    )
    rows.watermark("ts").key_by("user").process(Windows(), uid="windows").sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.DefinitionError, match=r"'partition', which names the partition .* keep it"):
        run(job, spark, tmp_path)
