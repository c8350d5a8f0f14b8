"""What stands between a function with uncoordinated keys and the shard's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from holdfast.state.cells.value_cells import Cell
from holdfast.state.contract import ShardState
from holdfast.state.files.delta import Changes
from holdfast.state.files.key_books import Flags
from holdfast.state.files.saved_key import Item


class Hooks(Cell):
    """Asks the user's function about every key, while the key's state is at hand."""

    __slots__ = ("at_once", "context", "dirties", "function")

    def __init__(self, keys: int) -> None:
        self.dirties: Flags = np.ones(keys, np.bool_)
        self.at_once: Flags = np.zeros(keys, np.bool_)
        self.function: Any = None
        self.context: Any = None

    def load(self, key: int) -> None:
        pass

    def keep(self, key: int) -> None:
        dirty = bool(self.function.is_dirty(self.context))
        self.dirties[key] = dirty
        self.at_once[key] = dirty and bool(self.function.checkpoint(self.context))

    def mark(self) -> Any:
        return None

    def undo(self, mark: Any) -> None:
        pass

    def check(self) -> None:
        pass

    def put_into(self, changes: Changes) -> None:
        pass


class Overlaid:
    """A shard's state as it is with some entries put over it. What cells use of ShardState."""

    def __init__(self, state: ShardState, overlay: dict[bytes, bytes | None]) -> None:
        self._state, self._overlay = state, overlay

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._state.get_many(keys)
        return [self._overlay.get(key, value) for key, value in zip(keys, values, strict=True)]

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def scan(self, prefix: bytes, end: bytes | None = None, start: bytes = b"") -> Iterator[Item]:
        found: dict[bytes, bytes | None] = dict(self._state.scan(prefix, end, start))
        first = prefix + start
        found.update(
            (key, value)
            for key, value in self._overlay.items()
            if key.startswith(prefix) and key >= first and (end is None or key < end)
        )
        return iter(sorted((key, value) for key, value in found.items() if value is not None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)
