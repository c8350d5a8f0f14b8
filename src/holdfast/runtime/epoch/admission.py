"""How many rows the next epoch may take.

Pure: measurements in, a number out. Follows a target duration, since a long epoch is a late result and a
short one is mostly fixed cost. The time of an epoch is taken as fixed cost plus cost per row, both learned
from recent epochs: where the fixed cost alone exceeds the target, fewer rows would only make things worse,
and the target is raised instead.

With a target latency the duration follows from that. A row waits for at most one epoch, is in the next one,
and is shown once that is committed and published: an epoch may take half of what these leave of the target.
While rows that wait are older than the target no size can hold it: epochs are then as large as without one,
so that the job catches up soonest.
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
LATENCY_SHARE_MIN = 0.25
"""An epoch may take this share of the target latency, however slow its sinks: small epochs are no remedy."""
STALL = 4.0
"""An epoch counts as so many times slower than others at most: what holds it up is not the number of rows."""
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
        per_row, fixed = self.per_row_and_fixed()
        seconds = min(seconds, STALL * max(self.seconds, fixed + per_row * rows))

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
    """The rows to admit. A `ceiling` given by the user is never exceeded; without a target latency it is kept
    exactly."""

    target_seconds: float
    target_latency: float | None = None
    ceiling: int | None = None
    rows: int = ROWS_FIRST
    costs: Costs | None = None

    @property
    def limit(self) -> int:
        if self.ceiling is None:
            return self.rows
        return self.ceiling if self.target_latency is None else min(self.rows, self.ceiling)

    @classmethod
    def first(cls, target_seconds: float, target_latency: float | None, ceiling: int | None) -> Admission:
        """Of a run. Where rows may be too slow for a target latency, it begins with few."""
        rows = ROWS_FIRST if target_latency is None else ROWS_MIN
        return cls(target_seconds=target_seconds, target_latency=target_latency, ceiling=ceiling, rows=rows)

    def after(self, rows: int, seconds: float, publishing: float = 0.0, waited: float = 0.0) -> Admission:
        """Learn from an epoch that read `rows` in `seconds`. One that is far from full changes no size; with
        a target latency it may take back what was added to catch up, down to twice its own rows.
        `publishing`: how many seconds it takes of late from the results of an epoch until sinks show it;
        `waited`: how long the rows had been there when it was planned."""
        if seconds <= 0 or rows <= 0:
            return self
        costs = self.costs or Costs(rows, seconds, rows * rows, rows * seconds)
        costs = costs.with_epoch(rows, seconds)
        is_full = rows >= self.limit // 2
        if not is_full and self.target_latency is None:
            return replace(self, costs=costs)
        per_row, fixed = costs.per_row_and_fixed()
        wanted = (max(self._aim(publishing, waited), FIXED_COST_SHARE * fixed) - fixed) / per_row
        most = self.limit * STEP_MAX if is_full else self.limit
        bounded = min(most, max(self.limit / STEP_MAX, wanted, rows * STEP_MAX * (not is_full)))
        least = ROWS_MIN if self.target_latency is None else 1
        return replace(self, rows=int(min(ROWS_MAX, max(least, bounded))), costs=costs)

    def _aim(self, publishing: float, waited: float) -> float:
        """How long an epoch is to take, in seconds."""
        if self.target_latency is None:
            return self.target_seconds
        aim = max(LATENCY_SHARE_MIN * self.target_latency, (self.target_latency - publishing) / 2)
        return aim if waited <= self.target_latency else max(aim, self.target_seconds)
