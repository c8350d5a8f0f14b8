"""How the sources of a run fare: rows set aside, columns that are not declared, silence, servers away.

Always true: each source that has something to tell is in `shown`; a source that falls silent is said to be so
once, and once more when its rows come again. What was counted before a restart within the process is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.checkpoint.store.records import PlanRecord
from holdfast.clock import duration_ms
from holdfast.connectors.contract import DriftingReader, MonitoredReader, SourceReader
from holdfast.graph.job_graph import SourceNode
from holdfast.runtime.epoch.outages import Outages
from holdfast.runtime.epoch.set_aside import RowsAside
from holdfast.runtime.progress import Monitor

Shown = dict[str, dict[str, Any]]


class SourceHealth:
    """Of all sources of a job. Tells a monitor what has changed."""

    def __init__(
        self, sources: Iterable[SourceNode], monitor: Monitor, now_ms: int, outages: Outages | None = None
    ) -> None:
        self._monitor, self._outages = monitor, outages
        self._said: dict[str, str] = {}
        """What sources that know how they fare have said last."""
        if outages is not None:
            outages.on_change = self._tell
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
            if isinstance(reader, MonitoredReader):
                self._said[uid] = reader.health()
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
        seen |= {uid for uid, said in self._said.items() if said}
        away = self._outages.known() if self._outages is not None else {}
        uids = sorted(self._aside.keys() | self._limits.keys() | seen | away.keys())
        return {uid: {**self._one(uid), "unavailable": away.get(uid)} for uid in uids}

    def _one(self, uid: str) -> dict[str, Any]:
        rows, reason = self._aside.get(uid, (0, None))
        return {
            "set_aside": rows,
            "reason": reason,
            "undeclared": self._columns.get(uid, {}),
            "rows_ms": self._rows_ms.get(uid),
            "silent": uid in self._silent,
            "health": self._said.get(uid, ""),
            "unavailable": None,
        }

    def _tell(self) -> None:
        if (shown := self.shown()) != self._monitor.progress.sources:
            self._monitor.update(sources=shown)


def show_outages(monitor: Monitor, outages: Outages) -> None:
    """Show which servers are waited for, before there is anything else to tell of sources."""
    SourceHealth((), monitor, 0, outages).look({}, 0)
