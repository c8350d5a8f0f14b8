"""How many rows the next epoch may take.

Pure: measurements in, a number out. Follows a target duration, since a long epoch is a late result and a
short one
is mostly fixed cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ROWS_FIRST = 50_000
ROWS_MIN = 1_000
ROWS_MAX = 5_000_000
GROWTH_MAX = 2.0
SMOOTHING = 0.5


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The rows to admit. A `ceiling` given by the user is kept exactly and never exceeded."""

    target_seconds: float
    ceiling: int | None = None
    rows: int = ROWS_FIRST

    @property
    def limit(self) -> int:
        return self.rows if self.ceiling is None else self.ceiling

    def after(self, rows: int, seconds: float) -> Admission:
        """Learn from an epoch that read `rows` in `seconds`. Epochs far from full teach nothing about large
        ones.
        """
        if rows < self.rows // 2 or seconds <= 0:
            return self
        wanted = rows * min(GROWTH_MAX, self.target_seconds / seconds)
        smoothed = self.rows + SMOOTHING * (wanted - self.rows)
        return replace(self, rows=int(min(ROWS_MAX, max(ROWS_MIN, smoothed))))
