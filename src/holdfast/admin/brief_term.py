"""Commits that a command makes for a job that has no leader, under a term of its own.

    the newest leader answers               it leads: the command must leave that to it
    it has ended, by its own word, or all   the command may lead for a moment
    members of a set of replicas have left
    neither                                 refused: it may be slow, paused or cut off, and would be ended

Always true: a term is claimed only after one whose leader has said that it ended, or that the caller vouches
for (`not_running`); if another term is claimed meanwhile, that one keeps the lead.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.checkpoint.chain.replica_sets import is_over
from holdfast.checkpoint.chain.terms import claim_after, ending_of, newest_term, record_ending
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import EndedRecord, TermRecord
from holdfast.clock import Clock
from holdfast.errors import RetryableError
from holdfast.runtime.control.request_client import asker, status_of_leader
from holdfast.storage.contract import Storage

ANSWER_SECONDS = 3.0
_RUNS = "command-"


@dataclass(frozen=True)
class Leading:
    """What is known of the newest leader. `answers`: it leads."""

    newest: TermRecord | None
    answers: bool


def look_for_leader(storage: Storage, clock: Clock, command: str, *, not_running: bool = False) -> Leading:
    """Who leads. RetryableError: a leader may run, and does not say so."""
    newest = newest_term(storage)
    answers = status_of_leader(storage, clock, ANSWER_SECONDS, by=asker(command)) is not None
    # A command that was killed leaves no ending, and nothing that still runs.
    over = newest is None or newest.run.startswith(_RUNS) or is_over(storage, newest)
    if newest is not None and not (answers or not_running or over):
        raise RetryableError(
            f"the leader of term {newest.term} (process {newest.pid} on {newest.host}) neither answers nor "
            "said that it ended, and would be ended by this: nothing was touched; stop it first or try "
            "again, or, if the job is known not to run, say so with --not-running"
        )
    return Leading(newest, answers)


@contextmanager
def brief_term(storage: Storage, after: TermRecord | None, clock: Clock) -> Iterator[tuple[int, str]]:
    """Lead as the term after `after`; gives the term and the run to commit as."""
    run, before = f"{_RUNS}{uuid.uuid4().hex[:12]}", after.term if after is not None else 0
    ended = ending_of(storage, before)
    term = claim_after(storage, before, run, socket.gethostname(), os.getpid(), clock.now_ms())
    if term is None:
        raise RetryableError("a leader came meanwhile, and keeps its lead; try again beside it")
    try:
        yield term, run
    finally:
        # How the run before has ended stays known, and that it is at that end still.
        unknown = EndedRecord(
            term=term,
            run=run,
            at_ms=clock.now_ms(),
            ending="unknown",
            commit=0,
            last_epoch=0,
            published=False,
        )
        newest = names.highest(storage, names.COMMITS)
        record_ending(storage, replace(ended or unknown, term=term, run=run, commit=newest))
