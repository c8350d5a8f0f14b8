"""Cells of list and map states: entries stored one by one, changes kept beside them until the slice ends.

Always true: list items have the sequence numbers 0 to length - 1, so neither `len` nor `clear` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.cells.value_cells import Cell, ItemsCell, state_settler
from holdfast.state.contract import StateReads
from holdfast.state.encoding.arrow_values import column_of, copied, is_immutable, objects_of, unchanged
from holdfast.state.encoding.coercion import Misfit, settler
from holdfast.state.encoding.keys import LONG_KEY_TAG
from holdfast.state.encoding.layout import (
    StateField,
    decode_header,
    item_keys,
    map_entries,
    map_tails,
    state_keys,
)
from holdfast.state.files.delta import Changes, EntryChange, ValueChange

ABSENT: Any = object()
_UNKNOWN: Any = object()


class EntryLog:
    """Entry changes of one state over all keys."""

    __slots__ = ("entries", "rows", "values")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.entries: list[Any] = []
        self.values: list[Any] = []
        """ABSENT: the entry is deleted."""

    def add(self, row: int, entry: Any, value: Any) -> None:
        self.rows.append(row)
        self.entries.append(entry)
        self.values.append(value)

    def add_all(self, row: int, entries: Collection[Any], values: Iterable[Any]) -> None:
        self.rows.extend(repeat(row, len(entries)))
        self.entries.extend(entries)
        self.values.extend(values)

    def change(self, entry_type: pa.DataType, value_type: pa.DataType) -> EntryChange:
        values = self.values
        deleted = np.fromiter(map(is_, values, repeat(ABSENT)), np.bool_, len(values))
        if deleted.any():
            values = [None if value is ABSENT else value for value in values]
        return EntryChange(
            np.array(self.rows, dtype=np.int64),
            column_of(self.entries, entry_type),
            column_of(values, value_type),
            deleted,
        )


class ListCell(ItemsCell):
    """A ListState of one key. Items are checked when they are added.

    Items that could change in place are given out as copies, the same ones until the key is left: what the
    user's code changes in them counts as written.
    """

    __slots__ = (
        "_added",
        "_bases",
        "_changed",
        "_field",
        "_given_out",
        "_headers",
        "_immutable",
        "_key",
        "_log",
        "_read_items",
        "_rest",
        "_settle",
        "_state",
        "_stored",
    )

    def __init__(self, field: StateField, bases: Sequence[bytes], state: StateReads) -> None:
        self._field, self._bases, self._state = field, bases, state
        self._settle, self._immutable = state_settler(field), is_immutable(field.type)
        self._stored = [decode_header(header) for header in state.get_many(state_keys(field, bases))]
        self._log = EntryLog()
        self._headers: dict[int, int] = {}
        self._key = 0
        self._rest = 0
        self._added: list[Any] = []
        # Of items that could change in place: the stored ones, once read; the copies of them and of the added
        # ones that were given out; which of the stored ones were changed.
        self._read_items: list[Any] = []
        self._given_out: list[Any] = []
        self._changed: set[int] = set()

    def __repr__(self) -> str:
        return f"state {self._field.name!r}"

    def append(self, item: Any) -> None:
        """Add one item at the end."""
        self._added.append(self._settle(item))

    def clear(self) -> None:
        """Forget all items of the key."""
        self._rest = 0
        self._added = []
        self._read_items, self._given_out, self._changed = [], [], set()

    def __len__(self) -> int:
        return self._rest + len(self._added)

    def __iter__(self) -> Iterator[Any]:
        if self._immutable:
            yield from [*self._read(), *self._added]
            return
        if len(self._read_items) < self._rest:
            self._read_items = self._read()
        behind = [*self._read_items, *self._added]
        self._given_out += copied(behind[len(self._given_out) :])
        yield from list(self._given_out)

    def _read(self) -> list[Any]:
        if not self._rest:
            return []
        base = self._bases[self._key]
        keys = item_keys(self._field, [base] * self._rest, np.arange(self._rest, dtype=np.int64))
        return objects_of(self._field.codec.decode(self._state.get_many(keys)))

    def _take_back(self) -> None:
        """Make what became of the items that were given out the key's items."""
        for place, item in enumerate(self._given_out):
            is_stored = place < self._rest
            kept, at = (self._read_items, place) if is_stored else (self._added, place - self._rest)
            if not unchanged(kept[at], item):
                kept[at] = self._settle(item)
                if is_stored:
                    self._changed.add(place)

    def load(self, key: int) -> None:
        self._key = key
        self._rest = self._stored[key]
        if self._added:
            self._added = []
        if self._given_out or self._read_items:
            self._read_items, self._given_out, self._changed = [], [], set()

    def keep(self, key: int) -> None:
        if self._given_out:
            self._take_back()
        stored, length = self._stored[key], self._rest + len(self._added)
        for place in self._changed:
            self._log.add(key, place, self._read_items[place])
        if not self._added and length == stored:
            return
        self._log.add_all(key, range(self._rest, length), self._added)
        for sequence in range(length, stored):
            self._log.add(key, sequence, ABSENT)
        if length != stored:
            self._headers[key] = length

    def mark(self) -> Any:
        if self._immutable:
            # Nothing shortens the list of added items, it is only exchanged: its length is enough to go back.
            return self._rest, self._added, len(self._added)
        self._take_back()
        return self._rest, list(self._added), list(self._read_items), set(self._changed)

    def undo(self, mark: Any) -> None:
        if self._immutable:
            self._rest, self._added, length = mark
            del self._added[length:]
        else:
            self._rest, self._added, self._read_items, self._changed = mark
            self._given_out = []

    def check(self) -> None:
        """Items were checked when they were added, but for those that were changed in place."""
        self._take_back()

    def put_into(self, changes: Changes) -> None:
        if self._log.rows:
            changes.entries[self._field.name] = self._log.change(pa.int64(), self._field.type)
        if self._headers:
            lengths = np.array(list(self._headers.values()), dtype=np.int64)
            rows = np.array(list(self._headers), dtype=np.int64)
            changes.headers[self._field.name] = ValueChange(rows, pa.array(lengths), lengths == 0)


class MapCell(Cell, MutableMapping[Any, Any]):
    """A MapState of one key. Entries are checked when they are set.

    Values that could change in place are given out as copies, the same ones until the key is left: what the
    user's code changes in them counts as set.
    Iteration gives stored entries in the order of their key bytes, then new ones as they were added.
    """

    __slots__ = (
        "_bases",
        "_changed",
        "_decoded",
        "_field",
        "_given_out",
        "_immutable",
        "_key",
        "_known",
        "_log",
        "_past",
        "_settle",
        "_settle_key",
        "_state",
        "_tails",
    )

    def __init__(self, field: StateField, bases: Sequence[bytes], state: StateReads) -> None:
        self._field, self._state = field, state
        self._settle, self._settle_key = state_settler(field), settler(field.type.key_type)
        self._immutable = is_immutable(field.value_type)
        self._decoded = _one_decoded(field)
        self._given_out: dict[Any, Any] = {}
        self._bases = state_keys(field, bases)
        self._log = EntryLog()
        self._tails: dict[Any, bytes] = {}
        self._key = 0
        self._known: dict[Any, Any] = {}
        self._changed: dict[Any, None] = {}
        self._past: list[tuple[Any, Any, bool]] = []

    def __repr__(self) -> str:
        return f"state {self._field.name!r}"

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, ABSENT)
        if value is ABSENT:
            raise KeyError(key)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of the key, or the default where there is none."""
        # Not that of Mapping, which finds by an exception that there is none.
        value = self._look(key)
        if value is ABSENT:
            return default
        if self._immutable:
            return value
        if key not in self._given_out:
            self._given_out[key] = copied(value)
        return self._given_out[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check_key(key)
        self._set(key, self._settle(value))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of the key, which is set to the default where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def __delitem__(self, key: Any) -> None:
        if self._look(key) is ABSENT:
            raise KeyError(key)
        self._set(key, ABSENT)

    def __contains__(self, key: object) -> bool:
        return self._look(key) is not ABSENT

    def __iter__(self) -> Iterator[Any]:
        return iter(self._scan())

    def __len__(self) -> int:
        return len(self._scan())

    def clear(self) -> None:
        """Forget all entries of the key."""
        for key in self._scan():
            self._set(key, ABSENT)

    def _set(self, key: Any, value: Any) -> None:
        if self._given_out:
            self._given_out.pop(key, None)
        self._past.append((key, self._known.get(key, _UNKNOWN), key in self._changed))
        self._known[key] = value
        self._changed[key] = None

    def _take_back(self) -> None:
        """Make what became of the values that were given out the values of the entries."""
        if not self._given_out:
            return
        for key, value in list(self._given_out.items()):
            if not unchanged(self._known[key], value):
                self._set(key, self._settle(value))
                self._given_out[key] = value

    def _look(self, key: Any) -> Any:
        known = self._known.get(key, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        self._check_key(key)
        tail = self._tail(key)
        stored = self._state.get(self._bases[self._key] + tail)
        value = ABSENT
        if stored is not None:
            if tail[0] == LONG_KEY_TAG:
                stored = map_entries(self._field, [(tail, stored)])[1][0]
            value = self._decoded(stored)
        self._known[key] = value
        return value

    def _tail(self, key: Any) -> bytes:
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = map_tails(self._field, pa.array([key], self._field.type.key_type))[0][0]
        return tail

    def _scan(self) -> list[Any]:
        """The keys of all entries; their values are known afterwards."""
        prefix = self._bases[self._key]
        entries = [(key[len(prefix) :], value) for key, value in self._state.scan(prefix)]
        found: list[Any] = []
        if entries:
            keys, values = map_entries(self._field, entries)
            found = objects_of(keys)
            for key, value in zip(found, objects_of(self._field.codec.decode(values)), strict=True):
                self._known.setdefault(key, value)
        known = dict.fromkeys([*found, *self._changed])
        return [key for key in known if self._known[key] is not ABSENT]

    def _check_key(self, key: Any) -> None:
        try:
            if key is None:
                raise Misfit(key, self._field.type.key_type)
            self._settle_key(key)
        except Misfit as misfit:
            declared = self._field.type.key_type
            raise TypeError(misfit.text(f"the key of map state {self._field.name!r}", declared)) from None

    def load(self, key: int) -> None:
        self._key = key
        self._known, self._changed, self._past, self._given_out = {}, {}, [], {}

    def keep(self, key: int) -> None:
        self._take_back()
        if changed := self._changed:
            self._log.add_all(key, changed, map(self._known.__getitem__, changed))

    def mark(self) -> Any:
        self._take_back()
        return len(self._past)

    def undo(self, mark: Any) -> None:
        while len(self._past) > mark:
            key, value, was_changed = self._past.pop()
            if value is _UNKNOWN:
                del self._known[key]
            else:
                self._known[key] = value
            if not was_changed:
                del self._changed[key]
        self._given_out = {}

    def check(self) -> None:
        """Entries were checked when they were set, but for those that were changed in place."""
        self._take_back()

    def put_into(self, changes: Changes) -> None:
        if self._log.rows:
            field = self._field
            changes.entries[field.name] = self._log.change(field.type.key_type, field.value_type)


def _one_decoded(field: StateField) -> Callable[[bytes], Any]:
    """What makes a stored value of one type the object that it is."""
    codec = field.codec
    if pa.types.is_nested(field.value_type):
        return lambda stored: objects_of(codec.decode([stored]))[0]
    return codec.decode_one
