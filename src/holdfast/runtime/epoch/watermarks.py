"""How far event time has come, for every operator that it reaches.

The watermark of epoch N follows from the rows of the epochs before N: the newest time of each source, less
its delay, and of these the smallest. It is written into the plan: every run of the epoch judges alike.
Always true: it never goes back. What is not known leaves it where it is, which is safe: it closes later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import PartitionTime, PlannedWatermark, PlanRecord
from holdfast.clock import duration_ms
from holdfast.graph.event_time import source_of, watermark_nodes, watermarks_of
from holdfast.graph.job_graph import Graph
from holdfast.state.contract import NextDue

SourceTimes = Mapping[str, Mapping[str, int | None]]
"""Source uid -> partition ("": the source has none) -> the newest event time in some rows, in µs since 1970;
None: they hold none."""
FIRST_US = -(1 << 63)
"""The earliest time that a timestamp can hold."""


@dataclass(frozen=True, slots=True)
class _Source:
    delay_us: int
    idle_ms: int | None


class Watermarks:
    """Event time from one plan to the next. One thread."""

    def __init__(self, graph: Graph, view: CheckpointView) -> None:
        self._sources = {
            uid: _Source(
                duration_ms(node.delay) * 1_000,
                None if node.idle_after is None else duration_ms(node.idle_after),
            )
            for uid, node in watermark_nodes(graph).items()
        }
        self._followed: dict[str, list[str]] = {}
        """Operator uid -> the sources whose watermarks it goes by."""
        for node in graph.operators:
            sources = [source.uid for each in watermarks_of(node) if (source := source_of(each))]
            if sources:
                self._followed[node.uid] = sources
        self._times: dict[str, dict[str, PartitionTime]] = {
            uid: dict(view.event_times.get(uid, {})) for uid in self._sources
        }
        self._reached: dict[str, int] = {
            uid: at for uid, at in view.watermarks.items() if uid in self._followed
        }
        """Operator uid -> the watermark of the newest plan."""

    def observed(
        self, times: SourceTimes, plan: PlanRecord, silent: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        """The epoch of a plan has run and read rows up to these times. `silent`: partitions of sources that
        are there, and that it read no rows of."""
        for uid in self._sources.keys() & plan.slices.keys():
            known = self._times[uid]
            for partition in (silent or {}).get(uid, ()):
                known.setdefault(partition, PartitionTime(newest_us=None, seen_ms=plan.clock_ms))
            for partition, newest in times.get(uid, {"": None}).items():
                before = known[partition].newest_us if partition in known else None
                both = [at for at in (before, newest) if at is not None]
                known[partition] = PartitionTime(
                    newest_us=max(both, default=None), seen_ms=max(plan.clock_ms, 0)
                )

    def standing(self) -> dict[str, dict[str, PartitionTime]]:
        """Source uid -> partition -> how far it is, for a commit record."""
        return {uid: dict(known) for uid, known in self._times.items() if known}

    def planned(self, plan: PlanRecord) -> None:
        """This plan is followed."""
        for uid, mark in plan.watermarks.items():
            if mark.now_us is not None and uid in self._followed:
                self._reached[uid] = max(mark.now_us, self._reached.get(uid, mark.now_us))
        for known in self._times.values():
            # From now on it is counted how long a source has been silent that never had a row.
            if not known:
                known[""] = PartitionTime(newest_us=None, seen_ms=plan.clock_ms)

    def next(self, now_ms: int, not_silent: Collection[str] = ()) -> dict[str, PlannedWatermark]:
        """The watermarks of a plan made now, by operator. `not_silent`: sources that are waited for however
        long ago they were read: the plan reads them, or did not come to ask them."""
        marks = {uid: self._source_mark(uid, now_ms, uid in not_silent) for uid in self._sources}
        planned = {}
        for uid, sources in self._followed.items():
            before = self._reached.get(uid)
            # A source that is idle holds no operator back; where all are idle, time stands still.
            waited_for = [mark.at_us for source in sources if not (mark := marks[source]).idle]
            now = before
            if waited_for and None not in waited_for:
                smallest = min(at for at in waited_for if at is not None)
                now = smallest if before is None else max(before, smallest)
            planned[uid] = PlannedWatermark(before_us=before, now_us=now)
        return planned

    def _source_mark(self, uid: str, now_ms: int, not_silent: bool) -> _Mark:
        source, parts = self._sources[uid], self._partitions(uid)
        active = [each for each in parts.values() if not self._is_idle(uid, each, now_ms)]
        if not_silent and not active:
            active = list(parts.values())
        if not active:
            return _Mark(None, idle=bool(parts))
        newest = [each.newest_us for each in active]
        known_times = [at for at in newest if at is not None]
        if len(known_times) < len(newest):
            return _Mark(None, idle=False)
        # Of the newest time less the delay, rows may still come: times before it are complete.
        return _Mark(max(min(known_times) - source.delay_us - 1, FIRST_US), idle=False)

    def _partitions(self, uid: str) -> dict[str, PartitionTime]:
        known = self._times[uid]
        # Partition "" stands for the source as long as no partition is known.
        return {name: each for name, each in known.items() if name or len(known) == 1}

    def _is_idle(self, uid: str, partition: PartitionTime, now_ms: int) -> bool:
        idle_ms = self._sources[uid].idle_ms
        return idle_ms is not None and now_ms - partition.seen_ms > idle_ms

    def idle_sources(self, now_ms: int) -> list[str]:
        """The sources that are not waited for, and `source/partition` where it is one of several."""
        found = []
        for uid in self._sources:
            parts = self._partitions(uid)
            idle = [name for name, each in parts.items() if self._is_idle(uid, each, now_ms)]
            found += [uid] if parts and len(idle) == len(parts) else [f"{uid}/{name}" for name in idle]
        return found


@dataclass(frozen=True, slots=True)
class _Mark:
    at_us: int | None
    idle: bool


def milliseconds(marks: Mapping[str, PlannedWatermark]) -> dict[str, int | None]:
    """The watermarks of a plan in ms since 1970, as people are shown them."""
    return {uid: None if mark.now_us is None else mark.now_us // 1_000 for uid, mark in marks.items()}


def is_due(
    open_times: Mapping[str, NextDue | None], marks: Mapping[str, PlannedWatermark], now_ms: int
) -> bool:
    """Whether some operator has something to do without rows. What is not known counts as due."""
    for uid, due in open_times.items():
        if due is None:
            return True
        mark = marks.get(uid)
        now_us = mark.now_us if mark is not None else None
        if due.event_us is not None and now_us is not None and due.event_us <= now_us:
            return True
        if due.processing_us is not None and due.processing_us <= now_ms * 1_000:
            return True
    return False


def to_close(open_times: Mapping[str, NextDue | None], marks: Mapping[str, PlannedWatermark]) -> bool:
    """Whether some operator has anything open that goes by event time."""
    return any(due is None or due.event_us is not None for uid, due in open_times.items() if uid in marks)
