"""Runs aggregates over windows of time: rows into panes, panes into windows; whole columns throughout.

    rows  -> panes     what is kept of (key, pane), with the rows of the epoch, as `aggregate` does of a key
    panes -> windows   the panes of a window that closes, or that has changed since, are merged and emitted

Always true: a row is added to one pane, or is late. A pane stays until none of its windows can change. A
window is emitted when it closes, unless it was emitted before and has not changed since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.graph.partials import PANE_COLUMN, ROWS_COLUMN, Partials
from holdfast.graph.windows import EMISSIONS, PANES, REVISION, TimeWindow, Windowed
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import TIME_AND_NUMBER, StateLayout
from holdfast.state.files.delta import Changes, EntryChange
from holdfast.tasks.operators.due import due_map_keys, due_times, earliest, map_keys_of, with_keys
from holdfast.tasks.operators.result import FOREVER_US, EpochContext, EventTime, OperatorResult
from holdfast.tasks.operators.shard_rows import Index, KeyedSlice, firsts, numbered
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
    without_rows,
)


def run_time_windows(
    function: Windowed,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
    partials: Partials | None = None,
) -> OperatorResult:
    """Add the rows to their panes, emit the windows that close or have changed after they did, and let go of
    panes that no window needs. `partials`: the rows are partial rows, made by these. UserCodeError where a
    sum overflows."""
    return _WindowRun(function, layout, keyed, state, ctx, partials).run()


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
        let_go = int(last_ends(window, np.array([first], np.int64))[0]) - 1 + function.lateness_us
        # With another lateness than it was kept by, the time may have passed: it goes with the next ones.
        due.append(let_go if now_us is None else max(let_go, _next_let_go(function, now_us)))
    return min(due, default=None)


@dataclass(frozen=True)
class _Panes:
    """What is kept of some panes of some keys: parallel columns. `entries`: the map keys in state, of which a
    pane has one, or one for each epoch that added rows to it."""

    keys: Numbers
    entries: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, which: Numbers) -> _Panes:
        places = pa.array(which)
        return _Panes(self.keys[which], self.entries.take(places), self.values.take(places))

    def followed_by(self, other: _Panes) -> _Panes:
        return _Panes(
            np.concatenate([self.keys, other.keys]),
            pa.concat_arrays([self.entries, other.entries]),
            pa.concat_arrays([self.values, other.values]),
        )

    @cached_property
    def starts(self) -> Times:
        times = self.entries.field(0) if pa.types.is_struct(self.entries.type) else self.entries
        return np.asarray(times.cast(pa.int64()))

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
        partials: Partials | None,
    ) -> None:
        self.function, self.layout, self.state, self.partials = function, layout, state, partials
        self.window = _time_window(function)
        self.ctx, self.time, self.field = ctx, ctx.time or EventTime(), layout.field(PANES)
        self.computation = computation_of(function, partials)
        self.keyed = replace(keyed, rows=self.computation.stored(keyed.rows))
        given = self.keyed.rows.schema if partials is None else partials.input
        self.schema = function.output_schema(given, keyed.key_columns)
        self.before_us, self.now_us = watermarks(ctx.time)
        self.early = _EarlyResults(function, layout, state, ctx)

    def run(self) -> OperatorResult:
        late_rows, late_combined, starts = self._without_late()
        changed = self._with_rows(starts)
        panes = self._to_look_at(changed)
        output = self._emitted(panes)
        changes = self.keyed.no_changes()
        self._keep(changes, changed, panes)
        self.early.plan(changes, self.keyed, changed.keys)
        outputs = {MAIN_OUTPUT: output, LATE_ROWS: late_rows}
        expires = last_ends(self.window, starts) - 1 + self.function.lateness_us
        return OperatorResult(
            outputs, changes, late=late_combined, partial_rows=len(changed),
            expires_us=int(expires.max()) if len(expires) else None,
        )  # fmt: skip

    def _without_late(self) -> tuple[pa.Table, int, Times]:
        """Take the rows out of the slice that are late or have no time, and give them, or the number of those
        that came combined; and the panes of the others."""
        on = self.function.on
        assert on is not None
        combined = self.partials is not None
        times = self.keyed.rows.column(PANE_COLUMN if combined else on).combine_chunks()
        if combined:
            starts, known = np.asarray(times.fill_null(0)), np.asarray(times.is_valid())
        else:
            micros, known = micros_of(times)
            starts = _pane_starts(self.window, micros)
        last = last_ends(self.window, starts) - 1 + self.function.lateness_us
        late = (last <= self.before_us) | ~known
        if self.partials is None:
            self.keyed, rows = without_late(self.keyed, on, late, self.before_us)
            return rows, 0, starts[~late]
        count = int(pc.sum(self.keyed.rows[ROWS_COLUMN].filter(pa.array(late))).as_py() or 0)
        self.keyed = without_rows(self.keyed, late)
        return self.function.late_schema(self.partials.input).empty_table(), count, starts[~late]

    def _with_rows(self, row_starts: Times) -> _Panes:
        """The panes that have rows in this epoch, with these in them."""
        index = numbered(paired(self.keyed.index.astype(np.int64), row_starts))
        places = firsts(index)
        keys, starts = self.keyed.index[places].astype(np.int64), row_starts[places]
        entries = self._entries_of_epoch(starts)
        if not len(places):
            return _Panes(keys, entries, pa.array([], self.field.value_type))
        pairs = of_pairs(self.keyed, index, keys)
        if self.function.keeps_rows:
            kept = pa.nulls(len(places), self.field.value_type)
        else:
            kept = read_timed(self.field, self.state, pairs.bases, entries)
        accumulators = self.computation.folded(pairs, kept, self.ctx)
        revisions = pa.array(np.full(len(places), self.ctx.epoch, np.int64))
        values = pa.StructArray.from_arrays([*accumulators, revisions], fields=list(self.field.value_type))
        return _Panes(keys, entries, values)

    def _entries_of_epoch(self, starts: Times) -> pa.Array:
        """The map keys under which panes are kept that have rows in this epoch."""
        times = timestamps(starts)
        if not self.function.keeps_rows:
            return times
        numbers = pa.array(np.full(len(starts), self.ctx.epoch, np.int64))
        return pa.StructArray.from_arrays([times, numbers], fields=list(TIME_AND_NUMBER))

    def _to_look_at(self, changed: _Panes) -> _Panes:
        """All panes of the windows that are to be emitted, as they are now, and those to let go of. Where no
        window is emitted these are no more than the changed ones."""
        entries, bases = map_keys_of(self.field, self.state, self.early.due)
        closes = next_end(self.window, self.before_us) - 1 <= self.now_us
        lets_go = _next_let_go(self.function, self.before_us) <= self.now_us
        reopened = (next_ends(self.window, changed.starts) - 1 <= self.before_us).any()
        if closes or lets_go or reopened or self.time.closing:
            until = FOREVER_US if self.time.closing else self.now_us
            due, of_due = due_map_keys(self.field, self.ctx.groups, self.state, until)
            entries, bases = pa.concat_arrays([entries, due]), bases + of_due
        if not bases and not self.early.due:
            return changed
        self.keyed, numbers = with_keys(self.keyed, self.layout, self.state, [*bases, *self.early.due])
        self.early.numbers = numbers
        keys = np.fromiter(map(numbers.__getitem__, bases), np.int64, len(bases))
        # An entry may be found twice; and one that the epoch writes is no more as it is kept.
        found = firsts(
            _numbered_entries(
                np.concatenate([changed.keys, keys]), pa.concat_arrays([changed.entries, entries])
            )
        )
        others = found[found >= len(changed)] - len(changed)
        entries = entries.take(pa.array(others))
        values = read_timed(self.field, self.state, [bases[each] for each in others.tolist()], entries)
        return _Panes(keys[others], entries, values).followed_by(changed)

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
        """Every pane once for each window that it is in, and the ends of these windows; without those that
        are not emitted whatever their panes hold."""
        last, every = last_ends(self.window, panes.starts), self.window.every_us
        open_too = self.time.closing or bool(self.early.due)
        until = FOREVER_US if open_too else self.now_us
        after = max(self.before_us - self.function.lateness_us, NEVER_US)
        places, ends = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if len(panes):
            # The n-th last windows of the panes: those that can be emitted are few of a pane's, and the same.
            first = max(0, -((until - int(last.min()) + 1) // every))
            end = min(self.window.windows_per_pane, (int(last.max()) - 1 - after) // every + 1)
            found = [self._nth_last(panes, last - n * every, after, until) for n in range(first, end)]
            places, ends = (np.concatenate(each) for each in zip((places, ends), *found, strict=True))
        # Windows are numbered, and their panes merged, in order of the panes.
        order = np.argsort(places, kind="stable")
        return panes.take(places[order]), ends[order]

    def _nth_last(self, panes: _Panes, ends: Times, after: int, until: int) -> tuple[Numbers, Times]:
        """Which of the panes are in windows with these ends that can be emitted; and the ends."""
        places = np.flatnonzero((ends - 1 > after) & (ends - 1 <= until) & (ends > panes.starts))
        return places, ends[places]

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
        let_go = panes.take(np.flatnonzero(gone))
        both = kept.followed_by(replace(let_go, values=pa.nulls(len(let_go), self.field.value_type)))
        deleted = np.arange(len(both)) >= len(kept)
        changes.entries[PANES] = EntryChange(both.keys, both.entries, both.values, deleted)

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
                epochs = read_timed(self._field, state, [base] * len(times), timestamps(np.array(times)))
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
        known = read_timed(self._field, self._state, bases, timestamps(np.full(len(keys), at, np.int64)))
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


def _numbered_entries(keys: Numbers, entries: pa.Array) -> Index:
    """A number for each entry of a key, by its first place."""
    for part in entries.flatten() if pa.types.is_struct(entries.type) else [entries]:
        keys = paired(keys, np.asarray(part.cast(pa.int64())))
    return numbered(keys)


def _time_window(function: Windowed) -> TimeWindow:
    assert isinstance(function.window, TimeWindow)
    return function.window


def _next_let_go(function: Windowed, after_us: int) -> int:
    """When panes are let go of next, of which all windows can change no more, after `after_us`."""
    if after_us == NEVER_US:
        return NEVER_US
    lateness = function.lateness_us
    return next_end(_time_window(function), max(after_us - lateness, NEVER_US)) - 1 + lateness


def _pane_starts(window: TimeWindow, times: Times) -> Times:
    """Where the panes of some times begin."""
    return (times - window.offset_us) // window.pane_us * window.pane_us + window.offset_us
