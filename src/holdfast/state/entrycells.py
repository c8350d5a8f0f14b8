"""Cells of list and map states: entries stored one by one, changes kept beside them until the slice ends.

Always true: list items have the sequence numbers 0 to length - 1, so neither `len` nor `clear` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.cells import Cell, ItemsCell, misfit_text
from holdfast.state.delta import Changes, EntryChange, ValueChange
from holdfast.state.keys import LONG_KEY_TAG
from holdfast.state.layout import StateField, decode_header, item_keys, map_entries, map_tails, state_keys
from holdfast.state.types import type_ddl
from holdfast.state.values import checker, column_of, copied, objects_of
from holdfast.state.working import ShardState

_ABSENT: Any = object()
_UNKNOWN: Any = object()


class _EntryLog:
    """Entry changes of one state over all keys."""

    __slots__ = ("deleted", "entries", "rows", "values")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.entries: list[Any] = []
        self.values: list[Any] = []
        self.deleted: list[bool] = []

    def add(self, row: int, entry: Any, value: Any) -> None:
        self.rows.append(row)
        self.entries.append(entry)
        self.deleted.append(value is _ABSENT)
        self.values.append(None if value is _ABSENT else value)

    def add_items(self, row: int, first: int, items: list[Any]) -> None:
        self.rows.extend(repeat(row, len(items)))
        self.entries.extend(range(first, first + len(items)))
        self.deleted.extend(repeat(False, len(items)))
        self.values.extend(items)

    def change(self, entry_type: pa.DataType, value_type: pa.DataType) -> EntryChange:
        return EntryChange(
            np.array(self.rows, dtype=np.int64),
            column_of(self.entries, entry_type),
            column_of(self.values, value_type),
            np.array(self.deleted, dtype=np.bool_),
        )


class ListCell(ItemsCell):
    """A ListState of one key. Items are checked when they are added; what is read are copies."""

    __slots__ = (
        "_added",
        "_bases",
        "_field",
        "_fits",
        "_headers",
        "_key",
        "_log",
        "_rest",
        "_state",
        "_stored",
    )

    def __init__(self, field: StateField, bases: Sequence[bytes], state: ShardState) -> None:
        self._field, self._bases, self._state = field, bases, state
        self._fits = checker(field.type)
        self._stored = [decode_header(header) for header in state.get_many(state_keys(field, bases))]
        self._log = _EntryLog()
        self._headers: dict[int, int] = {}
        self._key = 0
        self._rest = 0
        self._added: list[Any] = []

    def append(self, item: Any) -> None:
        """Add one item at the end."""
        if not self._fits(item):
            raise TypeError(misfit_text(self._field, item))
        self._added.append(copied(item))

    def clear(self) -> None:
        """Forget all items of the key."""
        self._rest = 0
        self._added = []

    def __len__(self) -> int:
        return self._rest + len(self._added)

    def __iter__(self) -> Iterator[Any]:
        yield from [*self._read(), *copied(self._added)]

    def _read(self) -> list[Any]:
        if not self._rest:
            return []
        base = self._bases[self._key]
        keys = item_keys(self._field, [base] * self._rest, np.arange(self._rest, dtype=np.int64))
        return objects_of(self._field.codec.decode(self._state.get_many(keys)))

    def load(self, key: int) -> None:
        self._key = key
        self._rest = self._stored[key]
        self._added = []

    def keep(self, key: int) -> None:
        stored, length = self._stored[key], self._rest + len(self._added)
        if not self._added and length == stored:
            return
        self._log.add_items(key, self._rest, self._added)
        for sequence in range(length, stored):
            self._log.add(key, sequence, _ABSENT)
        if length != stored:
            self._headers[key] = length

    def mark(self) -> Any:
        # Nothing shortens the list of added items, it is only exchanged: its length is enough to go back.
        return self._rest, self._added, len(self._added)

    def undo(self, mark: Any) -> None:
        self._rest, self._added, length = mark
        del self._added[length:]

    def check(self) -> None:
        """Items were checked when they were added."""

    def put_into(self, changes: Changes) -> None:
        if self._log.rows:
            changes.entries[self._field.name] = self._log.change(pa.int64(), self._field.type)
        if self._headers:
            lengths = np.array(list(self._headers.values()), dtype=np.int64)
            rows = np.array(list(self._headers), dtype=np.int64)
            changes.headers[self._field.name] = ValueChange(rows, pa.array(lengths), lengths == 0)


class MapCell(Cell, MutableMapping[Any, Any]):
    """A MapState of one key. Entries are checked when they are set; values read are copies.

    Iteration gives stored entries in the order of their key bytes, then new ones as they were added.
    """

    __slots__ = (
        "_bases",
        "_changed",
        "_field",
        "_fits",
        "_fits_key",
        "_key",
        "_known",
        "_log",
        "_past",
        "_state",
        "_tails",
    )

    def __init__(self, field: StateField, bases: Sequence[bytes], state: ShardState) -> None:
        self._field, self._state = field, state
        self._fits, self._fits_key = checker(field.value_type), checker(field.type.key_type)
        self._bases = state_keys(field, bases)
        self._log = _EntryLog()
        self._tails: dict[Any, bytes] = {}
        self._key = 0
        self._known: dict[Any, Any] = {}
        self._changed: dict[Any, None] = {}
        self._past: list[tuple[Any, Any, bool]] = []

    def __getitem__(self, key: Any) -> Any:
        value = self._look(key)
        if value is _ABSENT:
            raise KeyError(key)
        return copied(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check_key(key)
        if not self._fits(value):
            raise TypeError(misfit_text(self._field, value))
        self._set(key, copied(value))

    def __delitem__(self, key: Any) -> None:
        if self._look(key) is _ABSENT:
            raise KeyError(key)
        self._set(key, _ABSENT)

    def __contains__(self, key: object) -> bool:
        return self._look(key) is not _ABSENT

    def __iter__(self) -> Iterator[Any]:
        return iter(self._scan())

    def __len__(self) -> int:
        return len(self._scan())

    def clear(self) -> None:
        """Forget all entries of the key."""
        for key in self._scan():
            self._set(key, _ABSENT)

    def _set(self, key: Any, value: Any) -> None:
        self._past.append((key, self._known.get(key, _UNKNOWN), key in self._changed))
        self._known[key] = value
        self._changed[key] = None

    def _look(self, key: Any) -> Any:
        known = self._known.get(key, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        self._check_key(key)
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = map_tails(self._field, pa.array([key], self._field.type.key_type))[0][0]
        stored = self._state.get(self._bases[self._key] + tail)
        value = _ABSENT
        if stored is not None:
            if tail[0] == LONG_KEY_TAG:
                stored = map_entries(self._field, [(tail, stored)])[1][0]
            value = self._field.codec.decode_one(stored)
        self._known[key] = value
        return value

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
        return [key for key in known if self._known[key] is not _ABSENT]

    def _check_key(self, key: Any) -> None:
        if key is None or not self._fits_key(key):
            name, declared = self._field.name, type_ddl(self._field.type.key_type)
            raise TypeError(f"map state {name!r} has keys of {declared}, not {key!r} ({type(key).__name__})")

    def load(self, key: int) -> None:
        self._key = key
        self._known, self._changed, self._past = {}, {}, []

    def keep(self, key: int) -> None:
        for entry in self._changed:
            self._log.add(key, entry, self._known[entry])

    def mark(self) -> Any:
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

    def check(self) -> None:
        """Entries were checked when they were set."""

    def put_into(self, changes: Changes) -> None:
        if self._log.rows:
            field = self._field
            changes.entries[field.name] = self._log.change(field.type.key_type, field.value_type)
