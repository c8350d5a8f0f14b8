"""The received log by itself, and in savepoints. Under failing storage: tests/sim/logs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.checkpoint.log.received import ReceivedLog, packed, unpacked
from holdfast.checkpoint.savepoints.copy_logs import copy_unread, take_over
from holdfast.checkpoint.store import names
from holdfast.connectors.contract import LogBatch
from holdfast.connectors.received_rows import raw_rows
from holdfast.connectors.receiving import next_slice
from holdfast.errors import CorruptionError, InputVanished
from holdfast.storage.contract import Entry
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock

FROZEN = Path(__file__).parents[3] / "fixtures" / "received-log" / "000000000007"
FROZEN_WITH_TIME = FROZEN.with_name("000000000008")


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers)})


def logged(log: ReceivedLog, after: int = 0) -> list[int]:
    log.look()
    load = log.loader()
    return [n for batch in log.after(after) for n in load(batch.number).column("n").to_pylist()]


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "ck")


def test_batches_of_all_writers_are_one_log(storage: LocalStorage) -> None:
    first, second = ReceivedLog(storage, "q", "a"), ReceivedLog(storage, "q", "b")
    assert [first.append(rows(1)).number, second.append(rows(2, 3)).number] == [1, 2]
    assert first.append(rows(4)) == LogBatch(3, "a", 2, 1)
    assert logged(first) == logged(second) == logged(ReceivedLog(storage, "q", "c")) == [1, 2, 3, 4]


def test_a_writer_that_was_overtaken_appends_again_above_the_floor(storage: LocalStorage) -> None:
    asleep, awake = ReceivedLog(storage, "q", "a"), ReceivedLog(storage, "q", "b")
    asleep.append(rows(1))
    for number in range(2, 6):
        awake.append(rows(number))
    awake.trim(4)
    assert asleep.append(rows(6)).number == 6, "2 to 4 are free, and do not count"
    assert logged(ReceivedLog(storage, "q", "c"), after=4) == [5, 6]
    kept = [entry.name for entry in storage.list("log/q/floor/")]
    assert kept == [names.log_floor("q", 4)]


def test_what_was_trimmed_or_never_was_is_not_read_as_nothing(storage: LocalStorage) -> None:
    log = ReceivedLog(storage, "q", "a")
    for number in range(3):
        log.append(rows(number))
    with pytest.raises(InputVanished, match="ends with batch 3, and 9"):
        log.after(9)
    log.trim(2)
    with pytest.raises(InputVanished, match="nothing up to batch 2"):
        log.after(1)
    storage.delete([names.log_batch("q", 3)])
    log.append(rows(4))
    with pytest.raises(CorruptionError, match="000000000003 is missing"):
        ReceivedLog(storage, "q", "b").look()


def test_a_damaged_batch_is_named(storage: LocalStorage) -> None:
    log = ReceivedLog(storage, "q", "a")
    log.append(rows(1))
    data = bytearray(storage.get(names.log_batch("q", 1)))
    data[-20] ^= 1
    storage.put(names.log_batch("q", 1), bytes(data))
    with pytest.raises(CorruptionError, match="log/q/000000000001 is damaged"):
        log.loader()(1)


def test_a_turn_that_is_in_the_log_twice_is_read_once() -> None:
    batches = [LogBatch(1, "a", 1, 5), LogBatch(2, "b", 1, 5), LogBatch(3, "a", 1, 5), LogBatch(4, "a", 2, 5)]
    slice = next_slice(None, batches, None)
    assert slice is not None
    assert (slice.detail, slice.rows) == ([1, 2, 4], 15)
    again = [LogBatch(5, "b", 1, 5), LogBatch(6, "b", 2, 5)]
    later = next_slice(slice.end, again, 5)
    assert later is not None
    assert later.detail == [6]
    assert later.end == {"batch": 6, "turns": {"a": [2, 4], "b": [2, 6]}}


def test_a_savepoint_holds_what_was_not_read(storage: LocalStorage, tmp_path: Path) -> None:
    log = ReceivedLog(storage, "q", "a")
    for number in range(1, 6):
        log.append(rows(number))
    savepoint, begun = LocalStorage(tmp_path / "save"), LocalStorage(tmp_path / "new")
    copy_unread(storage, savepoint, {"q": {"batch": 3, "turns": {}}})
    for _ in range(2):
        take_over(savepoint, begun)
    other = ReceivedLog(begun, "q", "b")
    assert logged(other, after=3) == [4, 5]
    assert other.append(rows(6)).number == 6
    savepoint.delete([names.log_batch("q", 5)])
    with pytest.raises(CorruptionError, match="000000000005 is missing"):
        take_over(savepoint, LocalStorage(tmp_path / "third"))


def test_a_savepoint_that_lacks_a_batch_is_not_made(storage: LocalStorage, tmp_path: Path) -> None:
    log = ReceivedLog(storage, "q", "a")
    for number in range(1, 6):
        log.append(rows(number))
    log.trim(3)
    with pytest.raises(CorruptionError, match="000000000003 is missing"):
        copy_unread(storage, LocalStorage(tmp_path / "save"), {"q": {"batch": 2, "turns": {}}})


def test_a_batch_that_a_listing_did_not_show_is_in_the_savepoint(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was appended while the directory was being listed, and the one after it, too."""
    log = ReceivedLog(storage, "q", "a")
    for number in range(1, 4):
        log.append(rows(number))
    found = storage.list

    def without_second(prefix: str) -> list[Entry]:
        return [entry for entry in found(prefix) if entry.name != names.log_batch("q", 2)]

    savepoint, begun = LocalStorage(tmp_path / "save"), LocalStorage(tmp_path / "new")
    monkeypatch.setattr(storage, "list", without_second)
    copy_unread(storage, savepoint, {})
    take_over(savepoint, begun)
    assert logged(ReceivedLog(begun, "q", "b")) == [1, 2, 3]


def test_a_batch_that_says_nothing_of_its_time_is_read() -> None:
    batch, found = unpacked(FROZEN.read_bytes(), 7)
    assert batch == LogBatch(7, "3-1f0c9a2b7d44", 12, 2)
    assert batch.received_ms == 0
    assert found.column("id").to_pylist() == ["m1", None]
    assert dict(found.column("fields")[0].as_py()) == {"value": b'{"n": 1}'}


def test_a_batch_with_its_time_is_read() -> None:
    batch, found = unpacked(FROZEN_WITH_TIME.read_bytes(), 8)
    assert (batch, batch.received_ms) == (LogBatch(8, "3-1f0c9a2b7d44", 12, 2), 1_760_000_000_123)
    assert found.column("id").to_pylist() == ["m1", None]


def test_when_a_batch_was_appended_is_known_to_every_process(storage: LocalStorage) -> None:
    clock = ManualClock(5_000)
    log = ReceivedLog(storage, "q", "a", clock)
    assert log.append(rows(1)).received_ms == 5_000
    clock.sleep(2)
    log.append(rows(2))
    other = ReceivedLog(storage, "q", "b")
    other.look()
    assert [batch.received_ms for batch in other.after(0)] == [5_000, 7_000]


def frozen() -> bytes:
    """How the stored examples were made; the first by a version that did not say the time."""
    values = [("message m1 of q", "m1", {"value": b'{"n": 1}'}), ("message 2 of q", None, {"value": b"\xff"})]
    return packed("3-1f0c9a2b7d44", 12, raw_rows("q", values), 1_760_000_000_123)
