"""The files in a planned slice, for those who have the plan and not the source.

A `FileSource` plans a list of `[name, size, modification time]`, and notes the names. What does not look like
that is another source's own, and is not touched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.connectors.contract import Json


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
