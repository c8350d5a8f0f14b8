"""Where each source ends for a run that was asked to drain: at what was there when that was asked.

A source that can fix its end does so itself (`end_at`). Of one that cannot, the rows are read that its
`lag` counted, or one more slice where it does not count.
Always true: a drain ends, however much arrives meanwhile, for as long as epochs succeed.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.store.records import Json, PlannedSlice
from holdfast.connectors.contract import EndingReader, SourceReader


class Ends:
    """The ends of one planner's sources."""

    def __init__(
        self,
        readers: Mapping[str, SourceReader],
        positions: Mapping[str, Json],
        now_ms: int,
        fixed: dict[str, Json],
    ) -> None:
        """`fixed`: source uid -> the end that was fixed before this planner, in a stretch that failed or was
        rescaled; those fixed now are added to it."""
        self._rows_left: dict[str, int | None] = {}
        """Of sources that cannot fix their end. None: not counted, one slice is left."""
        for uid, reader in readers.items():
            if isinstance(reader, EndingReader):
                fixed[uid] = reader.end_at(positions[uid], now_ms, fixed.get(uid))
            else:
                self._rows_left[uid] = reader.lag(positions[uid])

    def rows(self, uid: str, limit: int) -> int:
        """At most how many rows to plan of a source; 0: it has come to its end."""
        left = self._rows_left.get(uid)
        return limit if left is None else min(limit, left)

    def planned(self, slices: Mapping[str, PlannedSlice]) -> None:
        """Count the slices of a plan, once it is written."""
        for uid in self._rows_left.keys() & slices.keys():
            left, rows = self._rows_left[uid], slices[uid].rows
            self._rows_left[uid] = 0 if left is None or rows is None else max(0, left - rows)
