"""Sets of replicas: who founds one, who joins it, and who is its member in a seat."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.replica_sets import (
    Joined,
    all_have_ended,
    join_set,
    left_by_all,
    members_of,
    outdated_members,
    runs_no_more,
)
from holdfast.checkpoint.chain.terms import CLAIMS_MAX, claim, newest_term, record_ending
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import EndedRecord, MemberRecord, TermRecord
from holdfast.errors import RetryableError
from holdfast.storage.contract import Put, Storage
from tests.unit.checkpoint.kept import MemoryStorage

WANTED = TermRecord(
    term=0, run="", host="h", pid=1, claimed_ms=0, members=2, vote=False, parallelism=4, fingerprint="f"
)

ENDED = EndedRecord(term=1, run="a", at_ms=0, ending="stopped", commit=3, last_epoch=3, published=True)


def joined(
    storage: Storage,
    process: str,
    seat: int = 1,
    *,
    other_shards: bool = True,
    newest: CheckpointView = EMPTY,
    asked_shards: int | None = None,
    running: tuple[str, ...] | None = None,
    **wanted: Any,
) -> Joined:
    member = MemberRecord(term=0, seat=seat, process=process, host="h", pid=1, joined_ms=0)
    asked = replace(WANTED, run=process, **wanted)
    return join_set(
        storage, asked, member, other_shards=other_shards, newest=newest, asked_shards=asked_shards,
        runs=lambda member: running is None or member.process in running,
    )  # fmt: skip


def test_the_first_founds_the_set_and_the_others_join_it_under_its_term_and_run() -> None:
    storage = MemoryStorage()
    first, second = joined(storage, "a", 1), joined(storage, "b", 2)
    assert first.set == second.set
    assert (first.set.term, first.set.run) == (1, "a")
    assert {seat: each.process for seat, each in members_of(storage, 1).items()} == {1: "a", 2: "b"}
    assert second.member.term == 1


@pytest.mark.parametrize("other", [{"fingerprint": "g"}, {"members": 3}, {"vote": True}])
def test_what_is_of_another_kind_founds_a_set_of_its_own(other: dict[str, Any]) -> None:
    storage = MemoryStorage()
    joined(storage, "a")
    assert joined(storage, "b", 2, **other).set.term == 2
    newest = newest_term(storage)
    assert newest is not None
    assert newest.run == "b"


def test_another_number_of_shards_is_for_the_set_to_say_unless_that_is_what_it_is_founded_for() -> None:
    storage = MemoryStorage()
    joined(storage, "a")
    taken = joined(storage, "b", 2, parallelism=8)
    assert (taken.set.term, taken.set.parallelism) == (1, 4)
    refounded = joined(storage, "c", 2, parallelism=8, other_shards=False)
    assert (refounded.set.term, refounded.set.parallelism) == (2, 8)


def test_a_leader_that_is_no_set_is_fenced_by_one() -> None:
    storage = MemoryStorage()
    claim(storage, "alone", "h", 1, 0)
    assert joined(storage, "a").set.term == 2


def test_a_set_that_has_ended_is_not_joined() -> None:
    storage = MemoryStorage()
    joined(storage, "a")
    ended = EndedRecord(term=1, run="a", at_ms=0, ending="exhausted", commit=3, last_epoch=3, published=True)
    record_ending(storage, ended)
    assert joined(storage, "b", 2).set.term == 2


def test_the_newest_in_a_seat_is_its_member_and_the_one_before_learns_that() -> None:
    storage = MemoryStorage()
    first, other = joined(storage, "a", 1), joined(storage, "b", 2)
    assert not first.is_replaced(storage)
    third = joined(storage, "c", 1)
    assert (first.is_replaced(storage), other.is_replaced(storage), third.is_replaced(storage)) == (
        True,
        False,
        False,
    )


def test_the_tenth_in_a_seat_comes_after_the_ninth() -> None:
    storage = MemoryStorage()
    for number in range(12):
        last = joined(storage, f"process-{number}")
    assert not last.is_replaced(storage)
    assert members_of(storage, 1)[1].process == "process-11"


def test_a_damaged_record_of_one_member_stops_no_other() -> None:
    storage = MemoryStorage()
    first, other = joined(storage, "a", 1), joined(storage, "b", 2)
    storage.flip(names.member(1, 2, 1))
    assert not first.is_replaced(storage)
    assert not other.is_replaced(storage)
    third = joined(storage, "c", 2)
    assert (other.is_replaced(storage), third.is_replaced(storage)) == (True, False)


def test_a_set_whose_term_is_damaged_gives_way_to_another() -> None:
    storage = MemoryStorage()
    joined(storage, "a")
    storage.flip(names.term(1))
    second = joined(storage, "b")
    assert (second.set.term, second.set.run) == (2, "b")
    assert joined(storage, "c", 2).set == second.set


@pytest.mark.parametrize("kept", [True, False])
def test_a_set_older_than_the_newest_commit_is_not_joined(kept: bool) -> None:
    """The term of the set that wrote it was lost: the one before it could commit nothing, at every try."""
    storage = MemoryStorage()
    joined(storage, "a")
    committed = joined(storage, "b", fingerprint="g").set
    newest = CheckpointView(number=9, term=committed.term, run=committed.run)
    assert joined(storage, "c", 2, fingerprint="g", newest=newest).set == committed
    storage.delete([names.term(2)] if kept else [names.term(1), names.term(2)])
    second = joined(storage, "d", newest=newest).set
    assert second.term == 3
    assert joined(storage, "e", 2, newest=newest).set == second


def test_a_set_that_took_the_term_of_a_commit_once_more_is_not_joined() -> None:
    storage = MemoryStorage()
    joined(storage, "a")
    newest = CheckpointView(number=9, term=1, run="the former set of term 1")
    assert joined(storage, "b", 2, newest=newest).set.term == 2


def test_what_one_member_is_told_to_drain_all_drain() -> None:
    storage = MemoryStorage()
    first, second = joined(storage, "a", 1), joined(storage, "b", 2)
    assert not second.is_draining(storage)
    first.drain(storage)
    second.drain(storage)
    assert second.is_draining(storage)
    later = joined(storage, "c", 1, fingerprint="g")
    assert not later.is_draining(storage), "another set is asked on its own"


class Beside(MemoryStorage):
    """Lets another process write a name just before."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, bytes] = {}

    def put_new(self, name: str, data: bytes) -> Put:
        before = self.first.pop(name, None)
        if before is not None:
            super().put_new(name, before)
        return super().put_new(name, data)


def test_of_two_that_found_a_set_at_once_one_joins_the_other() -> None:
    storage = Beside()
    theirs = replace(WANTED, term=1, run="theirs")
    storage.first[names.term(1)] = seal("term", theirs)
    assert joined(storage, "ours").set == theirs


def test_of_two_that_take_a_seat_at_once_both_are_members_and_the_later_stays() -> None:
    storage = Beside()
    joined(storage, "a", 2)
    theirs = MemberRecord(term=1, seat=1, process="theirs", host="h", pid=1, joined_ms=0)
    storage.first[names.member(1, 1, 1)] = seal("member", theirs)
    ours = joined(storage, "ours", 1)
    assert not ours.is_replaced(storage)
    assert Joined(ours.set, theirs).is_replaced(storage)


class Claimed(MemoryStorage):
    """Another process of other code claims every term first."""

    def put_new(self, name: str, data: bytes) -> Put:
        if name.startswith(names.TERMS):
            super().put_new(name, seal("term", replace(WANTED, term=int(name[-12:]), fingerprint="g")))
        return super().put_new(name, data)


def test_one_that_never_comes_to_join_says_what_to_do() -> None:
    with pytest.raises(RetryableError, match=f"in {CLAIMS_MAX} tries.*stop all but those of one kind"):
        joined(Claimed(), "a")


def test_records_of_members_go_with_their_set_and_those_of_the_newest_stay() -> None:
    storage = MemoryStorage()
    joined(storage, "a").drain(storage)
    joined(storage, "b", 2)
    assert outdated_members(storage) == []
    joined(storage, "c", fingerprint="g").drain(storage)
    assert sorted(outdated_members(storage)) == [
        names.draining(1), names.member(1, 1, 1), names.member(1, 2, 1),
    ]  # fmt: skip


def test_a_set_is_left_by_all_when_every_process_in_its_seats_has_said_so() -> None:
    storage = MemoryStorage()
    first, second = joined(storage, "a", 1), joined(storage, "b", 2)
    first.leave(storage, 5)
    assert left_by_all(storage, first.set) is None
    assert not runs_no_more(storage)
    record_ending(storage, ENDED)
    assert runs_no_more(storage), "it is over for all"
    assert not all_have_ended(storage), "and one may not have seen it"
    storage.delete([names.ended(1)])
    second.leave(storage, 7)
    assert left_by_all(storage, first.set) == 7
    assert runs_no_more(storage)
    assert all_have_ended(storage)
    again = joined(storage, "c", 1)
    assert again.set == first.set, "it goes on with the next that joins"
    assert left_by_all(storage, first.set) is None


def test_a_member_whose_record_is_damaged_is_not_taken_for_one_that_has_left() -> None:
    storage = MemoryStorage()
    joined(storage, "a").leave(storage, 5)
    joined(storage, "b")
    storage.put(names.member(1, 1, 3), b"damaged")
    assert not runs_no_more(storage)


def test_one_that_was_replaced_leaves_its_seat_to_the_other() -> None:
    storage = MemoryStorage()
    first = joined(storage, "a")
    other = joined(storage, "b")
    first.leave(storage, 5)
    assert members_of(storage, 1)[1] == other.member


def test_one_that_takes_the_seat_while_the_other_leaves_is_its_member() -> None:
    storage = Beside()
    first = joined(storage, "a")
    other = MemberRecord(term=1, seat=1, process="b", host="h", pid=1, joined_ms=0)
    storage.first[names.member(1, 1, 2)] = seal("member", other)
    first.leave(storage, 5)
    assert members_of(storage, 1)[1] == other


def test_a_leader_that_is_no_set_is_over_when_it_said_so() -> None:
    storage = MemoryStorage()
    assert not runs_no_more(storage)
    assert all_have_ended(storage), "there never was one"
    claim(storage, "alone", "h", 1, 0)
    assert not runs_no_more(storage)
    assert not all_have_ended(storage)
    record_ending(storage, ENDED)
    assert runs_no_more(storage)
    assert all_have_ended(storage)


@pytest.mark.parametrize("running", [None, ("b",)])
def test_a_set_that_drains_is_joined_as_long_as_another_member_may_run(
    running: tuple[str, ...] | None,
) -> None:
    storage = MemoryStorage()
    joined(storage, "a", 1).drain(storage)
    joined(storage, "b", 2)
    again = joined(storage, "c", 1, running=running)
    assert again.set.term == 1
    assert again.is_draining(storage)


def test_a_set_that_was_killed_while_it_drained_gives_way_to_one_that_goes_on() -> None:
    storage = MemoryStorage()
    joined(storage, "b", 2)
    joined(storage, "a", 1).drain(storage)
    founded = joined(storage, "c", 1, running=())
    assert (founded.set.term, founded.set.run, founded.is_draining(storage)) == (2, "c", False)
    assert joined(storage, "d", 2, running=("c",)).set.term == 2


def test_the_process_whose_seat_is_taken_does_not_count_as_one_that_drains() -> None:
    storage = MemoryStorage()
    joined(storage, "a", 1).drain(storage)
    assert joined(storage, "c", 1).set.term == 2
    left = joined(storage, "d", 2)
    left.drain(storage)
    left.leave(storage, now_ms=5)
    assert joined(storage, "e", 1).set.term == 3


def test_a_set_that_was_killed_gives_way_to_one_with_as_many_shards_as_are_asked_for() -> None:
    storage = MemoryStorage()
    joined(storage, "a", 1)
    joined(storage, "b", 2)
    assert joined(storage, "c", 1, running=("b",), asked_shards=8, parallelism=8).set.parallelism == 4
    assert joined(storage, "d", 1, running=(), asked_shards=4).set.term == 1
    assert joined(storage, "e", 1, running=(), parallelism=8).set.term == 1, "no number was asked for"
    founded = joined(storage, "f", 1, running=(), asked_shards=8, parallelism=8)
    assert (founded.set.term, founded.set.parallelism) == (2, 8)
    assert joined(storage, "g", 2, running=("f",), asked_shards=8, parallelism=8).set.term == 2
