"""Asking the leader: waiting for the answer, and taking back what nobody took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.checkpoint.log.requests import Asked, Requests, State
from holdfast.errors import DefinitionError
from holdfast.runtime.control.request_client import ask_leader, asker, status_of_leader, wait_for_end
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.kept import MemoryStorage

NOW = 1_760_000_000_000


class Answering(ManualClock):
    """A clock on which a leader acts whenever the asker sleeps."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(NOW)
        self._act = act

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._act()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def nobody() -> None:
    """No leader."""


def test_a_request_is_checked_before_it_is_written(storage: MemoryStorage) -> None:
    with pytest.raises(DefinitionError, match="relative path"):
        ask_leader(storage, "savepoint", {"url": "here"}, ManualClock(NOW), by="anna")
    assert storage.objects == {}


def test_a_request_names_all_its_arguments(storage: MemoryStorage) -> None:
    asked = ask_leader(storage, "stop", {}, ManualClock(NOW), by="anna")
    assert asked.arguments == {"savepoint": None, "drain": False}


def test_two_requests_of_one_moment_have_different_ids(storage: MemoryStorage) -> None:
    clock = ManualClock(NOW)
    ids = {ask_leader(storage, "status", {}, clock, by="anna").id for _ in range(20)}
    assert len(ids) == 20


def test_the_end_is_waited_for(storage: MemoryStorage) -> None:
    leader = Requests(storage, term=4)
    steps = iter(
        [
            lambda id: leader.accept(id, NOW),
            lambda id: leader.claim(id, NOW),
            lambda id: leader.end(id, State.DONE, NOW, result={"shards": 4}),
        ]
    )
    clock = Answering(lambda: next(steps)(id))
    id = ask_leader(storage, "rescale", {"parallelism": 4}, clock, by="anna").id
    told: list[State] = []
    end = wait_for_end(
        storage, id, clock, taken_within=15, ended_within=60, tell=lambda asked: told.append(asked.state)
    )
    assert told == [State.WAITING, State.ACCEPTED, State.RUNNING, State.DONE]
    assert end.answer is not None
    assert end.answer.result == {"shards": 4}


def test_a_request_that_nobody_takes_is_taken_back(storage: MemoryStorage) -> None:
    clock = Answering(nobody)
    id = ask_leader(storage, "stop", {}, clock, by="anna").id
    end = wait_for_end(storage, id, clock, taken_within=15, ended_within=600)
    assert end.state is State.REFUSED
    assert end.answer is not None
    assert end.answer.error == "nobody took it within 15 s, so it was taken back"
    assert clock.monotonic() < 16
    assert Requests(storage, term=1).claim(id, NOW) is None


def test_a_leader_that_takes_it_at_the_last_moment_is_waited_for(storage: MemoryStorage) -> None:
    clock = Answering(nobody)
    id = ask_leader(storage, "stop", {}, clock, by="anna").id
    leader = Requests(storage, term=1)

    def claimed_between_look_and_taking_back(asked: Asked) -> None:
        if asked.state is State.WAITING and clock.monotonic() >= 15:
            leader.claim(id, NOW)
        elif asked.state is State.RUNNING:
            leader.end(id, State.DONE, NOW)

    end = wait_for_end(
        storage, id, clock, taken_within=15, ended_within=600, tell=claimed_between_look_and_taking_back
    )
    assert end.state is State.DONE


def test_what_is_at_work_is_left_alone_when_the_time_is_up(storage: MemoryStorage) -> None:
    clock = Answering(nobody)
    id = ask_leader(storage, "stop", {}, clock, by="anna").id
    Requests(storage, term=1).claim(id, NOW)
    assert wait_for_end(storage, id, clock, taken_within=1, ended_within=2).state is State.RUNNING


def test_a_leaders_status_leaves_nothing_in_storage(storage: MemoryStorage) -> None:
    leader = Requests(storage, term=1)

    def answer() -> None:
        for found in leader.open():
            leader.claim(found.id, NOW)
            leader.end(found.id, State.DONE, NOW, result={"epoch": 7})

    assert status_of_leader(storage, Answering(answer), 2, by="anna") == {"epoch": 7}
    assert storage.objects == {}


def test_no_leader_no_status_and_nothing_in_storage(storage: MemoryStorage) -> None:
    clock = Answering(nobody)
    assert status_of_leader(storage, clock, 2, by="anna") is None
    assert storage.objects == {}
    assert clock.monotonic() < 3


def test_an_asker_has_a_name_even_without_a_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert asker("http").endswith(", http")
