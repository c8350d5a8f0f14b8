"""Runs a window join over a shard's rows of two streams, whole columns at a time.

Rows of an epoch are judged by the watermark before it: those whose windows have all closed, and those without
a time, are late and join nothing. The others are kept, once each, by time. Then the windows that close in
this epoch are given out, each with all of its rows; rows that no open window needs are let go of.
Always true: a window is given out once, by the epoch whose watermark passes its end (or that closes
everything), with every row of it that came before and was not late for it. Where no window closes nothing is
read. Same rows and state, same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.graph.window_join import WindowJoin
from holdfast.graph.windows import WINDOW_END, WINDOW_START, TimeWindow
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout, times_and_numbers
from holdfast.state.files.delta import Changes, EntryChange
from holdfast.tasks.operators.due import due_entries, earliest, with_keys
from holdfast.tasks.operators.kept_rows import (
    Arrived,
    Flags,
    JoinOutput,
    Rows,
    Side,
    late_rows,
    map_keys,
    sides_of,
    whole_keys,
)
from holdfast.tasks.operators.result import FOREVER_US, EpochContext, EventTime, OperatorResult
from holdfast.tasks.operators.shard_rows import KeyedSlice
from holdfast.tasks.operators.time_pairs import Longs, pairs
from holdfast.tasks.operators.windows.window_rows import (
    NEVER_US,
    last_ends,
    next_end,
    next_ends,
    paired,
    timestamps,
    watermarks,
)


def run_window_join(
    join: WindowJoin, layout: StateLayout, keyed: KeyedSlice, state: ShardState, ctx: EpochContext
) -> OperatorResult:
    """Join the rows of a shard."""
    closing = _Closing.of(join.time_window, ctx)
    sides = sides_of(join, layout)
    due = [_due_of(side, closing, state, ctx) for side in sides]
    keyed, numbers = with_keys(keyed, layout, state, [base for found in due for base, _ in found])
    whole = whole_keys(keyed)
    arrived = [side.arrived(keyed, closing.is_late) for side in sides]
    # A row whose key has a null has no partner: only a side that gives such rows out waits with it.
    fresh = [
        now if side.keeps else now.of(np.flatnonzero(whole[now.rows.key]))
        for side, now in zip(sides, arrived, strict=True)
    ]
    out, changes = JoinOutput(join, layout, keyed), keyed.no_changes()
    in_windows = []
    for side, entries, now in zip(sides, due, fresh, strict=True):
        keys = np.array([numbers[base] for base, _ in entries], np.int64)
        tails = [tail for _, tail in entries]
        values = state.get_many([base + side.field.suffix + tail for base, tail in entries])
        kept, _ = side.decoded(keys, tails, values)
        _put_into(changes, side, closing, kept, tails, now, ctx)
        in_windows.append(kept.followed_by(now.rows.of(closing.places_in(now.rows.at_us))))
    _give_out(out, sides, in_windows, closing, whole)
    late = late_rows(join, keyed.rows, arrived, ctx.time or EventTime())
    times = np.concatenate([now.rows.at_us for now in arrived])
    expires = int(last_ends(join.time_window, times).max()) - 1 if len(times) else None
    return OperatorResult({MAIN_OUTPUT: out.table(), LATE_ROWS: late}, changes, expires_us=expires)


def next_window_close(
    join: WindowJoin, layout: StateLayout, groups: KeyGroupRange, state: ShardState, now_us: int | None
) -> int | None:
    """When the first window closes that has rows; None: none are kept. `now_us`: up to where windows are
    closed."""
    firsts = [earliest(side.field, groups, state) for side in sides_of(join, layout)]
    at_us = min((first for first in firsts if first is not None), default=None)
    if at_us is None:
        return None
    window = join.time_window
    end = int(next_ends(window, np.array([at_us], np.int64))[0])
    return (end if now_us is None else max(end, next_end(window, now_us))) - 1


@dataclass(frozen=True, slots=True)
class _Closing:
    """The windows that close in an epoch: those that end from `first_us` to `last_us`, both included."""

    window: TimeWindow
    first_us: int
    last_us: int
    before_us: int

    @classmethod
    def of(cls, window: TimeWindow, ctx: EpochContext) -> _Closing:
        before_us, now_us = watermarks(ctx.time)
        last_us = NEVER_US if now_us == NEVER_US else next_end(window, now_us) - window.every_us
        everything = ctx.time is not None and ctx.time.closing
        return cls(window, next_end(window, before_us), FOREVER_US if everything else last_us, before_us)

    def __bool__(self) -> bool:
        return self.last_us > NEVER_US and self.first_us <= self.last_us

    def is_late(self, at_us: Longs) -> Flags:
        """Whether all windows of these times were closed before the epoch."""
        late: Flags = last_ends(self.window, at_us) - 1 <= self.before_us
        return late

    def gives_up(self, at_us: Longs) -> Flags:
        """Whether no window of these times is open after the epoch."""
        gone: Flags = last_ends(self.window, at_us) <= self.last_us
        return gone

    def places_in(self, at_us: Longs) -> Longs:
        """Which of these times lie in a window that closes."""
        return np.flatnonzero(at_us < self.last_us) if self else np.zeros(0, np.int64)

    def ends_of(self, earliest_us: Longs, latest_us: Longs) -> tuple[Longs, Longs]:
        """The windows that close and have both of two times in them: the place of the two, and the end."""
        first = np.maximum(next_ends(self.window, latest_us), self.first_us)
        last = np.minimum(last_ends(self.window, earliest_us), self.last_us)
        every = self.window.every_us
        counts = np.maximum((last - first) // every + 1, 0)
        places = np.repeat(np.arange(len(counts)), counts)
        steps = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, first[places] + steps * every

    def columns(self, ends: Longs) -> dict[str, pa.Array]:
        return {WINDOW_START: timestamps(ends - self.window.size_us), WINDOW_END: timestamps(ends)}


def _due_of(side: Side, closing: _Closing, state: ShardState, ctx: EpochContext) -> list[tuple[bytes, bytes]]:
    """The kept rows of the windows that close: base and map key. All rows that are kept and begin before the
    last of these ends are in one of them."""
    if not closing:
        return []
    until = closing.last_us if closing.last_us == FOREVER_US else closing.last_us - 1
    return due_entries(side.field, ctx.groups, state, until)


def _give_out(
    out: JoinOutput, sides: tuple[Side, Side], rows: list[Rows], closing: _Closing, whole: Flags
) -> None:
    """The pairs of every window that closes, and the rows that have no partner in it."""
    left, right = rows
    ours, theirs = _near(left, right, closing.window, whole)
    both = left.at_us[ours], right.at_us[theirs]
    places, ends = closing.ends_of(np.minimum(*both), np.maximum(*both))
    ours, theirs = ours[places], theirs[places]
    if len(ours):
        out.add_pairs(left.of(ours), right.of(theirs), closing.columns(ends))
    for side, own, matched in zip(sides, rows, (ours, theirs), strict=True):
        if not side.keeps:
            continue
        members, own_ends = closing.ends_of(own.at_us, own.at_us)
        codes = paired(np.concatenate([members, matched]), np.concatenate([own_ends, ends]))
        alone = ~np.isin(codes[: len(members)], codes[len(members) :])
        out.add(side, own.of(members[alone]), closing.columns(own_ends[alone]))


def _near(left: Rows, right: Rows, window: TimeWindow, whole: Flags) -> tuple[Longs, Longs]:
    """The rows of one key whose times are near enough to lie in one window: numbers of left and right."""
    of_left, of_right = np.flatnonzero(whole[left.key]), np.flatnonzero(whole[right.key])
    times = left.at_us[of_left], right.at_us[of_right]
    bounds = 1 - window.size_us, window.size_us - 1
    if window.every_us == window.size_us:
        times, bounds = (next_ends(window, times[0]), next_ends(window, times[1])), (0, 0)
    ours, theirs = pairs(left.key[of_left], times[0], right.key[of_right], times[1], bounds)
    return of_left[ours], of_right[theirs]


def _put_into(
    changes: Changes,
    side: Side,
    closing: _Closing,
    kept: Rows,
    tails: list[bytes],
    now: Arrived,
    ctx: EpochContext,
) -> None:
    """Which rows are kept from now on, and which are let go of."""
    added = now.of(np.flatnonzero(~closing.gives_up(now.rows.at_us)))
    gone = np.flatnonzero(closing.gives_up(kept.at_us))
    if not len(added.rows) and not len(gone):
        return
    changes.entries[side.field.name] = EntryChange(
        np.concatenate([added.rows.key, kept.key[gone]]),
        pa.concat_arrays(
            [map_keys(added, ctx), times_and_numbers([tails[place] for place in gone.tolist()])]
        ),
        pa.concat_arrays([side.values(added.rows), pa.nulls(len(gone), side.field.value_type)]),
        np.arange(len(added.rows) + len(gone)) >= len(added.rows),
    )
