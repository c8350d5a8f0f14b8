"""Removes what has expired from a shard's state, a bounded part in every epoch, with or without rows.

What is due is found by the index of expiries. An entry that is met there has expired, and is deleted; or its
age was not known, and counts from now; or it was written since, and is in the index under its new time.
Always true: what the function has changed in the epoch is left as it is; what is met is no more than
`EXPIRED_MAX`, the rest is still due afterwards. What user code sees does not depend on any of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pyarrow as pa

from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState
from holdfast.state.encoding.expiry_index import (
    UNKNOWN_DUE_MS,
    due_ms,
    due_of,
    entry_of,
    expiry_end,
    expiry_prefix,
)
from holdfast.state.encoding.layout import (
    ITEMS_START,
    SEQUENCE_BYTES,
    StateField,
    StateKind,
    StateLayout,
    map_entries,
    map_tails,
)
from holdfast.state.encoding.ttl import UNKNOWN_US, Instants, Times, time_of, times_of, without_times
from holdfast.state.files.changes import Changes, Entry, EntryChange, Flags, ValueChange
from holdfast.tasks.operators.due import with_changed_keys

EXPIRED_MAX = 100_000
"""Entries that one epoch looks at, of one state in one shard."""


_FIRST_MS = -(1 << 52)


def stamp(layout: StateLayout, changes: Changes, at: Instants) -> None:
    """Give what an epoch writes to states with a ttl its time."""
    for state in layout.expiring:
        assert state.ttl is not None
        for change in (changes.values.get(state.name), changes.entries.get(state.name)):
            if change is not None:
                change.times = np.where(_deleted(change), UNKNOWN_US, at.stamp(state.ttl))


def expire(
    layout: StateLayout,
    changes: Changes,
    state: ShardState,
    groups: KeyGroupRange,
    at: Instants,
    limit: int = EXPIRED_MAX,
) -> tuple[Changes, list[Entry]]:
    """The changes of an epoch, with what has expired removed; and what that means for the index."""
    left: list[bytes] = []
    for expiring in layout.expiring:
        assert expiring.ttl is not None
        now_us = at.now(expiring.ttl)
        if now_us is not None:
            sweep = _Sweep(layout, expiring, changes, state, now_us, limit)
            changes = sweep.run(groups)
            left += sweep.left_places
    return changes, [(key, None) for key in left]


def earliest_expiry(state_field: StateField, groups: KeyGroupRange, state: ShardState) -> int | None:
    """When the first of a state's entries is due, in µs since 1970. None: it has none."""
    firsts = (
        next(state.scan(expiry_prefix(group, state_field)), None) for group in range(groups.first, groups.end)
    )
    due = min((due_of(found[0]) for found in firsts if found is not None), default=None)
    # What is due before everything else: 64 bits of µs do not go back that far.
    return None if due is None else max(due, _FIRST_MS) * 1_000


class _Fate(Enum):
    """What becomes of an entry in an epoch."""

    KEPT = "as it is"
    WRITTEN = "with a new time, or another value"
    GONE = "deleted"


@dataclass
class _Met:
    """Entries of one state to be deleted, or written again with a new time: parallel columns."""

    bases: list[bytes] = field(default_factory=list)
    tails: list[bytes] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    deleted: list[bool] = field(default_factory=list)

    def add(self, base: bytes, tail: bytes, stored: bytes, deleted: bool) -> None:
        self.bases.append(base)
        self.tails.append(tail)
        self.stored.append(stored)
        self.deleted.append(deleted)


class _Sweep:
    """One state of one shard in one epoch."""

    def __init__(
        self,
        layout: StateLayout,
        of: StateField,
        changes: Changes,
        state: ShardState,
        now_us: int,
        limit: int,
    ) -> None:
        assert of.ttl is not None
        self.layout, self.field, self.ttl = layout, of, of.ttl
        self.changes, self.state, self.now_us, self.left = changes, state, now_us, limit
        self.left_places: list[bytes] = []
        """Keys of the index under which there is nothing more to be found."""
        self._changed = _fates(of, changes)
        self._met = _Met()
        self._emptied: list[bytes] = []
        self._unfinished: bytes | None = None
        """The list at which the limit was reached."""

    def run(self, groups: KeyGroupRange) -> Changes:
        """Look at what is due, as far as the limit goes."""
        if self.field.kind is StateKind.LIST:
            self._look_at_lists(groups)
            return self._put()
        due: dict[tuple[bytes, bytes], list[bytes]] = {}
        for key in self._due(groups):
            due.setdefault(entry_of(self.layout, key), []).append(key)
        stored = self.state.get_many([base + self.field.suffix + tail for base, tail in due])
        for ((base, tail), keys), value in zip(due.items(), stored, strict=True):
            self.left_places += keys
            if value is not None:
                self._look_at(base, tail, value)
        return self._put()

    def _due(self, groups: KeyGroupRange) -> Iterator[bytes]:
        for group in range(groups.first, groups.end):
            prefix = expiry_prefix(group, self.field)
            for key, _ in self.state.scan(prefix, expiry_end(prefix, self.now_us)):
                if self.left <= 0:
                    return
                self.left -= 1
                yield key

    def _look_at(self, base: bytes, tail: bytes, stored: bytes) -> _Fate:
        """See to an entry that may have expired."""
        if (base, tail) in self._changed:
            return self._changed[base, tail]
        at_us = time_of(stored)
        expired = self.ttl.is_expired(at_us, self.now_us)
        if expired or at_us == UNKNOWN_US:
            self._met.add(base, tail, stored, expired)
            return _Fate.GONE if expired else _Fate.WRITTEN
        return _Fate.KEPT

    def _look_at_lists(self, groups: KeyGroupRange) -> None:
        done: set[bytes] = set()
        for key in self._due(groups):
            base, _ = entry_of(self.layout, key)
            if base not in done and not self._look_at_list(base, whole=due_of(key) == UNKNOWN_DUE_MS):
                self._unfinished = base
                return
            done.add(base)
            self.left_places.append(key)

    def _look_at_list(self, base: bytes, *, whole: bool) -> bool:
        """See to the items of a list, from the first on until one is kept. One that was changed in place may
        stand before others that have expired: it leads to them when it expires itself.

        `whole`: to all items. False: the limit was reached before the end.
        """
        fates = set()
        for item, stored in self.state.scan(base + self.field.suffix, start=ITEMS_START):
            if self.left <= 0:
                return False
            self.left -= 1
            fate = self._look_at(base, item[-SEQUENCE_BYTES:], stored)
            fates.add(fate)
            if fate is _Fate.KEPT and not whole:
                break
        if fates <= {_Fate.GONE}:
            self._emptied.append(base)
        return True

    def _put(self) -> Changes:
        """The changes with what was met in them."""
        met, name, state = self._met, self.field.name, self.field
        if not met.bases and not self._emptied:
            return self.changes
        keys = [*met.bases, *self._emptied]
        changes, numbers = with_changed_keys(self.changes, self.layout, self.state, keys)
        rows = np.array([numbers[base] for base in met.bases], np.int64)
        deleted, stored = np.array(met.deleted, np.bool_), without_times(met.stored)
        times = np.where(deleted, self._times_of_deleted(), self.now_us)
        if state.kind is StateKind.VALUE:
            more = ValueChange(rows, state.codec.decode(stored), deleted, times)
            changes.values[name] = _joined_values(changes.values.get(name), more)
            return changes
        if state.kind is StateKind.LIST:
            entry = pa.array([int.from_bytes(tail, "big") for tail in met.tails], pa.int64())
            self._drop_headers(changes, numbers)
        else:
            entry, stored = map_entries(state, list(zip(met.tails, stored, strict=True)))
        if len(rows):
            items = EntryChange(rows, entry, state.codec.decode(stored), deleted, times)
            changes.entries[name] = _joined_entries(changes.entries.get(name), items)
        return changes

    def _times_of_deleted(self) -> Times:
        """Those that lead to the places in the index that these entries leave for good. In the place of an
        item that is not due itself, or of a list that was not looked at to the end, there may be others."""
        times = times_of(self._met.stored)
        gone = due_ms(self.ttl, times) <= self.now_us // 1_000
        if self._unfinished is not None:
            gone &= np.array([base != self._unfinished for base in self._met.bases], np.bool_)
        found: Times = np.where(gone, times, UNKNOWN_US)
        return found

    def _drop_headers(self, changes: Changes, numbers: dict[bytes, int]) -> None:
        """Let go of lists that have no items left and that the function has not written."""
        own = changes.headers.get(self.field.name)
        written = set() if own is None else set(own.rows.tolist())
        rows = [numbers[base] for base in self._emptied if numbers[base] not in written]
        if rows:
            nothing = pa.array(np.zeros(len(rows), np.int64))
            gone = ValueChange(np.array(rows, np.int64), nothing, np.ones(len(rows), np.bool_))
            changes.headers[self.field.name] = _joined_values(own, gone)


def _fates(state: StateField, changes: Changes) -> dict[tuple[bytes, bytes], _Fate]:
    """What the function has done to entries of a state: by base, and what follows the state's number."""
    change: ValueChange | EntryChange | None
    if state.kind is StateKind.VALUE:
        change = changes.values.get(state.name)
        tails = [b""] * (0 if change is None else len(change.rows))
    else:
        change = changes.entries.get(state.name)
        if change is None:
            tails = []
        elif state.kind is StateKind.LIST:
            tails = [number.to_bytes(SEQUENCE_BYTES, "big") for number in change.entry.to_pylist()]
        else:
            tails = map_tails(state, change.entry)[0]
    if change is None:
        return {}
    gone = [False] * len(tails) if change.deleted is None else change.deleted.tolist()
    return {
        (changes.bases[row], tail): _Fate.GONE if is_gone else _Fate.WRITTEN
        for row, tail, is_gone in zip(change.rows.tolist(), tails, gone, strict=True)
    }


def _joined_values(a: ValueChange | None, b: ValueChange) -> ValueChange:
    if a is None:
        return b
    return ValueChange(
        np.concatenate([a.rows, b.rows]),
        pa.concat_arrays([a.values, b.values.cast(a.values.type)]),
        np.concatenate([_deleted(a), _deleted(b)]),
        None if b.times is None else np.concatenate([_times(a), b.times]),
    )


def _joined_entries(a: EntryChange | None, b: EntryChange) -> EntryChange:
    if a is None:
        return b
    return EntryChange(
        np.concatenate([a.rows, b.rows]),
        pa.concat_arrays([a.entry, b.entry.cast(a.entry.type)]),
        pa.concat_arrays([a.values, b.values.cast(a.values.type)]),
        np.concatenate([_deleted(a), _deleted(b)]),
        np.concatenate([_times(a), _times(b)]),
    )


def _deleted(change: ValueChange | EntryChange) -> Flags:
    return np.zeros(len(change.rows), np.bool_) if change.deleted is None else change.deleted


def _times(change: ValueChange | EntryChange) -> Times:
    return np.full(len(change.rows), UNKNOWN_US) if change.times is None else change.times
