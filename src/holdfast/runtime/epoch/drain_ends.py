"""Where the sources end for a run that was asked to drain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from holdfast.checkpoint.store.records import Json, PlannedSlice, PlanRecord
from holdfast.connectors.contract import EndingReader, SourceReader

RowsLeft = dict[str, int | None]
"""Of sources that cannot fix their end: the rows that are left. None: not counted, one slice is left."""


class Ends:
    """Where each source ends for a run that was asked to drain: at what was there when that was asked.

    A source that can fix its end does so itself (`end_at`). Of one that cannot, the rows are read that its
    `lag` counted, or one more slice where it does not count.
    Always true: a drain ends, however much arrives meanwhile, for as long as epochs succeed.
    """

    def __init__(
        self,
        readers: Mapping[str, SourceReader],
        positions: Mapping[str, Json],
        now_ms: int,
        fixed: dict[str, Json],
        counted: tuple[int, RowsLeft],
        awaited: Callable[[str, Callable[[], Json]], Json] = lambda uid, ask: ask(),
    ) -> None:
        """`fixed`: source uid -> the end that an earlier planner fixed, before a failure or a rescaling;
        those fixed now are added to it. `counted`: an epoch, and the rows that were left after it. `awaited`:
        asks a source once its server is there."""
        self._counted_after = counted[0]
        self.rows_left: RowsLeft = {}
        for uid, reader in readers.items():
            if isinstance(reader, EndingReader):
                fixed[uid] = awaited(uid, partial(reader.end_at, positions[uid], now_ms, fixed.get(uid)))
            elif uid in counted[1]:
                self.rows_left[uid] = counted[1][uid]
            else:
                self.rows_left[uid] = awaited(uid, partial(reader.lag, positions[uid]))

    def rows(self, uid: str, limit: int, epoch: int) -> int:
        """At most how many rows to plan of a source after an epoch; 0: it has come to its end."""
        left = self.rows_left.get(uid)
        return limit if left is None or epoch < self._counted_after else min(limit, left)

    def planned(self, plan: PlanRecord) -> None:
        """Count the slices of a plan, once it is written."""
        if plan.epoch > self._counted_after:
            self.rows_left = left_after(self.rows_left, plan.slices)


def left_after(rows_left: RowsLeft, slices: Mapping[str, PlannedSlice]) -> RowsLeft:
    """The rows that are left of sources after a plan that reads these slices."""
    after = dict(rows_left)
    for uid in rows_left.keys() & slices.keys():
        left, rows = rows_left[uid], slices[uid].rows
        after[uid] = 0 if left is None or rows is None else max(0, left - rows)
    return after
