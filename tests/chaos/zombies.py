"""What became of the writes of a leader that was stopped, replaced and woken up.

Each write gets one fate, from what the chain says when all is over. Judged from records of storage calls
(`recorded_storage`) and from the commit records; the engine is not asked.
Always true: a write whose fate cannot be told raises, it is not passed over; nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.storage.contract import Storage
from tests.chaos.recorded_storage import CREATED, DONE, Write


class Fate(StrEnum):
    REFUSED = "refused"
    """The name was taken, or storage said no: nothing came of it."""
    ADOPTED = "adopted"
    """The chain holds it, or names it: it counts as if its writer had never been replaced."""
    ORPHANED = "orphaned"
    """It is, or was, in storage, and no commit names it."""
    REMOVED = "removed"
    """It deleted what no commit needs."""
    NOTED = "noted"
    """History and requests: nobody decides about data by it."""
    CONTRADICTS = "contradicts"
    """The chain says otherwise. Must never be."""


BOOKKEEPING = (
    names.TERMS, names.FAILURES, names.FAILOVERS, names.CLUSTERS, names.PINS, names.REQUESTS, names.ANSWERS,
)  # fmt: skip
FILES = (names.DATA, names.SNAPSHOTS, names.MANIFESTS, names.PLANS)


@dataclass(frozen=True)
class Account:
    """What the chain says in the end. Of a checkpoint all of whose commits are retained."""

    place: str
    terms: dict[str, int]
    """Name of a commit -> its term."""
    named: frozenset[str]
    """Every object that some commit names."""
    spent: frozenset[str]
    """Plans that are named and of no more use: whoever goes back to the oldest commit replays later ones."""
    last_epoch: int

    def fate(self, write: Write, term: int) -> Fate:
        """Of a write by the leader of `term`."""
        if write.outcome not in (CREATED, DONE):
            return Fate.REFUSED
        if write.place != self.place:
            return self._fate_in_sink(write)
        if write.call == "delete":
            needed = (self.named - self.spent) | self.terms.keys()
            return Fate.CONTRADICTS if write.name in needed else Fate.REMOVED
        if write.name.startswith(names.COMMITS):
            return Fate.ADOPTED if self.terms.get(write.name) == term else Fate.CONTRADICTS
        if write.name.startswith(FILES):
            return Fate.ADOPTED if write.name in self.named else Fate.ORPHANED
        if write.name.startswith(BOOKKEEPING) or write.name == names.JOB:
            return Fate.NOTED
        raise AssertionError(f"whether {write} matters is not known; teach {__name__} about it")

    def _fate_in_sink(self, write: Write) -> Fate:
        """A sink shows committed epochs alone, and takes each once; its marker names the job."""
        if write.name.startswith("_"):
            return Fate.NOTED
        committed = write.call == "put_new" and epoch_shown(write.name) <= self.last_epoch
        return Fate.ADOPTED if committed else Fate.CONTRADICTS


@dataclass(frozen=True)
class Waking:
    """One leader's writes, in two parts: before it was stopped, and after it was woken."""

    who: str
    term: int
    before: Sequence[tuple[Write, Fate]]
    after: Sequence[tuple[Write, Fate]]

    def count(self, fate: Fate, prefix: str = "") -> int:
        """How many writes after the waking had this fate."""
        return sum(each is fate and write.name.startswith(prefix) for write, each in self.after)

    def contradictions(self) -> list[Write]:
        return [write for write, fate in (*self.before, *self.after) if fate is Fate.CONTRADICTS]

    def late(self) -> list[Write]:
        """What was written after the waking and counts all the same. Plans may: any leader follows them."""
        return [
            write
            for write, fate in self.after
            if fate is Fate.ADOPTED and not write.name.startswith(names.PLANS)
        ]

    def __str__(self) -> str:
        return f"{self.who}, term {self.term}: before {_told(self.before)}; after waking {_told(self.after)}"


def account_of(storage: Storage) -> Account:
    """Read the chain."""
    history = History(storage)
    newest = history.load()
    assert newest.retained_from == 1, "commits are gone, and with them what they named"
    records = [history.record(number) for number in range(1, newest.number + 1)]
    return Account(
        place=storage.url,
        terms={names.commit(record.number): record.term for record in records},
        named=frozenset(name for record in records for name in _named_by(record)),
        spent=frozenset(_plans_of(records[0])),
        last_epoch=newest.last_epoch,
    )


def waking_of(who: str, account: Account, writes: Iterable[Write], stopped: float, woken: float) -> Waking:
    """The writes of the leader that was stopped at `stopped`: from its term to its writer's next one."""
    ordered = sorted(writes, key=lambda write: write.at)
    claims = [write for write in ordered if write.name.startswith(names.TERMS) and write.outcome == CREATED]
    claim = max((write for write in claims if write.at <= stopped), key=lambda write: write.at)
    end = min((write.at for write in claims if write.at > woken), default=float("inf"))
    term = names.number_of(claim.name)
    assert term is not None
    judged = [(write, account.fate(write, term)) for write in ordered if claim.at <= write.at < end]
    return Waking(
        who,
        term,
        before=[(write, fate) for write, fate in judged if write.at < woken],
        after=[(write, fate) for write, fate in judged if write.at >= woken],
    )


def epoch_shown(name: str) -> int:
    """The epoch whose rows a file of a sink holds."""
    return int(name.rpartition("-")[2].partition(".")[0])


def _named_by(record: CommitRecord) -> Iterable[str]:
    yield from (delta.extent.object for delta in record.deltas)
    yield from (rows.extent.object for rows in record.staged)
    yield from (items.extent.object for items in record.lists)
    yield from (file.object for file in record.snapshots)
    yield from _plans_of(record)
    if record.manifest:
        yield record.manifest


def _plans_of(record: CommitRecord) -> list[str]:
    return [names.plan(int(epoch), attempt) for epoch, attempt in record.attempts.items()]


def _told(judged: Iterable[tuple[Write, Fate]]) -> str:
    """Counts by fate, and within a fate by what was written."""
    counts = Counter((fate, _kind(write)) for write, fate in judged)
    told = []
    for fate in Fate:
        kinds = {kind: count for (each, kind), count in sorted(counts.items()) if each is fate}
        if kinds:
            parts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            told.append(f"{fate} {sum(kinds.values())} ({parts})")
    return ", ".join(told) or "nothing"


def _kind(write: Write) -> str:
    directory, slash, _ = write.name.partition("/")
    return directory if slash or directory == names.JOB else "sink"
