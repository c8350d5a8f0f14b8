"""Which keys of a shard are to be saved now, which were, and how the shard stands by that.

Always true: what is saved is the state as it is at the version that the shard is at, read here and now; a key
is as clean as the books say, with the saves that became durable since they were written.
Never here: serialising and storing (see saver), running the function (see shard).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice

import numpy as np

from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.save_books import (
    BOOK_SUFFIX,
    CLEAN,
    DUE_PREFIX,
    NEVER,
    Books,
    Schedule,
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
from holdfast.tasks.uncoordinated.ack_log import Ack, AckLog
from holdfast.tasks.uncoordinated.bypass import Standing
from holdfast.tasks.uncoordinated.saver import SaveJob, Saver, Taken


@dataclass(frozen=True)
class Acked:
    """Keys that were saved since their books were written: those books, and as they are by now."""

    bases: list[bytes]
    before: Books
    after: Books

    @property
    def change(self) -> int:
        """By how much the saves change the number of unsaved events."""
        return unsaved(self.after) - unsaved(self.before)


def taken_at(state: ShardState, shard: ShardBook, term: int, now_ms: int, generation: int) -> Taken:
    """What is said of saves that are made of the state as it is now."""
    version, term = state.version, shard.floor + term
    return Taken(shard.incarnation, term, version.epoch, version_tag(version), now_ms, generation)


def valid(acks: Sequence[Ack], state: ShardState) -> dict[bytes, Ack]:
    """Of each key the acknowledgement of its latest save that this state has passed through."""
    versions = {(ack.epoch, ack.tag) for ack in acks}
    if not versions:
        return {}
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


def acked(state: ShardState, acks: dict[bytes, Ack], schedule: Schedule) -> Acked:
    """What acknowledgements make of the books of their keys; keys that are not here are left out."""
    stored = state.get_many([base + BOOK_SUFFIX for base in acks]) if acks else []
    found = {base: value for base, value in zip(acks, stored, strict=True) if value is not None}
    before, _ = unpack_books([*found.values()])
    return Acked([*found], before, books_after_acks(before, [acks[base] for base in found], schedule))


def books_after_acks(books: Books, acks: Sequence[Ack], schedule: Schedule) -> Books:
    saved = np.fromiter((ack.events for ack in acks), np.int64, len(acks))
    taken_ms = np.fromiter((ack.taken_ms for ack in acks), np.int64, len(acks))
    return books_after_saves(books, saved, schedule, taken_ms)


def begin_saves(
    saver: Saver,
    log: AckLog,
    taken: Taken,
    layout: StateLayout,
    schedule: Schedule,
    state: ShardState,
    acks: dict[bytes, Ack],
    everything: bool = False,
) -> int:
    """Begin to save the keys that are due, or all dirty ones; gives how many. Reads their bytes, no more."""
    if saver.room() <= 0:
        return 0
    limit = NEVER if everything else taken.taken_ms
    known = acked(state, acks, schedule)
    due_ms = known.after["due_ms"].astype(np.int64)
    settled = set(compress(known.bases, (due_ms == CLEAN) | (due_ms > limit)))
    settled |= saver.flight(log).under_way()
    due = list(islice((b for b in until(state, DUE_PREFIX, limit) if b not in settled), saver.room()))
    if not due:
        return 0
    books, _ = unpack_books(state.get_many([base + BOOK_SUFFIX for base in due]))
    if saver.fetcher.standing is not Standing.ANSWERING:
        # Nobody could say whether a save of these exists, and nobody is to be asked now.
        unknown = books["unfetched"] != 0
        saver.count(held_back=int(unknown.sum()))
        due, books = list(compress(due, ~unknown)), books[~unknown]
    contents = read_keys(layout, due, state)
    columns = (due, contents, books["events"].tolist(), books["unfetched"].astype(bool).tolist())
    saver.save(log, taken, [SaveJob(*row) for row in zip(*columns, strict=True)])
    return len(due)


def standing_of(
    shard: ShardBook, state: ShardState, log: AckLog, saver: Saver, schedule: Schedule
) -> UncoordinatedResult:
    """How a shard stands, with the saves that became durable since its books were last written."""
    known = acked(state, valid(log.read(shard.incarnation)[0], state), schedule)
    settled = frozenset(known.bases)
    later = known.after["due_ms"][known.after["due_ms"] != CLEAN].tolist()
    due = (index_time(key) for key, _ in state.scan(DUE_PREFIX) if index_base(key) not in settled)
    return UncoordinatedResult(
        incarnation=shard.incarnation.hex(),
        events=shard.events,
        unsaved=shard.unsaved + known.change,
        discarded=shard.discarded,
        due_ms=min([next(due, NEVER), *later]),
        counts=saver.take_counts(),
    )


def until(state: ShardState, prefix: bytes, limit: int, most: int | None = None) -> Iterator[bytes]:
    """The bases in an index up to a time, earliest first."""
    for key, _ in islice(state.scan(prefix), most):
        if index_time(key) > limit:
            return
        yield index_base(key)
