"""Runs an interval join over a shard's rows of two streams, whole columns at a time.

Rows of an epoch are judged by the watermark before it: those behind it, and those without a time, are late
and join nothing. The others
are paired with one another and with the rows that are kept; then everything is given up that the watermark of
this epoch has passed.
Always true: every pair of rows that are not late is given out once, in the epoch of the later of the two; an
unmatched row is given out by the epoch that gives it up. Same rows and state, same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout, time_tail, times_and_numbers
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
from holdfast.tasks.operators.time_pairs import Longs, pairs, plus


def run_interval_join(
    join: IntervalJoin, layout: StateLayout, keyed: KeyedSlice, state: ShardState, ctx: EpochContext
) -> OperatorResult:
    """Join the rows of a shard."""
    time = ctx.time or EventTime()
    left, right = sides = _bounded_sides(join, layout)
    due = {
        each.side.name: [] if (until := each.until(time.due_us)) is None
        else due_entries(each.side.field, ctx.groups, state, until)
        for each in sides
    }  # fmt: skip
    keyed, numbers = with_keys(keyed, layout, state, [base for found in due.values() for base, _ in found])
    behind = -FOREVER_US - 1 if time.before_us is None else time.before_us
    arrived = [each.side.arrived(keyed, lambda at_us: at_us <= behind) for each in sides]
    whole = whole_keys(keyed)
    fresh = [each.of(np.flatnonzero(whole[each.rows.key])) for each in arrived]
    kept = [
        _read(bounded.side, partner, now.rows, keyed.bases, state)
        for bounded, partner, now in zip(sides, (right, left), reversed(fresh), strict=True)
    ]
    every = [before.rows.followed_by(now.rows) for before, now in zip(kept, fresh, strict=True)]
    out = JoinOutput(join, layout, keyed)
    matched = _pair(join, out, every, [len(before.rows) for before in kept])

    changes = keyed.no_changes()
    for bounded, before, now, flags, all_rows in zip(sides, kept, fresh, matched, arrived, strict=True):
        parted = np.split(flags, [len(before.rows)])
        leaving = _Leaving(bounded, due[bounded.side.name], numbers, time.due_us)
        leaving.give_out(out, before, parted[0], now.rows, parted[1], state)
        if bounded.side.keeps:
            out.add(bounded.side, all_rows.rows.of(np.flatnonzero(~whole[all_rows.rows.key])))
        leaving.put_into(changes, before, parted[0], now, parted[1], ctx)
    late = late_rows(join, keyed.rows, arrived, time)
    expires = [_expires(join, each, now.rows) for each, now in zip(sides, arrived, strict=True)]
    last = max((at_us for at_us in expires if at_us is not None), default=None)
    return OperatorResult({MAIN_OUTPUT: out.table(), LATE_ROWS: late}, changes, expires_us=last)


def _expires(join: IntervalJoin, bounded: _Bounded, rows: Rows) -> int | None:
    """When the last of these rows, or of those that say of themselves that they have had one of these for a
    partner, is given up."""
    lower, upper = join.bounds_us
    kept_us = bounded.partners_us[1]
    if any(join.keeps):
        # A partner may be as much later, and is then kept for as long, as makes this together.
        kept_us = max(kept_us, upper - lower)
    return int(plus(rows.at_us, kept_us).max()) if len(rows) else None


def first_given_up(
    join: IntervalJoin, layout: StateLayout, groups: KeyGroupRange, state: ShardState
) -> int | None:
    """When the watermark passes the first of the rows that are kept; None: none are."""
    firsts = [
        at_us + bounded.partners_us[1]
        for bounded in _bounded_sides(join, layout)
        if (at_us := earliest(bounded.side.field, groups, state)) is not None
    ]
    return min(firsts, default=None)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows that state holds, with their map keys and whether they had a partner (null: not asked)."""

    rows: Rows
    tails: list[bytes]
    matched: pa.Array


@dataclass(frozen=True, slots=True)
class _Bounded:
    """One of the two streams. `partners_us`: how much later than a row its partners are."""

    side: Side
    partners_us: tuple[int, int]

    def until(self, due_us: int | None) -> int | None:
        """Rows up to this time have had all of their partners that are not late."""
        if due_us is None or due_us == FOREVER_US:
            return due_us
        return max(due_us - self.partners_us[1], -FOREVER_US)


def _bounded_sides(join: IntervalJoin, layout: StateLayout) -> tuple[_Bounded, _Bounded]:
    lower, upper = join.bounds_us
    left, right = sides_of(join, layout)
    return _Bounded(left, (lower, upper)), _Bounded(right, (-upper, -lower))


def _read(side: Side, partner: _Bounded, fresh: Rows, bases: Sequence[bytes], state: ShardState) -> _Kept:
    """The rows that state holds of the keys that the partners' fresh rows have, from the earliest to the
    latest time that these can match."""
    earliest_us, latest_us = np.full(len(bases), FOREVER_US), np.full(len(bases), -FOREVER_US - 1)
    np.minimum.at(earliest_us, fresh.key, plus(fresh.at_us, partner.partners_us[0]))
    np.maximum.at(latest_us, fresh.key, plus(fresh.at_us, partner.partners_us[1]))
    keys: list[int] = []
    tails: list[bytes] = []
    values: list[bytes] = []
    for number in np.unique(fresh.key).tolist():
        head = len(bases[number]) + 1
        prefix = bases[number] + side.field.suffix + side.field.time_head
        until = int(latest_us[number])
        end = None if until >= FOREVER_US else prefix + time_tail(until + 1)
        for key, value in state.scan(prefix, end, start=time_tail(int(earliest_us[number]))):
            keys.append(number)
            tails.append(key[head:])
            values.append(value)
    return _decoded(side, np.array(keys, np.int64), tails, values)


def _decoded(side: Side, keys: Longs, tails: list[bytes], values: Sequence[bytes | None]) -> _Kept:
    rows, (matched,) = side.decoded(keys, tails, values)
    return _Kept(rows, tails, matched)


def _pair(join: IntervalJoin, out: JoinOutput, every: list[Rows], kept: list[int]) -> list[Flags]:
    """Give out all pairs but those of two kept rows; says which rows of either side are part of one."""
    left, right = every
    flags = [np.zeros(len(rows), np.bool_) for rows in every]
    old_left = np.arange(len(left)) < kept[0]
    for of_left, of_right in (
        (np.arange(len(left)), np.arange(kept[1], len(right))),
        (np.flatnonzero(~old_left), np.arange(kept[1])),
    ):
        ours, theirs = pairs(
            left.key[of_left], left.at_us[of_left], right.key[of_right], right.at_us[of_right], join.bounds_us
        )
        ours, theirs = of_left[ours], of_right[theirs]
        flags[0][ours], flags[1][theirs] = True, True
        out.add_pairs(left.of(ours), right.of(theirs))
    return flags


class _Leaving:
    """What becomes of one side's rows at the end of an epoch: given up, or kept."""

    def __init__(
        self,
        bounded: _Bounded,
        due: list[tuple[bytes, bytes]],
        numbers: Mapping[bytes, int],
        due_us: int | None,
    ) -> None:
        self.side, self.until = bounded.side, bounded.until(due_us)
        self.due = due
        self.due_keys = np.array([numbers[base] for base, _ in due], np.int64)

    def _stays(self, rows: Rows) -> Flags:
        if self.until is None:
            return np.ones(len(rows), np.bool_)
        return rows.at_us > self.until

    def give_out(
        self, out: JoinOutput, kept: _Kept, now: Flags, fresh: Rows, fresh_matched: Flags, state: ShardState
    ) -> None:
        """Rows that are given up and never had a partner. `now`: which of the kept ones have one now."""
        if not self.side.keeps:
            return
        out.add(self.side, fresh.of(np.flatnonzero(~self._stays(fresh) & ~fresh_matched)))
        suffix = self.side.field.suffix
        values = state.get_many([base + suffix + tail for base, tail in self.due])
        given_up = _decoded(self.side, self.due_keys, [tail for _, tail in self.due], values)
        had_none = ~given_up.matched.fill_null(True).to_numpy(zero_copy_only=False)
        matched_now = {
            (int(kept.rows.key[place]), kept.tails[place]) for place in np.flatnonzero(now).tolist()
        }
        for place in np.flatnonzero(had_none).tolist() if matched_now else ():
            had_none[place] = (int(self.due_keys[place]), given_up.tails[place]) not in matched_now
        out.add(self.side, given_up.rows.of(np.flatnonzero(had_none)))

    def put_into(
        self,
        changes: Changes,
        kept: _Kept,
        now: Flags,
        fresh: Arrived,
        fresh_matched: Flags,
        ctx: EpochContext,
    ) -> None:
        """What is given up, what is kept from now on, and what has its first partner."""
        stays = np.flatnonzero(self._stays(fresh.rows))
        arrived = fresh.of(stays)
        added = arrived.rows
        flags = pa.array(fresh_matched[stays] if self.side.keeps else [None] * len(stays), pa.bool_())
        # Also where it does not matter now: it may again in a later run.
        had_none = ~kept.matched.fill_null(True).to_numpy(zero_copy_only=False)
        first = np.flatnonzero(now & had_none & self._stays(kept.rows))
        told = kept.rows.of(first)
        rows = np.concatenate([added.key, told.key, self.due_keys])
        if not len(rows):
            return
        entry = pa.concat_arrays(
            [
                map_keys(arrived, ctx),
                times_and_numbers([kept.tails[place] for place in first.tolist()]),
                times_and_numbers([tail for _, tail in self.due]),
            ]
        )
        values = pa.concat_arrays(
            [
                self.side.values(added, flags),
                self.side.values(told, pa.array(np.ones(len(told), np.bool_))),
                pa.nulls(len(self.due), self.side.field.value_type),
            ]
        )
        deleted = np.arange(len(rows)) >= len(added) + len(told)
        changes.entries[self.side.field.name] = EntryChange(rows, entry, values, deleted)
