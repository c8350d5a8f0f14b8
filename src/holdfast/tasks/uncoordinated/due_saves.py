"""Which keys of a shard are to be saved now, which were, and how the shard stands by that.

Always true: what is saved is the state as it is at the version that the shard is at, read here and now; a key
is as clean as the books say, with the saves that became durable since they were written.
Never here: serialising and storing (see saver), running the function (see shard_run).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice

import numpy as np

from holdfast.state.contract import ShardState
from holdfast.state.files.key_books import (
    BOOK_SUFFIX,
    CLEAN,
    DUE_PREFIX,
    NEVER,
    Books,
    ShardBook,
    books_after_saves,
    index_base,
    index_time,
    unpack_books,
    unsaved,
    version_key,
    version_tag,
)
from holdfast.state.files.saved_key import read_keys
from holdfast.tasks.messages import UncoordinatedResult
from holdfast.tasks.uncoordinated.circuit_breaker import Standing
from holdfast.tasks.uncoordinated.durable_saves import Ack, AckLog
from holdfast.tasks.uncoordinated.saver import SavedOperator, SaveJob, Saver, Taken


@dataclass(frozen=True)
class BookChanges:
    """The books of some keys, before and after something happened to the keys."""

    bases: list[bytes]
    before: Books
    after: Books

    @property
    def unsaved(self) -> int:
        """By how much the number of unsaved events changes."""
        return unsaved(self.after) - unsaved(self.before)


@dataclass(frozen=True)
class ShardSaves:
    """The saves of one shard's keys: what makes them, which became durable, the state they are made of."""

    operator: SavedOperator
    """As the task has it: a saver outlives the term that it was made in."""
    saver: Saver
    log: AckLog
    state: ShardState

    def taken(self, shard: ShardBook, now_ms: int) -> Taken:
        """What is said of saves that are made of the state as it is now."""
        version, term = self.state.version, shard.floor + self.operator.term
        generation = self.operator.lineage.layout.generation
        return Taken(shard.incarnation, term, version.epoch, version_tag(version), now_ms, generation)

    def acks(self, shard: ShardBook) -> tuple[dict[bytes, Ack], int]:
        """The acknowledgement of each key's latest save that counts, and how much of the log was read."""
        acks, length = self.log.read(shard.incarnation)
        return valid(acks, self.state), length

    def acked(self, acks: dict[bytes, Ack]) -> BookChanges:
        """What acknowledgements make of the books of their keys; keys that are not here are left out."""
        stored = self.state.get_many([base + BOOK_SUFFIX for base in acks]) if acks else []
        found = {base: value for base, value in zip(acks, stored, strict=True) if value is not None}
        before, _ = unpack_books([*found.values()])
        return BookChanges([*found], before, self.books_after(before, [acks[base] for base in found]))

    def books_after(self, books: Books, acks: Sequence[Ack]) -> Books:
        """The books, with one acknowledgement for each."""
        saved = np.fromiter((ack.events for ack in acks), np.int64, len(acks))
        taken_ms = np.fromiter((ack.taken_ms for ack in acks), np.int64, len(acks))
        return books_after_saves(books, saved, self.operator.settings.schedule, taken_ms)

    def begin(self, taken: Taken, acks: dict[bytes, Ack], *, everything: bool = False) -> int:
        """Begin to save the keys that are due, or all dirty ones; gives how many. Only reads their bytes."""
        saver, state = self.saver, self.state
        if saver.room() <= 0:
            return 0
        limit = NEVER if everything else taken.taken_ms
        # The index of due keys is as old as the books: leave out those that a save has made clean since,
        # and those whose save is under way.
        known = self.acked(acks)
        due_ms = known.after["due_ms"].astype(np.int64)
        settled = set(compress(known.bases, (due_ms == CLEAN) | (due_ms > limit)))
        settled |= saver.flight(self.log).under_way()
        due = list(islice((b for b in until(state, DUE_PREFIX, limit) if b not in settled), saver.room()))
        if not due:
            return 0
        books, _ = unpack_books(state.get_many([base + BOOK_SUFFIX for base in due]))
        if saver.fetcher.standing is not Standing.ANSWERING:
            # It is not known whether a save of these exists, and the storage is not to be asked now.
            unknown = books["unfetched"] != 0
            saver.count(held_back=int(unknown.sum()))
            due, books = list(compress(due, ~unknown)), books[~unknown]
        contents = read_keys(self.operator.lineage.layout, due, state)
        columns = (due, contents, books["events"].tolist(), books["unfetched"].astype(bool).tolist())
        saver.save(self.log, taken, [SaveJob(*row) for row in zip(*columns, strict=True)])
        return len(due)

    def standing(self, shard: ShardBook) -> UncoordinatedResult:
        """How a shard stands, with the saves that became durable since its books were last written."""
        known = self.acked(self.acks(shard)[0])
        settled = frozenset(known.bases)
        later = known.after["due_ms"][known.after["due_ms"] != CLEAN].tolist()
        due = (index_time(key) for key, _ in self.state.scan(DUE_PREFIX) if index_base(key) not in settled)
        return UncoordinatedResult(
            incarnation=shard.incarnation.hex(),
            unsaved=shard.unsaved + known.unsaved,
            discarded=shard.discarded,
            due_ms=min([next(due, NEVER), *later]),
            counts=self.saver.take_counts(),
        )


def valid(acks: Sequence[Ack], state: ShardState) -> dict[bytes, Ack]:
    """Of each key the acknowledgement of its latest save that this state has passed through."""
    versions = {(ack.epoch, ack.tag) for ack in acks}
    if not versions:
        return {}
    # The state keeps the versions that it passed through and that keys were saved at.
    keys = [version_key(*version) for version in versions]
    kept = {v for v, value in zip(versions, state.get_many(keys), strict=True) if value is not None}
    kept.add((state.version.epoch, version_tag(state.version)))
    found: dict[bytes, Ack] = {}
    for ack in acks:
        if (ack.epoch, ack.tag) not in kept:
            continue
        if ack.base not in found or ack.events >= found[ack.base].events:
            found[ack.base] = ack
    return found


def until(state: ShardState, prefix: bytes, limit: int, most: int | None = None) -> Iterator[bytes]:
    """The bases in an index up to a time, earliest first."""
    for key, _ in islice(state.scan(prefix), most):
        if index_time(key) > limit:
            return
        yield index_base(key)
