"""Which files were planned: how a FileSource reads each once, and how a plan is read without the source.

A position is the number of files planned so far. Their names come from the notes of a checkpoint, and from
the slices planned since. A slice lists `[name, size, modification time]`, and notes the names; what does not
look like that is another source's own, and is not touched.
Always true: a name is known for as long as a file of that name is there; once it was gone at two looks
`FORGET_AFTER_MS` apart it may be forgotten, and a file that comes under it later is a new file.
Never here: looking for files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from holdfast.connectors.contract import Json, Slice

TAIL_MAX = 20_000
"""How many files planning can go back by: many more than one slice, which is what it goes back by."""
FORGET_AFTER_MS = 3_600_000
"""How long a file must have been gone before its name is forgotten. A directory that is empty for a while
(a mount that failed) must not make all that comes back look new."""
FORGET_MIN = 10_000
"""Forgetting rewrites all that is remembered, so it waits for so many names, and for as many as stay."""


class ReadNames:
    """The names that were planned, as of a position that moves with planning."""

    def __init__(self, notes: Iterable[Json]) -> None:
        self.known: set[str] = set(notes)
        """To be asked, and changed only here."""
        self._position: int | None = None
        """None: not asked yet; the notes are those up to the position that is asked for first."""
        self._tail: deque[str] = deque(maxlen=TAIL_MAX)
        """The last names learned, in order."""
        self._absent: set[str] = set()
        """Names whose files were gone at a look `_absent_ms`."""
        self._absent_ms: int | None = None
        self._forgot = self._untold = False
        self.looking = False
        """Whether the next look should tell which of the names it saw, and not just how many."""

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
            self.known.discard(self._tail.pop())
        self._position = position
        # The slice that told what to forget may be among those thrown away.
        self._untold |= self._forgot and back > 0
        return not back

    def learn(self, names: Sequence[str]) -> tuple[Sequence[str], bool]:
        """Take the names of a slice that follows. Gives its notes, and whether they replace all earlier."""
        self.known.update(names)
        self._tail.extend(names)
        self._position = self.position + len(names)
        untold, self._untold = self._untold, False
        return (sorted(self.known), True) if untold else (names, False)

    def follow(self, slice: Slice) -> None:
        """Take the names of a slice that another reader planned after the position here."""
        if slice.replaces_notes:
            self.known = set(slice.notes)
            self._tail.extend(entry[0] for entry in slice.detail)
        else:
            self.known.update(slice.notes)
            self._tail.extend(slice.notes)
        self._position = slice.end

    def looked(self, present: int, names: Sequence[str] | None, now_ms: int) -> None:
        """Take what a look showed: `present` files with known names, and which (None: it did not tell). Only
        of a look that found new files too: then the directory is surely there."""
        due = self._absent_ms is None or now_ms - self._absent_ms >= FORGET_AFTER_MS
        self.looking = due and len(self.known) - present >= max(FORGET_MIN, present)
        if not self.looking or names is None:
            return
        absent = self.known.difference(names)
        if gone := absent & self._absent:
            self.known -= gone
            self._forgot = self._untold = True
        self._absent, self._absent_ms, self.looking = absent - gone, now_ms, False


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of a plan, with its size then."""

    name: str
    size: int


def planned_files(detail: Json, notes: Sequence[Json]) -> tuple[PlannedFile, ...]:
    """The files that a slice reads; none where it does not read files."""
    if not isinstance(detail, list | tuple) or not all(map(_is_file, detail)):
        return ()
    files = tuple(PlannedFile(entry[0], entry[1]) for entry in detail)
    return files if {file.name for file in files} <= set(map(str, notes)) else ()


def without(detail: Json, names: Collection[str]) -> Json:
    """The list of a plan without these files."""
    return [entry for entry in detail if entry[0] not in names]


def _is_file(entry: Json) -> bool:
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        return False
    name, size, modified = entry
    return isinstance(name, str) and isinstance(size, int) and isinstance(modified, int | None)
