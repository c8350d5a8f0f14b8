"""Cells of list and map states with a ttl, whose items and entries expire one by one.

Always true: items keep the order in which they were added; between their sequence numbers there may be gaps.
A row that is set aside renews nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.cells.collection_cells import ABSENT, EntryLog, MapCell
from holdfast.state.cells.live_entries import LiveEntries
from holdfast.state.cells.value_cells import ItemsCell, state_settler
from holdfast.state.contract import StateReads
from holdfast.state.encoding.arrow_values import copied, is_immutable, objects_of, unchanged
from holdfast.state.encoding.layout import ITEMS_START, SEQUENCE_BYTES, StateField, decode_header, state_keys
from holdfast.state.files.delta import Changes, ValueChange


class ReadMapCell(MapCell):
    """A MapState whose entries are kept as long as they are read: looked up, asked for, or iterated over."""

    __slots__ = ("_live", "_read")

    def __init__(self, field: StateField, bases: Sequence[bytes], state: LiveEntries) -> None:
        super().__init__(field, bases, state)
        self._live = state
        self._read: dict[Any, None] = {}

    def load(self, key: int) -> None:
        super().load(key)
        self._read = {}

    def keep(self, key: int) -> None:
        super().keep(key)
        for entry in self._read:
            value = self._known.get(entry, ABSENT)
            if entry not in self._changed and value is not ABSENT and self._is_aged(entry):
                self._log.add(key, entry, value)

    def mark(self) -> Any:
        return super().mark(), len(self._read)

    def undo(self, mark: Any) -> None:
        changes, reads = mark
        super().undo(changes)
        self._read = dict.fromkeys(list(self._read)[:reads])

    def _is_aged(self, entry: Any) -> bool:
        return self._bases[self._key] + self._tail(entry) in self._live.aged

    def _look(self, key: Any) -> Any:
        value = super()._look(key)
        self._read[key] = None
        return value

    def _scan(self) -> list[Any]:
        found = super()._scan()
        self._read.update(dict.fromkeys(found))
        return found


class ExpiringListCell(ItemsCell):
    """A ListState with a ttl: as a ListCell, but that `len` and `clear` read the items."""

    __slots__ = (
        "_added",
        "_bases",
        "_changed",
        "_cleared",
        "_field",
        "_given_out",
        "_headers",
        "_immutable",
        "_is_read",
        "_key",
        "_live",
        "_log",
        "_next",
        "_settle",
        "_state",
        "_stored",
    )

    def __init__(
        self, field: StateField, bases: Sequence[bytes], state: StateReads, live: LiveEntries
    ) -> None:
        """`state` has the headers, and all items; `live` the items that have not expired."""
        self._field, self._bases, self._state, self._live = field, state_keys(field, bases), state, live
        self._settle, self._immutable = state_settler(field), is_immutable(field.type)
        self._next = [decode_header(header) for header in state.get_many(self._bases)]
        self._log = EntryLog()
        self._headers: dict[int, int] = {}
        self._key = 0
        self._cleared = self._is_read = False
        self._stored: dict[int, Any] | None = None
        """The items that have not expired, by sequence number, once they were read."""
        self._added: list[Any] = []
        self._given_out: list[Any] = []
        self._changed: set[int] = set()

    def __repr__(self) -> str:
        return f"state {self._field.name!r}"

    def append(self, item: Any) -> None:
        """Add one item at the end."""
        self._added.append(self._settle(item))

    def clear(self) -> None:
        """Forget all items of the key."""
        self._cleared, self._stored = True, {}
        self._added, self._given_out, self._changed = [], [], set()

    def __len__(self) -> int:
        return len(self._items()) + len(self._added)

    def __iter__(self) -> Iterator[Any]:
        items = [*self._items().values(), *self._added]
        if self._immutable:
            yield from items
            return
        self._given_out += copied(items[len(self._given_out) :])
        yield from list(self._given_out)

    def _items(self) -> dict[int, Any]:
        self._is_read = True
        if self._stored is None:
            base = self._bases[self._key]
            found = list(self._live.scan(base, start=ITEMS_START)) if self._next[self._key] else []
            values = objects_of(self._field.codec.decode([value for _, value in found]))
            self._stored = dict(zip((_sequence(key) for key, _ in found), values, strict=True))
        return self._stored

    def _take_back(self) -> None:
        """Make what became of the items that were given out the key's items."""
        if not self._given_out or self._stored is None:
            return
        stored = len(self._stored)
        for sequence, item in zip(list(self._stored), self._given_out, strict=False):
            if not unchanged(self._stored[sequence], item):
                self._stored[sequence] = self._settle(item)
                self._changed.add(sequence)
        for place, item in enumerate(self._given_out[stored:]):
            if not unchanged(self._added[place], item):
                self._added[place] = self._settle(item)

    def load(self, key: int) -> None:
        self._key = key
        self.clear()
        self._cleared, self._stored, self._is_read = False, None, False

    def keep(self, key: int) -> None:
        self._take_back()
        if self._cleared:
            for item, _ in self._state.scan(self._bases[key], start=ITEMS_START):
                self._log.add(key, _sequence(item), ABSENT)
        elif self._stored:
            for sequence in sorted(self._changed | self._renewed()):
                self._log.add(key, sequence, self._stored[sequence])
        first = self._next[key]
        if self._added:
            end = first + len(self._added)
            self._log.add_all(key, range(first, end), self._added)
            self._headers[key] = end
        elif self._cleared and first:
            self._headers[key] = 0

    def _renewed(self) -> set[int]:
        if not self._is_read or not self._live.aged:
            return set()
        base = self._bases[self._key]
        return {_sequence(key) for key in self._live.aged if key.startswith(base)}

    def mark(self) -> Any:
        if self._immutable:
            # What was read stays as it is, and nothing shortens the added items: they are only exchanged.
            return self._cleared, self._stored, self._added, len(self._added), set(), self._is_read
        self._take_back()
        stored = None if self._stored is None else dict(self._stored)
        return self._cleared, stored, list(self._added), len(self._added), set(self._changed), self._is_read

    def undo(self, mark: Any) -> None:
        self._cleared, self._stored, self._added, length, self._changed, self._is_read = mark
        del self._added[length:]
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


def _sequence(key: bytes) -> int:
    """The sequence number in the key of a list's item."""
    return int.from_bytes(key[-SEQUENCE_BYTES:], "big")
