"""What is done after a failure: written down, waited for, or the end."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from holdfast.checkpoint.log.incidents import FAILURES_KEPT, counted, read_failures
from holdfast.checkpoint.store.log_records import FailureRecord
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    EpochFailed,
    EpochInterrupted,
    FencedOut,
    PoisonEpoch,
    RestoreError,
    SessionLost,
    StopUnfinished,
    StorageError,
    UserCodeError,
)
from holdfast.runtime.restart_strategy import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from holdfast.runtime.restarts import Restarts, cause_of
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.leader_kit import leader_of

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
        context = leader_of(storage, clock=self.clock, term=term, say=self.said.append)
        settings = replace(context.settings, restart=strategy)
        self.restarts = Restarts(replace(context, settings=settings), chance=lambda: 0.5)

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
    told = [(record.message, record.decision) for record in read_failures(storage)]
    is_known = isinstance(failure, DefinitionError | RestoreError | CorruptionError)
    assert told == ([("x", "give-up")] if is_known else []), "status tells why a run has ended"


def test_an_error_that_nobody_foresaw_is_tried_again(storage: Storage) -> None:
    Leader(storage, ExponentialDelay()).fail(ValueError("boom"))
    assert [record.message for record in read_failures(storage)] == ["ValueError: boom"]


def test_a_poison_epoch_is_named(storage: Storage) -> None:
    leader = Leader(storage, ExponentialDelay())
    leader.fail(EpochFailed("task 11 met a bad row"), 7)
    leader.fail(EpochFailed("task 12 met a bad row"), 7)
    with pytest.raises(PoisonEpoch, match=r"epoch 7 .* task 13 met a bad row") as error:
        leader.fail(EpochFailed("task 13 met a bad row"), 7)
    assert isinstance(error.value.__cause__, EpochFailed)
    assert read_failures(storage)[-1].poison


@pytest.mark.parametrize(
    "outage",
    [
        StorageError("cannot list s3://bucket/commits: connection refused; try again"),
        EpochInterrupted(
            "epoch 7 of job: totals failed in Spark: holdfast.errors.StorageError: cannot write; "
            "nothing of it became visible"
        ),
        EpochInterrupted("epoch 7 of job: totals failed in Spark: a Python worker was killed"),
        SessionLost("the Spark session ended; start the job again"),
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("Answer from Java side is empty"),
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
    from holdfast.runtime import restarts

    leader = Leader(storage, FixedDelay(attempts=5))
    write = restarts.record_failure

    def refuse(storage: Storage, record: FailureRecord) -> None:
        raise StorageError("unreachable; try again")

    monkeypatch.setattr(restarts, "record_failure", refuse)
    leader.fail(GONE, 1)
    monkeypatch.setattr(restarts, "record_failure", write)
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


@pytest.mark.parametrize(
    ("once", "again"),
    [
        ("task 7 at 0xab12 failed", "task 8 at 0xcd34 failed"),
        ("Lost task 1.0 in stage 2.0 (TID 4) of job 3", "Lost task 0.3 in stage 9.1 (TID 44) of job 12"),
        ("calling o213.collectToPython", "calling o9.collectToPython"),
        ("executor 6 on 10.0.0.7:4040, pid 17", "executor 7 on 10.0.0.8:4141, pid 2000"),
        ("cannot connect to localhost:39999", "cannot connect to localhost:40001"),
        (
            "cannot read data/000000000007/a1b2-1-totals-0-4f6bfe3a-delta.parquet; try again",
            "cannot read data/000000000007/c3d4-2-totals-0-99ac01de-delta.parquet; try again",
        ),
        (
            "/tmp/blockmgr-0f9e8d7c-1111-2222-3333-444455556666/0c is gone",
            "/tmp/blockmgr-0f9e8d7c-1111-2222-3333-444455557777/0c is gone",
        ),
        ("late at 2026-01-02 03:04:05.678", "late at 2026-01-02 03:05:06.789"),
        ("no answer within 12.5 s", "no answer within 13.1 s"),
    ],
)
def test_what_differs_every_time_makes_no_other_cause(once: str, again: str) -> None:
    assert cause_of(EpochFailed(once)) == cause_of(EpochFailed(again))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bad row 7", "bad row 8"),
        ("reading file in/part-0001.json", "reading file in/part-0002.json"),
        ("ValueError: at app.py:12", "ValueError: at app.py:13"),
        ("no user 4f6bfe3a99ac01de", "no user 4f6bfe3a99ac01df"),
        ("x" * 2_000 + "a", "x" * 2_000 + "b"),
    ],
)
def test_different_causes_stay_different(one: str, other: str) -> None:
    assert cause_of(EpochFailed(one)) != cause_of(EpochFailed(other))
    assert cause_of(EpochFailed(one)) != cause_of(StorageError(one))


def test_different_failures_of_an_epoch_are_no_poison(storage: Storage) -> None:
    leader = Leader(storage, ExponentialDelay())
    for number in range(10):
        leader.fail(EpochFailed(f"bad row {number}"), 7)
    assert {record.decision for record in read_failures(storage)} == {"restart"}


def test_a_function_that_fails_on_any_row_fails_in_the_same_way() -> None:
    causes = {cause_of(UserCodeError("totals", 9, f"k{n}", f"row {n}", "KeyError: 'x'")) for n in range(3)}
    assert len(causes) == 1
    assert cause_of(UserCodeError("totals", 9, "k", "row", "KeyError: 'y'")) not in causes


class StoppedMeanwhile(Waiting):
    def wait(self, timeout: float | None = None) -> bool:
        super().wait(timeout)
        self.set()
        return True


@pytest.mark.parametrize(
    "failure",
    [
        EpochInterrupted("epoch 7 of job: totals failed in Spark: the Spark session ended"),
        Py4JNetworkError("Answer from Java side is empty"),
        StorageError("the disk is full; make room"),
    ],
)
def test_after_a_stop_was_asked_for_nothing_is_tried_again(storage: Storage, failure: Exception) -> None:
    leader = Leader(storage, FixedDelay(attempts=1))
    leader.waiting.set()
    with pytest.raises(StopUnfinished, match=r"told to stop.* nothing is lost: the next start") as raised:
        leader.fail(failure)
    assert (raised.value.exit_code, raised.value.__cause__) == (75, failure)
    assert (leader.said, leader.waiting.waits) == ([], [])
    assert [(each.decision, each.retried) for each in read_failures(storage)] == [("stopped", 0)]
    assert counted(read_failures(storage)) == []


def test_what_could_not_be_finished_is_told_once(storage: Storage) -> None:
    leader = Leader(storage, FixedDelay(attempts=1))
    leader.waiting.set()
    with pytest.raises(StopUnfinished) as raised:
        leader.fail(StopUnfinished("sink 'out' did not show an epoch"))
    assert str(raised.value).count("told to stop") == 1


def test_a_stop_that_comes_while_it_waits_ends_the_run(storage: Storage) -> None:
    leader = Leader(storage, FixedDelay(attempts=1))
    leader.waiting = StoppedMeanwhile()
    with pytest.raises(StopUnfinished, match="executor 3 is gone"):
        leader.fail(GONE)


def test_what_a_user_has_to_see_to_is_told_as_it_is_also_after_a_stop(storage: Storage) -> None:
    leader = Leader(storage, FixedDelay(attempts=9))
    leader.waiting.set()
    for failure in (UserCodeError("totals", 9, "k", "row", "ZeroDivisionError"), ZeroDivisionError("x")):
        with pytest.raises(type(failure)):
            leader.fail(failure)
