"""A seat does what its lease says: it begins and ends a run, extends and revokes its permit to commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

import holdfast as hf
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.cluster.seat_lease import Contact, Give, Limits, Lost, RunEnded, Stage, Tick, Won
from holdfast.errors import SeatLost
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.nodes.job_seat import JobSeat
from holdfast.nodes.registration import NodeContext
from holdfast.nodes.run import Predecessor, Run, told_of
from holdfast.runtime.control.commit_permit import Permit
from holdfast.testing.clocks import ManualClock

LIMITS = Limits(session_seconds=9.0, resign_seconds=60.0)
DEADLINE_SECONDS = 10.0


class IdleJob(hf.Job):
    """Runs until it is told to stop, and fails then if its permit was revoked."""

    failure: Exception | None = None

    def start_as(self, wishes: Any, *args: Any, **more: Any) -> Any:
        if self.failure is not None:
            raise self.failure

        def wait(timeout: float | None = None) -> None:
            assert wishes.stopping.wait(DEADLINE_SECONDS)
            wishes.permit.refuse_if_revoked()

        return SimpleNamespace(running=False, wait=wait)


STARTED = threading.Event()


class StartingJob(IdleJob):
    """Starts until the test says that it has, whatever it is told; then it would claim a term."""

    def start_as(self, wishes: Any, *args: Any, **more: Any) -> Any:
        assert STARTED.wait(DEADLINE_SECONDS)
        wishes.permit.await_valid()
        return super().start_as(wishes)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def seat_of(tmp_path: Path, clock: ManualClock) -> Callable[[IdleJob], JobSeat]:
    registration = SimpleNamespace(name="a", standby="cold", mark_checkpoint=lambda job, move: None)
    context = NodeContext(
        registration=cast(Any, registration), owner="here-1", limits=lambda: LIMITS, clock=clock,
        say=lambda text: None, on_progress=lambda progress: None,
    )  # fmt: skip

    def won(job: IdleJob) -> JobSeat:
        seat = JobSeat(JobOnNode(job, str(tmp_path), {}), context)
        seat.won(Won(clock.monotonic()), Predecessor())
        return seat

    return won


@pytest.fixture
def seat(seat_of: Callable[[IdleJob], JobSeat]) -> JobSeat:
    return seat_of(IdleJob("counts"))


def ended(seat: JobSeat) -> Run:
    assert seat.run is not None
    seat.run._thread.join(DEADLINE_SECONDS)
    assert seat.run.over
    return seat.run


def may_commit(permit: Permit) -> bool:
    def wait() -> None:
        with suppress(SeatLost):
            permit.await_valid()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.5)
    return not waiting.is_alive()


def test_commits_are_allowed_for_as_long_as_zookeeper_answers(seat: JobSeat, clock: ManualClock) -> None:
    assert seat.run is not None
    clock.sleep(5)
    seat.feed(Contact(5.0))
    clock.sleep(5)
    assert may_commit(seat.run.permit), "two thirds of a session after the newest answered message"
    clock.sleep(1)
    assert not may_commit(seat.run.permit)
    seat.feed(Lost("the test ends"))


def test_a_lost_seat_revokes_the_run_and_is_not_given_back(seat: JobSeat) -> None:
    assert seat.feed(Lost("the session has ended")) is None
    assert isinstance(ended(seat).failure, SeatLost)
    assert seat.feed(RunEnded()) is None
    assert seat.stage is Stage.STANDING_BY


def test_a_seat_that_is_handed_over_is_given_back_after_the_run(seat: JobSeat) -> None:
    assert seat.feed(Give("hand-over to b")) is None
    run = ended(seat)
    assert run.failure is None
    assert run.is_handed_on
    assert seat.feed(RunEnded()) == "hand-over to b"
    seat.forget_run()
    assert not seat.holds
    assert not seat.job.running


class StoppingJob(IdleJob):
    """The job stops at a barrier that the run has carried; sinks keep it from its end for a while."""

    def start_as(self, wishes: Any, *args: Any, **more: Any) -> Any:
        wishes.job_stops.set()
        return super().start_as(wishes)


@pytest.mark.parametrize(("event", "goes_on"), [(Give("hand-over to b"), False), (Lost("silence"), True)])
def test_nobody_goes_on_with_a_part_that_ends_because_the_job_stops_unless_its_seat_was_lost(
    seat_of: Callable[[IdleJob], JobSeat], event: Any, goes_on: bool
) -> None:
    """Who has the seat by then decides what becomes of the part."""
    seat = seat_of(StoppingJob("counts"))
    seat.feed(event)
    assert ended(seat).is_handed_on is goes_on


def test_a_seat_whose_run_only_starts_is_given_back_before_it_ends(
    seat_of: Callable[[IdleJob], JobSeat],
) -> None:
    seat = seat_of(StartingJob("counts"))
    seat.feed(Give("hand-over to b"))
    assert seat.run is not None
    assert seat.feed(Tick(claimed=seat.has_claimed)) == "resigned: the run had not begun to lead"
    assert not seat.run.over
    assert seat.stage is Stage.ENDING, "no other run begins meanwhile"
    STARTED.set()
    assert isinstance(ended(seat).failure, SeatLost), "it claims no term any more"


def test_a_seat_is_given_back_while_a_run_hangs(seat: JobSeat, clock: ManualClock) -> None:
    clock.sleep(60)
    seat.feed(Contact(60.0))
    why = seat.feed(Tick(stuck_since=0.0))
    assert why == "resigned: nothing could be committed for 60.0 s"
    assert isinstance(ended(seat).failure, SeatLost)


def test_a_run_that_fails_says_why_its_seat_is_free(seat_of: Callable[[IdleJob], JobSeat]) -> None:
    job = IdleJob("counts")
    job.failure = OSError("no mount")
    seat = seat_of(job)
    assert ended(seat).failure is job.failure
    assert seat.feed(RunEnded()) == "its run ended: no mount"


class Ready:
    """What keeps a node ready."""

    def __init__(self) -> None:
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def replicas(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> tuple[JobSeat, JobSeat, JobSeat]:
    """The seats of one part with three replicas, as a node has them."""
    registration = SimpleNamespace(name="a", standby="hot", mark_checkpoint=lambda job, move: None)
    context = NodeContext(
        registration=cast(Any, registration), owner="here-1", limits=lambda: LIMITS, clock=clock,
        say=lambda text: None, on_progress=lambda progress: None,
    )  # fmt: skip
    monkeypatch.setattr("holdfast.nodes.job_seat.Standby", lambda job, context: Ready())
    seats = []
    for number in (1, 2, 3):
        job = JobOnNode(IdleJob("counts"), str(tmp_path), {})
        job.seat = number
        seats.append(JobSeat(job, context))
    for seat in seats:
        seat.fellows = tuple(other for other in seats if other is not seat)
    return tuple(seats)  # type: ignore[return-value]


def test_a_node_stands_by_for_all_replicas_of_a_part_at_once(replicas: tuple[JobSeat, ...]) -> None:
    for seat in replicas:
        seat.stand_by()
    assert [seat.standby is not None for seat in replicas] == [True, False, False]


def test_the_seat_that_is_won_begins_with_what_was_ready_for_any_of_them(
    replicas: tuple[JobSeat, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    class Noting(Run):
        def __init__(self, *args: Any) -> None:
            given.append(args[-1])
            super().__init__(*args[:-1], None)

    monkeypatch.setattr("holdfast.nodes.job_seat.Run", Noting)
    replicas[2].stand_by()
    ready = replicas[0].standby
    replicas[1].won(Won(0.0), Predecessor())
    assert given == [ready]
    assert [seat.standby for seat in replicas] == [None, None, None]
    assert [seat.leads_fellow for seat in replicas] == [True, False, True]
    replicas[0].stand_by()
    assert replicas[0].standby is None, "it holds another of them"
    replicas[1].feed(Lost("the test ends"))
    ended(replicas[1])


def test_a_node_stands_by_again_when_its_replica_has_ended(replicas: tuple[JobSeat, ...]) -> None:
    replicas[1].won(Won(0.0), Predecessor())
    replicas[1].feed(Give("hand-over to b"))
    ended(replicas[1])
    replicas[1].feed(RunEnded())
    replicas[1].forget_run()
    assert not any(seat.leads_fellow for seat in replicas)
    replicas[2].stand_by()
    assert replicas[0].standby is not None


def test_a_start_is_a_takeover_where_a_node_led_before() -> None:
    record = FailoverRecord(
        at_ms=0, node="a", host="here", standby="cold", term=1, before="", reason="", detect_ms=None,
        take_over_ms=1_500, restore_ms=200, replay_ms=None, commit=0, arrivals={},
    )  # fmt: skip
    assert told_of(record) == "STARTED by term 1: began in 1.5 s, restored in 0.2 s"
    after = msgspec.structs.replace(record, term=2, before="b", detect_ms=3_000)
    told = "TAKEOVER by term 2: detected in 3.0 s, took over in 1.5 s, restored in 0.2 s"
    assert told_of(after) == told
