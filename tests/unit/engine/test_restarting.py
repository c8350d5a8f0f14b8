"""What is done after a failure: written down, waited for, or the end."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.checkpoint.failures import FAILURES_KEPT, counted, read_failures
from holdfast.checkpoint.records import FailureRecord
from holdfast.engine.restarting import Restarts, cause_of
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    EpochFailed,
    FencedOut,
    PoisonEpoch,
    RestoreError,
    StorageError,
    UserCodeError,
)
from holdfast.protection.restarts import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from holdfast.storage.contract import Storage
from holdfast.storage.places import open_storage
from holdfast.testing.clocks import ManualClock

GONE = EpochFailed("executor 3 is gone; nothing became visible")


class Waiting(threading.Event):
    """Remembers how long it was waited for, and waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return False


class Leader:
    def __init__(self, storage: Storage, strategy: RestartStrategy, term: int = 1) -> None:
        self.said: list[str] = []
        self.waiting = Waiting()
        self.clock = ManualClock()
        self.restarts = Restarts(
            strategy, storage, self.clock, lambda: 0.5, self.said.append, term=term, run="r", host="h"
        )

    def fail(self, failure: BaseException, epoch: int = 5) -> None:
        self.restarts.after(failure, epoch, self.waiting)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def test_a_failure_is_written_down_with_its_cause_and_what_was_decided(storage: Storage) -> None:
    leader = Leader(storage, FixedDelay(attempts=1, delay="10s"))
    leader.fail(GONE)
    assert leader.waiting.waits == [10.0]
    (record,) = read_failures(storage)
    assert (record.epoch, record.kind, record.decision, record.delay_ms) == (
        5,
        "EpochFailed",
        "restart",
        10_000,
    )
    assert "executor 3" in record.message
    assert leader.restarts.count == 1

    with pytest.raises(EpochFailed):
        leader.fail(GONE)
    assert [known.decision for known in read_failures(storage)] == ["restart", "give-up"]


def test_the_next_leader_goes_on_counting(storage: Storage) -> None:
    Leader(storage, FixedDelay(attempts=2)).fail(GONE, 1)
    successor = Leader(storage, FixedDelay(attempts=2), term=2)
    successor.fail(GONE, 2)
    with pytest.raises(EpochFailed):
        successor.fail(GONE, 3)
    assert [record.term for record in read_failures(storage)] == [1, 2, 2]


def test_a_clean_stop_and_a_giving_up_begin_the_count_anew(storage: Storage) -> None:
    first = Leader(storage, FixedDelay(attempts=1))
    first.fail(GONE)
    first.restarts.stopped()
    second = Leader(storage, FixedDelay(attempts=1))
    second.fail(GONE)
    with pytest.raises(EpochFailed):
        second.fail(GONE)
    Leader(storage, FixedDelay(attempts=1)).fail(GONE)


def test_the_same_failure_is_told_in_full_once(storage: Storage) -> None:
    leader = Leader(storage, FixedDelay(attempts=99, delay="1s"))
    down = StorageError("the disk is full; make room")
    for _ in range(3):
        leader.fail(down)
    leader.fail(StorageError("the disk is away; look for it"))
    leader.fail(down)
    leader.clock.advance(timedelta(minutes=10))
    leader.fail(down)
    assert [text.removesuffix("; trying again in 1.0 s") for text in leader.said] == [
        "FAILURE: the disk is full; make room",
        "FAILURE: the same again, 2 times now",
        "FAILURE: the same again, 3 times now",
        "FAILURE: the disk is away; look for it",
        "FAILURE: the disk is full; make room",
        "FAILURE: the disk is full; make room",
    ]


def test_the_number_of_restarts_never_goes_back(storage: Storage) -> None:
    first = Leader(storage, FixedDelay(attempts=9))
    for epoch in range(3):
        first.fail(GONE, epoch)
    first.restarts.stopped()
    second = Leader(storage, NoRestart(), term=2)
    second.restarts.recall()
    assert second.restarts.count == 3
    with pytest.raises(EpochFailed):
        second.fail(GONE)
    # Storage did not answer at the start: the first failure looks again.
    third = Leader(storage, FixedDelay(attempts=9), term=3)
    third.fail(GONE)
    assert third.restarts.count == 4


def test_a_run_without_failures_leaves_no_trace_when_it_stops(storage: Storage) -> None:
    Leader(storage, ExponentialDelay()).restarts.stopped()
    assert read_failures(storage) == []


@pytest.mark.parametrize(
    "failure",
    [
        DefinitionError("x"),
        RestoreError("x"),
        CorruptionError("x"),
        FencedOut(1, 2, "x"),
        KeyboardInterrupt(),
    ],
)
def test_what_waiting_cannot_mend_is_not_tried_again(storage: Storage, failure: BaseException) -> None:
    leader = Leader(storage, ExponentialDelay())
    with pytest.raises(type(failure)):
        leader.fail(failure)
    assert leader.waiting.waits == []
    assert read_failures(storage) == []


def test_an_error_that_nobody_foresaw_is_tried_again(storage: Storage) -> None:
    Leader(storage, ExponentialDelay()).fail(ValueError("boom"))
    assert [record.message for record in read_failures(storage)] == ["ValueError: boom"]


def test_a_poison_epoch_is_named(storage: Storage) -> None:
    leader = Leader(storage, ExponentialDelay())
    leader.fail(EpochFailed("task 11 ran out of memory"), 7)
    leader.fail(EpochFailed("task 12 ran out of memory"), 7)
    with pytest.raises(PoisonEpoch, match=r"epoch 7 .* task 13 ran out of memory") as error:
        leader.fail(EpochFailed("task 13 ran out of memory"), 7)
    assert isinstance(error.value.__cause__, EpochFailed)
    assert read_failures(storage)[-1].poison


@pytest.mark.parametrize(
    "outage",
    [
        StorageError("cannot list s3://bucket/commits: connection refused; try again"),
        EpochFailed(
            "epoch 7 of job: totals failed in Spark: holdfast.errors.StorageError: cannot write; "
            "nothing of it became visible"
        ),
    ],
)
def test_an_outage_makes_no_epoch_poison_however_long_it_lasts(storage: Storage, outage: Exception) -> None:
    leader = Leader(storage, ExponentialDelay())
    for _ in range(10):
        leader.fail(outage, 7)
    assert {(record.decision, record.epoch) for record in read_failures(storage)} == {("restart", 0)}
    assert "in epoch" not in leader.said[0]


def test_what_fails_between_epochs_makes_none_poison(storage: Storage) -> None:
    leader = Leader(storage, ExponentialDelay())
    for _ in range(10):
        leader.fail(ConnectionRefusedError("the sink is away"), 0)


def test_a_function_that_always_fails_ends_the_run_with_its_own_error(storage: Storage) -> None:
    leader = Leader(storage, ExponentialDelay())
    failure = UserCodeError("totals", 9, "k", "row", "ZeroDivisionError")
    leader.fail(failure)
    leader.fail(failure)
    with pytest.raises(UserCodeError):
        leader.fail(failure)
    assert {record.epoch for record in read_failures(storage)} == {9}
    assert any("GIVING UP" in text for text in leader.said)


def test_what_could_not_be_written_is_written_with_the_next(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.engine import restarting

    leader = Leader(storage, FixedDelay(attempts=5))
    write = restarting.record_failure

    def refuse(storage: Storage, record: FailureRecord) -> None:
        raise StorageError("unreachable; try again")

    monkeypatch.setattr(restarting, "record_failure", refuse)
    leader.fail(GONE, 1)
    monkeypatch.setattr(restarting, "record_failure", write)
    leader.fail(GONE, 2)
    assert [record.epoch for record in read_failures(storage)] == [1, 2]


def test_no_restart_tells_what_happened_and_ends(storage: Storage) -> None:
    with pytest.raises(EpochFailed):
        Leader(storage, NoRestart()).fail(GONE)
    assert [record.decision for record in read_failures(storage)] == ["give-up"]


def test_history_is_bounded(storage: Storage) -> None:
    leader = Leader(storage, FixedDelay(attempts=10_000))
    for epoch in range(1, FAILURES_KEPT + 10):
        leader.fail(GONE, epoch)
    kept = read_failures(storage)
    assert len(kept) == FAILURES_KEPT
    assert kept[-1].epoch == FAILURES_KEPT + 9
    assert len(counted(kept)) == FAILURES_KEPT


def test_numbers_do_not_make_a_cause_another_one() -> None:
    assert cause_of(EpochFailed("task 7 at 0xab12 failed")) == cause_of(
        EpochFailed("task 8 at 0xcd34 failed")
    )
    assert cause_of(EpochFailed("task failed")) != cause_of(StorageError("task failed"))
