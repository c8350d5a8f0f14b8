"""The leader's ear: what it takes on, what it refuses, and what leaders that die leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast.checkpoint.chain.terms import claim
from holdfast.checkpoint.log.requests import EXPIRES_MS, KEPT_MS, Requests, State, ask, read_asked, take_back
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.log_records import AnswerRecord
from holdfast.errors import DefinitionError, FencedOut, RestoreError, StorageError
from holdfast.runtime.control.request_server import (
    IN_HAND_MAX,
    LOOK_SECONDS,
    SWEEP_SECONDS,
    Control,
    plain_fields,
)
from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage
from tests.unit.runtime.control.control_kit import FakeJob, wait_until

NOW = 1_760_000_000_000


class Desk:
    """A leader's control with its storage and clock; `term` is claimed."""

    def __init__(self, storage: FaultyStorage | None = None) -> None:
        self.storage = storage or FaultyStorage(MemoryStorage())
        self.clock = ManualClock(NOW)
        self.job = FakeJob()
        self.said: list[str] = []
        self.term = claim(self.storage, "run", "host", 1, NOW)
        self.control = Control(
            self.storage, self.term, self.job, self.clock, self.said.append, grace_seconds=0.05
        )
        self._asked = 0

    def ask(self, verb: str, **arguments: Any) -> str:
        self._asked += 1
        token = f"{self._asked:08x}"
        now_ms = self.clock.now_ms()
        return ask(self.storage, verb, arguments, token=token, asked_by="anna", now_ms=now_ms).id

    def answer(self, id: str) -> AnswerRecord:
        answer = read_asked(self.storage, id).answer
        assert answer is not None
        return answer

    def state(self, id: str) -> State:
        return read_asked(self.storage, id).state

    def finished(self, id: str) -> State:
        """Look until the request has ended."""

        def ended() -> bool:
            self.control.look()
            return self.state(id).ended

        wait_until(ended, f"{id} has ended")
        return self.state(id)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_status_is_answered_at_once(desk: Desk) -> None:
    desk.job.monitor.update(phase="running", epoch=7)
    id = desk.ask("status")
    desk.control.look()
    answer = desk.answer(id)
    assert (answer.state, answer.term) == ("done", desk.term)
    assert (answer.result["epoch"], answer.result["phase"]) == (7, "running")


def test_a_savepoint_is_taken_beside_other_answers(desk: Desk) -> None:
    desk.job.gate.clear()
    savepoint = desk.ask("savepoint", url="/tmp/sp", format="canonical")
    desk.control.look()
    status = desk.ask("status")
    desk.control.look()
    assert (desk.state(savepoint), desk.state(status)) == (State.RUNNING, State.DONE)
    desk.job.given = {"id": "sp-1", "commit": 9}
    desk.job.gate.set()
    assert desk.finished(savepoint) is State.DONE
    assert desk.answer(savepoint).result == {"id": "sp-1", "commit": 9}
    assert desk.job.calls == [("savepoint", "/tmp/sp", "canonical")]


def test_rescaling_requests_are_carried_out_in_the_order_asked(desk: Desk) -> None:
    for shards in (4, 2, 8):
        desk.ask("rescale", parallelism=shards)
        desk.clock.advance(timedelta(milliseconds=1))
    desk.control.look()
    assert desk.job.calls == [("rescale", 4), ("rescale", 2), ("rescale", 8)]


@pytest.mark.parametrize("failure", [StorageError("/mnt is stale; try again"), ValueError("odd")])
def test_a_place_that_cannot_be_looked_at_holds_up_nobody_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def away(url: str) -> None:
        raise failure

    monkeypatch.setattr("holdfast.runtime.control.verbs.open_storage", away)
    savepoint, stop = desk.ask("savepoint", url="/mnt/sp"), desk.ask("stop")
    desk.control.look()
    assert desk.state(savepoint) is State.REFUSED
    assert str(failure) in desk.answer(savepoint).error
    wait_until(lambda: desk.job.calls == [("stop", None, False)], "the job was told")
    assert desk.state(stop) is State.RUNNING


def test_a_request_is_carried_out_once_however_often_it_is_seen(desk: Desk) -> None:
    desk.ask("rescale", parallelism=4)
    for _ in range(3):
        desk.control.look()
    assert desk.job.calls == [("rescale", 4)]


@pytest.mark.parametrize(
    ("verb", "arguments", "why"),
    [
        ("dance", {}, "there is no verb 'dance'; the verbs are status, savepoint, stop, rescale"),
        ("rescale", {"parallelism": "4"}, "Expected `int`, got `str`"),
        ("rescale", {"parallelism": 0}, "Expected `int` >= 1"),
        ("rescale", {}, "must be a required field `parallelism`"),
        ("stop", {"hard": True}, "unknown field `hard`"),
        ("savepoint", {"url": "here"}, "relative path"),
        ("savepoint", {"url": "ftp://x/y"}, "no place for storage"),
        ("savepoint", {"url": "/x", "format": "zip"}, "Invalid enum value 'zip'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    desk: Desk, verb: str, arguments: dict[str, Any], why: str
) -> None:
    id = desk.ask(verb, **arguments)
    desk.control.look()
    answer = desk.answer(id)
    assert answer.state == "refused"
    assert why in answer.error
    assert "\n" not in answer.error
    assert desk.job.calls == []


def test_what_the_job_refuses_is_refused_and_what_it_fails_at_has_failed(desk: Desk) -> None:
    for raised, state in (
        (DefinitionError("parallelism=999 is out of range; choose less"), State.REFUSED),
        (RestoreError("the place is not empty; choose another"), State.REFUSED),
        (StorageError("the disk is full; make room"), State.FAILED),
        (ValueError("two\nlines"), State.FAILED),
    ):
        desk.job.refusal = raised
        id = desk.ask("savepoint", url="/tmp/sp")
        assert desk.finished(id) is state
    assert desk.answer(id).error == "ValueError: two lines"


def test_a_damaged_request_is_refused_and_the_others_go_on(desk: Desk) -> None:
    damaged, sound = desk.ask("rescale", parallelism=4), desk.ask("rescale", parallelism=5)
    desk.storage.flip_at_rest(names.request(damaged), offset=80)
    desk.control.look()
    assert desk.state(damaged) is State.REFUSED
    assert "damaged" in desk.answer(damaged).error
    assert desk.state(sound) is State.DONE
    assert desk.job.calls == [("rescale", 5)]


def test_a_request_that_waited_too_long_is_not_carried_out(desk: Desk) -> None:
    id = desk.ask("stop")
    desk.clock.advance(timedelta(milliseconds=EXPIRES_MS + 5_000))
    desk.control.look()
    assert desk.state(id) is State.REFUSED
    assert "5 s too late" in desk.answer(id).error
    assert desk.job.calls == []


def test_a_request_whose_leader_died_is_failed_by_the_next_and_not_repeated() -> None:
    first = Desk()
    first.job.gate.clear()
    id = first.ask("savepoint", url="/tmp/sp")
    first.control.look()
    assert first.job.calls
    # It is killed here: nothing more of it runs.
    second = Desk(first.storage)
    second.control.look()
    answer = second.answer(id)
    assert (answer.state, answer.term) == ("failed", second.term)
    assert "the leader of term 1 ended while at it" in answer.error
    assert second.job.calls == []
    first.job.gate.set()


def test_a_leader_that_comes_back_late_does_not_overwrite_its_successors_answer() -> None:
    first = Desk()
    first.job.gate.clear()
    id = first.ask("savepoint", url="/tmp/sp")
    first.control.look()
    second = Desk(first.storage)
    second.control.look()
    first.job.gate.set()
    first.control.finish(FencedOut(1, 2, "it wrote commits/2"))
    assert first.answer(id).state == "failed"
    assert first.answer(id).term == second.term


def test_a_leader_that_was_superseded_takes_nothing_on() -> None:
    first = Desk()
    second = Desk(first.storage)
    id = first.ask("rescale", parallelism=4)
    first.control.look()
    assert first.job.calls == []
    second.control.look()
    assert second.job.calls == [("rescale", 4)]
    assert second.answer(id).term == 2


def test_two_leaders_at_once_carry_each_request_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if neither sees that the other exists."""
    first = Desk()
    second = Desk(first.storage)
    monkeypatch.setattr("holdfast.runtime.control.request_server.is_superseded", lambda storage, term: False)
    for number in range(20):
        first.ask("rescale", parallelism=number + 1)
        leaders = [first, second] if number % 2 else [second, first]
        for leader in leaders:
            leader.control.look()
    done = sorted(call[1] for desk in (first, second) for call in desk.job.calls)
    assert done == list(range(1, 21))


def test_a_leader_whose_own_term_is_damaged_still_does_what_it_is_asked() -> None:
    desk = Desk()
    desk.storage.put(names.term(desk.term), b"damaged")
    id = desk.ask("rescale", parallelism=4)
    desk.control.look()
    assert desk.job.calls == [("rescale", 4)]
    assert desk.state(id) is State.DONE


def test_what_nobody_has_begun_is_done_by_the_next_leader() -> None:
    first = Desk()
    id = first.ask("rescale", parallelism=4)
    Requests(first.storage, first.term).accept(id, NOW)
    second = Desk(first.storage)
    second.control.look()
    assert second.state(id) is State.DONE


def test_a_request_half_taken_back_is_refused(desk: Desk) -> None:
    id = desk.ask("stop")
    desk.storage.add(Fault(kind=FaultKind.FAIL, operation="put_new", name="answers/*/3-ended"))
    with pytest.raises(StorageError):
        take_back(desk.storage, id, NOW, "nobody took it")
    desk.control.look()
    assert desk.answer(id).error == "it was taken back by whoever asked"
    assert desk.job.calls == []


def test_a_claim_of_ours_that_storage_did_not_confirm_is_carried_out_later(desk: Desk) -> None:
    id = desk.ask("rescale", parallelism=4)
    desk.storage.add(Fault(kind=FaultKind.LOSE_ANSWER, operation="put_new", name="answers/*"))
    desk.storage.add(Fault(kind=FaultKind.FAIL, operation="list", name=f"answers/{id}/*"))
    with pytest.raises(Exception, match="not known whether"):
        desk.control.look()
    desk.control.look()
    assert desk.state(id) is State.DONE
    assert desk.job.calls == [("rescale", 4)]


def test_an_answer_that_storage_does_not_take_is_given_later(desk: Desk) -> None:
    id = desk.ask("rescale", parallelism=4)
    desk.storage.add(Fault(kind=FaultKind.FAIL, operation="put_new", name="answers/*/3-ended"))
    with pytest.raises(StorageError):
        desk.control.look()
    assert desk.state(id) is State.RUNNING
    desk.control.look()
    assert desk.state(id) is State.DONE
    assert desk.job.calls == [("rescale", 4)]


def test_more_long_requests_than_hands_wait_as_accepted_and_a_stop_does_not(desk: Desk) -> None:
    desk.job.gate.clear()
    at_work = [desk.ask("savepoint", url=f"/tmp/{n}") for n in range(IN_HAND_MAX)]
    desk.clock.advance(timedelta(milliseconds=1))
    waiting, stop = desk.ask("savepoint", url="/tmp/more"), desk.ask("stop")
    desk.control.look()
    assert {desk.state(id) for id in at_work} == {State.RUNNING}
    assert desk.state(waiting) is State.ACCEPTED
    wait_until(lambda: ("stop", None, False) in desk.job.calls, "the stop is in hand")
    assert desk.state(stop) is State.RUNNING
    desk.job.gate.set()
    assert desk.finished(waiting) is State.DONE


def test_a_stop_is_done_when_the_run_has_ended(desk: Desk) -> None:
    desk.job.given = {"savepoint": "/tmp/sp"}
    id = desk.ask("stop", savepoint="/tmp/sp", drain=True)
    desk.control.look()
    wait_until(lambda: bool(desk.job.calls), "the job was told")
    desk.control.look()
    assert desk.state(id) is State.RUNNING
    desk.control.finish(None)
    assert (desk.state(id), desk.answer(id).result) == (State.DONE, {"savepoint": "/tmp/sp"})
    assert desk.job.calls == [("stop", "/tmp/sp", True)]


def test_a_stop_has_failed_when_the_run_failed(desk: Desk) -> None:
    id = desk.ask("stop")
    desk.control.look()
    desk.control.finish(StorageError("the disk is full; make room"))
    assert (desk.state(id), desk.answer(id).error) == (State.FAILED, "the disk is full; make room")


def test_a_stop_that_the_job_refuses_is_refused_at_once(desk: Desk) -> None:
    desk.job.refusal = DefinitionError("this source cannot be drained; stop without it")
    assert desk.finished(desk.ask("stop", drain=True)) is State.REFUSED


def test_what_is_still_in_hand_when_the_run_ends_has_failed(desk: Desk) -> None:
    desk.job.gate.clear()
    id = desk.ask("savepoint", url="/tmp/sp")
    desk.control.look()
    desk.control.finish(None)
    assert desk.state(id) is State.FAILED
    assert "the leader ended while at it" in desk.answer(id).error
    desk.job.gate.set()


def test_the_last_answers_are_tried_again_and_then_left_to_the_next_leader(desk: Desk) -> None:
    id = desk.ask("stop")
    desk.control.look()
    desk.storage.add(Fault(kind=FaultKind.FAIL, operation="put_new", name="answers/*/3-ended", times=2))
    desk.control.finish(None)
    assert desk.state(id) is State.DONE
    other = Desk()
    other.ask("stop")
    other.control.look()
    other.storage.add(Fault(kind=FaultKind.FAIL, operation="put_new", times=None))
    other.control.finish(None)
    assert "unanswered until somebody leads again" in other.said[-1]


def test_old_requests_are_swept_now_and_then(desk: Desk) -> None:
    desk.ask("rescale", parallelism=4)
    desk.control.look()
    desk.clock.advance(timedelta(milliseconds=KEPT_MS + 1))
    assert timedelta(milliseconds=KEPT_MS) > timedelta(seconds=SWEEP_SECONDS)
    desk.control.look()
    assert desk.storage.list("requests/") + desk.storage.list("answers/") == []


def test_the_thread_answers_until_the_block_ends(desk: Desk) -> None:
    with desk.control:
        id = desk.ask("rescale", parallelism=4)
        wait_until(lambda: desk.state(id) is State.DONE, "it is answered")
        stop = desk.ask("stop")
        wait_until(lambda: ("stop", None, False) in desk.job.calls, "the job was told to stop")
    assert desk.state(stop) is State.DONE
    late = desk.ask("status")
    assert desk.state(late) is State.WAITING


def test_the_thread_survives_storage_that_fails_and_says_so_once(desk: Desk) -> None:
    desk.storage.add(Fault(kind=FaultKind.FAIL, operation="list", name="requests/*", times=3))
    with desk.control:
        id = desk.ask("status")
        wait_until(lambda: desk.state(id) is State.DONE, "storage is back")
    assert len([text for text in desk.said if "for now" in text]) == 1


def test_an_error_in_the_block_is_told_to_who_asked_for_a_stop(desk: Desk) -> None:
    def lead() -> None:
        with desk.control:
            wait_until(lambda: bool(desk.job.calls), "the job was told to stop")
            raise RestoreError("no retained checkpoint verifies; restore a copy")

    id = desk.ask("stop")
    with pytest.raises(RestoreError):
        lead()
    assert desk.answer(id).error == "no retained checkpoint verifies; restore a copy"


def test_what_a_verb_gives_back_is_told_without_its_large_parts() -> None:
    @dataclass
    class Taken:
        id: str
        epoch: int
        manifest: dict[str, int]

    assert plain_fields(Taken("sp", 3, {"large": 1})) == {"id": "sp", "epoch": 3}
    assert plain_fields({"timings": {"open": 1.5}}) == {"timings": {"open": 1.5}}
    assert plain_fields(None) == {}
    assert plain_fields(4) == {"value": 4}


class Fellows:
    """Two members of a set of replicas: controls of one term. `gone`: processes that are members no more."""

    def __init__(self) -> None:
        self.storage, self.clock, self.gone = MemoryStorage(), ManualClock(NOW), set[str]()
        self.term = claim(self.storage, "run", "host", 1, NOW)
        self.jobs = {process: FakeJob() for process in ("first", "second")}
        self.controls = {
            process: Control(
                self.storage, self.term, job, self.clock, lambda text: None, grace_seconds=0.05,
                process=process, is_gone=self.gone.__contains__,
            )
            for process, job in self.jobs.items()
        }  # fmt: skip

    def look(self) -> None:
        for control in self.controls.values():
            control.look()

    def ask(self, verb: str, **arguments: Any) -> str:
        return ask(self.storage, verb, arguments, token="0" * 8, asked_by="anna", now_ms=NOW).id

    def state(self, id: str) -> State:
        return read_asked(self.storage, id).state


def test_of_several_members_one_carries_a_request_out_and_none_answers_for_it() -> None:
    members = Fellows()
    members.jobs["first"].gate.clear()
    id = members.ask("savepoint", url="/somewhere")
    members.look()
    members.look()
    assert members.state(id) is State.RUNNING
    members.jobs["first"].gate.set()

    def ended() -> bool:
        members.look()
        return members.state(id).ended

    wait_until(ended, "it has ended")
    assert members.state(id) is State.DONE
    assert [len(job.calls) for job in members.jobs.values()] == [1, 0]


def test_what_a_member_has_claimed_when_it_dies_is_answered_once_its_seat_is_taken() -> None:
    members = Fellows()
    members.jobs["first"].gate.clear()
    id = members.ask("savepoint", url="/somewhere")
    members.look()
    members.controls["second"].look()
    assert members.state(id) is State.RUNNING
    members.gone.add("first")
    members.controls["second"].look()
    members.jobs["first"].gate.set()
    assert members.state(id) is State.FAILED
    assert not members.jobs["second"].calls


@pytest.mark.parametrize("lives", [False, True])
def test_what_a_member_has_claimed_is_answered_when_it_does_not_say_where_it_stands(lives: bool) -> None:
    """Of one that died, before its seat is taken. One that works on is left to it."""
    members = Fellows()
    members.jobs["first"].gate.clear()
    id = members.ask("savepoint", url="/somewhere")
    members.controls["first"].look()
    for _ in range(200):
        members.clock.advance(timedelta(seconds=LOOK_SECONDS))
        members.controls["second"].look()
        if lives:
            members.controls["first"].look()
    asked = read_asked(members.storage, id)
    assert asked.state is (State.RUNNING if lives else State.FAILED)
    if not lives:
        assert asked.answer is not None
        assert asked.answer.error.startswith("the member that took it on does not answer any more; look")
    assert not [call for call in members.jobs["second"].calls if call[0] == "savepoint"]
    left = [entry.name for entry in members.storage.list(names.REQUESTS)]
    assert names.request(id) in left
    assert len(left) <= 1 + lives, "what was asked to find out is not left behind"
    members.jobs["first"].gate.set()


def test_a_member_that_is_asked_by_name_answers_and_no_other() -> None:
    members = Fellows()
    id = members.ask("status", process="second")
    members.controls["first"].look()
    assert members.state(id) is State.WAITING
    members.controls["second"].look()
    assert members.state(id) is State.DONE


def test_a_member_that_founds_the_next_set_goes_on_answering() -> None:
    members = Fellows()
    following = claim(members.storage, "other", "host", 1, NOW)
    id = members.ask("status")
    members.look()
    assert members.state(id) is State.WAITING
    members.controls["first"].go_on_as(following, "first-again")
    members.look()
    assert members.state(id) is State.DONE
