"""Up to which epoch nothing that is open needs the rows any more.

Every epoch has one number: the time at which the last thing that its rows were put into is let go of. Once
the watermark has passed it, no row of the epoch is in anything that is open.
Always true: it is never beyond an epoch whose rows something open was made of.
"""

from __future__ import annotations

from collections import deque

from holdfast.checkpoint.store.records import PlanRecord
from holdfast.graph.event_time import bounded


class LowWater:
    """That of one part, from one epoch to the next. `operator`: its only one with state; None: it has none.
    `after`: the epoch before the first that is run."""

    def __init__(self, operator: str | None, after: int) -> None:
        self._operator, self.needs_from = operator, after + 1
        self._open: deque[tuple[int, int]] = deque()
        """Epochs, and when what their rows were put into is let go of."""

    def ran(self, plan: PlanRecord, expires_us: int | None) -> int:
        """The first epoch whose rows are needed after this one has run. `expires_us`: when the last thing is
        let go of that its rows were put into; None: they were put into nothing."""
        if expires_us is not None:
            self._open.append((plan.epoch, expires_us))
        mark = plan.watermarks.get(self._operator or "")
        if mark is not None and mark.now_us is not None:
            now_us = bounded(mark.now_us)
            while self._open and self._open[0][1] <= now_us:
                self._open.popleft()
        self.needs_from = self._open[0][0] if self._open else plan.epoch + 1
        return self.needs_from
