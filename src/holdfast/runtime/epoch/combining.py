"""Rows combined before they go to their shards, where that pays.

Spark groups the rows of an `aggregate` by key first (over windows by key and pane), so that a shard gets one
partial row for each and not all of its rows. That is a second exchange: it pays where there are many rows for
a key, and costs where there are few. The choice follows what the last epoch had, is written in the plan, and
changes no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.graph.partials import PANE_COLUMN, Partials
from holdfast.state.encoding.routing import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_KEY = 20
"""From so many rows for a key on combining begins. Measured: with 10 it changes nothing."""
ROWS_PER_SHARD = 50_000
"""From so many rows on a shard combining begins: below it a second exchange costs more than it saves."""
STAYS = 2
"""Combining goes on until there are so many times fewer rows than it began with."""


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """What one shard had in an epoch: rows, before they were combined, and how many partial rows they make.
    `late`: rows that are wanted as they are, because something reads the late ones."""

    rows: int
    partial_rows: int
    late: int = 0


@dataclass(frozen=True)
class Combining:
    """Which operators combine their rows in the next epoch. `able`: those that can."""

    able: frozenset[str] = frozenset()
    chosen: tuple[str, ...] = ()

    def after(self, loads: Mapping[str, Sequence[ShardLoad]]) -> Combining:
        """Learn from an epoch: what each operator's shards had. One that had nothing stays as it is."""
        chosen = set(self.chosen)
        for uid in self.able & loads.keys():
            shards = [shard for shard in loads[uid] if shard.rows]
            if shards and pays(shards, uid in chosen):
                chosen.add(uid)
            elif shards:
                chosen.discard(uid)
        return replace(self, chosen=tuple(sorted(chosen)))


def pays(shards: Sequence[ShardLoad], combined: bool) -> bool:
    """Whether combining would have made an epoch faster, by the shards that had rows; `combined`: it was.

    The fullest shard counts: all others wait for it, and a hot key is what makes it the fullest.
    """
    fullest = max(shard.rows for shard in shards)
    partial_rows = sum(shard.partial_rows for shard in shards) / len(shards)
    least = max(ROWS_PER_SHARD, ROWS_PER_KEY * partial_rows)
    late = any(shard.late for shard in shards)
    return not late and fullest >= (least / STAYS if combined else least)


def combined(frame: DataFrame, key: Iterable[str], partials: Partials) -> DataFrame:
    """The partial rows of a frame, one for each key, or for each key and pane."""
    from pyspark.sql.functions import col, expr

    grouping = [col(quoted(name)) for name in key]
    if partials.pane is not None:
        grouping.append(expr(partials.pane).alias(PANE_COLUMN))
    return frame.groupBy(*grouping).agg(*map(expr, partials.expressions))
