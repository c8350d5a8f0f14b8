"""How fast rows went through, by what whoever passed them on noted: how many it had by when.

Always true: times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.peers.environments import LeftOut

WARM_UP_SHARE = 0.25
"""Of the rows: Java compiles what it runs often, and the first rows would pay for all."""


@dataclass(frozen=True, order=True)
class Mark:
    """By this time (seconds) so many rows were through."""

    at: float
    rows: int


@dataclass(frozen=True)
class Pace:
    """Seconds until the first row was read; rows per second from there on, after a warm-up and of all."""

    first_row_s: float
    rows_per_s: float
    rows_per_s_with_warm_up: float


def read_marks(directory: Path) -> list[Mark]:
    """All marks of several writers, each in a file of its own, as those of one."""
    writers = [
        [Mark(float(at), int(rows)) for at, rows in map(str.split, path.read_text().splitlines())]
        for path in sorted(directory.glob("*.txt"))
    ]
    return merged(writers)


def merged(writers: Iterable[list[Mark]]) -> list[Mark]:
    counts: dict[int, int] = {}
    together = []
    for mark, writer in sorted((mark, number) for number, marks in enumerate(writers) for mark in marks):
        counts[writer] = mark.rows
        together.append(Mark(mark.at, sum(counts.values())))
    return together


def pace(marks: list[Mark], rows: int, started: float) -> Pace:
    """What the marks say of a run of so many rows that was started then. LeftOut: rows are missing."""
    if not marks or marks[-1].rows != rows:
        raise LeftOut(f"{marks[-1].rows if marks else 0} of {rows} rows went through")
    first, last = marks[0], marks[-1]
    warm = next(mark for mark in marks if mark.rows >= rows * WARM_UP_SHARE)
    return Pace(
        first_row_s=first.at - started,
        rows_per_s=(rows - warm.rows) / (last.at - warm.at),
        rows_per_s_with_warm_up=rows / (last.at - first.at),
    )
