"""A log that several processes append to, as the reader of one of them plans and reads it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.connectors import receiving
from holdfast.connectors.contract import Arrived, LogBatch, Slice
from holdfast.connectors.received_rows import RowForm, raw_rows
from holdfast.connectors.receiving import Deliver, ReceivingReader, Room
from holdfast.errors import InputVanished, RetryableError
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock


class Silent:
    """A receiver to which nothing is sent."""

    def receive(self, deliver: Deliver, room: Room, stopped: threading.Event) -> None:
        stopped.wait()


class Tasks:
    """What of a Spark session a frame asks for, before anything runs."""

    def range(self, *numbers: int) -> Tasks:
        return self

    def mapInArrow(self, read: Any, schema: str) -> Tasks:
        return self


def reader(log: ReceivedLog) -> ReceivingReader:
    return ReceivingReader(log, RowForm("value string"), Silent())


def rows_of(reader: ReceivingReader, slice: Slice) -> object:
    return reader._raw(Tasks(), slice)  # type: ignore[arg-type]


def test_a_batch_that_another_member_received_and_planned_at_once_is_found(tmp_path: Path) -> None:
    """Each member of a set of replicas receives, and knows at once what it has received itself."""
    storage = LocalStorage(tmp_path)
    logs = [ReceivedLog(storage, "in", f"writer-{number}") for number in range(2)]
    one, other = map(reader, logs)
    try:
        assert other.next(None, None, now_ms=0) is None
        assert one.next(None, None, now_ms=0) is None
        logs[0].append(raw_rows("queue", [("first", None, {"value": b"a"})]))
        plan = one.next(None, None, now_ms=1)
        assert plan is not None
        with pytest.raises(InputVanished):
            rows_of(other, plan)
        other.follow(plan)
        assert rows_of(other, plan)
        logs[0].append(raw_rows("queue", [("second", None, {"value": b"b"})]))
        assert other.next(plan.end, None, now_ms=2) is not None, "also by its own plan"
    finally:
        one.close()
        other.close()


class OneMessage:
    """A receiver that was sent one message, and tells when it was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = self.refused = False

    def receive(self, deliver: Deliver, room: Room, stopped: threading.Event) -> None:
        if self.refused:
            stopped.wait()
            return
        try:
            deliver(raw_rows("queue", [("first", None, {"value": b"a"})]))
        except RetryableError:
            self.refused = True
            raise
        self.acknowledged = True
        stopped.wait()


@pytest.mark.parametrize("in_time", [True, False])
def test_what_was_not_durable_when_the_run_ended_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    """A savepoint that is taken then does not hold it, and its sender has to keep it."""
    log, message = ReceivedLog(LocalStorage(tmp_path), "in", "writer"), OneMessage()
    append, appending, slow = log.append, threading.Event(), threading.Event()

    def appended(rows: pa.RecordBatch) -> LogBatch:
        appending.set()
        slow.wait()
        return append(rows)

    monkeypatch.setattr(log, "append", appended)
    monkeypatch.setattr(receiving, "WAIT_SECONDS_MAX", 60 if in_time else 0.01)
    reader = ReceivingReader(log, RowForm("value string"), message)
    reader.next(None, None, now_ms=0)
    appending.wait()
    if in_time:
        slow.set()
    reader.close()
    slow.set()
    assert reader._thread is not None
    reader._thread.join()
    assert (message.acknowledged, message.refused) == (in_time, not in_time)


def test_rows_arrived_when_they_were_logged(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    log = ReceivedLog(LocalStorage(tmp_path), "in", "writer", clock)
    for rows in (2, 1):
        log.append(raw_rows("queue", [("row", None, {"value": b"a"})] * rows))
        clock.sleep(3)
    one = reader(log)
    try:
        first, both = one.next(None, 2, now_ms=0), one.next(None, None, now_ms=0)
        assert first is not None
        assert both is not None
        assert one.arrived(first) == [Arrived(2, 1_000, 1_000)]
        assert one.arrived(both) == [Arrived(2, 1_000, 1_000), Arrived(1, 4_000, 4_000)]
    finally:
        one.close()
