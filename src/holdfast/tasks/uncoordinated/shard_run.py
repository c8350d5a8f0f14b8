"""A shard's keys that are saved on their own, in one epoch: what is fetched, counted and saved.

    open -> saves of due keys begin, as the state stands before this epoch
         -> keys that are not here are fetched -> the function runs -> states and books are applied as one

What is saved is what an earlier epoch's chosen result left, never what this task computes: its result may
not be the one that counts.
Always true: a key whose fetch was not answered is marked (`unfetched`) and not saved before the storage has
answered; if a save of it is found then, the save counts, and what the key saw without it is thrown away and
counted.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.clock import duration_ms
from holdfast.errors import HoldfastError
from holdfast.graph.functions import overrides
from holdfast.state.cells.binding import bind
from holdfast.state.cells.value_cells import Cell
from holdfast.state.contract import Entries, ShardState
from holdfast.state.files.key_books import (
    BOOK_SUFFIX,
    CLEAN,
    DUE_PREFIX,
    SEEN_PREFIX,
    SHARD_KEY,
    VERSION_PREFIX,
    VERSIONS_KEPT,
    Book,
    Books,
    ShardBook,
    books_after_events,
    index_keys,
    index_time,
    pack_books,
    unpack_books,
    version_key,
)
from holdfast.state.files.saved_key import (
    CUSTOM,
    check_layout,
    from_objects,
    read_keys,
    state_id,
    unpack,
    unpack_entries,
)
from holdfast.tasks.messages import KeyedTask, UncoordinatedResult
from holdfast.tasks.operators.result import EpochContext, OperatorResult
from holdfast.tasks.operators.row_function import RowsRun
from holdfast.tasks.operators.shard_rows import KeyedSlice
from holdfast.tasks.uncoordinated.due_saves import BookChanges, ShardSaves, until
from holdfast.tasks.uncoordinated.durable_saves import AckLog
from holdfast.tasks.uncoordinated.fetcher import Unanswered
from holdfast.tasks.uncoordinated.saver import SavedOperator, saver_of
from holdfast.tasks.uncoordinated.state_access import Hooks, Overlaid

EVICTED_MAX = 1_000
"""Keys that one epoch evicts at most: the rest has time."""

Changed = dict[bytes, bytes | None]
"""Entries to be written; None: to be removed."""


class ShardRun:
    """Made for one task, over its working state; `run`, then `with_books`, then, once applied, `applied`."""

    def __init__(self, task: KeyedTask, state: ShardState, directory: Path) -> None:
        assert task.uncoordinated is not None
        check_layout(task.layout)
        self._task, self._state, self._settings = task, state, task.uncoordinated
        self._clock_ms = task.work.clock_ms
        work, given = task.work, self._settings
        operator = SavedOperator(
            work.workspace, task.uid, work.run, task.term, task.function, task.lineage, given
        )
        self._saver = saver_of(operator)
        self._saver.give_way()
        self._saves = ShardSaves(operator, self._saver, AckLog(directory), state)
        stored = state.get(SHARD_KEY)
        # No book of the shard: a fresh copy. The driver learns from its name that the one before is gone.
        self._shard = ShardBook.unpack(stored) if stored else ShardBook(uuid.uuid4().bytes)
        self._acks, self._log_read = self._saves.acks(self._shard)
        self._overlay: dict[bytes, bytes | None] = {}
        """Fetched states, over what is stored: written with the epoch's changes, or not at all."""
        self._discarded = 0
        # Before the function runs: what is saved is what earlier epochs left.
        self._taken = self._saves.taken(self._shard, self._clock_ms)
        self._begun = self._saves.begin(self._taken, self._acks)

    def run(self, keyed: KeyedSlice, ctx: EpochContext) -> OperatorResult:
        """Run the function over the shard's rows, keys that are not here fetched first."""
        task, self._keyed = self._task, keyed
        self._book_keys = [base + BOOK_SUFFIX for base in keyed.bases]
        self._stored, self._known = unpack_books(self._state.get_many(self._book_keys))
        self._books = self._acknowledged(keyed.bases, self._stored)
        self._fetch_missing(keyed)
        view = Overlaid(self._state, self._overlay) if self._overlay else self._state
        hooks = Hooks(keyed.key_count)
        asked = any(overrides(task.function, name) for name in ("is_dirty", "checkpoint"))

        def bound(own: Any) -> Sequence[Cell]:
            cells = bind(own, task.layout, keyed.bases, view)
            hooks.function = own
            # Hooks first: `keep` asks the function while the other cells still hold the key's state.
            return [hooks, *cells] if asked else cells

        run = RowsRun(task.function, keyed, ctx, bound)
        hooks.context = run.row_context
        run.run()
        counts = np.bincount(keyed.index, minlength=keyed.key_count)
        self._after = books_after_events(
            self._books,
            counts,
            self._settings.schedule,
            self._clock_ms,
            hooks.dirties if asked else None,
            hooks.at_once if asked else None,
        )
        self._events = int(counts.sum())
        return OperatorResult(run.outputs(), run.changes())

    def with_books(self, entries: Entries) -> Entries:
        """The changes of an epoch and what goes with them: fetched states, books, indexes, evictions."""
        seen = frozenset(self._keyed.bases)
        own = BookChanges(self._keyed.bases, self._stored, self._after)
        found = dict(self._overlay)
        if found:
            # What the function changed is newer than what was fetched.
            for key, _ in entries:
                found.pop(key, None)
        _index(found, DUE_PREFIX, "due_ms", own)
        if self._settings.evict_after is not None:
            _index(found, SEEN_PREFIX, "seen_ms", own)
        others = self._acknowledge_others(found, seen) if self._acks else 0
        if self._settings.evict_after is not None:
            self._evict(found, seen, self._settings.evict_after)
        self._shard = replace(
            self._shard,
            events=self._shard.events + self._events,
            unsaved=self._shard.unsaved + own.unsaved + others,
            discarded=self._shard.discarded + self._discarded,
        )
        found[SHARD_KEY] = self._shard.pack()
        if self._begun:
            # These saves count only for a state that has passed through the version they were taken at.
            found[version_key(self._taken.epoch, self._taken.tag)] = b""
        oldest = self._taken.epoch - VERSIONS_KEPT
        for key, _ in islice(self._state.scan(VERSION_PREFIX), 10):
            if index_time(key) < oldest:
                found[key] = None
        books = zip(self._book_keys, pack_books(self._after), strict=True)
        return sorted(chain(entries, books, found.items()), key=itemgetter(0))

    def applied(self) -> UncoordinatedResult:
        """The state is at the new version: what was acknowledged need not be kept. Says how things stand."""
        self._saver.go_on()
        # Now and not before: had this task died, the next one would have needed the acknowledgements.
        self._saves.log.forget(self._log_read)
        return self._saves.standing(self._shard)

    def _acknowledged(self, bases: Sequence[bytes], books: Books) -> Books:
        """The books with the saves that became durable since."""
        after = books.copy()
        if self._acks:
            rows = [row for row, base in enumerate(bases) if base in self._acks and self._known[row]]
            after[rows] = self._saves.books_after(books[rows], [self._acks[bases[row]] for row in rows])
        return after

    def _fetch_missing(self, keyed: KeyedSlice) -> None:
        """Fetch keys that have no book here, and those of which an earlier fetch was not answered."""
        missing = np.flatnonzero(~self._known | (self._books["unfetched"] != 0)).tolist()
        if not missing:
            return
        bases = [keyed.bases[row] for row in missing]
        for row, base, answer in zip(missing, bases, self._saver.fetcher.fetch(bases), strict=True):
            if isinstance(answer, Unanswered):
                self._books["unfetched"][row] = 1
            elif answer is None:
                self._saver.count(absent=1)
                self._books["unfetched"][row] = 0
            else:
                self._restore(row, base, answer)

    def _restore(self, row: int, base: bytes, data: bytes) -> None:
        """Go on from a save. If it cannot be read the key goes on from nothing, as if unanswered."""
        task, id = self._task, state_id(self._task.layout, base)
        try:
            saved = unpack(data, id)
            if self._known[row] and saved.incarnation == self._shard.incarnation:
                # Our own, made after an answer that there is none: this copy has it all.
                self._books["unfetched"][row] = 0
                return
            if saved.form == CUSTOM:
                whole = task.layout.keys.key_bytes([c.slice(row, 1) for c in self._keyed.keys])[0]
                states = task.function.restore_state(saved.body)
                entries = from_objects(task.layout, base, states, whole)
            else:
                entries = unpack_entries(task.lineage, saved, base, id)
        except HoldfastError as error:
            self._unusable(row, str(error))
            return
        except Exception as error:  # of the user's restore_state
            self._unusable(row, f"restore_state: {type(error).__name__}: {error}")
            return
        if self._known[row]:
            # The key went on from nothing while it was unfetched. The save counts, not what came since.
            self._discarded += int(self._books["events"][row])
            (own,) = read_keys(task.layout, [base], self._state)
            self._overlay.update((key, None) for key, _ in own)
        self._overlay.update(entries)
        # A save of a checkpoint with higher terms: ours must exceed it, or the storage would refuse them.
        if saved.term > self._shard.floor + task.term:
            self._shard = replace(self._shard, floor=saved.term)
        self._books[row] = _as_row(Book(events=saved.events, saved=saved.events))
        self._saver.count(fetched=1, repeated=int(saved.epoch >= task.work.epoch))

    def _unusable(self, row: int, error: str) -> None:
        self._saver.count(unanswered=1, error=error)
        self._books["unfetched"][row] = 1

    def _acknowledge_others(self, found: Changed, seen: frozenset[bytes]) -> int:
        """The books of keys that had no rows in this epoch and were saved. Gives the change of unsaved."""
        known = self._saves.acked({base: ack for base, ack in self._acks.items() if base not in seen})
        books = zip((base + BOOK_SUFFIX for base in known.bases), pack_books(known.after), strict=True)
        found.update(books)
        _index(found, DUE_PREFIX, "due_ms", known)
        return known.unsaved

    def _evict(self, found: Changed, seen: frozenset[bytes], after: str) -> None:
        """Keys that were not seen for so long leave, once all of them is saved; a dirty one becomes due."""
        limit = self._clock_ms - duration_ms(after)
        idle = [base for base in until(self._state, SEEN_PREFIX, limit, EVICTED_MAX) if base not in seen]
        books = self._state.get_many([base + BOOK_SUFFIX for base in idle])
        leaving = []
        for base, stored in zip(idle, books, strict=True):
            now = found.get(base + BOOK_SUFFIX, stored)
            assert now is not None, "the index names a key that has no book"
            book = Book.unpack(now)
            if not book.dirty:
                leaving.append((base, book))
            elif book.due_ms > self._clock_ms:
                # Saved by the next task, and evicted by one that has read that the save is durable.
                soon = replace(book, due_ms=max(1, self._clock_ms))
                found[book.due_key(base)] = None
                found[soon.due_key(base)] = b""
                found[base + BOOK_SUFFIX] = soon.pack()
        contents = read_keys(self._task.layout, [base for base, _ in leaving], self._state)
        for (base, book), entries in zip(leaving, contents, strict=True):
            found.update((key, None) for key, _ in entries)
            found[base + BOOK_SUFFIX] = found[book.seen_key(base)] = None
        self._saver.count(evicted=len(leaving))


def _index(found: Changed, prefix: bytes, column: str, books: BookChanges) -> None:
    """Move the keys to where their books now have them in an index by time."""
    old, new = books.before[column].astype(np.int64), books.after[column].astype(np.int64)
    for rows, times, value in (
        (np.flatnonzero((old != new) & (old != CLEAN)), old, None),
        (np.flatnonzero((old != new) & (new != CLEAN)), new, b""),
    ):
        keys = index_keys(prefix, times[rows], [books.bases[row] for row in rows.tolist()])
        found.update(dict.fromkeys(keys, value))


def _as_row(book: Book) -> np.void:
    row: np.void = unpack_books([book.pack()])[0][0]
    return row
