"""How the sources of a run fare: rows set aside, columns that are not declared, silence.

Always true: each source that has something to tell is in `shown`; a source that falls silent is said to be so
once, and once more when its rows come again. What was counted before a restart within the process is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.checkpoint.store.records import PlanRecord
from holdfast.clock import duration_ms
from holdfast.connectors.contract import DriftingReader, SourceReader
from holdfast.graph.job_graph import SourceNode
from holdfast.runtime.epoch.set_aside import RowsAside
from holdfast.runtime.progress import Monitor

Shown = dict[str, dict[str, Any]]


class SourceHealth:
    """Of all sources of a job. Tells a monitor what has changed."""

    def __init__(self, sources: Iterable[SourceNode], monitor: Monitor, now_ms: int) -> None:
        self._monitor = monitor
        self._limits = {
            node.uid: (node.stalled_after, duration_ms(node.stalled_after))
            for node in sources
            if node.stalled_after is not None
        }
        told = monitor.progress.sources
        self._aside = {uid: (one["set_aside"], one["reason"]) for uid, one in told.items()}
        self._columns = {uid: dict(one["undeclared"]) for uid, one in told.items()}
        self._rows_ms = {uid: told[uid]["rows_ms"] if uid in told else now_ms for uid in self._limits}
        self._silent = {uid for uid, one in told.items() if one["silent"]}

    def ran(self, plan: PlanRecord, aside: Mapping[str, RowsAside], now_ms: int) -> None:
        """Take an epoch that was run."""
        for uid, found in aside.items():
            before, _ = self._aside.get(uid, (0, None))
            self._aside[uid] = (before + found.rows, found.reason)
        for uid in plan.slices.keys() & self._limits.keys():
            self._rows_ms[uid] = now_ms
        self._tell()

    def look(self, readers: Mapping[str, SourceReader], now_ms: int) -> None:
        """See how long sources have been silent, and what they noticed."""
        for uid, reader in readers.items():
            if isinstance(reader, DriftingReader):
                self._columns[uid] = reader.undeclared() | self._columns.get(uid, {})
        for uid, (limit, limit_ms) in self._limits.items():
            silent_ms = now_ms - self._rows_ms[uid]
            if silent_ms >= limit_ms and uid not in self._silent:
                self._silent.add(uid)
                self._monitor.say(
                    f"SILENT: source {uid!r} has had no rows for {limit}; see whether what writes there runs"
                )
            elif silent_ms < limit_ms and uid in self._silent:
                self._silent.remove(uid)
                self._monitor.say(f"source {uid!r} has rows again")
        self._tell()

    def shown(self) -> Shown:
        """The sources with something to tell, as `Progress.sources` has them."""
        seen = {uid for uid, columns in self._columns.items() if columns}
        uids = sorted(self._aside.keys() | self._limits.keys() | seen)
        return {uid: self._one(uid) for uid in uids}

    def _one(self, uid: str) -> dict[str, Any]:
        rows, reason = self._aside.get(uid, (0, None))
        return {
            "set_aside": rows,
            "reason": reason,
            "undeclared": self._columns.get(uid, {}),
            "rows_ms": self._rows_ms.get(uid),
            "silent": uid in self._silent,
        }

    def _tell(self) -> None:
        if (shown := self.shown()) != self._monitor.progress.sources:
            self._monitor.update(sources=shown)
