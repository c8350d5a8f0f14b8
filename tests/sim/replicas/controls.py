"""Negative controls of sets of replicas: each takes one safeguard away, and the simulation must find that
out."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.chain import commits
from holdfast.checkpoint.chain.commits import Adopted, Chain, Committed, Preceded
from holdfast.checkpoint.chain.fellows import Met, differences, is_same_work, met
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.view import CheckpointView, fold
from holdfast.checkpoint.chain.votes import cast, votes_for
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import unseal
from holdfast.checkpoint.store.records import CommitRecord, VoteRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.ids import EpochId
from holdfast.runtime import replica
from holdfast.runtime.epoch import committer
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.replica import Replica
from holdfast.storage.checksums import checksum
from tests.sim.controls import Control
from tests.sim.leaders import Parts
from tests.sim.replicas import members
from tests.sim.replicas.members import RowFiles

SOUND = Control("")


def _overwritten(storage: Any, name: str, data: bytes) -> bytes:
    if name.startswith(names.COMMITS):
        storage.world.objects_in(name).pop(name, None)
    return write_once(storage, name, data)


def _taken_for_same(ours: CommitRecord, theirs: CommitRecord) -> Met:
    """Believe that a fellow has come to the same."""
    return Met.SAME if ours.attempts and theirs.attempts and theirs.rewind_to is None else met(ours, theirs)


def _news_taken_for_same(ours: CommitRecord, theirs: CommitRecord) -> Met:
    found = met(ours, theirs)
    return Met.SAME if found is Met.BETWEEN else found


def _rewind_taken_for_news(ours: CommitRecord, theirs: CommitRecord) -> Met:
    return Met.BETWEEN if theirs.rewind_to is not None else met(ours, theirs)


class _FloorUnseen(Chain):
    """Believes a fellow's record under any number, as above the floor."""

    def _met_fellow(
        self, base: CheckpointView, ours: CommitRecord, found: bytes
    ) -> Committed | Preceded | Adopted | None:
        theirs = unseal("commit", CommitRecord, found, names.commit(ours.number))
        if theirs.run != ours.run or met(ours, theirs) is not Met.SAME:
            return super()._met_fellow(base, ours, found)
        view = fold(base, theirs, checksum(found))
        self.remember(view, theirs)
        return Committed(view, theirs, is_fellows=True)


class _PlansComparedForGood(Chain):
    """Takes a plan under one name for one plan, also when it was given up."""

    def parted(self, ours: CommitRecord, theirs: CommitRecord) -> Adopted:
        told = differences(ours, theirs) if is_same_work(ours, theirs, plans_kept=True) else []
        return Adopted(self.load(), tuple(told))


def _by_attempts_alone(ours: CommitRecord, theirs: CommitRecord, *, plans_kept: bool) -> bool:
    return plans_kept and ours.attempts == theirs.attempts


def _no_damage_expected(self: Planner, recorded: Any, newest: int) -> Any:
    if newest:
        self._plans.newest(EpochId(self.epoch + 1))
    return _fellow_plan(self, recorded, newest)


_fellow_plan = Planner._fellow_plan


class _Later(int):
    """The newest attempt when it was looked at; the one after it is that of when it is asked for."""

    planner: Planner

    def __add__(self, more: int) -> int:
        return self.planner._plans.next_attempt(EpochId(self.planner.epoch + 1))


def _looked_at_twice(self: Planner) -> int:
    found = _Later(_newest_attempt(self))
    found.planner = self
    return found


_newest_attempt = Planner._newest_attempt


def _told_again(self: Planner, plan: Any, recorded: Any) -> bool:
    return _is_followed(self, plan, None)


_is_followed = Planner._is_followed


class _NamedAtAll(Retention):
    def _snapshots_named(self, head: int) -> set[str]:
        return super()._snapshots_named(max(self._chain.numbers(), default=head))


class _OutdatedAtHead(Retention):
    """Looks at the newest commit alone, and not at those that can be gone back to."""

    def _is_left_behind(self, name: str, views: list[CheckpointView]) -> bool:
        return super()._is_left_behind(name, [self._chain.load()])


class _NothingAhead(Committer):
    """Commits an epoch, whether or not another member has."""

    def _commit(self, outcomes: list[EpochOutcome], barrier: int = 0) -> None:
        self._ahead.clear()
        super()._commit(outcomes, barrier)


def _one_for_each_seat(storage: Any, vote: VoteRecord) -> None:
    voted = votes_for(storage, vote.epoch, vote.term)
    if not any(vote.seat in seats for seats in voted.values()):
        cast(storage, vote)


def _cast_for_all_sets(storage: Any, vote: VoteRecord) -> None:
    _one_for_each_seat(storage, _of_no_set(vote))


def _of_no_set(vote: VoteRecord) -> VoteRecord:
    return VoteRecord(epoch=vote.epoch, term=0, seat=vote.seat, commit=vote.commit, content=vote.content)


CONTROLS: dict[str, Control] = {
    "plans-of-others-not-followed": Control(
        "throws away",
        instead=(
            (Planner, "_fellow_plan", lambda self, recorded, newest: None),
            (Planner, "_is_followed", lambda self, plan, recorded: False),
        ),
        season="together",
    ),
    "plans-of-other-rows-followed": Control(
        "", instead=((Planner, "_strays", lambda self, plan: False),), season="ends"
    ),
    "attempt-looked-up-later": Control(
        "throws away", instead=((Planner, "_newest_attempt", _looked_at_twice),), season="together"
    ),
    "first-commit-overwritten": Control("", instead=((commits, "write_once", _overwritten),)),
    "results-not-compared": Control("", instead=((commits, "met", _taken_for_same),), season="lies"),
    "news-taken-for-the-epoch": Control("", instead=((commits, "met", _news_taken_for_same),)),
    "rewind-taken-for-news": Control(
        "", instead=((commits, "met", _rewind_taken_for_news),), season="rewinds"
    ),
    "rewind-taken-for-divergence": Control(
        "no member lied",
        instead=((commits, "is_same_work", _by_attempts_alone),),
        season="rewinds",
    ),
    "committed-without-votes": Control(
        "which is a lie", instead=((Replica, "vote", lambda *given: True),), season="votes"
    ),
    "one-vote-for-each-seat": Control(
        "do not come to the end",
        instead=(
            (replica, "cast", _cast_for_all_sets),
            (replica, "votes_for", lambda storage, epoch, term: votes_for(storage, epoch, 0)),
        ),
        season="votes",
    ),
    "votes-waited-for-in-a-former-set": Control(
        "do not come to the end",
        instead=(
            (Replica, "_refuse_if_superseded", lambda self: None),
            (Replica, "_is_planned_again", lambda self, record: False),
        ),
        season="votes",
    ),
    "reader-not-told": Control("", instead=((RowFiles, "follow", lambda self, slice: None),)),
    "reader-told-again": Control("", instead=((Planner, "_is_followed", _told_again),), season="rewinds"),
    "files-of-the-loser-kept-in-lines": Control(
        "of its line is gone",
        instead=((members, "as_committed", lambda lines, record: lines),),
        season="together",
    ),
    "floor-not-looked-at-for-fellows": Control("for its own", Parts(chain=_FloorUnseen), season="sleepers"),
    "plans-that-were-given-up-compared": Control(
        "no member lied", Parts(chain=_PlansComparedForGood), season="sleepers"
    ),
    "damaged-plan-not-planned-again": Control(
        "though it is the newest",
        instead=((Planner, "_fellow_plan", _no_damage_expected),),
        season="damaged plans",
    ),
    "members-go-on-after-the-end": Control(
        "the end of its own set",
        instead=((Committer, "has_ended", False), (Replica, "is_over", lambda *given: False)),
        season="ends",
    ),
    "snapshots-of-later-commits-retired": Control(
        "snapshots/", Parts(retention=_NamedAtAll), season="snapshots"
    ),
    "outdated-snapshots-named": Control(
        "snapshots/", instead=((committer, "is_outdated", lambda name, files: False),), season="snapshots"
    ),
    "outdated-snapshots-retired-by-the-newest-commit-alone": Control(
        "snapshots/", Parts(retention=_OutdatedAtHead), season="snapshots"
    ),
    "epoch-committed-before-news-committed-again": Control(
        "does not continue the chain", Parts(committer=_NothingAhead), season="together"
    ),
}
