"""The end of the run of a set of replicas: one member ends it, and the others commit nothing after that."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.chain.barriers import begin_barrier, end_barrier
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.replica_sets import Joined
from holdfast.checkpoint.chain.terms import record_ending
from holdfast.checkpoint.store.records import EndedRecord, MemberRecord, PlanRecord, TermRecord
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.replica import Replica
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.leader_kit import leader_of

SET = TermRecord(
    term=1, run="run", host="h", pid=1, claimed_ms=1, members=2, vote=False, parallelism=1, fingerprint="f"
)


class Member:
    """One that has loaded what is committed."""

    def __init__(self, root: Path, seat: int, of: TermRecord = SET) -> None:
        storage = LocalStorage(root / "part")
        member = MemberRecord(term=of.term, seat=seat, process=f"p{seat}", host="h", pid=1, joined_ms=1)
        leader = leader_of(storage, term=of.term, run=of.run)
        replica = Replica(Joined(of, member), storage, leader.clock, leader.monitor, lambda: False)
        job = LocalStorage(root / "job")
        self.context: LeaderContext = dataclasses.replace(leader, replica=replica, root=job)
        view = self.context.checkpoint.chain.load()
        publishing = Publishing(self.context, view)
        self.committer = Committer(self.context, publishing, view, (), Outlets((), leader.clock))

    def commit(self, epoch: int) -> None:
        plan = PlanRecord(
            epoch=epoch, attempt=1, term=1, run="run", parent=0, fingerprint="f", parallelism=1, clock_ms=1,
            slices={},
        )  # fmt: skip
        self.committer.submit([EpochOutcome(plan)])
        self.committer.check(allowed=0)

    @property
    def stopping(self) -> bool:
        return self.context.wishes.stopping.is_set()


@pytest.fixture
def members(tmp_path: Path) -> tuple[Member, Member]:
    found = Member(tmp_path, 1), Member(tmp_path, 2)
    for member in found:
        member.commit(1)
    return found


def numbers(member: Member) -> list[int]:
    return list(History(member.context.checkpoint.storage).numbers())


def test_after_a_member_has_read_all_no_other_takes_the_end_back(members: tuple[Member, Member]) -> None:
    first, second = members
    first.committer.record_published(ended=True)
    first.committer.check(allowed=0)
    second.committer.submit([], barrier=1)
    second.committer.check(allowed=0)
    assert numbers(second) == [1, 2]
    assert second.committer.view.ended
    assert second.stopping
    with pytest.raises(AdoptedOther, match="has ended the run"):
        second.commit(2)
    assert numbers(second) == [1, 2], "what it ran since then is not committed"


def test_after_the_end_was_written_down_nothing_is_committed(members: tuple[Member, Member]) -> None:
    first, second = members
    record = EndedRecord(term=1, run="run", at_ms=1, ending="stopped", commit=1, last_epoch=1, published=True)
    record_ending(first.context.checkpoint.storage, record)
    with pytest.raises(AdoptedOther, match="has ended the run"):
        second.commit(2)
    second.committer.record_published(ended=True)
    assert (numbers(second), second.stopping) == ([1], True)


def test_after_a_barrier_that_ends_all_runs_no_epoch_is_committed(
    members: tuple[Member, Member], tmp_path: Path
) -> None:
    """What sinks show then is what a savepoint that was taken there holds."""
    first, second = members
    job = first.context.root
    assert job is not None
    for ends in (False, True):
        barrier = begin_barrier(job, "test", 0, 1, ends=ends)
        first.committer.submit([], barrier)
        first.committer.check(allowed=0)
        if not ends:
            second.commit(2)
            first.commit(2)
            end_barrier(job, barrier, "complete", 0)
    with pytest.raises(AdoptedOther, match="has ended the run"):
        second.commit(3)
    assert (numbers(second), second.stopping) == ([1, 2, 3, 4], True)
    first.committer.record_published()
    first.committer.check(allowed=0)
    again = Member(tmp_path, 2)
    with pytest.raises(AdoptedOther, match="has ended the run"):
        again.commit(3)
    following = Member(tmp_path, 1, msgspec.structs.replace(SET, term=2, run="other"))
    following.commit(3)
    assert following.committer.view.last_epoch == 3, "what is started after that goes on"


def test_a_new_set_goes_on_after_the_end_of_the_one_before(tmp_path: Path) -> None:
    member = Member(tmp_path, 1)
    member.commit(1)
    member.committer.record_published(ended=True)
    member.committer.check(allowed=0)
    old = member.context.replica
    assert old is not None
    following = Joined(msgspec.structs.replace(SET, term=2, run="other"), old.joined.member)
    assert old.is_over(member.committer.view)
    assert not dataclasses.replace(old, joined=following).is_over(member.committer.view)
