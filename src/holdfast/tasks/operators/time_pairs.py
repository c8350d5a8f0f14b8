"""Which rows of two sides are pairs: the same key, and times that lie within bounds of each other.

Sorting and binary search over whole columns: the work follows the rows and the pairs, not their product.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
_FIRST_US, _LAST_US = -(1 << 63), (1 << 63) - 1


def pairs(
    left_key: Longs, left_us: Longs, right_key: Longs, right_us: Longs, bounds_us: tuple[int, int]
) -> tuple[Longs, Longs]:
    """The numbers of the left rows and of the right rows of all pairs. Keys are numbers from 0."""
    times = np.unique(right_us)
    width = len(times) + 1
    # Key and rank of the time in one number, so that the partners of a row are one range.
    placed = right_key * width + np.searchsorted(times, right_us)
    order = np.argsort(placed, kind="stable")
    placed = placed[order]
    lower, upper = bounds_us
    begin = np.searchsorted(times, plus(left_us, lower), side="left") + left_key * width
    end = np.searchsorted(times, plus(left_us, upper), side="right") + left_key * width
    first, last = np.searchsorted(placed, begin), np.searchsorted(placed, end)
    counts = last - first
    left = np.repeat(np.arange(len(left_key)), counts)
    within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
    return left, order[np.repeat(first, counts) + within]


def plus(times_us: Longs, more_us: int) -> Longs:
    """Times that much later; one beyond what a timestamp can hold is the last or the first that it can."""
    if more_us >= 0:
        return np.where(times_us > _LAST_US - more_us, _LAST_US, times_us + np.int64(more_us))
    return np.where(times_us < _FIRST_US - more_us, _FIRST_US, times_us + np.int64(more_us))
