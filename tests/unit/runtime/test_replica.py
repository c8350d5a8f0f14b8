"""A member of a set of replicas: how long it waits for votes, and what it says of other results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.checkpoint.chain.commits import Adopted
from holdfast.checkpoint.chain.fellows import digest_of
from holdfast.checkpoint.chain.replica_sets import Joined
from holdfast.checkpoint.chain.terms import claim, record_ending
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.chain.votes import cast, votes_for
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord, EndedRecord, VoteRecord
from holdfast.errors import FencedOut, RetryableError
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime.progress import Monitor
from holdfast.runtime.replica import LOOK_AROUND_SECONDS, SAY_SECONDS, STOP_SECONDS, Replica, join
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.kept import MemoryStorage

VOTING = ActiveReplicas(k=2, vote=True)


def record(**changes: Any) -> CommitRecord:
    given: dict[str, Any] = {
        "term": 1, "run": "r", "first_epoch": 1, "last_epoch": 1, "attempts": {"1": 1}, "clock_ms": 0,
        "parallelism": 1, "fingerprint": "f", "positions": {"in": 1}, **changes,
    }  # fmt: skip
    return CommitRecord(**given)


class Waiting(ManualClock):
    """Calls what is to happen at some second, while a member sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.then: dict[float, Callable[[], object]] = {}

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for at in [at for at in self.then if at <= self.monotonic()]:
            self.then.pop(at)()
        assert self.monotonic() < 60, "it waits without end"


class Set:
    """A set of three members that vote, of which this is the first."""

    def __init__(self, protection: ActiveReplicas = VOTING) -> None:
        self.storage, self.clock, self.said = MemoryStorage(), Waiting(), list[str]()
        self.stopping = threading.Event()
        self.protection = protection
        monitor = Monitor("job", self.clock, [], [self.said.append])
        self.member = Replica(self.join(1, "a"), self.storage, self.clock, monitor, self.stopping.is_set)

    def join(self, seat: int, process: str, code: str = "f") -> Joined:
        return join(self.storage, self.protection, seat, process, code, 1, self.clock)

    def vote(self, given: CommitRecord, given_up: Callable[[], bool] = lambda: False) -> bool:
        return self.member.vote(given, EMPTY, given_up)

    def other_votes(self, seat: int, given: CommitRecord) -> None:
        content = digest_of(given)
        cast(self.storage, VoteRecord(epoch=1, term=1, seat=seat, commit=1, content=content))


def test_who_does_not_vote_does_not_wait() -> None:
    alone = Set(ActiveReplicas(k=1))
    assert alone.vote(record())
    assert votes_for(alone.storage, 1, 1) == {}


def test_news_without_an_epoch_needs_no_votes() -> None:
    assert Set().vote(record(attempts={}, first_epoch=2))


def test_an_epoch_waits_until_most_have_come_to_the_same() -> None:
    voters = Set()
    voters.clock.then = {
        1.0: lambda: voters.other_votes(2, record(rows=1)),
        2.0: lambda: voters.other_votes(3, record()),
    }
    assert voters.vote(record())
    assert voters.clock.monotonic() >= 2.0


def test_one_that_was_outvoted_waits_for_the_commit_of_the_others_and_says_so() -> None:
    voters = Set()
    for seat in (2, 3):
        voters.other_votes(seat, record(rows=1))
    voters.clock.then = {SAY_SECONDS + 1: lambda: voters.storage.put_new(names.commit(1), b"theirs")}
    assert voters.vote(record())
    assert [text.partition(" in ")[0] for text in voters.said] == ["OUTVOTED"]


def test_a_long_wait_is_said_with_who_has_voted() -> None:
    voters = Set()
    voters.clock.then = {SAY_SECONDS + 1: lambda: voters.other_votes(2, record())}
    voters.vote(record())
    assert voters.said == [
        "WAITING FOR VOTES: epoch 1 has those of members 1 of 3; it is committed when most agree"
    ]


def test_a_run_that_is_told_to_stop_waits_a_little_and_one_that_gives_up_does_not() -> None:
    voters = Set()
    voters.stopping.set()
    with pytest.raises(RetryableError, match="votes of members 1 of 3, and no majority"):
        voters.vote(record())
    assert voters.clock.monotonic() >= STOP_SECONDS
    given_up = Set()
    with pytest.raises(RetryableError):
        given_up.vote(record(), lambda: True)
    assert given_up.clock.monotonic() == 0


def test_one_that_waits_learns_that_another_set_leads() -> None:
    """Else it would wait for the votes of those that wait for it to join theirs."""
    voters = Set()
    voters.clock.then = {1.0: lambda: claim(voters.storage, "other", "h", 1, 0)}
    with pytest.raises(FencedOut, match="term 1 was superseded by term 2"):
        voters.vote(record())


def test_one_that_waits_learns_that_its_seat_was_taken() -> None:
    voters = Set()
    voters.clock.then = {1.0: lambda: voters.join(1, "b")}
    with pytest.raises(FencedOut, match="another process is member 1"):
        voters.vote(record())


def test_one_that_waits_learns_that_the_epoch_was_planned_again() -> None:
    """Two members that run two plans of an epoch would wait for each other."""
    voters = Set()
    voters.storage.put_new(names.plan(1, 1), b"ours")
    voters.clock.then = {1.0: lambda: voters.storage.put_new(names.plan(1, 2), b"theirs")}
    assert not voters.vote(record())
    assert voters.clock.monotonic() < 1.0 + 2 * LOOK_AROUND_SECONDS


def test_one_that_waits_for_what_was_given_up_since_waits_no_more() -> None:
    """It was paused: the commit of the others has gone from storage since, and their votes with it."""
    voters = Set()
    voters.clock.then = {1.0: lambda: voters.storage.put_new(names.floor(64), b"")}
    assert voters.vote(record())
    assert voters.said == []


def test_votes_of_a_former_set_do_not_count_nor_stand_in_the_way() -> None:
    voters = Set()
    for seat in (1, 2, 3):
        voters.other_votes(seat, record(rows=1))
    for process in ("d", "e"):
        joined = voters.join(1, process, "other code")
    monitor = Monitor("job", voters.clock, [], [voters.said.append])
    later = Replica(joined, voters.storage, voters.clock, monitor, voters.stopping.is_set)
    content = digest_of(record(term=2))
    vote = VoteRecord(epoch=1, term=2, seat=2, commit=1, content=content)
    voters.clock.then = {1.0: lambda: cast(voters.storage, vote)}
    assert later.vote(record(term=2), EMPTY, lambda: False)


def test_other_results_are_said_and_counted() -> None:
    other = Adopted(CheckpointView(number=4, last_epoch=3), ("rows",))
    silent, voting = Set(ActiveReplicas(k=1)), Set()
    told = silent.member.diverged(other)
    assert "DIVERGENCE in epoch 3: member 1" in told
    assert "commit 4" in told
    assert "in rows" in told
    assert "OUTVOTED in epoch 3: member 1" in voting.member.diverged(other)
    assert silent.member.monitor.progress.divergences == 1


def test_a_drain_is_told_to_the_others_and_learned_from_them() -> None:
    voters = Set()
    draining = threading.Event()
    voters.member.share_drain(draining)
    assert not draining.is_set()
    voters.join(2, "b").drain(voters.storage)
    voters.member.share_drain(draining)
    assert draining.is_set()


def test_the_end_of_the_set_is_seen() -> None:
    voters = Set()
    assert not voters.member.set_has_ended()
    record_ending(
        voters.storage,
        EndedRecord(term=1, run="a", at_ms=0, ending="exhausted", commit=1, last_epoch=1, published=True),
    )
    assert voters.member.set_has_ended()


def test_a_set_is_founded_as_its_protection_and_settings_say() -> None:
    voters = Set()
    term = voters.member.set
    assert (term.members, term.vote, term.parallelism, term.fingerprint, term.run) == (3, True, 1, "f", "a")
    assert voters.member.seat == 1
