"""Which files of a place were planned: how each is read once.

A position is the number of files planned so far. Names of all of them come from the notes of a checkpoint,
and from the slices planned since.
Always true: a name that was learned is known until a slice that was planned with it is thrown away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

TAIL_MAX = 100_000
"""How many files planning can go back by: more than are ever planned and not committed."""


class ReadNames:
    """The names that were planned, as of a position that moves with planning."""

    def __init__(self, notes: Iterable[str]) -> None:
        self._known: set[str] = set(notes)
        self._position: int | None = None
        """None: not asked yet; the notes are those up to the position that is asked for first."""
        self._tail: deque[str] = deque(maxlen=TAIL_MAX)
        """The last names learned, in order."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def position(self) -> int:
        return self._position or 0

    def go_to(self, position: int) -> bool:
        """Be at this position; False: it is another one than the last, whose slices were thrown away."""
        if self._position is None:
            self._position = position
        back = self.position - position
        assert 0 <= back <= len(self._tail), f"{self.position} files were planned, position {position}"
        for _ in range(back):
            self._known.discard(self._tail.pop())
        self._position = position
        return not back

    def learn(self, names: Sequence[str]) -> None:
        self._known.update(names)
        self._tail.extend(names)
        self._position = self.position + len(names)
