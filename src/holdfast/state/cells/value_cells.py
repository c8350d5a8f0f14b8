"""State as the user's code touches it: one cell per declared state, moved from key to key.

A cell stands for the state of one key at a time. For every key of a slice in turn a runner calls
`load(key)`, lets the user's code work, and calls `keep(key)`; at the end `put_into(changes)` hands over what
changed. Keys are numbers into the slice's list of bases; `mark()` and `undo(mark)` undo one row's doings.

Always true: values of all keys of a slice are read with one `get_many` per state; a key whose state was not
changed has no change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.cells.declarations import AggregatingState, ReducingState, ValueState
from holdfast.state.cells.live_entries import aged_keys
from holdfast.state.contract import StateReads
from holdfast.state.encoding.arrow_values import column_of, copied, is_immutable, objects_of, unchanged
from holdfast.state.encoding.coercion import Misfit, settler
from holdfast.state.encoding.layout import StateField, state_keys
from holdfast.state.files.delta import Changes, ValueChange

_ABSENT: Any = object()


class StateMisfit(Exception):
    """What was assigned for key number `key` does not fit the state's declared type."""

    def __init__(self, key: int, text: str) -> None:
        super().__init__(key, text)
        self.key, self.text = key, text

    def __str__(self) -> str:
        return self.text


class Cell(ABC):
    """What every cell can do for its runner."""

    __slots__ = ()

    @abstractmethod
    def load(self, key: int) -> None:
        """Stand for this key from now on."""

    @abstractmethod
    def keep(self, key: int) -> None:
        """Remember what the user's code did to this key."""

    @abstractmethod
    def mark(self) -> Any:
        """The state of this key as it is now, for `undo`."""

    @abstractmethod
    def undo(self, mark: Any) -> None:
        """Make the state of this key what it was at the mark."""

    @abstractmethod
    def check(self) -> None:
        """Raise TypeError where the key's state does not fit its type, unless that was refused already."""

    @abstractmethod
    def put_into(self, changes: Changes) -> None:
        """Add the changes of all keys. StateMisfit where a value does not fit."""


def uses_of(cell: Cell) -> list[str]:
    """What the user's code can do with a cell, by name."""
    return [name for name in dir(type(cell)) if not name.startswith("_") and not hasattr(Cell, name)]


class ItemsCell(Cell):
    """A cell of a list state: what a user does to a list, by way of adding one item and clearing it."""

    __slots__ = ()

    @abstractmethod
    def append(self, item: Any) -> None:
        """Add one item at the end."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all items."""

    def extend(self, items: Iterable[Any]) -> None:
        """Add items at the end."""
        for item in items:
            self.append(item)

    def replace(self, items: Iterable[Any]) -> None:
        """Make these the only items."""
        fresh = list(items)
        self.clear()
        self.extend(fresh)


def misfit_text(field: StateField, misfit: Misfit) -> str:
    return misfit.text(f"state {field.name!r}", field.value_type)


def state_settler(field: StateField) -> Callable[[Any], Any]:
    """What settles values (items, entries) of one state; TypeError, which names it, where they do not fit."""
    settle = settler(field.value_type)

    def settled(value: Any) -> Any:
        try:
            return settle(value)
        except Misfit as misfit:
            raise TypeError(misfit_text(field, misfit)) from None

    return settled


def read_column(field: StateField, bases: Sequence[bytes], state: StateReads) -> tuple[pa.Array, list[int]]:
    """A value state of all keys as stored, and the numbers of the keys that have none (null there)."""
    stored = state.get_many(state_keys(field, bases))
    column = field.codec.decode(stored)
    absent = [key for key, value in enumerate(stored) if value is None] if column.null_count else []
    return column, absent


def _read_objects(field: StateField, bases: Sequence[bytes], state: StateReads, default: object) -> list[Any]:
    column, absent = read_column(field, bases, state)
    if len(absent) == len(bases):
        return [default] * len(bases)
    objects = objects_of(column)
    if default is not None:
        for key in absent:
            objects[key] = default
    return objects


class _StoredAsValue(Cell):
    """What cells stored as VALUE share: the changed keys, their values, and the keys to delete.

    A cell is not its value: using it as if it were is refused, since Python would not always (a cell is true,
    and equal to no value).
    """

    __slots__ = ("_changed", "_deleted", "_field", "_loaded", "_settle", "_values")

    def __init__(self, field: StateField, bases: Sequence[bytes], state: StateReads, default: object) -> None:
        self._field = field
        self._settle = state_settler(field)
        self._loaded = _read_objects(field, bases, state, default)
        self._changed: list[int] = []
        self._values: list[Any] = []
        self._deleted: list[int] = []

    def __repr__(self) -> str:
        return f"state {self._field.name!r}"

    def _refuse(self, *_: object) -> Any:
        name = self._field.name
        raise TypeError(f"state {name!r} is used as if it were its value; write self.{name}.value")

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    def put_into(self, changes: Changes) -> None:
        if not self._changed and not self._deleted:
            return
        try:
            values = column_of(self._values, self._field.type)
        except Misfit as misfit:
            text = misfit_text(self._field, misfit)
            raise StateMisfit(self._changed[misfit.index], text) from misfit
        deleted = None
        if self._deleted:
            deleted = np.zeros(len(self._changed) + len(self._deleted), dtype=np.bool_)
            deleted[len(self._changed) :] = True
            values = pa.concat_arrays([values, pa.nulls(len(self._deleted), self._field.type)])
        rows = np.array(self._changed + self._deleted, dtype=np.int64)
        changes.values[self._field.name] = ValueChange(rows, values, deleted)


class PlainValueCell(_StoredAsValue):
    """A ValueState of a number, a text or the like.

    `value` is a plain slot: reading and assigning it costs what any attribute costs. Values are immutable, so
    one that is still the same object is the same value.
    """

    __slots__ = ("_cleared", "_default", "value")

    def __init__(
        self, declared: ValueState, field: StateField, bases: Sequence[bytes], state: StateReads
    ) -> None:
        super().__init__(field, bases, state, declared.default)
        self._default = declared.default
        self._cleared = False
        self.value: Any = None

    def clear(self) -> None:
        """Forget the key's value: `value` is the default again and nothing stays stored."""
        self.value = self._default
        self._cleared = True

    def load(self, key: int) -> None:
        self.value = self._loaded[key]

    def keep(self, key: int) -> None:
        value = self.value
        if self._cleared:
            self._cleared = False
            if value is self._default:
                self._deleted.append(key)
                return
        if value is not self._loaded[key]:
            self._changed.append(key)
            self._values.append(value)

    def mark(self) -> Any:
        return self.value, self._cleared

    def undo(self, mark: Any) -> None:
        self.value, self._cleared = mark

    def check(self) -> None:
        self._settle(self.value)


class _SettledCell(_StoredAsValue):
    """What cells share whose values are settled when they are given.

    A value that could change in place is given out as a copy, the same one until the key is left: what the
    user's code changes in it counts as assigned. One that is kept as long as it is read counts as assigned
    when it is read, if its time has aged.
    """

    __slots__ = ("_aged", "_default", "_given_out", "_immutable", "_is_read", "_object", "_touched")

    def __init__(
        self, field: StateField, bases: Sequence[bytes], state: StateReads, default: object = None
    ) -> None:
        super().__init__(field, bases, state, _ABSENT)
        self._default = default
        self._immutable = is_immutable(field.type)
        self._object: Any = _ABSENT
        self._given_out: Any = _ABSENT
        self._touched = self._is_read = False
        self._aged = aged_keys(state, state_keys(field, bases))

    def clear(self) -> None:
        """Forget the key's value."""
        self._put(_ABSENT)

    def load(self, key: int) -> None:
        self._object = self._loaded[key]
        self._given_out = _ABSENT
        self._touched = self._is_read = False

    def keep(self, key: int) -> None:
        self._take_back()
        if not self._touched and not self._is_renewed(key):
            return
        if self._object is _ABSENT:
            self._deleted.append(key)
        else:
            self._changed.append(key)
            self._values.append(self._object)

    def mark(self) -> Any:
        self._take_back()
        return self._object if self._immutable else copied(self._object), self._touched, self._is_read

    def undo(self, mark: Any) -> None:
        self._object, self._touched, self._is_read = mark
        self._given_out = _ABSENT

    def check(self) -> None:
        self._take_back()

    def _put(self, settled: Any) -> None:
        self._object = settled
        self._given_out = _ABSENT
        self._touched = True

    def _is_renewed(self, key: int) -> bool:
        return self._is_read and key in self._aged and self._object is not _ABSENT

    def _read(self) -> Any:
        self._is_read = True
        if self._immutable:
            return self._default if self._object is _ABSENT else self._object
        if self._given_out is _ABSENT:
            self._given_out = copied(self._default if self._object is _ABSENT else self._object)
        return self._given_out

    def _take_back(self) -> None:
        """Make what became of the object that was given out the key's value."""
        if self._given_out is _ABSENT:
            return
        if not unchanged(self._default if self._object is _ABSENT else self._object, self._given_out):
            self._object = self._settle(self._given_out)
            self._touched = True


class SettledValueCell(_SettledCell):
    """A ValueState of an array, a map, a struct, or of what is not kept as Python gives it."""

    __slots__ = ()

    def __init__(
        self, declared: ValueState, field: StateField, bases: Sequence[bytes], state: StateReads
    ) -> None:
        super().__init__(field, bases, state, declared.default)

    @property
    def value(self) -> Any:
        return self._read()

    @value.setter
    def value(self, value: Any) -> None:
        self._put(self._settle(value))


class ReducingCell(_SettledCell):
    """A ReducingState of one key."""

    __slots__ = ("_fn",)

    def __init__(
        self, declared: ReducingState, field: StateField, bases: Sequence[bytes], state: StateReads
    ) -> None:
        super().__init__(field, bases, state)
        self._fn = declared.fn

    def add(self, value: Any) -> None:
        """Reduce one more value into the state."""
        self._take_back()
        self._put(self._settle(value if self._object is _ABSENT else self._fn(self._object, value)))

    @property
    def value(self) -> Any:
        return self._read()


class AggregatingCell(_SettledCell):
    """An AggregatingState of one key."""

    __slots__ = ("_declared",)

    def __init__(
        self, declared: AggregatingState, field: StateField, bases: Sequence[bytes], state: StateReads
    ) -> None:
        super().__init__(field, bases, state)
        self._declared = declared

    def add(self, value: Any) -> None:
        """Add one more value to the accumulator."""
        so_far = self._settle(self._declared.create()) if self._object is _ABSENT else self._object
        self._put(self._settle(self._declared.add(so_far, value)))

    @property
    def value(self) -> Any:
        self._is_read = True
        return None if self._object is _ABSENT else self._declared.result(copied(self._object))
