"""Votes of the members of a set of replicas: what each has come to, before any of it is committed.

Always true: a vote is never changed. A seat may have several, of what was planned again or computed again by
another process: each counts for what it names. Those of other sets do not.
"""

from __future__ import annotations

from collections import defaultdict

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import VoteRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.storage.contract import Storage

Votes = dict[str, set[int]]
"""Content -> the seats whose members have come to it."""


def cast(storage: Storage, vote: VoteRecord) -> None:
    """Cast a vote. One that the seat has cast for the same content stays as it is."""
    write_once(storage, names.vote(vote.epoch, vote.term, vote.seat, vote.content), seal("vote", vote))


def votes_for(storage: Storage, epoch: int, term: int) -> Votes:
    """What the members of a set have come to in an epoch, from names alone."""
    found: Votes = defaultdict(set)
    prefix = names.votes_of(epoch, term)
    for entry in storage.list(prefix):
        seat, _, content = entry.name.removeprefix(prefix).partition("-")
        if seat.isdecimal() and content:
            found[content].add(int(seat))
    return dict(found)


def majority(votes: Votes, members: int) -> set[str]:
    """What more than half of all members have come to, those included that have not voted. Mostly nothing or
    one content; two where an epoch was planned twice, and either may be committed."""
    return {content for content, seats in votes.items() if 2 * len(seats) > members}
