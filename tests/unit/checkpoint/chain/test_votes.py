"""Votes: what most members of a set have come to."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.chain.votes import cast, majority, votes_for
from holdfast.checkpoint.store.records import VoteRecord
from tests.unit.checkpoint.kept import MemoryStorage


def vote(seat: int, content: str, *, epoch: int = 5, term: int = 1, commit: int = 7) -> VoteRecord:
    return VoteRecord(epoch=epoch, term=term, seat=seat, commit=commit, content=content)


def test_votes_are_those_of_one_set_for_one_epoch() -> None:
    storage = MemoryStorage()
    for each in (vote(1, "x"), vote(2, "x"), vote(3, "y"), vote(3, "x", epoch=6), vote(3, "x", term=2)):
        cast(storage, each)
    assert votes_for(storage, 5, 1) == {"x": {1, 2}, "y": {3}}
    assert votes_for(storage, 5, 2) == {"x": {3}}
    assert votes_for(storage, 7, 1) == {}


def test_a_vote_that_is_cast_again_stays_one() -> None:
    """After a restart, and under another commit number when news came between."""
    storage = MemoryStorage()
    cast(storage, vote(1, "x"))
    cast(storage, vote(1, "x", commit=8))
    assert votes_for(storage, 5, 1) == {"x": {1}}


def test_what_a_seat_came_to_before_does_not_keep_it_from_voting_for_what_was_planned_again() -> None:
    storage = MemoryStorage()
    cast(storage, vote(1, "of the first plan"))
    cast(storage, vote(1, "of the second"))
    cast(storage, vote(2, "of the second"))
    assert majority(votes_for(storage, 5, 1), 3) == {"of the second"}


@pytest.mark.parametrize(
    ("seats", "members", "enough"),
    [({1}, 3, False), ({1, 2}, 3, True), ({1, 2}, 4, False), ({1, 2, 3}, 4, True), ({1, 2}, 5, False)],
)
def test_most_of_all_members_are_needed_those_included_that_have_not_voted(
    seats: set[int], members: int, enough: bool
) -> None:
    assert majority({"x": seats}, members) == ({"x"} if enough else set())
