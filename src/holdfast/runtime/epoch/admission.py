"""How many rows the next epoch may take.

Pure: measurements in, a number out. Follows a target duration, since a long epoch is a late result and a
short one is mostly fixed cost. The time of an epoch is taken as fixed cost plus cost per row, both learned
from recent epochs: where the fixed cost alone exceeds the target, fewer rows would only make things worse,
and the target is raised instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ROWS_FIRST = 50_000
ROWS_MIN = 1_000
ROWS_MAX = 5_000_000
STEP_MAX = 2.0
"""An epoch may take at most this many times the rows of the one before, or so much fewer."""
FIXED_COST_SHARE = 3.0
"""An epoch may take this many times the fixed cost: at worst a third of the time is spent on nothing."""
MEMORY = 0.2
"""The weight of the newest epoch in what is remembered."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Weighted means over recent epochs: of rows, of seconds, of rows squared, of rows times seconds."""

    rows: float
    seconds: float
    rows_rows: float
    rows_seconds: float

    def with_epoch(self, rows: int, seconds: float) -> Costs:
        def mixed(old: float, new: float) -> float:
            return old + MEMORY * (new - old)

        return Costs(
            mixed(self.rows, rows),
            mixed(self.seconds, seconds),
            mixed(self.rows_rows, rows * rows),
            mixed(self.rows_seconds, rows * seconds),
        )

    def per_row_and_fixed(self) -> tuple[float, float]:
        """The line through recent epochs; while all were of one size, everything counts as per row."""
        spread = self.rows_rows - self.rows * self.rows
        if spread < 1e-4 * self.rows_rows:
            return self.seconds / self.rows, 0.0
        slope = (self.rows_seconds - self.rows * self.seconds) / spread
        per_row = min(max(slope, 0.01 * self.seconds / self.rows), self.seconds / self.rows)
        return per_row, self.seconds - per_row * self.rows


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The rows to admit. A `ceiling` given by the user is kept exactly and never exceeded."""

    target_seconds: float
    ceiling: int | None = None
    rows: int = ROWS_FIRST
    costs: Costs | None = None

    @property
    def limit(self) -> int:
        return self.rows if self.ceiling is None else self.ceiling

    def after(self, rows: int, seconds: float) -> Admission:
        """Learn from an epoch that read `rows` in `seconds`. Only one about full changes the size."""
        if seconds <= 0 or rows <= 0:
            return self
        costs = self.costs or Costs(rows, seconds, rows * rows, rows * seconds)
        costs = costs.with_epoch(rows, seconds)
        if rows < self.rows // 2:
            return replace(self, costs=costs)
        per_row, fixed = costs.per_row_and_fixed()
        wanted = (max(self.target_seconds, FIXED_COST_SHARE * fixed) - fixed) / per_row
        bounded = min(self.rows * STEP_MAX, max(self.rows / STEP_MAX, wanted))
        return replace(self, rows=int(min(ROWS_MAX, max(ROWS_MIN, bounded))), costs=costs)
