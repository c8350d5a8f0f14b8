"""How long rows take: from their arrival at a source until a sink shows the epoch that read them.

Rows are counted in buckets of times, 16 to each doubling, so that a percentile is right within five percent;
of the rows of an epoch a few pieces are kept until every sink has shown them.
Always true: what is kept, and what an epoch costs here, does not grow with its rows. What is not known is not
counted: rows of sources that cannot tell, and those that a former process had committed.
Never here: what a source knows of its rows (see `DatedReader`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.clock import Clock
from holdfast.connectors.contract import Arrived, DatedReader, Slice, SourceReader

Counts = NDArray[np.float64]
"""Rows by bucket: the last one takes all that are slower."""

ENDS_MS: Counts = 2.0 ** (np.arange(16 * 27 + 1) / 16)
"""Where the buckets end: from 1 ms to 37 hours."""
PIECES_MAX = 64
"""Neighbouring files are taken together until so many pieces of an epoch are left."""
SLOT_SECONDS, SLOTS = 10.0, 6
"""Percentiles are those of the rows that were shown in the last minute."""
MEMORY = 0.2
"""The weight of the newest epoch in the time that commit and publishing take."""


def arrived_rows(reader: SourceReader, slice: Slice, rows: int) -> list[Arrived]:
    """When the rows of a slice arrived, in a few pieces whose shares are rows; none: it is not known."""
    if not isinstance(reader, DatedReader):
        return []
    pieces = [piece for piece in _in_pieces(reader.arrived(slice)) if piece.share]
    weight = rows / sum(piece.share for piece in pieces) if pieces else 0.0
    return [Arrived(weight * each.share, each.first_ms, each.last_ms) for each in pieces if weight]


def waited_seconds(arrived: Sequence[Arrived], at_ms: int) -> float:
    """How long the middle one of these rows had been there."""
    ordered = sorted(arrived, key=lambda piece: piece.first_ms + piece.last_ms)
    half = sum(piece.share for piece in ordered) / 2
    for piece in ordered:
        half -= piece.share
        if half <= 0:
            return max(0.0, at_ms - (piece.first_ms + piece.last_ms) / 2) / 1_000
    return 0.0


def counted(arrived: Sequence[Arrived], shown_ms: float) -> Counts:
    """Rows by bucket, if they are shown at this time. One that comes from the future took no time."""
    shares, first, last = np.array(
        [(piece.share, piece.first_ms, piece.last_ms) for piece in arrived], np.float64
    ).T
    least, most = (np.clip(shown_ms - times, 0.0, ENDS_MS[-1]) for times in (last, first))
    width = np.maximum(most - least, 1e-3)
    below = np.clip((ENDS_MS[:, None] - least) / width, 0.0, 1.0) @ shares
    below[-1] = shares.sum()
    found: Counts = np.diff(below, prepend=0.0)
    return found


def percentile_ms(counts: Counts, share: float) -> float:
    """The time that so large a share of the rows took at most."""
    below = np.cumsum(counts)
    wanted = share * below[-1]
    place = min(int(np.searchsorted(below, wanted)), len(counts) - 1)
    first = ENDS_MS[place - 1] if place else 0.0
    inside = (wanted - below[place] + counts[place]) / counts[place] if counts[place] else 1.0
    return float(first + min(max(inside, 0.0), 1.0) * (ENDS_MS[place] - first))


class SinkLatency:
    """Of the rows that one sink has shown."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, Counts]] = deque(maxlen=SLOTS)
        self._rows = self._seconds = 0.0
        self._told: tuple[int, dict[str, float | None]] | None = None

    def add(self, arrived: Sequence[Arrived], shown_ms: int, at: float) -> None:
        counts, slot = counted(arrived, shown_ms), int(at // SLOT_SECONDS)
        if self._slots and self._slots[-1][0] == slot:
            counts += self._slots.pop()[1]
        self._slots.append((slot, counts))
        for piece in arrived:
            self._rows += piece.share
            middle_ms = shown_ms - (piece.first_ms + piece.last_ms) / 2
            self._seconds += piece.share * max(0.0, middle_ms) / 1_000
        self._told = None

    def told(self, at: float) -> dict[str, float | None]:
        """As progress shows it: seconds; None where no row was shown in the last minute."""
        slot = int(at // SLOT_SECONDS)
        if self._told is None or self._told[0] != slot:
            recent = [counts for each, counts in self._slots if each > slot - SLOTS]
            counts = np.sum(recent, axis=0) if recent else None
            found = {
                f"p{percent}": None
                if counts is None
                else round(percentile_ms(counts, percent / 100) / 1_000, 4)
                for percent in (50, 95, 99)
            }
            self._told = slot, {**found, "rows": round(self._rows), "seconds": round(self._seconds, 3)}
        return self._told[1]


@dataclass(frozen=True, slots=True)
class _Ran:
    """An epoch that a sink has not shown yet: when its results were there, and when its rows had arrived."""

    at: float
    arrived: Sequence[Arrived]


class Latency:
    """Of the rows of one run, by sink. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._unshown: dict[str, dict[int, _Ran]] = {}
        self._sinks: dict[str, SinkLatency] = {}
        self._publishing: dict[str, float] = {}

    def ran(self, epoch: int, arrived: Sequence[Arrived], shown_through: Mapping[str, int]) -> None:
        """An epoch has its results. `shown_through`: sink -> the newest epoch that it shows."""
        with self._lock:
            for sink, through in shown_through.items():
                waiting = self._unshown.setdefault(sink, {})
                for old in [each for each in waiting if each <= through]:
                    # Another process has shown it.
                    del waiting[old]
                if epoch > through:
                    waiting[epoch] = _Ran(self._clock.monotonic(), arrived)

    def shown(self, sink: str, epoch: int) -> None:
        """A sink shows an epoch, now."""
        now_ms, at = self._clock.now_ms(), self._clock.monotonic()
        with self._lock:
            ran = self._unshown.get(sink, {}).pop(epoch, None)
            if ran is None:
                return
            before = self._publishing.get(sink, at - ran.at)
            self._publishing[sink] = before + MEMORY * (at - ran.at - before)
            if ran.arrived:
                self._sinks.setdefault(sink, SinkLatency()).add(ran.arrived, now_ms, at)

    def told(self, sink: str) -> dict[str, float | None] | None:
        """What progress shows of a sink; None: nothing is known of the rows that it has shown."""
        with self._lock:
            latency = self._sinks.get(sink)
            return None if latency is None else latency.told(self._clock.monotonic())

    @property
    def publishing_seconds(self) -> float:
        """How long it takes from the results of an epoch until the slowest sink shows it, of late."""
        with self._lock:
            return max(self._publishing.values(), default=0.0)


def _in_pieces(arrived: Sequence[Arrived]) -> Sequence[Arrived]:
    if len(arrived) <= PIECES_MAX:
        return arrived
    ordered = sorted(arrived, key=lambda piece: piece.first_ms)
    size = -(-len(ordered) // PIECES_MAX)
    groups: list[Any] = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return [
        Arrived(sum(piece.share for piece in group), group[0].first_ms, max(piece.last_ms for piece in group))
        for group in groups
    ]
