"""An immutable sequence to which appending costs only what is appended.

Many versions share one list, each seeing its own stretch of it. Appending to the newest version extends
the list; appending to an older one (history forked there) copies first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Prefix(Sequence[T], Generic[T]):
    """Items `start` to `end` of a list that only ever grows behind `end`."""

    __slots__ = ("_end", "_items", "_start")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._start, self._end = 0, len(self._items)

    def appended(self, more: Iterable[T]) -> Prefix[T]:
        more = list(more)
        if not more:
            return self
        # Copied as well when most of the list is dropped items, so that they can be freed.
        if self._end != len(self._items) or self._start > len(self):
            return Prefix([*self, *more])
        self._items.extend(more)
        return self._window(self._start, self._end + len(more))

    def without_first(self, count: int) -> Prefix[T]:
        assert 0 <= count <= len(self)
        return self._window(self._start + count, self._end) if count else self

    def _window(self, start: int, end: int) -> Prefix[T]:
        window: Prefix[T] = Prefix.__new__(Prefix)
        window._items, window._start, window._end = self._items, start, end
        return window

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._items[(self._start if index >= 0 else self._end) + index]

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[T]:
        return (self._items[i] for i in range(self._start, self._end))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prefix) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return f"Prefix({list(self)!r})"
