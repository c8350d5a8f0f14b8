"""State as the user's code touches it: one cell per declared state, moved from key to key.

A cell stands for the state of one key at a time. For every key of a slice in turn a runner calls
`load(key)`, lets the user's code work, and calls `keep(key)`; at the end `put_into(changes)` hands over what
changed. Keys are numbers into the slice's list of bases; `mark()` and `undo(mark)` undo one row's doings.

Always true: values of all keys of a slice are read with one `get_many` per state; a key whose state was not
changed has no change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.delta import Changes, ValueChange
from holdfast.state.handles import AggregatingState, ReducingState, ValueState
from holdfast.state.layout import StateField, state_keys
from holdfast.state.types import type_ddl
from holdfast.state.values import Misfit, checker, column_of, copied, objects_of
from holdfast.state.working import ShardState

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


def misfit_text(field: StateField, value: object) -> str:
    declared = type_ddl(field.value_type)
    return f"state {field.name!r} is declared {declared} but got {value!r} ({type(value).__name__})"


def read_column(field: StateField, bases: Sequence[bytes], state: ShardState) -> tuple[pa.Array, list[int]]:
    """A value state of all keys as stored, and the numbers of the keys that have none (null there)."""
    stored = state.get_many(state_keys(field, bases))
    column = field.codec.decode(stored)
    absent = [key for key, value in enumerate(stored) if value is None] if column.null_count else []
    return column, absent


def _read_objects(field: StateField, bases: Sequence[bytes], state: ShardState, default: object) -> list[Any]:
    column, absent = read_column(field, bases, state)
    if len(absent) == len(bases):
        return [default] * len(bases)
    objects = objects_of(column)
    if default is not None:
        for key in absent:
            objects[key] = default
    return objects


class _StoredAsValue(Cell):
    """What cells stored as VALUE share: the changed keys, their values, and the keys to delete."""

    __slots__ = ("_changed", "_deleted", "_field", "_fits", "_loaded", "_values")

    def __init__(self, field: StateField, bases: Sequence[bytes], state: ShardState, default: object) -> None:
        self._field = field
        self._fits = checker(field.type)
        self._loaded = _read_objects(field, bases, state, default)
        self._changed: list[int] = []
        self._values: list[Any] = []
        self._deleted: list[int] = []

    def put_into(self, changes: Changes) -> None:
        if not self._changed and not self._deleted:
            return
        try:
            values = column_of(self._values, self._field.type)
        except Misfit as misfit:
            text = misfit_text(self._field, misfit.value)
            raise StateMisfit(self._changed[misfit.index], text) from misfit
        deleted = None
        if self._deleted:
            deleted = np.zeros(len(self._changed) + len(self._deleted), dtype=np.bool_)
            deleted[len(self._changed) :] = True
            values = pa.concat_arrays([values, pa.nulls(len(self._deleted), self._field.type)])
        rows = np.array(self._changed + self._deleted, dtype=np.int64)
        changes.values[self._field.name] = ValueChange(rows, values, deleted)


class PlainValueCell(_StoredAsValue):
    """A ValueState whose values cannot change in place.

    `value` is a plain slot: reading and assigning it costs what any attribute costs. Values are immutable, so
    one that is still the same object is the same value.
    """

    __slots__ = ("_cleared", "_default", "value")

    def __init__(
        self, declared: ValueState, field: StateField, bases: Sequence[bytes], state: ShardState
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
        if not self._fits(self.value):
            raise TypeError(misfit_text(self._field, self.value))


class _TouchedCell(_StoredAsValue):
    """What cells share whose objects may change in place: they say when they were touched."""

    __slots__ = ("_object", "_touched")

    def __init__(self, field: StateField, bases: Sequence[bytes], state: ShardState) -> None:
        super().__init__(field, bases, state, _ABSENT)
        self._object: Any = _ABSENT
        self._touched = False

    def clear(self) -> None:
        """Forget the key's value."""
        self._object = _ABSENT
        self._touched = True

    def load(self, key: int) -> None:
        self._object = self._loaded[key]
        self._touched = False

    def keep(self, key: int) -> None:
        if not self._touched:
            return
        if self._object is _ABSENT:
            self._deleted.append(key)
        else:
            self._changed.append(key)
            self._values.append(self._object)

    def mark(self) -> Any:
        return copied(self._object), self._touched

    def undo(self, mark: Any) -> None:
        self._object, self._touched = mark

    def check(self) -> None:
        if self._object is not _ABSENT and not self._fits(self._object):
            raise TypeError(misfit_text(self._field, self._object))


class CopiedValueCell(_TouchedCell):
    """A ValueState of an array, map or struct: reading gives a copy, only assignment persists."""

    __slots__ = ("_default",)

    def __init__(
        self, declared: ValueState, field: StateField, bases: Sequence[bytes], state: ShardState
    ) -> None:
        super().__init__(field, bases, state)
        self._default = declared.default

    @property
    def value(self) -> Any:
        return copied(self._default if self._object is _ABSENT else self._object)

    @value.setter
    def value(self, value: Any) -> None:
        self._object = copied(value)
        self._touched = True


class ReducingCell(_TouchedCell):
    """A ReducingState of one key."""

    __slots__ = ("_fn",)

    def __init__(
        self, declared: ReducingState, field: StateField, bases: Sequence[bytes], state: ShardState
    ) -> None:
        super().__init__(field, bases, state)
        self._fn = declared.fn

    def add(self, value: Any) -> None:
        """Reduce one more value into the state."""
        self._object = value if self._object is _ABSENT else self._fn(self._object, value)
        self._touched = True

    @property
    def value(self) -> Any:
        return None if self._object is _ABSENT else copied(self._object)


class AggregatingCell(_TouchedCell):
    """An AggregatingState of one key."""

    __slots__ = ("_declared",)

    def __init__(
        self, declared: AggregatingState, field: StateField, bases: Sequence[bytes], state: ShardState
    ) -> None:
        super().__init__(field, bases, state)
        self._declared = declared

    def add(self, value: Any) -> None:
        """Add one more value to the accumulator."""
        so_far = self._declared.create() if self._object is _ABSENT else self._object
        self._object = self._declared.add(so_far, value)
        self._touched = True

    @property
    def value(self) -> Any:
        return None if self._object is _ABSENT else self._declared.result(copied(self._object))
