"""This process as a member of a set of replicas: how it joins, votes, and learns that it is one no more.

    join the set, or found it -> ( follow the plans of all, commit what all come to )* -> leave

Always true: members are equals, and none waits for another, unless they vote.
Never here: plans (see epoch.planner), commits (see epoch.committer), seats of a cluster (see nodes).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint.chain.commits import Adopted
from holdfast.checkpoint.chain.fellows import digest_of
from holdfast.checkpoint.chain.history import read_floor
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.replica_sets import Joined, join_set, members_of
from holdfast.checkpoint.chain.terms import ending_of, refuse_if_superseded
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.chain.votes import Votes, cast, majority, votes_for
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord, MemberRecord, TermRecord, VoteRecord
from holdfast.clock import Clock
from holdfast.errors import FencedOut, HoldfastError, RetryableError
from holdfast.graph.protection import ActiveReplicas
from holdfast.ids import EpochId
from holdfast.runtime.progress import Monitor
from holdfast.storage.contract import Storage

LOOK_SECONDS = 0.02
SAY_SECONDS = 5.0
"""How long a member waits for votes before it says so."""
LOOK_AROUND_SECONDS = 1.0
"""How often a member that waits for votes looks whether it is one still."""
STOP_SECONDS = 10.0
"""How long a member that is told to stop waits for votes."""


@dataclass(frozen=True)
class Replica:
    """One member of one set."""

    joined: Joined
    storage: Storage
    clock: Clock
    monitor: Monitor
    is_stopping: Callable[[], bool]

    @property
    def seat(self) -> int:
        return self.joined.member.seat

    @property
    def set(self) -> TermRecord:
        return self.joined.set

    def refuse_if_replaced(self) -> None:
        """FencedOut: another process has this member's seat."""
        if self.joined.is_replaced(self.storage):
            term = self.set.term
            raise FencedOut(term, term, f"another process is member {self.seat} of the set now")

    def is_member(self, process: str) -> bool:
        """Whether a process is a member of the set, as far as is known: one that died is until its seat is
        taken."""
        known = members_of(self.storage, self.set.term).values()
        return any(member.process == process and not member.left_ms for member in known)

    def leave(self) -> None:
        """Say that this process is a member no more. Nothing depends on it: where that cannot be written,
        others wait for an answer of this process, and get none."""
        with contextlib.suppress(HoldfastError):
            self.joined.leave(self.storage, self.clock.now_ms())

    def set_has_ended(self) -> bool:
        """Whether a member has ended the run of all."""
        return ending_of(self.storage, self.set.term) is not None

    def is_over(self, view: CheckpointView) -> bool:
        """Whether the run of all has come to its end: a member has said so, or has committed, as the last
        thing, that all is read. Nothing is committed after that."""
        return (view.ended and view.run == self.set.run) or self.set_has_ended()

    def share_drain(self, draining: threading.Event) -> None:
        """Tell the others that this run is to be drained, and learn it from them."""
        if draining.is_set():
            self.joined.drain(self.storage)
        elif self.joined.is_draining(self.storage):
            draining.set()

    def vote(self, record: CommitRecord, view: CheckpointView, given_up: Callable[[], bool]) -> bool:
        """Wait until a majority of the set has come to what `record` says, which is to follow `view`; not
        where members do not vote, nor for what covers no epoch. False: the epoch was planned again meanwhile,
        and all are to follow that. `given_up`: nothing is to be committed any more. FencedOut: this process
        is no member of the set that leads.

        Where the majority has come to something else this one waits with it: another member commits that.
        """
        if not self.set.vote or not record.attempts:
            return True
        content, epoch, term = digest_of(record), record.last_epoch, self.set.term
        vote = VoteRecord(epoch=epoch, term=term, seat=self.seat, commit=view.number + 1, content=content)
        cast(self.storage, vote)
        began = looked = self.clock.monotonic()
        said = False
        while True:
            votes = votes_for(self.storage, epoch, term)
            if content in majority(votes, self.set.members) or self._is_committed(view):
                return True
            now = self.clock.monotonic()
            if given_up() or (self.is_stopping() and now - began >= STOP_SECONDS):
                raise RetryableError(
                    f"epoch {epoch} has the votes of members {_seats(votes)} of {self.set.members}, and no "
                    "majority; nothing of it was committed"
                )
            if now - looked >= LOOK_AROUND_SECONDS:
                looked = now
                self._refuse_if_superseded()
                if view.number + 1 <= read_floor(self.storage):
                    # The set has gone on so far that the commit was given up, and with it all votes.
                    return True
                if self._is_planned_again(record):
                    return False
            if now - began >= SAY_SECONDS and not said:
                said = True
                self.monitor.say(self._waiting(epoch, votes))
            self.clock.sleep(LOOK_SECONDS)

    def diverged(self, done: Adopted) -> str:
        """Say, and count, that this member has come to other results than those which were committed."""
        told, other = self.monitor.progress.divergences, done.view
        self.monitor.update(divergences=told + 1)
        return (
            f"DIVERGENCE in epoch {other.last_epoch}: member {self.seat} (this process) has come to other "
            f"results than commit {other.number}, by another member, in {'; '.join(done.differences)}. The "
            "committed ones count; which of the two is wrong is not known without a vote"
            if not self.set.vote
            else f"OUTVOTED in epoch {other.last_epoch}: member {self.seat} (this process) has come to other "
            f"results than most in {'; '.join(done.differences)}. It goes on from theirs"
        )

    def _is_committed(self, view: CheckpointView) -> bool:
        """Whether the set has gone on: then the vote is over."""
        return self.storage.size(names.commit(view.number + 1)) is not None

    def _refuse_if_superseded(self) -> None:
        """The thread that looks around between epochs waits for this one: others may have gone on without
        this set, and wait for this process to join theirs."""
        refuse_if_superseded(self.storage, self.set.term)
        self.refuse_if_replaced()

    def _is_planned_again(self, record: CommitRecord) -> bool:
        """Whether the newest plan of the epoch is another than the one that was run here: a member could not
        follow that, and those which come later follow the newest."""
        epoch = record.last_epoch
        return Plans(self.storage).next_attempt(EpochId(epoch)) > record.attempts[str(epoch)] + 1

    def _waiting(self, epoch: int, votes: Votes) -> str:
        if majority(votes, self.set.members):
            return f"OUTVOTED in epoch {epoch}: most members have come to other results; waiting for theirs"
        return (
            f"WAITING FOR VOTES: epoch {epoch} has those of members {_seats(votes)} of "
            f"{self.set.members}; it is committed when most agree"
        )


def _seats(votes: Votes) -> str:
    return ", ".join(map(str, sorted({seat for seats in votes.values() for seat in seats})))


def join(
    storage: Storage,
    protection: ActiveReplicas,
    seat: int,
    process: str,
    fingerprint: str,
    shards: int,
    clock: Clock,
    *,
    founding: bool = False,
    asked_shards: int | None = None,
    newest: CheckpointView = EMPTY,
    runs: Callable[[MemberRecord], bool] = lambda member: True,
) -> Joined:
    """Be a member of the set that leads, or found it. `shards`: for a new set. `founding`: a set with
    another number of shards gives way to this one. `asked_shards`: so does one with another number than this,
    if no member of it `runs`. `newest`: a commit, which the set is to follow."""
    host, pid, now_ms = socket.gethostname(), os.getpid(), clock.now_ms()
    wanted = TermRecord(
        term=0, run=process, host=host, pid=pid, claimed_ms=now_ms, members=protection.k + 1,
        vote=protection.vote, parallelism=shards, fingerprint=fingerprint,
    )  # fmt: skip
    member = MemberRecord(term=0, seat=seat, process=process, host=host, pid=pid, joined_ms=now_ms)
    return join_set(
        storage, wanted, member, other_shards=not founding, asked_shards=asked_shards, newest=newest,
        runs=runs,
    )  # fmt: skip
