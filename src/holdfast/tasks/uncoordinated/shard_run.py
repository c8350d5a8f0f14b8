"""A shard's keys that are saved on their own, in one epoch: what is fetched, counted and saved.

    open -> saves of due keys begin, as the state stands before this epoch
         -> keys that are not here are fetched -> the function runs -> states and books are applied as one

Saved is what an earlier epoch's chosen result left, never what this task computes: its result may not be the
one that counts.
Always true: a key whose fetch nobody answered is marked, and no save of it is made before somebody did; when
a save of it turns up after all, the save counts, and what the key saw without it is thrown away and counted.
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
import numpy.typing as npt
import pyarrow as pa

from holdfast.clock import duration_ms
from holdfast.errors import HoldfastError
from holdfast.graph.functions import overrides
from holdfast.state.cells.binding import bind
from holdfast.state.cells.value_cells import Cell
from holdfast.state.contract import Entries, ShardState
from holdfast.state.files.save_books import (
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
    unsaved,
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
from holdfast.tasks.messages import OperatorTask, UncoordinatedResult
from holdfast.tasks.operators.keyed_slice import KeyedSlice, cut
from holdfast.tasks.operators.result import EpochContext, OperatorResult
from holdfast.tasks.operators.row_function import RowsRun
from holdfast.tasks.uncoordinated.ack_log import AckLog
from holdfast.tasks.uncoordinated.due_saves import (
    acked,
    begin_saves,
    books_after_acks,
    standing_of,
    taken_at,
    until,
    valid,
)
from holdfast.tasks.uncoordinated.fetcher import Unanswered
from holdfast.tasks.uncoordinated.hooks import Hooks, Overlaid
from holdfast.tasks.uncoordinated.saver import Saver, saver_of

EVICTED_MAX = 1_000
"""Keys that one epoch evicts at most: the rest has time."""


class ShardRun:
    """Made for one task, over its working state; `run`, then `with_books`, then, once applied, `applied`."""

    def __init__(
        self, task: OperatorTask, state: ShardState, directory: Path, saver: Saver | None = None
    ) -> None:
        assert task.uncoordinated is not None
        check_layout(task.layout)
        self._task, self._state, self._settings = task, state, task.uncoordinated
        self._saver = saver or saver_of(
            task.workspace.identity, task.uid, task.run, task.uncoordinated, task.function, task.layout
        )
        self._saver.give_way()
        self._log = AckLog(directory)
        self._schedule = task.uncoordinated.schedule
        stored = state.get(SHARD_KEY)
        self._shard = ShardBook.unpack(stored) if stored else ShardBook(uuid.uuid4().bytes)
        acks, self._read = self._log.read(self._shard.incarnation)
        self._acks = valid(acks, state)
        self._overlay: dict[bytes, bytes | None] = {}
        self._discarded = 0
        self._taken = taken_at(state, self._shard, task.term, task.clock_ms, task.layout.generation)
        self._begun = begin_saves(
            self._saver, self._log, self._taken, task.layout, self._schedule, state, self._acks
        )

    def run(self, rows: pa.Table, groups: npt.NDArray[Any], ctx: EpochContext) -> OperatorResult:
        """Run the function over the shard's rows, keys that are not here fetched first."""
        task = self._task
        self._keyed = keyed = cut(task.layout, rows, groups, task.key, task.order_by)
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
            return [hooks, *cells] if asked else cells

        run = RowsRun(task.function, keyed, ctx, bound)
        hooks.context = run.row_context
        run.run()
        counts = np.bincount(keyed.index, minlength=keyed.key_count)
        self._after = books_after_events(
            self._books,
            counts,
            self._schedule,
            task.clock_ms,
            hooks.dirties if asked else None,
            hooks.at_once if asked else None,
        )
        self._events = int(counts.sum())
        return OperatorResult(run.outputs(), run.changes(), keyed.rows.num_rows)

    def with_books(self, entries: Entries) -> Entries:
        """The changes of an epoch and what goes with them: fetched states, books, indexes, evictions."""
        bases, delta = self._keyed.bases, unsaved(self._after) - unsaved(self._stored)
        found = dict(self._overlay)
        if found:
            for key, _ in entries:
                found.pop(key, None)
        self._index(found, DUE_PREFIX, "due_ms", bases, self._stored, self._after)
        if self._settings.evict_after is not None:
            self._index(found, SEEN_PREFIX, "seen_ms", bases, self._stored, self._after)
        if self._acks:
            delta += self._acknowledge_others(found, frozenset(bases))
        if self._settings.evict_after is not None:
            self._evict(found, frozenset(bases), self._settings.evict_after)
        self._shard = replace(
            self._shard,
            events=self._shard.events + self._events,
            unsaved=self._shard.unsaved + delta,
            discarded=self._shard.discarded + self._discarded,
        )
        found[SHARD_KEY] = self._shard.pack()
        if self._begun:
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
        self._log.forget(self._read)
        return standing_of(self._shard, self._state, self._log, self._saver, self._schedule)

    def _acknowledged(self, bases: Sequence[bytes], books: Books) -> Books:
        """The books with the saves that became durable since."""
        after = books.copy()
        if self._acks:
            places = [place for place, base in enumerate(bases) if base in self._acks and self._known[place]]
            acks = [self._acks[bases[place]] for place in places]
            after[places] = books_after_acks(books[places], acks, self._schedule)
        return after

    def _fetch_missing(self, keyed: KeyedSlice) -> None:
        missing = np.flatnonzero(~self._known | (self._books["unfetched"] != 0)).tolist()
        if not missing:
            return
        bases = [keyed.bases[place] for place in missing]
        for place, base, answer in zip(missing, bases, self._saver.fetcher.fetch(bases), strict=True):
            if isinstance(answer, Unanswered):
                self._books["unfetched"][place] = 1
            elif answer is None:
                self._saver.count(absent=1)
                self._books["unfetched"][place] = 0
            else:
                self._restore(place, base, answer)

    def _restore(self, place: int, base: bytes, data: bytes) -> None:
        """Go on from a save; from none of it, if it cannot be read."""
        task, id = self._task, state_id(self._task.layout, base)
        try:
            saved = unpack(data, id)
            if self._known[place] and saved.incarnation == self._shard.incarnation:
                # Our own, made after somebody had answered that there is none: this copy has it all.
                self._books["unfetched"][place] = 0
                return
            if saved.form == CUSTOM:
                whole = task.layout.keys.key_bytes([c.slice(place, 1) for c in self._keyed.keys])[0]
                states = task.function.restore_state(saved.body)
                entries = from_objects(task.layout, base, states, whole)
            else:
                entries = unpack_entries(task.lineage, saved, base, id)
        except HoldfastError as error:
            self._unusable(place, str(error))
            return
        except Exception as error:  # of the user's restore_state
            self._unusable(place, f"restore_state: {type(error).__name__}: {error}")
            return
        if self._known[place]:
            self._discarded += int(self._books["events"][place])
            (own,) = read_keys(task.layout, [base], self._state)
            self._overlay.update((key, None) for key, _ in own)
        self._overlay.update(entries)
        if saved.term > self._shard.floor + task.term:
            self._shard = replace(self._shard, floor=saved.term)
        self._books[place] = _as_row(Book(events=saved.events, saved=saved.events))
        self._saver.count(fetched=1, repeated=int(saved.epoch >= task.epoch))

    def _unusable(self, place: int, error: str) -> None:
        self._saver.count(unanswered=1, error=error)
        self._books["unfetched"][place] = 1

    def _index(
        self,
        found: dict[bytes, bytes | None],
        prefix: bytes,
        column: str,
        bases: Sequence[bytes],
        before: Books,
        after: Books,
    ) -> None:
        old, new = before[column].astype(np.int64), after[column].astype(np.int64)
        for places, times, value in (
            (np.flatnonzero((old != new) & (old != CLEAN)), old, None),
            (np.flatnonzero((old != new) & (new != CLEAN)), new, b""),
        ):
            keys = index_keys(prefix, times[places], [bases[place] for place in places.tolist()])
            found.update(dict.fromkeys(keys, value))

    def _acknowledge_others(self, found: dict[bytes, bytes | None], seen: frozenset[bytes]) -> int:
        """The books of keys that had no rows in this epoch and were saved. Gives the change of unsaved."""
        others = {base: ack for base, ack in self._acks.items() if base not in seen}
        known = acked(self._state, others, self._schedule)
        books = zip((base + BOOK_SUFFIX for base in known.bases), pack_books(known.after), strict=True)
        found.update(books)
        self._index(found, DUE_PREFIX, "due_ms", known.bases, known.before, known.after)
        return known.change

    def _evict(self, found: dict[bytes, bytes | None], seen: frozenset[bytes], after: str) -> None:
        """Keys that were not seen for so long leave, once all of them is saved; a dirty one becomes due."""
        limit = self._task.clock_ms - duration_ms(after)
        idle = [base for base in until(self._state, SEEN_PREFIX, limit, EVICTED_MAX) if base not in seen]
        books = self._state.get_many([base + BOOK_SUFFIX for base in idle])
        leaving = []
        for base, stored in zip(idle, books, strict=True):
            now = found.get(base + BOOK_SUFFIX, stored)
            assert now is not None, "the index names a key that has no book"
            book = Book.unpack(now)
            if not book.dirty:
                leaving.append((base, book))
            elif book.due_ms > self._task.clock_ms:
                _rebook(found, base, book, replace(book, due_ms=max(1, self._task.clock_ms)))
        contents = read_keys(self._task.layout, [base for base, _ in leaving], self._state)
        for (base, book), entries in zip(leaving, contents, strict=True):
            found.update((key, None) for key, _ in entries)
            found[base + BOOK_SUFFIX] = found[book.seen_key(base)] = None
        self._saver.count(evicted=len(leaving))


def _rebook(found: dict[bytes, bytes | None], base: bytes, before: Book, after: Book) -> None:
    if before.due_ms != after.due_ms:
        if before.dirty:
            found[before.due_key(base)] = None
        if after.dirty:
            found[after.due_key(base)] = b""
    found[base + BOOK_SUFFIX] = after.pack()


def _as_row(book: Book) -> np.void:
    row: np.void = unpack_books([book.pack()])[0][0]
    return row
