"""Timers of keys: what user code sets and deletes, and what is due.

A timer is a time under which a key is called. It is part of the key's state: a TIMED entry with nothing in
it. Those that are due are found by the time index; what is set while an epoch runs is kept beside them.

Always true: a timer fires once, then it is gone; the timers of a key fire in the order of their times. One
that is set while another fires joins it only if it is later and due; otherwise it waits for the next epoch.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.cells.misuse import Misuse
from holdfast.state.cells.value_cells import Cell
from holdfast.state.encoding.arrow_values import FIRST_US, LAST_US
from holdfast.state.encoding.layout import TIME_TYPE, StateField, StateKind
from holdfast.state.files.delta import Changes, EntryChange

EVENT_TIMERS, PROCESSING_TIMERS = "event_timers", "processing_timers"
"""The states that a function with timers has besides its own."""
SENSIBLE_MS = 20 * 366 * 86_400 * 1_000
"""A number further than this behind its clock, which in seconds would be near it, is not in ms as it ought to
be."""

_EPOCH, _NAIVE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)


def timer_fields(first_id: int) -> tuple[StateField, ...]:
    """The states of a function with timers, under these ids."""
    type = pa.map_(TIME_TYPE, pa.bool_())
    names = enumerate((EVENT_TIMERS, PROCESSING_TIMERS), first_id)
    return tuple(StateField(id, name, StateKind.TIMED, type) for id, name in names)


def microseconds(at: datetime | int) -> int:
    """A time as µs since 1970: a datetime (UTC, if it has no time zone), or ms since 1970 as `ctx.timestamp`
    is."""
    if isinstance(at, datetime):
        since = at - (_NAIVE_EPOCH if at.tzinfo is None else _EPOCH)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if type(at) is not int:
        raise TypeError(f"{at!r} is not a time; give a datetime, or ms since 1970 as an int")
    return at * 1_000


def datetime_of(at_us: int, naive: bool = False) -> datetime:
    """The inverse of `microseconds`; `naive`: without a time zone, as a timestamp_ntz column has none."""
    return (_NAIVE_EPOCH if naive else _EPOCH) + timedelta(microseconds=at_us)


def nearest_datetime(at_us: int, naive: bool = False) -> datetime:
    """A time as Python has it: the first or last that it has, where a timestamp is beyond these."""
    return datetime_of(min(max(at_us, FIRST_US), LAST_US), naive)


_NO_TIMES: Set[int] = frozenset()


class TimerCell(Cell):
    """The timers of one clock. `due`: by key number the stored times that are due, in order."""

    __slots__ = (
        "_are_set", "_changed", "_due", "_field", "_firing", "_heap", "_keys", "_limit", "_there", "_times",
    )  # fmt: skip

    def __init__(self, field: StateField, due: Mapping[int, Sequence[int]], limit: int | None) -> None:
        """`limit`: what is set while timers fire joins them up to this time; None: never."""
        self._field, self._due, self._limit = field, due, limit
        self._there: Set[int] = _NO_TIMES
        """The stored times that are due."""
        self._changed: dict[int, bool] = {}
        self._heap: list[int] = []
        self._firing: int | None = None
        self._keys: list[int] = []
        self._times: list[int] = []
        self._are_set: list[bool] = []
        """What has become of the timers of the keys before: parallel columns."""

    def set(self, at_us: int) -> None:
        """Call the key at this time."""
        self._changed[at_us] = True
        if self._firing is not None and self._limit is not None and self._firing < at_us <= self._limit:
            heapq.heappush(self._heap, at_us)

    def delete(self, at_us: int) -> None:
        """Do not call the key at this time."""
        self._changed[at_us] = False

    def begin(self, limit: int) -> None:
        """Start to fire the key's timers up to `limit`."""
        if self._changed:
            set_now = [at for at, is_set in self._changed.items() if is_set and at <= limit]
            self._heap = sorted({*self._there, *set_now})
        elif self._there:
            self._heap = sorted(self._there)

    def pop(self) -> int | None:
        """The next timer that is due, which is then gone. None: there is none."""
        while self._heap:
            at = heapq.heappop(self._heap)
            if self._changed.get(at, at in self._there):
                self._changed[at] = False
                self._firing = at
                return at
        self._firing = None
        return None

    def load(self, key: int) -> None:
        due = self._due.get(key)
        self._there = frozenset(due) if due else _NO_TIMES
        if self._changed:
            self._changed = {}
        if self._heap:
            self._heap = []

    def keep(self, key: int) -> None:
        if self._changed:
            self._keys += repeat(key, len(self._changed))
            self._times += self._changed
            self._are_set += self._changed.values()

    def mark(self) -> Any:
        return dict(self._changed)

    def undo(self, mark: Any) -> None:
        self._changed = mark

    def check(self) -> None:
        """Times were checked when they were set."""

    def put_into(self, changes: Changes) -> None:
        if not self._keys:
            return
        are_set = np.array(self._are_set, np.bool_)
        changes.entries[self._field.name] = EntryChange(
            np.array(self._keys, np.int64),
            pa.array(np.array(self._times, np.int64)).cast(TIME_TYPE),
            pa.array(are_set),
            ~are_set,
        )


class Timers:
    """`ctx.timers`: set and delete the timers of the key at hand. `on_timer` is called for each, once."""

    __slots__ = ("_clock_us", "_event", "_has_event_time", "_processing", "_watermark_us")

    def __init__(
        self,
        event: TimerCell,
        processing: TimerCell,
        clock_us: int,
        watermark_us: int | None,
        has_event_time: bool,
    ) -> None:
        self._event, self._processing = event, processing
        self._clock_us, self._watermark_us, self._has_event_time = clock_us, watermark_us, has_event_time

    def event(self, at: datetime | int) -> None:
        """Call `on_timer` once the watermark has reached this time."""
        if not self._has_event_time:
            raise Misuse(
                "an event timer needs event time, and there is no watermark before this operator; declare "
                "stream.watermark('column', delay='10s') right after the source, or use timers.processing"
            )
        self._event.set(_checked(at, self._watermark_us, "watermark"))

    def processing(self, at: datetime | int) -> None:
        """Call `on_timer` in the first epoch that is planned at this time or later."""
        self._processing.set(_checked(at, self._clock_us, "time of the epoch"))

    def delete(self, at: datetime | int) -> None:
        """Take back the key's timers of this time, of either kind. One that is not there is no mistake."""
        at_us = _within(at)
        self._event.delete(at_us)
        self._processing.delete(at_us)


def _checked(at: datetime | int, clock_us: int | None, clock: str) -> int:
    at_us = _within(at)
    # A datetime is what it says, however early: the clock of a device may have been lost.
    if clock_us is not None and isinstance(at, int):
        clock_ms = clock_us // 1_000
        if at < clock_ms - SENSIBLE_MS and abs(at * 1_000 - clock_ms) < SENSIBLE_MS:
            raise ValueError(
                f"a timer at {at} is at {datetime_of(at_us)}, years before the {clock}, and seems to be in "
                "seconds; give ms since 1970, or a datetime"
            )
    return at_us


def _within(at: datetime | int) -> int:
    at_us = microseconds(at)
    if not FIRST_US <= at_us <= LAST_US:
        raise ValueError(f"a timer at {at!r} is beyond what a datetime can hold; give ms since 1970")
    return at_us
