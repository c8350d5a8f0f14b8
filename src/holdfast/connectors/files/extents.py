"""Pieces of files in a bucket, and which of them one Spark task reads.

Always true: every row of a file begins in exactly one of its pieces. A file that can only be read from its
beginning is one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

PIECE_BYTES = 64 << 20
"""A file that can be cut is cut in pieces of so much."""
OPENING_BYTES = 1 << 20
"""What it costs to begin with a file, as if it were so much longer."""
TASK_BYTES_MIN = 4 << 20
TASKS_WANTED = 16
"""Tasks have more bytes than the least only where there would be more tasks than this."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows of a file that begin at or after byte `start` and before byte `end` (None: its end)."""

    name: str
    start: int = 0
    end: int | None = None


def pieces(name: str, size: int, piece_bytes: int = PIECE_BYTES) -> Iterator[Extent]:
    """A file in pieces; one that is empty has none."""
    for start in range(0, size, piece_bytes):
        yield Extent(name, start, min(size, start + piece_bytes))


def dealt(
    extents: Iterable[Extent], sizes: Mapping[str, int], least: int = TASK_BYTES_MIN
) -> list[Sequence[Extent]]:
    """What each task reads: pieces in their order, about as many bytes for each, and `least` at least."""
    costs = [
        (extent, (sizes[extent.name] if extent.end is None else extent.end) - extent.start + OPENING_BYTES)
        for extent in extents
    ]
    most = min(PIECE_BYTES, max(least, sum(cost for _, cost in costs) // TASKS_WANTED))
    tasks: list[Sequence[Extent]] = []
    mine: list[Extent] = []
    taken = 0
    for extent, cost in costs:
        if mine and taken + cost > most:
            tasks.append(mine)
            mine, taken = [], 0
        mine.append(extent)
        taken += cost
    return [*tasks, mine] if mine else tasks
