"""A broadcast state as the user's code touches it: written by one task, read by all others.

Stored as the list of its entries, pairs of key and value (see shard_list).
Always true: what a reader is given cannot change what other rows, keys and tasks are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NoReturn

from holdfast.state.cells.misuse import Misuse
from holdfast.state.cells.value_cells import Cell
from holdfast.state.encoding.arrow_values import copied, is_immutable, unchanged
from holdfast.state.encoding.coercion import Misfit, settler
from holdfast.state.encoding.layout import StateField
from holdfast.state.files.delta import Changes

_ABSENT: Any = object()


class _Entries:
    """What writing and reading have in common: keys that fit, and values that are given out as copies."""

    __slots__ = ("_entries", "_field", "_given_out", "_immutable", "_key_type", "_settle_key", "_value_type")

    def __init__(self, field: StateField, entries: dict[Any, Any]) -> None:
        self._field, self._entries = field, entries
        self._key_type = field.type.field("key").type
        self._settle_key = settler(self._key_type)
        self._value_type = field.type.field("value").type
        self._immutable = is_immutable(self._value_type)
        self._given_out: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"state {self._field.name!r}"

    def __getitem__(self, key: Any) -> Any:
        key = self._checked(key)
        value = self._entries[key]
        if self._immutable:
            return value
        if key not in self._given_out:
            self._given_out[key] = copied(value)
        return self._given_out[key]

    def __contains__(self, key: object) -> bool:
        return self._checked(key) in self._entries

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, key: int) -> None:
        """All keys share it."""

    def put_into(self, changes: Changes) -> None:
        """It is stored whole, not as changes of keys."""

    def _checked(self, key: Any) -> Any:
        try:
            if key is None:
                raise Misfit(key, self._key_type)
            return self._settle_key(key)
        except Misfit as misfit:
            what = f"the key of broadcast state {self._field.name!r}"
            raise TypeError(misfit.text(what, self._key_type)) from None

    def _changed_in_place(self) -> list[Any]:
        """The keys whose values, as they were given out, are no longer what they were."""
        return [key for key, given in self._given_out.items() if not unchanged(self._entries[key], given)]


class BroadcastCell(_Entries, Cell, MutableMapping[Any, Any]):
    """A BroadcastState in `process_broadcast`: a dict. Entries are checked when they are set."""

    __slots__ = ("_past", "_settle")

    def __init__(self, field: StateField, entries: dict[Any, Any]) -> None:
        super().__init__(field, dict(entries))
        self._settle = settler(self._value_type)
        self._past: list[tuple[Any, Any]] = []
        """What each write found there."""

    def __setitem__(self, key: Any, value: Any) -> None:
        key = self._checked(key)
        try:
            settled = self._settle(value)
        except Misfit as misfit:
            raise TypeError(misfit.text(f"state {self._field.name!r}", self._value_type)) from None
        self._set(key, settled)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of the key, which is set to the default where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def __delitem__(self, key: Any) -> None:
        key = self._checked(key)
        if key not in self._entries:
            raise KeyError(key)
        self._set(key, _ABSENT)

    def clear(self) -> None:
        """Forget all entries."""
        for key in self:
            self._set(key, _ABSENT)

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        self._take_back()
        return bool(self._past)

    def items_held(self) -> list[tuple[Any, Any]]:
        """The entries as they are now, as they are stored."""
        self._take_back()
        return list(self._entries.items())

    def keep(self, key: int) -> None:
        self._take_back()

    def mark(self) -> Any:
        self._take_back()
        return len(self._past)

    def undo(self, mark: Any) -> None:
        while len(self._past) > mark:
            key, before = self._past.pop()
            if before is _ABSENT:
                del self._entries[key]
            else:
                self._entries[key] = before
        self._given_out = {}

    def check(self) -> None:
        """Entries were checked when they were set, but for those that were changed in place."""
        self._take_back()

    def _set(self, key: Any, value: Any) -> None:
        self._given_out.pop(key, None)
        self._past.append((key, self._entries.get(key, _ABSENT)))
        if value is _ABSENT:
            del self._entries[key]
        else:
            self._entries[key] = value

    def _take_back(self) -> None:
        """Make what became of the values that were given out the values of the entries."""
        for key in self._changed_in_place():
            self[key] = self._given_out[key]


class BroadcastView(_Entries, Cell, Mapping[Any, Any]):
    """A BroadcastState in `process` and `on_timer`: a dict that is read only."""

    __slots__ = ()

    def keep(self, key: int) -> None:
        self.check()
        self._given_out = {}

    def mark(self) -> Any:
        return None

    def undo(self, mark: Any) -> None:
        self._given_out = {}

    def check(self) -> None:
        if self._changed_in_place():
            self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Misuse(
            f"broadcast state {self._field.name!r} is read-only here, as all keys share it; write it in "
            "process_broadcast, or keep what belongs to the key in a MapState"
        )

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse
