"""The commits of a part as they are seen from outside, and what follows from their times.

A commit *brings* something if it covers an epoch that no commit before it did. Others, such as those of
epochs that are run again after a part went back, show nothing.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.errors import ObjectMissing
from holdfast.ids import EpochId, PlanAttempt
from holdfast.storage.urls import open_storage

LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Epoch:
    """One that a commit covers: when it was planned, and how many rows it read."""

    number: int
    planned_at: float
    rows: int


@dataclass(frozen=True)
class Commit:
    """`at`, as all times here: seconds since 1970. `lost`: shard -> events of keys that are saved on their
    own, lost so far; of shards that had rows."""

    at: float
    term: int
    epochs: tuple[Epoch, ...]
    lost: Mapping[tuple[str, int], int] = field(default_factory=dict)


class CommitWatch:
    """Notes every commit of the checkpoint in a directory, from its making to `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._seen = directory, 0
        self._commits: list[Commit] = []
        self._failure: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def commits(self) -> list[Commit]:
        """All so far."""
        if self._failure is not None:
            raise RuntimeError("a commit could not be read; measure again") from self._failure
        return list(self._commits)

    @property
    def newest_plan(self) -> int:
        """The newest epoch that was planned."""
        return names.highest(open_storage(str(self._directory)), names.PLANS)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._closing.wait(LOOK_SECONDS):
                self._look()
        except Exception as failure:
            self._failure = failure

    def _look(self) -> None:
        if not (self._directory / names.COMMITS).is_dir():
            return
        storage = open_storage(str(self._directory))
        history, plans = History(storage), Plans(storage)
        for number in [each for each in history.numbers() if each > self._seen]:
            assert number == self._seen + 1, f"commits {self._seen + 1} to {number} were not seen in time"
            at = (self._directory / names.commit(number)).stat().st_mtime
            self._seen = number
            try:
                self._commits.append(_commit(at, history.record(number), plans))
            except ObjectMissing:
                # The plans of the oldest retained commit go first: while it is the first one, they go soon.
                if self._commits:
                    raise


def _commit(at: float, record: CommitRecord, plans: Plans) -> Commit:
    epochs = []
    for epoch in range(record.first_epoch, record.last_epoch + 1):
        plan = plans.read(EpochId(epoch), PlanAttempt(record.attempts[str(epoch)]))
        rows = sum(part.rows or 0 for part in plan.slices.values())
        epochs.append(Epoch(epoch, plan.clock_ms / 1_000, rows))
    lost = {(shard.operator, shard.first_group): shard.lost for shard in record.own_keys}
    return Commit(at, record.term, tuple(epochs), lost)


def bringing(commits: Sequence[Commit]) -> list[Commit]:
    """The commits that bring something, each with the epochs that it brings."""
    found, newest = [], 0
    for commit in commits:
        new = tuple(epoch for epoch in commit.epochs if epoch.number > newest)
        if new:
            found.append(Commit(commit.at, commit.term, new, commit.lost))
            newest = new[-1].number
    return found


def within(commits: Sequence[Commit], begin: float, end: float) -> list[Commit]:
    """Those after `begin`, up to and with `end`."""
    return [commit for commit in commits if begin < commit.at <= end]


def rows_of(commits: Sequence[Commit]) -> int:
    return sum(epoch.rows for commit in commits for epoch in commit.epochs)


def distances(times: Sequence[float]) -> list[float]:
    """From each time to the next one."""
    return [after - before for before, after in pairwise(sorted(times))]


def gap(times: Sequence[float], killed: float, until: float, usual: float) -> float:
    """How much longer than usual nothing came around a kill: the largest distance of two commits of which the
    second came after it, and the first up to `until`."""
    ordered = sorted(times)
    around = [after - before for before, after in pairwise(ordered) if after > killed and before <= until]
    assert around, "no commit was seen before the kill, or none after it"
    return max(0.0, max(around) - usual)


def latencies(commits: Sequence[Commit]) -> list[float]:
    """Of each epoch, from its plan to its commit, in seconds."""
    return [commit.at - epoch.planned_at for commit in commits for epoch in commit.epochs]


def middle_and_bad(values: Sequence[float]) -> dict[str, float]:
    """The median and the 95th of a hundred."""
    ordered = sorted(values)
    bad = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return {"p50": round(statistics.median(ordered), 3), "p95": round(bad, 3)}


def replayed(commits: Sequence[Commit], term: int, newest_plan: int) -> int:
    """Rows that were run again after a kill: those of epochs that had been planned by then, and that a leader
    of a later term has committed. Members of a set of replicas go on under their term, and run nothing again.
    """
    again: dict[int, int] = {}
    for commit in commits:
        if commit.term > term:
            again |= {epoch.number: epoch.rows for epoch in commit.epochs if epoch.number <= newest_plan}
    return sum(again.values())


def lost_events(commits: Sequence[Commit]) -> int:
    """Of keys that are saved on their own: all that were lost so far, at most."""
    newest: dict[tuple[str, int], int] = {}
    for commit in commits:
        newest.update(commit.lost)
    return sum(newest.values())


@dataclass(frozen=True)
class Wrong:
    """Rows that are missing in what was shown, and rows that are there too often."""

    lost: int
    doubled: int


def wrong_in_windows(shown: Mapping[int, int], first: int, size: int, rows: int) -> Wrong:
    """What is wrong with windows of `size` from `first` on, of which each has so many `rows`. `shown`: begin
    of a window -> rows in it. Those after the newest that is shown are not due."""
    due = range(first, max(shown, default=first - 1) + 1, size)
    lost = sum(max(0, rows - shown.get(begin, 0)) for begin in due)
    doubled = sum(max(0, count - (rows if begin in due else 0)) for begin, count in shown.items())
    return Wrong(lost, doubled)
