"""Runs aggregates over sessions: rows of a key that follow one another by less than the gap; whole columns.

All sessions of a key are one value. The rows of an epoch and the sessions that are kept are sorted together,
and what lies within the gap becomes one. When a session closes is a TIMED entry beside them.

Always true: a row belongs to one session, or is late: that is judged after it was joined with others. A
session is emitted when it closes, unless it was before and has not changed since; one that was emitted and
has other bounds now is emitted once more as deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.graph.windows import (
    CLOSINGS,
    REVISION,
    SESSION_EMITTED,
    SESSION_LAST,
    SESSION_START,
    SESSIONS,
    SessionWindow,
    Windowed,
)
from holdfast.state.cells.value_cells import read_column
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.delta import Changes, EntryChange, ValueChange
from holdfast.tasks.operators.due import due_times, with_keys
from holdfast.tasks.operators.result import FOREVER_US, EpochContext, EventTime, OperatorResult
from holdfast.tasks.operators.shard_rows import KeyedSlice, firsts, numbered
from holdfast.tasks.operators.windows.computations import Emitting, Results, computation_of, window_table
from holdfast.tasks.operators.windows.window_rows import (
    Flags,
    Numbers,
    Times,
    micros_of,
    of_pairs,
    timestamps,
    watermarks,
    without_late,
)


def run_session_windows(
    function: Windowed,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
) -> OperatorResult:
    """Add the rows to the sessions of their keys, emit those that close or have changed after they did, and
    let go of what can change no more. UserCodeError where a sum overflows."""
    return _SessionRun(function, layout, keyed, state, ctx).run()


@dataclass(frozen=True)
class _Sessions:
    """Some sessions: parallel columns. `values` has what is kept of each."""

    keys: Numbers
    values: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, which: Numbers | Flags) -> _Sessions:
        places = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return _Sessions(self.keys[places], self.values.take(pa.array(places)))

    def number(self, name: str) -> Times:
        return np.asarray(self.values.field(name))

    @property
    def starts(self) -> Times:
        return self.number(SESSION_START)

    @property
    def lasts(self) -> Times:
        return self.number(SESSION_LAST)

    @property
    def emitted(self) -> Times:
        return self.number(SESSION_EMITTED)

    @property
    def revisions(self) -> Times:
        return self.number(REVISION)


class _SessionRun:
    def __init__(
        self,
        function: Windowed,
        layout: StateLayout,
        keyed: KeyedSlice,
        state: ShardState,
        ctx: EpochContext,
    ) -> None:
        assert isinstance(function.window, SessionWindow)
        self.function, self.gap_us, self.layout, self.state = function, function.window.gap_us, layout, state
        self.ctx, self.time, self.field = ctx, ctx.time or EventTime(), layout.field(SESSIONS)
        self.computation = computation_of(function)
        self.keyed = replace(keyed, rows=self.computation.stored(keyed.rows))
        self.schema = function.output_schema(self.keyed.rows.schema, keyed.key_columns)
        self.before_us, self.now_us = watermarks(ctx.time)

    def run(self) -> OperatorResult:
        until = FOREVER_US if self.time.closing else self.now_us
        due = due_times(self.layout.field(CLOSINGS), self.ctx.groups, self.state, until)
        self.keyed, numbers = with_keys(self.keyed, self.layout, self.state, list(due))
        held = self._held()
        late, times = self._without_timeless()
        held_in, row_in = _joined(held, self.keyed.index, times, self.gap_us)
        late, held_in, row_in, times = self._without_late(late, held_in, row_in, times)
        touched = np.isin(held_in, row_in)
        fresh = self._with_rows(held.take(touched), held_in[touched], row_in, times)
        now = _Sessions(
            np.concatenate([held.keys[~touched], fresh.keys]),
            pa.concat_arrays([held.take(~touched).values, fresh.values]),
        )
        wanted = (now.revisions > now.emitted) & ((self._last_us(now) <= self.now_us) | self.time.closing)
        output = pa.concat_tables([self._emitted(now.take(wanted)), self._deleted(held.take(touched), fresh)])
        now = self._marked(now, wanted)
        changes = self.keyed.no_changes()
        kept = now.take(self._last_us(now) + self.function.lateness_us > self.now_us)
        self._keep(changes, held, kept, np.concatenate([fresh.keys, now.keys[wanted]]))
        self._keep_closings(changes, held, kept, {numbers[base]: at for base, at in due.items()})
        return OperatorResult({MAIN_OUTPUT: output, LATE_ROWS: late}, changes)

    def _held(self) -> _Sessions:
        """The sessions that are kept of all keys at hand."""
        column, _ = read_column(self.field, self.keyed.bases, self.state)
        return _Sessions(np.asarray(pc.list_parent_indices(column)).astype(np.int64), pc.list_flatten(column))

    def _without_timeless(self) -> tuple[pa.Table, Times]:
        """Take the rows out of the slice that are in no window, and give them; and the times of the
        others."""
        assert self.function.on is not None
        times = self.keyed.rows.column(self.function.on).combine_chunks()
        micros, usable = micros_of(times)
        self.keyed, rows = without_late(self.keyed, self.function.on, ~usable, self.before_us)
        return rows, micros[usable]

    def _without_late(
        self, late: pa.Table, held_in: Numbers, row_in: Numbers, times: Times
    ) -> tuple[pa.Table, Numbers, Numbers, Times]:
        """Take the rows out of the slice whose sessions could change no more, and add them to `late`."""
        assert self.function.on is not None
        if not len(row_in):
            return late, held_in, row_in, times
        newest = np.full(int(max(row_in.max(), held_in.max(initial=0))) + 1, np.iinfo(np.int64).min)
        np.maximum.at(newest, row_in, times)
        # One that is kept can still change, and so can what it was joined with.
        newest[held_in] = np.iinfo(np.int64).max - self.gap_us - self.function.lateness_us
        too_late = newest[row_in] + self.gap_us - 1 + self.function.lateness_us <= self.before_us
        self.keyed, rows = without_late(self.keyed, self.function.on, too_late, self.before_us)
        return pa.concat_tables([late, rows]), held_in, row_in[~too_late], times[~too_late]

    def _with_rows(self, held: _Sessions, held_in: Numbers, row_in: Numbers, times: Times) -> _Sessions:
        """The sessions that have rows in this epoch, with these and what they were joined with in them.

        `held`: those of the kept ones that are joined; `held_in` and `row_in` say into which.
        """
        if not len(row_in):
            return _Sessions(np.empty(0, np.int64), pa.array([], self.field.type.value_type))
        index = numbered(row_in)
        keys = self.keyed.index[firsts(index)].astype(np.int64)
        number_of = dict(zip(row_in[firsts(index)].tolist(), range(len(keys)), strict=True))
        into = np.fromiter((number_of[each] for each in held_in.tolist()), np.int64, len(held_in))
        starts, lasts = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), np.iinfo(np.int64).min)
        np.minimum.at(starts, index, times)
        np.maximum.at(lasts, index, times)
        np.minimum.at(starts, into, held.starts)
        np.maximum.at(lasts, into, held.lasts)
        kept = self._merged(held, into, keys)
        accumulators = self.computation.folded(of_pairs(self.keyed, index, keys), kept, self.ctx)
        # What was emitted with these very bounds still stands for it.
        as_before = (held.starts == starts[into]) & (held.lasts == lasts[into])
        emitted, revisions = np.zeros(len(keys), np.int64), np.full(len(keys), self.ctx.epoch, np.int64)
        emitted[into[as_before]] = held.emitted[as_before]
        columns = [*map(pa.array, (starts, lasts, emitted)), *accumulators, pa.array(revisions)]
        type = self.field.type.value_type
        return _Sessions(keys, pa.StructArray.from_arrays(columns, fields=list(type)))

    def _merged(self, held: _Sessions, into: Numbers, keys: Numbers) -> pa.Array:
        """What was kept of the sessions that become one, for each session; null: nothing. `keys`: theirs."""
        order = np.argsort(held.starts, kind="stable")
        held, into = held.take(order), into[order]
        index = numbered(into)
        whose = Emitting(self.keyed, keys[into[firsts(index)]], self.ctx)
        joined = self.computation.merged(held.values, index, whose)
        values = pa.StructArray.from_arrays(joined, names=list(self.function.computation.computed))
        places = np.full(len(keys), -1, np.int64)
        places[into[firsts(index)]] = np.arange(len(values))
        return values.take(pa.array(places, mask=places < 0))

    def _last_us(self, sessions: _Sessions) -> Times:
        """The last µs of sessions."""
        return sessions.lasts + self.gap_us - 1

    def _emitted(self, wanted: _Sessions) -> pa.Table:
        """The rows of sessions."""
        if not len(wanted):
            return self.schema.empty_table()
        own = np.arange(len(wanted), dtype=np.int32)
        emitting = self._emitting(wanted)
        results = self.computation.emitted(wanted.values, own, emitting)
        return window_table(self.schema, emitting, results, deleted=False)

    def _emitting(self, sessions: _Sessions) -> Emitting:
        return Emitting(self.keyed, sessions.keys, self.ctx, sessions.starts, sessions.lasts + self.gap_us)

    def _marked(self, now: _Sessions, emitted: Flags) -> _Sessions:
        """The sessions, of which these were emitted in this epoch."""
        names = [field.name for field in now.values.type]
        columns = dict(zip(names, now.values.flatten(), strict=True))
        columns[SESSION_EMITTED] = pa.array(np.where(emitted, self.ctx.epoch, now.emitted))
        return _Sessions(
            now.keys, pa.StructArray.from_arrays([*columns.values()], fields=list(now.values.type))
        )

    def _deleted(self, held: _Sessions, fresh: _Sessions) -> pa.Table:
        """Of the kept sessions that were joined with rows: those that were emitted and have other bounds
        now, without results."""
        bounds = set(zip(fresh.keys.tolist(), fresh.starts.tolist(), fresh.lasts.tolist(), strict=True))
        before = zip(held.keys.tolist(), held.starts.tolist(), held.lasts.tolist(), strict=True)
        moved = np.fromiter((each not in bounds for each in before), np.bool_, len(held))
        gone = held.take((held.emitted > 0) & moved)
        results = list(self.schema)[len(self.keyed.keys) + 2 : -2]
        nothing = Results([pa.nulls(len(gone), field.type) for field in results], np.arange(len(gone)))
        return window_table(self.schema, self._emitting(gone), nothing, deleted=True)

    def _keep(self, changes: Changes, held: _Sessions, kept: _Sessions, touched: Numbers) -> None:
        """Put what became of the sessions of each key into the changes, if anything did. `touched`: keys of
        which some changed."""
        counts = [np.bincount(each.keys, minlength=self.keyed.key_count) for each in (held, kept)]
        changed = counts[0] != counts[1]
        changed[touched] = True
        rows = np.flatnonzero(changed)
        if not len(rows):
            return
        sorted_by_key = kept.take(np.lexsort((kept.starts, kept.keys)))
        own = sorted_by_key.take(changed[sorted_by_key.keys])
        lengths = np.bincount(own.keys, minlength=self.keyed.key_count)[rows]
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        values = pa.ListArray.from_arrays(offsets, own.values, type=self.field.type)
        changes.values[SESSIONS] = ValueChange(rows, values, lengths == 0)

    def _keep_closings(
        self, changes: Changes, held: _Sessions, kept: _Sessions, due: dict[int, list[int]]
    ) -> None:
        """Put into the changes when sessions close, or are let go of, that did so at other times before."""
        before, now = self._closings(held, self.before_us), self._closings(kept, self.now_us)
        gone = sorted((before | {(key, at) for key, times in due.items() for at in times}) - now)
        # Of a key that has something due, what is to come is written in any case: with another lateness than
        # its sessions were kept by, it is not there.
        added = sorted(each for each in now if each not in before or each[0] in due)
        if not added and not gone:
            return
        rows, times = (np.array([each[side] for each in (*added, *gone)], np.int64) for side in (0, 1))
        there = pa.array(np.ones(len(rows), np.bool_))
        changes.entries[CLOSINGS] = EntryChange(
            rows, timestamps(times), there, np.arange(len(rows)) >= len(added)
        )

    def _closings(self, sessions: _Sessions, watermark_us: int) -> set[tuple[int, int]]:
        """(key, time) at which sessions close or, if they have by `watermark_us`, are let go of."""
        last = self._last_us(sessions)
        at = np.where(last > watermark_us, last, last + self.function.lateness_us)
        return set(zip(sessions.keys.tolist(), at.tolist(), strict=True))


def _joined(
    held: _Sessions, row_keys: npt.NDArray[np.int32], times: Times, gap_us: int
) -> tuple[Numbers, Numbers]:
    """In which session each of the kept ones, and each row, is: numbers from 0. What is less than
    `gap_us` after another of its key is in the same."""
    keys = np.concatenate([held.keys, row_keys.astype(np.int64)])
    starts, lasts = np.concatenate([held.starts, times]), np.concatenate([held.lasts, times])
    order = np.lexsort((starts, keys))
    keys, starts, lasts = keys[order], starts[order], lasts[order]
    # The latest so far of each key: by the rank of each, so that a later key begins anew.
    by_time = np.argsort(lasts, kind="stable")
    ranks = np.empty(len(lasts), np.int64)
    ranks[by_time] = np.arange(len(lasts))
    reached = lasts[by_time[np.maximum.accumulate(keys * len(lasts) + ranks) % max(len(lasts), 1)]]
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] >= reached[:-1] + gap_us)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers[: len(held)], numbers[len(held) :]
