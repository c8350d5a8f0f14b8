"""Runs aggregates over windows of time: rows into panes, panes into windows; whole columns throughout.

    rows  -> panes     what is kept of (key, pane), with the rows of the epoch, as `aggregate` does of a key
    panes -> windows   the panes of a window that closes, or that has changed since, are merged and emitted

Always true: a row is added to one pane, or is late. A pane stays until none of its windows can change. A
window is emitted when it closes, unless it was emitted before and has not changed since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.graph.windows import EMISSIONS, PANES, REVISION, TimeWindow, Windowed
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.delta import Changes, EntryChange
from holdfast.tasks.operators.due import due_times, earliest, times_of_keys, with_keys
from holdfast.tasks.operators.result import FOREVER_US, EpochContext, EventTime, OperatorResult
from holdfast.tasks.operators.shard_rows import KeyedSlice, firsts, numbered
from holdfast.tasks.operators.windows.computations import Emitting, computation_of, window_table
from holdfast.tasks.operators.windows.window_rows import (
    NEVER_US,
    Flags,
    Numbers,
    Times,
    last_ends,
    micros_of,
    next_end,
    next_ends,
    of_pairs,
    paired,
    read_timed,
    timestamps,
    watermarks,
    without_late,
)


def run_time_windows(
    function: Windowed,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
) -> OperatorResult:
    """Add the rows to their panes, emit the windows that close or have changed after they did, and let go of
    panes that no window needs. UserCodeError where a sum overflows."""
    return _WindowRun(function, layout, keyed, state, ctx).run()


def next_close(
    function: Windowed,
    layout: StateLayout,
    groups: KeyGroupRange,
    state: ShardState,
    now_us: int | None,
) -> int | None:
    """When a pane has something to be done for it next: a window of it closes, or it is let go of. `now_us`:
    up to where that is done."""
    window, panes = _time_window(function), layout.field(PANES)
    open_from = NEVER_US if now_us is None else next_end(window, now_us) - window.size_us
    due = []
    if (is_open := earliest(panes, groups, state, open_from)) is not None:
        first_end = int(next_ends(window, np.array([is_open], np.int64))[0])
        due.append((first_end if now_us is None else max(first_end, next_end(window, now_us))) - 1)
    first = earliest(panes, groups, state)
    if first is not None and first < open_from:
        due.append(int(last_ends(window, np.array([first], np.int64))[0]) - 1 + function.lateness_us)
    return min(due, default=None)


@dataclass(frozen=True)
class _Panes:
    """Some panes of some keys: parallel columns. `values` has what is kept of each."""

    keys: Numbers
    starts: Times
    values: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, which: Numbers) -> _Panes:
        return _Panes(self.keys[which], self.starts[which], self.values.take(pa.array(which)))

    @property
    def revisions(self) -> Times:
        return np.asarray(self.values.field(REVISION))


class _WindowRun:
    def __init__(
        self,
        function: Windowed,
        layout: StateLayout,
        keyed: KeyedSlice,
        state: ShardState,
        ctx: EpochContext,
    ) -> None:
        self.function, self.layout, self.state = function, layout, state
        self.window = _time_window(function)
        self.ctx, self.time, self.field = ctx, ctx.time or EventTime(), layout.field(PANES)
        self.computation = computation_of(function)
        self.keyed = replace(keyed, rows=self.computation.stored(keyed.rows))
        self.schema = function.output_schema(self.keyed.rows.schema, keyed.key_columns)
        self.before_us, self.now_us = watermarks(ctx.time)
        self.early = _EarlyResults(function, layout, state, ctx)

    def run(self) -> OperatorResult:
        late, starts = self._without_late()
        changed = self._with_rows(starts)
        panes = self._to_look_at(changed)
        output = self._emitted(panes)
        changes = self.keyed.no_changes()
        self._keep(changes, changed, panes)
        self.early.plan(changes, self.keyed, changed.keys)
        return OperatorResult({MAIN_OUTPUT: output, LATE_ROWS: late}, changes)

    def _without_late(self) -> tuple[pa.Table, Times]:
        """Take the rows out of the slice that are late or have no time, and give them; and the panes of the
        others."""
        on = self.function.on
        assert on is not None
        times = self.keyed.rows.column(on).combine_chunks()
        starts = _pane_starts(self.window, micros_of(times))
        last = last_ends(self.window, starts) - 1 + self.function.lateness_us
        late = (last <= self.before_us) | np.asarray(times.is_null())
        self.keyed, rows = without_late(self.keyed, on, late, self.before_us)
        return rows, starts[~late]

    def _with_rows(self, row_starts: Times) -> _Panes:
        """The panes that have rows in this epoch, with these in them."""
        index = numbered(paired(self.keyed.index.astype(np.int64), row_starts))
        places = firsts(index)
        keys, starts = self.keyed.index[places].astype(np.int64), row_starts[places]
        if not len(places):
            return _Panes(keys, starts, pa.array([], self.field.value_type))
        pairs = of_pairs(self.keyed, index, keys)
        kept = read_timed(self.field, self.state, pairs.bases, starts)
        accumulators = self.computation.folded(pairs, kept, self.ctx)
        revisions = pa.array(np.full(len(places), self.ctx.epoch, np.int64))
        values = pa.StructArray.from_arrays([*accumulators, revisions], fields=list(self.field.value_type))
        return _Panes(keys, starts, values)

    def _to_look_at(self, changed: _Panes) -> _Panes:
        """All panes of the windows that are to be emitted, as they are now, and those to let go of. Where no
        window is emitted these are no more than the changed ones."""
        found: dict[bytes, list[int]] = {}
        closes = next_end(self.window, self.before_us) - 1 <= self.now_us
        reopened = (next_ends(self.window, changed.starts) - 1 <= self.before_us).any()
        if closes or reopened or self.time.closing:
            until = FOREVER_US if self.time.closing else self.now_us
            found = due_times(self.field, self.ctx.groups, self.state, until)
        for base, times in times_of_keys(self.field, self.state, self.early.due).items():
            found[base] = times
        if not found:
            return changed
        self.keyed, numbers = with_keys(self.keyed, self.layout, self.state, [*found, *self.early.due])
        self.early.numbers = numbers
        pairs = [(numbers[base], base, at) for base, times in found.items() for at in times]
        fresh = set(zip(changed.keys.tolist(), changed.starts.tolist(), strict=True))
        pairs = [pair for pair in pairs if (pair[0], pair[2]) not in fresh]
        keys = np.fromiter((key for key, _, _ in pairs), np.int64, len(pairs))
        starts = np.fromiter((at for _, _, at in pairs), np.int64, len(pairs))
        values = read_timed(self.field, self.state, [base for _, base, _ in pairs], starts)
        return _Panes(
            np.concatenate([keys, changed.keys]),
            np.concatenate([starts, changed.starts]),
            pa.concat_arrays([values, changed.values]),
        )

    def _emitted(self, panes: _Panes) -> pa.Table:
        """The rows of the windows that are emitted in this epoch."""
        panes = panes.take(np.argsort(panes.starts, kind="stable"))
        panes, ends = self._in_windows(panes)
        index = numbered(paired(panes.keys, ends))
        places = firsts(index)
        newest = np.zeros(len(places), np.int64)
        np.maximum.at(newest, index, panes.revisions)
        wanted = self._wanted(panes.keys[places], ends[places], newest)
        if not wanted.any():
            return self.schema.empty_table()
        keys, ends = panes.keys[places][wanted], ends[places][wanted]
        of_wanted = np.flatnonzero(wanted[index])
        emitting = Emitting(self.keyed, keys, self.ctx, ends - self.window.size_us, ends)
        merged = numbered(index[of_wanted].astype(np.int64))
        results = self.computation.emitted(panes.take(of_wanted).values, merged, emitting)
        return window_table(self.schema, emitting, results)

    def _in_windows(self, panes: _Panes) -> tuple[_Panes, Times]:
        """Every pane once for each window that it is in, and the ends of these windows."""
        last, count = last_ends(self.window, panes.starts), self.window.windows_per_pane
        ends = (last[:, None] - np.arange(count) * self.window.every_us).ravel()
        places = np.repeat(np.arange(len(panes)), count)
        inside = ends > panes.starts[places]
        return panes.take(places[inside]), ends[inside]

    def _wanted(self, keys: Numbers, ends: Times, newest: Times) -> Flags:
        """Which windows are emitted. `newest`: the epoch that last changed each."""
        lasts = ends - 1
        # What closed everything before has emitted what has not changed since.
        unseen = newest > self.time.closed_through
        closes = (lasts > self.before_us) & ((lasts <= self.now_us) | self.time.closing) & unseen
        can_change = lasts + self.function.lateness_us > self.before_us
        reopened = (lasts <= self.before_us) & can_change & (newest == self.ctx.epoch)
        wanted: Flags = closes | reopened | self.early.wanted(keys, newest) & (lasts > self.now_us)
        return wanted

    def _keep(self, changes: Changes, changed: _Panes, panes: _Panes) -> None:
        """Put what became of the panes into the changes."""
        kept = changed.take(np.flatnonzero(self._can_change(changed.starts)))
        gone = ~self._can_change(panes.starts)
        if not len(kept) and not gone.any():
            return
        gone_keys, gone_starts = panes.keys[gone], panes.starts[gone]
        changes.entries[PANES] = EntryChange(
            np.concatenate([kept.keys, gone_keys]),
            timestamps(np.concatenate([kept.starts, gone_starts])),
            pa.concat_arrays([kept.values, pa.nulls(len(gone_keys), self.field.value_type)]),
            np.arange(len(kept) + len(gone_keys)) >= len(kept),
        )

    def _can_change(self, starts: Times) -> Flags:
        last = last_ends(self.window, starts) - 1 + self.function.lateness_us
        still: Flags = last > self.now_us
        return still


class _EarlyResults:
    """The keys whose windows are emitted before they close: those that have changed since they last were.

    A key that changes gets an entry at the next step of `emit_every`, which says since which epoch.
    """

    def __init__(self, function: Windowed, layout: StateLayout, state: ShardState, ctx: EpochContext) -> None:
        self._every_us, self._state, self._ctx = function.emit_every_us, state, ctx
        self.due: dict[bytes, list[int]] = {}
        """Base of a key -> the times of its entries that are due."""
        self.numbers: dict[bytes, int] = {}
        self._since: dict[bytes, int] = {}
        if self._every_us is not None:
            self._field = layout.field(EMISSIONS)
            self.due = due_times(self._field, ctx.groups, state, ctx.clock_ms * 1_000)
            for base, times in self.due.items():
                epochs = read_timed(self._field, state, [base] * len(times), np.array(times, np.int64))
                self._since[base] = min(epochs.to_pylist())

    def wanted(self, keys: Numbers, newest: Times) -> Flags:
        """Of windows of these keys, last changed in these epochs, those that are to be emitted."""
        if not self.due:
            return np.zeros(len(keys), np.bool_)
        since = {self.numbers[base]: epoch for base, epoch in self._since.items()}
        return newest >= np.fromiter(
            (since.get(key, FOREVER_US) for key in keys.tolist()), np.int64, len(keys)
        )

    def plan(self, changes: Changes, keyed: KeyedSlice, changed: Numbers) -> None:
        """Let go of the entries that were due; see that every key that has changed has one."""
        if self._every_us is None:
            return
        at = (self._ctx.clock_ms * 1_000 // self._every_us + 1) * self._every_us
        due = [(self.numbers[base], time) for base, times in self.due.items() for time in times]
        keys = np.unique(changed)
        bases = [keyed.bases[key] for key in keys.tolist()]
        known = read_timed(self._field, self._state, bases, np.full(len(keys), at, np.int64))
        keys = keys[np.asarray(known.is_null())]
        if not due and not len(keys):
            return
        rows = np.concatenate([keys, np.array([key for key, _ in due], np.int64)])
        times = np.concatenate([np.full(len(keys), at, np.int64), np.array([at for _, at in due], np.int64)])
        changes.entries[EMISSIONS] = EntryChange(
            rows,
            timestamps(times),
            pa.array(np.full(len(rows), self._ctx.epoch, np.int64)),
            np.arange(len(rows)) >= len(keys),
        )


def _time_window(function: Windowed) -> TimeWindow:
    assert isinstance(function.window, TimeWindow)
    return function.window


def _pane_starts(window: TimeWindow, times: Times) -> Times:
    """Where the panes of some times begin."""
    return (times - window.offset_us) // window.pane_us * window.pane_us + window.offset_us
