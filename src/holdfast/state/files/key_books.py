"""What is known of each key that is saved on its own, and when it is to be saved. Pure: time comes in.

A key's book is an entry beside its states, changed in the same transaction as they are:

    base | 0xFE                       the book
    0xFFFF 0x02 | due ms (8) | base   a dirty key, sorted by when its save is due
    0xFFFF 0x03 | seen ms (8) | base  every key, sorted by when it was last seen (only where keys are evicted)
    0xFFFF 0x01                       the shard: incarnation (16), events, unsaved, discarded, floor (8 each)
    0xFFFF 0x04 | epoch (8) | tag     a version that keys were saved at (tag: 8 bytes of its digest)

Always true: `saved` counts events of a save that is durable; a key is clean only if all its events are in
that save; the events of a key grow through a recovery, so the phase of a schedule by count survives it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.state.contract import Version

BOOK_ID = 0xFE
BOOK_SUFFIX = bytes([BOOK_ID])
STATES_MAX = BOOK_ID - 1
SHARD_KEY = b"\xff\xff\x01"
DUE_PREFIX = b"\xff\xff\x02"
SEEN_PREFIX = b"\xff\xff\x03"
VERSION_PREFIX = b"\xff\xff\x04"
VERSIONS_KEPT = 1_000
"""Saves that take more epochs than this to become durable are not known of, and made again."""

CLEAN = 0
"""Due time of a key that has nothing to save."""
NEVER = (1 << 63) - 1
"""Due time of a dirty key that is not to be saved yet, however long it takes."""

_BOOK = struct.Struct(">QQQQB")
_TIME = struct.Struct(">Q")
_SHARD = struct.Struct(">16sQQQQ")


Books: TypeAlias = npt.NDArray[np.void]
Flags: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """By time (a dirty key is due so long after it became dirty) or by count (at every n-th event)."""

    every_ms: int | None = None
    events: int | None = None

    def planned(self, events: Numbers, saved: Numbers, now_ms: Numbers | np.int64) -> Numbers:
        """When dirty keys are due that were not due at all before."""
        now = np.broadcast_to(now_ms, events.shape)
        if self.events is None:
            assert self.every_ms is not None
            return np.maximum(1, now + self.every_ms)
        reached = events // self.events > saved // self.events
        return np.where(reached, np.maximum(1, now), NEVER)


@dataclass(frozen=True, slots=True)
class Book:
    """One key: events seen in all its life, those in its last durable save, and how it stands now."""

    events: int = 0
    saved: int = 0
    due_ms: int = CLEAN
    seen_ms: int = 0
    unfetched: bool = False
    """It is not known yet whether a save of this key exists: it is not saved before that is known."""

    @property
    def dirty(self) -> bool:
        return self.due_ms != CLEAN

    @property
    def unsaved(self) -> int:
        """Events that are lost if this copy is."""
        return self.events - self.saved if self.dirty else 0

    def pack(self) -> bytes:
        return _BOOK.pack(self.events, self.saved, self.due_ms, self.seen_ms, self.unfetched)

    @staticmethod
    def unpack(data: bytes) -> Book:
        events, saved, due_ms, seen_ms, unfetched = _BOOK.unpack(data)
        return Book(events, saved, due_ms, seen_ms, bool(unfetched))

    def due_key(self, base: bytes) -> bytes:
        return DUE_PREFIX + _TIME.pack(self.due_ms) + base

    def seen_key(self, base: bytes) -> bytes:
        return SEEN_PREFIX + _TIME.pack(self.seen_ms) + base


@dataclass(frozen=True, slots=True)
class ShardBook:
    """A shard's working copy: which one it is, and sums over its keys."""

    incarnation: bytes
    events: int = 0
    unsaved: int = 0
    discarded: int = 0
    """Events that were thrown away because a save turned up for a key that had gone on without it."""
    floor: int = 0
    """Added to the term of saves, so that they come after those that were found: a checkpoint that was begun
    again counts its terms from 1."""

    def pack(self) -> bytes:
        return _SHARD.pack(self.incarnation, self.events, self.unsaved, self.discarded, self.floor)

    @staticmethod
    def unpack(data: bytes) -> ShardBook:
        return ShardBook(*_SHARD.unpack(data))


def version_tag(version: Version) -> bytes:
    """A short name of a version."""
    return hashlib.blake2b(str(version).encode(), digest_size=8).digest()


def version_key(epoch: int, tag: bytes) -> bytes:
    """Under what is kept that the state has been at a version."""
    return VERSION_PREFIX + _TIME.pack(epoch) + tag


def index_time(key: bytes) -> int:
    """The time, or the epoch, in a key of one of the indexes."""
    found: int = _TIME.unpack_from(key, len(DUE_PREFIX))[0]
    return found


def index_base(key: bytes) -> bytes:
    """The base in a key of one of the indexes."""
    return key[len(DUE_PREFIX) + _TIME.size :]


BOOKS = np.dtype(
    [("events", ">u8"), ("saved", ">u8"), ("due_ms", ">u8"), ("seen_ms", ">u8"), ("unfetched", "u1")]
)
"""Many books, one row each: the very bytes of `Book.pack`."""
_BLANK = Book().pack()
assert BOOKS.itemsize == _BOOK.size


def unpack_books(stored: Sequence[bytes | None]) -> tuple[Books, Flags]:
    """The books of some keys, a new one where nothing is stored; and where something is."""
    known = np.fromiter((value is not None for value in stored), np.bool_, len(stored))
    return np.frombuffer(b"".join([value or _BLANK for value in stored]), BOOKS).copy(), known


def pack_books(books: Books) -> list[bytes]:
    packed: list[bytes] = books.view(f"V{BOOKS.itemsize}").tolist()
    return packed


def books_after_events(
    books: Books,
    events: Numbers,
    schedule: Schedule,
    now_ms: int,
    dirties: Flags | None = None,
    at_once: Flags | None = None,
) -> Books:
    """The books of keys that have just seen some events.

    `dirties`: whether they leave anything to save. `at_once`: the user's code asks for a save now.
    """
    after = books.copy()
    total, saved = books["events"].astype(np.int64) + events, books["saved"].astype(np.int64)
    due = books["due_ms"].astype(np.int64)
    was_dirty = due != CLEAN
    dirty = np.ones(len(books), np.bool_) if dirties is None else was_dirty | dirties
    planned = schedule.planned(total, saved, np.int64(now_ms))
    due = np.where(dirty & (~was_dirty | (due == NEVER)), planned, due)
    if at_once is not None:
        due = np.where(dirty & at_once, np.minimum(due, max(1, now_ms)), due)
    after["events"], after["seen_ms"] = total, now_ms
    after["due_ms"] = due
    # Where nothing of the events is worth saving, nothing of them can be lost.
    after["saved"] = np.where(dirty, saved, total)
    return after


def books_after_saves(books: Books, saved: Numbers, schedule: Schedule, taken_ms: Numbers) -> Books:
    """The books of keys of which saves are durable that have their first `saved` events.

    Clean only where these are all: what came while the save was under way is dirty still. News of an older
    save, or of another way, changes nothing.
    """
    after = books.copy()
    events, before = books["events"].astype(np.int64), books["saved"].astype(np.int64)
    counts = (saved >= before) & (saved <= events)
    due = np.where(saved == events, CLEAN, schedule.planned(events, saved, taken_ms))
    after["saved"] = np.where(counts, saved, before)
    after["due_ms"] = np.where(counts, due, books["due_ms"].astype(np.int64))
    after["unfetched"] = np.where(counts, 0, books["unfetched"])
    return after


def unsaved(books: Books) -> int:
    """Events of all these keys that are lost if this copy is."""
    dirty = books["due_ms"] != CLEAN
    return int((books["events"].astype(np.int64) - books["saved"].astype(np.int64))[dirty].sum())


def index_keys(prefix: bytes, times: Numbers, bases: Sequence[bytes]) -> list[bytes]:
    """Keys of one of the indexes."""
    cells = times.astype(">u8").view("V8").tolist()
    return [prefix + time + base for time, base in zip(cells, bases, strict=True)]
