"""Votes of the members of a set of replicas: what each has come to, before any of it is committed.

Always true: a member has one vote for each commit that it tries, which it never changes; of a seat the vote
for the highest commit counts.
"""

from __future__ import annotations

from collections import Counter

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import VoteRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import ObjectMissing
from holdfast.storage.contract import Storage


def cast(storage: Storage, vote: VoteRecord) -> None:
    """Cast a vote. One that the seat has cast for the same commit stays as it is."""
    write_once(storage, names.vote(vote.epoch, vote.seat, vote.commit), seal("vote", vote))


def votes_for(storage: Storage, epoch: int) -> dict[int, str]:
    """Seat -> what the member there has come to in an epoch."""
    found: dict[int, VoteRecord] = {}
    for entry in sorted(storage.list(names.votes_of(epoch)), key=lambda entry: entry.name):
        try:
            vote = unseal("vote", VoteRecord, storage.get(entry.name), entry.name)
        except ObjectMissing:
            continue
        found[vote.seat] = vote
    return {seat: vote.content for seat, vote in found.items()}


def majority(votes: dict[int, str], members: int) -> str | None:
    """What more than half of all members have come to, those included that have not voted. None: nothing."""
    for content, count in Counter(votes.values()).most_common(1):
        if 2 * count > members:
            return content
    return None
