"""Sets of replicas: several processes that lead a part together, under one term and one run.

A set is founded by claiming a term. Its members come and go without a new one: each has a seat, and the
newest that joined a seat is the member there. Another set takes its place when other code or another number
of shards is to run, and where all members of one that drained were killed.
Always true: members are equals. They follow the same plans and come to the same results, so it does not
matter which of them plans or commits; a process that was replaced in its seat does no harm until it notices.
Never here: what members do (see runtime.epoch), safety (see commits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.chain.terms import CLAIMS_MAX, claim_record, ending_of, newest_term
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import DrainEndRecord, MemberRecord, TermRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing, RetryableError
from holdfast.storage.contract import Storage


@dataclass(frozen=True)
class Joined:
    """A set, and the place of this process in it."""

    set: TermRecord
    member: MemberRecord

    def is_replaced(self, storage: Storage) -> bool:
        """Whether another process has taken the seat since."""
        newest = members_of(storage, self.set.term).get(self.member.seat)
        return newest is not None and newest.process != self.member.process

    def leave(self, storage: Storage, now_ms: int) -> None:
        """Say that this process is a member no more, unless another has its seat by now."""
        data = seal("member", msgspec.structs.replace(self.member, left_ms=now_ms))
        number = _newest_in(storage, self.set.term, self.member.seat) + 1
        if not self.is_replaced(storage):
            # Where another takes the seat at this moment, that is told by its own record.
            write_once(storage, names.member(self.set.term, self.member.seat, number), data)

    def drain(self, storage: Storage) -> None:
        """Let all members read what is there now, and then end."""
        storage.put_new(names.draining(self.set.term), seal("member", self.member))

    def is_draining(self, storage: Storage) -> bool:
        """Whether a member has said that all are to read what is there and end."""
        return storage.size(names.draining(self.set.term)) is not None

    def drain_end(self, storage: Storage) -> DrainEndRecord | None:
        """Where sources end for all members; None: none has fixed it yet."""
        name = names.drain_end(self.set.term)
        try:
            return unseal("drain-end", DrainEndRecord, storage.get(name), name)
        except ObjectMissing:
            return None

    def fix_drain_end(self, storage: Storage, end: DrainEndRecord) -> bool:
        """Let sources end there for all members, which are told to drain first. False: another member was
        first, and where it said is where they end."""
        self.drain(storage)
        data = seal("drain-end", end)
        return write_once(storage, names.drain_end(self.set.term), data) == data


def join_set(
    storage: Storage,
    wanted: TermRecord,
    member: MemberRecord,
    *,
    other_shards: bool = True,
    asked_shards: int | None = None,
    newest: CheckpointView = EMPTY,
    runs: Callable[[MemberRecord], bool] = lambda member: True,
) -> Joined:
    """Be a member of the set that leads, if it is as `wanted`: of as many members that vote or not, with this
    code and, unless `other_shards` will do, as many shards. Found that set if it is not. `wanted` and
    `member` have no term yet. `newest`: a commit. A set that could write none after it, because a newer one
    wrote it whose term was lost since, is not joined. `runs`: whether a process that is a member may run. One
    that was left behind by all, killed say, is not joined if it was to drain, which was asked of those that
    ran then, or if it has other shards than are asked for.

    A leader that is no such set is fenced by that, and so is one whose term cannot be read.
    """
    for _ in range(CLAIMS_MAX):
        claimed = names.highest(storage, names.TERMS)
        found = _readable(storage, claimed)
        if (
            found is None
            or not (_is_as(found, wanted, other_shards) and _goes_on(storage, found, newest))
            or (_is_to_end(storage, found, asked_shards) and not _any_runs(storage, found, member.seat, runs))
        ):
            found = msgspec.structs.replace(wanted, term=max(claimed, newest.term) + 1)
            if not claim_record(storage, found):
                continue
        return Joined(found, _entered(storage, found.term, member))
    raise RetryableError(
        f"no set of replicas could be joined in {CLAIMS_MAX} tries: too many processes start at once, with "
        "other code or other settings; stop all but those of one kind"
    )


def members_of(storage: Storage, term: int) -> dict[int, MemberRecord]:
    """The members of a set, by seat. Members that are gone are there until others take their seats. A record
    that is damaged tells nothing: a member that was replaced does no harm until it notices."""
    return {record.seat: record for record in _records_of(storage, term) if record is not None}


def _records_of(storage: Storage, term: int) -> Iterator[MemberRecord | None]:
    """What was written of a set's members, seat by seat and oldest first. None: it cannot be read."""
    for entry in sorted(storage.list(names.members_of(term)), key=lambda entry: entry.name):
        try:
            yield unseal("member", MemberRecord, storage.get(entry.name), entry.name)
        except (CorruptionError, ObjectMissing):
            yield None


def left_by_all(storage: Storage, leader: TermRecord) -> int | None:
    """When the last member has left a set, if every process that was one has said that it did: then none
    runs. None: one may run, or it is no set. The next process that takes a seat goes on with the set."""
    records = list(_records_of(storage, leader.term)) if leader.members else []
    if None in records:
        return None
    newest = {record.seat: record.left_ms for record in records if record is not None}
    return max(newest.values()) if newest and all(newest.values()) else None


def runs_no_more(storage: Storage) -> bool:
    """Whether it is known that nothing leads: the newest leader has ended, or all members of that set have
    left it. False: one may run, or there never was one."""
    leader = newest_term(storage)
    return leader is not None and is_over(storage, leader)


def is_over(storage: Storage, leader: TermRecord) -> bool:
    """Whether a leader has ended, or all members of that set have left it."""
    return ending_of(storage, leader.term) is not None or left_by_all(storage, leader) is not None


def all_have_ended(storage: Storage) -> bool:
    """Whether it is known that the newest leader has ended; of a set, every process that was a member: one
    ends the run of all, and others go on until they see it."""
    leader = newest_term(storage)
    if leader is not None and leader.members:
        return left_by_all(storage, leader) is not None
    return leader is None or ending_of(storage, leader.term) is not None


def outdated_members(storage: Storage) -> list[str]:
    """Names of records of members of sets that lead no more."""
    newest = names.highest(storage, names.TERMS)
    return [
        entry.name
        for prefix in (names.MEMBERS, names.DRAINING)
        for entry in storage.list(prefix)
        if (names.number_of(entry.name) or newest) < newest
    ]


def _readable(storage: Storage, term: int) -> TermRecord | None:
    """Who claimed a term; None: it cannot be read, or there is none."""
    name = names.term(term)
    try:
        return unseal("term", TermRecord, storage.get(name), name)
    except (CorruptionError, ObjectMissing):
        return None


def _goes_on(storage: Storage, found: TermRecord, newest: CheckpointView) -> bool:
    leads = found.term > newest.term or (found.term == newest.term and found.run == newest.run)
    return leads and ending_of(storage, found.term) is None


def _is_as(found: TermRecord, wanted: TermRecord, other_shards: bool) -> bool:
    return (
        found.members == wanted.members
        and found.vote == wanted.vote
        and found.fingerprint == wanted.fingerprint
        and (other_shards or found.parallelism == wanted.parallelism)
    )


def _is_to_end(storage: Storage, found: TermRecord, asked_shards: int | None) -> bool:
    """Whether a set is not what a process that starts wants: it drains, or has other shards."""
    drains = storage.size(names.draining(found.term)) is not None
    return drains or asked_shards not in (None, found.parallelism)


def _any_runs(storage: Storage, found: TermRecord, seat: int, runs: Callable[[MemberRecord], bool]) -> bool:
    """Whether a member may run, other than the one whose seat is taken."""
    members = members_of(storage, found.term).values()
    return any(not each.left_ms and each.seat != seat and runs(each) for each in members)


def _entered(storage: Storage, term: int, member: MemberRecord) -> MemberRecord:
    """Take the seat, from whichever process has it."""
    record = msgspec.structs.replace(member, term=term)
    data = seal("member", record)
    for _ in range(CLAIMS_MAX):
        number = _newest_in(storage, term, member.seat)
        if write_once(storage, names.member(term, member.seat, number + 1), data) == data:
            return record
    raise RetryableError(f"seat {member.seat} of the set of term {term} changes hands too often; try again")


def _newest_in(storage: Storage, term: int, seat: int) -> int:
    """The number of the newest record of a seat; 0: there is none."""
    prefix = names.member(term, seat, 0).removesuffix(f"{0:06d}")
    taken = [entry.name.removeprefix(prefix) for entry in storage.list(prefix)]
    return max((int(each) for each in taken if each.isdecimal()), default=0)
