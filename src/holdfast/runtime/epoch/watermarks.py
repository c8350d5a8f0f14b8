"""How far event time has come, for every operator that it reaches.

The watermark of epoch N follows from the rows of the epochs before N: the newest time of each source, less
its delay, and of these the smallest. It is written into the plan: every run of the epoch judges alike.
Always true: it never goes back, and is never beyond what `bounded` allows. What is not known leaves it where
it is, which is safe: it closes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import PartitionTime, PlannedWatermark, PlanRecord
from holdfast.clock import duration_ms
from holdfast.graph.event_time import bounded, source_of, watermark_nodes, watermarks_of
from holdfast.graph.job_graph import Graph, OutletNode
from holdfast.state.contract import NextDue

SourceTimes = Mapping[str, Mapping[str, int | None]]
"""Source uid -> partition ("": the source has none) -> the newest event time in some rows, in µs since 1970;
None: they hold none."""


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
        """Operator uid, or that of a channel which leaves the part -> the sources whose watermarks it goes
        by."""
        ends = {node.uid: watermarks_of(node) for node in graph.operators}
        # Time does not cross into other jobs: what comes through a door has none.
        inner = [node for node in graph.outlets if isinstance(node, OutletNode)]
        ends |= {node.uid: watermarks_of(node.parent) for node in inner}
        for uid, marks in ends.items():
            sources = [source.uid for each in marks if (source := source_of(each))]
            if sources:
                self._followed[uid] = sources
        self.ended: frozenset[str] = frozenset()
        """Channels into this part that have come to their end: time does not wait for them."""
        self._times: dict[str, dict[str, PartitionTime]] = {
            uid: dict(view.event_times.get(uid, {})) for uid in self._sources
        }
        self._reached: dict[str, int] = {
            uid: bounded(at) for uid, at in view.watermarks.items() if uid in self._followed
        }
        """Operator uid -> the watermark of the newest plan."""
        self._waiting: dict[str, frozenset[str] | None] = {}
        self._looked_until_ms: int | None = None

    def looks_no_further(self, now_ms: int) -> None:
        """From now on sources are asked for what they have at this time and no more: how long one that is
        read to its end has nothing is not known, and none falls silent."""
        self._looked_until_ms = now_ms

    def looked(self, waiting: Mapping[str, frozenset[str] | None]) -> None:
        """The sources were asked for rows: which of their partitions had some. None: the source has no
        partitions and had some, or it was not asked."""
        self._waiting = dict(waiting)

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

    def lead_to(self, plan: PlanRecord) -> bool:
        """Whether a plan that another made judges its rows by the event time that is known here."""
        return all(mark.before_us == self._reached.get(uid) for uid, mark in plan.watermarks.items())

    def planned(self, plan: PlanRecord) -> None:
        """This plan is followed."""
        for uid, mark in plan.watermarks.items():
            if mark.now_us is not None and uid in self._followed:
                now_us = bounded(mark.now_us)
                self._reached[uid] = max(now_us, self._reached.get(uid, now_us))
        for known in self._times.values():
            # From now on it is counted how long a source has been silent that never had a row.
            if not known:
                known[""] = PartitionTime(newest_us=None, seen_ms=plan.clock_ms)

    def next(self, now_ms: int) -> dict[str, PlannedWatermark]:
        """The watermarks of a plan made now, by operator."""
        marks = {uid: self._source_mark(uid, now_ms) for uid in self._sources}
        planned = {}
        for uid, sources in self._followed.items():
            before = self._reached.get(uid)
            reached = _together([marks[source] for source in sources])
            now = max((at for at in (before, reached) if at is not None), default=None)
            planned[uid] = PlannedWatermark(before_us=before, now_us=now)
        return planned

    def _source_mark(self, uid: str, now_ms: int) -> _Mark:
        delay_us = self._sources[uid].delay_us
        # Of the newest time less the delay, rows may still come: times before it are complete.
        marks = [
            _Mark(
                None if each.newest_us is None else bounded(each.newest_us - delay_us - 1),
                idle=self._is_idle(uid, name, each, now_ms),
            )
            for name, each in self._partitions(uid).items()
        ]
        return _Mark(_together(marks), idle=bool(marks) and all(mark.idle for mark in marks))

    def _partitions(self, uid: str) -> dict[str, PartitionTime]:
        known = self._times[uid]
        # Partition "" stands for the source as long as no partition is known.
        return {name: each for name, each in known.items() if name or len(known) == 1}

    def _is_idle(self, uid: str, name: str, partition: PartitionTime, now_ms: int) -> bool:
        if uid in self.ended:
            return True
        idle_ms, waiting = self._sources[uid].idle_ms, self._waiting.get(uid, frozenset())
        # However long an epoch takes: what has rows that wait to be read has not fallen silent.
        silent = waiting is not None and name not in waiting
        if self._looked_until_ms is not None:
            now_ms = min(now_ms, self._looked_until_ms)
        return silent and idle_ms is not None and now_ms - partition.seen_ms > idle_ms

    def idle_sources(self, now_ms: int) -> list[str]:
        """The sources that are not waited for, and `source/partition` where it is one of several."""
        found = []
        for uid in self._sources:
            parts = self._partitions(uid)
            idle = [name for name, each in parts.items() if self._is_idle(uid, name, each, now_ms)]
            found += [uid] if parts and len(idle) == len(parts) else [f"{uid}/{name}" for name in idle]
        return found


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far something is that event time waits for, unless it is idle. None: not known."""

    at_us: int | None
    idle: bool


def _together(marks: Sequence[_Mark]) -> int | None:
    """How far several are together. None: not known. Where all are idle time stands at the slowest that is
    known: a pause of all of them makes nothing late."""
    active = [mark for mark in marks if not mark.idle]
    if any(mark.at_us is None for mark in active):
        return None
    return min((mark.at_us for mark in active or marks if mark.at_us is not None), default=None)


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
