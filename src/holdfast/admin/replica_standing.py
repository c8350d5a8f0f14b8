"""A set of replicas as plain values: which members are there, which has the lead, and what the set survives.

Always true: a member that is told to run has answered just now. What members have not said is read from
storage, so it works also when none runs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.replica_sets import left_by_all, members_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.chain.votes import votes_for
from holdfast.checkpoint.store.records import MemberRecord, TermRecord
from holdfast.clock import Clock
from holdfast.cluster.replica_seats import ReplicaSeats, Standing, standing_in
from holdfast.errors import CorruptionError
from holdfast.runtime.control.request_client import asker, status_of_leader
from holdfast.storage.contract import Storage

Answers = dict[int, dict[str, Any] | None]
"""Seat -> where its member stands, by its own word; None: no answer came in time."""


def ask_members(storage: Storage, leader: TermRecord, clock: Clock, seconds: float) -> Answers:
    """Ask every process that has a seat and has not left, all at once."""
    there = {seat: each for seat, each in members_of(storage, leader.term).items() if not each.left_ms}
    if not there:
        return {}

    def ask(member: MemberRecord) -> dict[str, Any] | None:
        by = asker("holdfast status")
        return status_of_leader(storage, clock, seconds, by=by, process=member.process)

    with ThreadPoolExecutor(len(there)) as asking:
        return dict(zip(there, asking.map(ask, there.values()), strict=True))


def set_plainly(
    storage: Storage, leader: TermRecord, view: CheckpointView, answers: Answers
) -> dict[str, Any]:
    """How a set stands. `lead`: the seat whose commit counted last; None: no commit of this set is known.
    `survives`: how many of the members that run now may end, so that the others go on unnoticed. `told`: how
    many run and join, in words. `votes`: of a set that votes, those for the next epoch."""
    counted = _commits(storage, leader, view)
    lead = max(counted, key=lambda seat: counted[seat], default=None)
    found = members_of(storage, leader.term)
    members = [
        _member(seat, found.get(seat), answers.get(seat), counted.get(seat))
        for seat in range(1, leader.members + 1)
    ]
    now = ReplicaSeats({str(each["seat"]): _standing(each) for each in members}, leader.vote)
    return {
        "members": members, "vote": leader.vote, "lead": lead, "running": now.running,
        "joining": len(now.those(Standing.JOINING)), "needed": now.needed, "survives": now.survives,
        "told": now.running_of("members"), "left_ms": left_by_all(storage, leader),
        "votes": _votes(storage, leader, view.last_epoch + 1) if leader.vote else None,
    }  # fmt: skip


def one_of(answers: Answers, lead: int | None) -> dict[str, Any] | None:
    """The word of the member that has the lead; of another, if that did not answer."""
    given = {seat: told for seat, told in answers.items() if told is not None}
    return given.get(lead or 0) or next(iter(given.values()), None)


def _standing(member: dict[str, Any]) -> Standing:
    if member["progress"] is not None:
        return standing_in(str(member["progress"].get("phase")))
    return Standing.EMPTY if member["process"] is None or member["left_ms"] else Standing.SILENT


def _member(
    seat: int, record: MemberRecord | None, told: dict[str, Any] | None, commit: int | None
) -> dict[str, Any]:
    """`commit`: the newest retained commit that this seat's members have brought. `progress`: None: the
    process does not answer, or there is none."""
    known = {"process": None} if record is None else msgspec.to_builtins(record)
    return {"seat": seat, "left_ms": 0, **known, "commit": commit, "progress": told}


def _commits(storage: Storage, leader: TermRecord, view: CheckpointView) -> dict[int, int]:
    """Seat -> the newest of the retained commits of this set that its members have brought."""
    found: dict[int, int] = {}
    history = History(storage)
    for number in range(max(view.retained_from, 1), view.number + 1):
        try:
            record = history.record(number)
        except CorruptionError:
            # Damage is told with the checkpoint.
            continue
        if record.seat and record.run == leader.run:
            found[record.seat] = number
    return found


def _votes(storage: Storage, leader: TermRecord, epoch: int) -> dict[str, Any]:
    """The seats that have come to something in an epoch which is not committed, those that agree together."""
    cast = votes_for(storage, epoch, leader.term)
    return {
        "epoch": epoch,
        "agreeing": sorted(sorted(seats) for seats in cast.values()),
        "wanted": leader.members // 2 + 1,
    }
