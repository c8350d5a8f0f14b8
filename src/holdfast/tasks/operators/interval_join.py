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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.graph.interval_join import LEFT_ROWS, RIGHT_ROWS, IntervalJoin
from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import (
    TIME_AND_NUMBER,
    TIME_TYPE,
    StateField,
    StateLayout,
    time_tail,
    times_and_numbers,
)
from holdfast.state.files.delta import Changes, EntryChange
from holdfast.tasks.operators.due import due_entries, earliest, with_keys
from holdfast.tasks.operators.result import FOREVER_US, EpochContext, EventTime, OperatorResult
from holdfast.tasks.operators.shard_rows import KeyedSlice
from holdfast.tasks.operators.time_pairs import Longs, pairs, plus

Flags = npt.NDArray[np.bool_]
NUMBER_BITS = 32
"""A kept row has a number beside its time: that of its epoch, and in these bits its place in the slice."""


def run_interval_join(
    join: IntervalJoin, layout: StateLayout, keyed: KeyedSlice, state: ShardState, ctx: EpochContext
) -> OperatorResult:
    """Join the rows of a shard."""
    time = ctx.time or EventTime()
    left, right = sides = _sides(join, layout)
    due = {
        side.name: [] if (until := side.until(time.due_us)) is None
        else due_entries(side.field, ctx.groups, state, until)
        for side in sides
    }  # fmt: skip
    keyed, numbers = with_keys(keyed, layout, state, [base for found in due.values() for base, _ in found])
    arrived = [side.arrived(keyed, time.before_us) for side in sides]
    fresh = [each.fresh for each in arrived]
    kept = [
        _read(side, partner, rows, keyed.bases, state)
        for side, partner, rows in zip(sides, (right, left), reversed(fresh), strict=True)
    ]
    every = [before.rows.followed_by(now) for before, now in zip(kept, fresh, strict=True)]
    out = _Output(join, layout, keyed)
    matched = _pair(join, out, every, [len(before.rows) for before in kept])

    changes = keyed.no_changes()
    for side, before, now, flags, aside in zip(sides, kept, fresh, matched, arrived, strict=True):
        number = (ctx.epoch << NUMBER_BITS) + aside.places
        parted = np.split(flags, [len(before.rows)])
        leaving = _Leaving(side, due[side.name], numbers, time.due_us)
        leaving.give_out(out, before, parted[0], now, parted[1], state)
        out.add(side, aside.alone if side.keeps else aside.alone.of([]))
        leaving.put_into(changes, before, parted[0], now, parted[1], number)
    late = _late(join, keyed.rows, np.sort(np.concatenate([each.late for each in arrived])), time)
    return OperatorResult({MAIN_OUTPUT: out.table(), LATE_ROWS: late}, changes)


def first_given_up(
    join: IntervalJoin, layout: StateLayout, groups: KeyGroupRange, state: ShardState
) -> int | None:
    """When the watermark passes the first of the rows that are kept; None: none are."""
    firsts = [
        at_us + side.partners_us[1]
        for side in _sides(join, layout)
        if (at_us := earliest(side.field, groups, state)) is not None
    ]
    return min(firsts, default=None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one side: their columns but the key's, the number of each row's key, and its time."""

    columns: list[pa.Array]
    key: Longs
    at_us: Longs

    def __len__(self) -> int:
        return len(self.key)

    def of(self, numbers: Any) -> _Rows:
        """Some of the rows."""
        picked = np.asarray(numbers, dtype=np.int64)
        take = pa.array(picked)
        return _Rows([column.take(take) for column in self.columns], self.key[picked], self.at_us[picked])

    def followed_by(self, other: _Rows) -> _Rows:
        return _Rows(
            [pa.concat_arrays(both) for both in zip(self.columns, other.columns, strict=True)],
            np.concatenate([self.key, other.key]),
            np.concatenate([self.at_us, other.at_us]),
        )


@dataclass(frozen=True, slots=True)
class _Arrived:
    """The rows of an epoch: those that are joined, with their places in the slice; those that match nothing
    because their key is null; and the places of those that are late."""

    fresh: _Rows
    places: Longs
    alone: _Rows
    late: Longs


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows that state holds, with their map keys and whether they had a partner (null: not asked)."""

    rows: _Rows
    tails: list[bytes]
    matched: pa.Array


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two streams. `partners_us`: how much later than a row its partners are; `keeps`: whether
    its rows are given out without one."""

    name: str
    column: str
    on: str
    field: StateField
    partners_us: tuple[int, int]
    keeps: bool

    @property
    def row_type(self) -> list[pa.Field]:
        return list(self.field.value_type)[:-1]

    def until(self, due_us: int | None) -> int | None:
        """Rows up to this time have had all of their partners that are not late."""
        if due_us is None or due_us == FOREVER_US:
            return due_us
        return max(due_us - self.partners_us[1], -FOREVER_US)

    def arrived(self, keyed: KeyedSlice, before_us: int | None) -> _Arrived:
        """This side's rows of a slice."""
        given = keyed.rows[self.column].combine_chunks()
        places = np.flatnonzero(given.is_valid().to_numpy(zero_copy_only=False))
        own = given.take(pa.array(places))
        by_name = dict(zip((each.name for each in own.type), own.flatten(), strict=True))
        times = by_name[self.on].cast(pa.timestamp("us", by_name[self.on].type.tz)).cast(pa.int64())
        at_us = times.fill_null(0).to_numpy(zero_copy_only=False)
        columns = [by_name[each.name].cast(each.type) for each in self.row_type]
        whole_key = np.ones(keyed.key_count, np.bool_)
        for column in keyed.keys:
            whole_key &= column.is_valid().to_numpy(zero_copy_only=False)
        rows = _Rows(columns, keyed.index[places].astype(np.int64), at_us)
        late = times.is_null().to_numpy(zero_copy_only=False)
        if before_us is not None:
            late = late | (at_us <= before_us)
        alone = ~late & ~whole_key[rows.key]
        fresh = np.flatnonzero(~alone & ~late)
        return _Arrived(rows.of(fresh), places[fresh], rows.of(np.flatnonzero(alone)), places[late])


def _sides(join: IntervalJoin, layout: StateLayout) -> tuple[_Side, _Side]:
    lower, upper = join.bounds_us
    left, right = (
        _Side(*each)
        for each in zip(
            ("left", "right"),
            (LEFT_COLUMN, RIGHT_COLUMN),
            join.on,
            (layout.field(LEFT_ROWS), layout.field(RIGHT_ROWS)),
            ((lower, upper), (-upper, -lower)),
            join.keeps,
            strict=True,
        )
    )
    return left, right


def _read(side: _Side, partner: _Side, fresh: _Rows, bases: Sequence[bytes], state: ShardState) -> _Kept:
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


def _decoded(side: _Side, keys: Longs, tails: list[bytes], values: Sequence[bytes | None]) -> _Kept:
    at_us = times_and_numbers(tails).field(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    *columns, matched = side.field.codec.decode(values).flatten()
    return _Kept(_Rows(columns, keys, at_us), tails, matched)


def _pair(join: IntervalJoin, out: _Output, every: list[_Rows], kept: list[int]) -> list[Flags]:
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
        side: _Side,
        due: list[tuple[bytes, bytes]],
        numbers: Mapping[bytes, int],
        due_us: int | None,
    ) -> None:
        self.side, self.until = side, side.until(due_us)
        self.due = due
        self.due_keys = np.array([numbers[base] for base, _ in due], np.int64)

    def _stays(self, rows: _Rows) -> Flags:
        if self.until is None:
            return np.ones(len(rows), np.bool_)
        return rows.at_us > self.until

    def give_out(
        self, out: _Output, kept: _Kept, now: Flags, fresh: _Rows, fresh_matched: Flags, state: ShardState
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
        fresh: _Rows,
        fresh_matched: Flags,
        number: Longs,
    ) -> None:
        """What is given up, what is kept from now on, and what has its first partner."""
        stays = np.flatnonzero(self._stays(fresh))
        added = fresh.of(stays)
        flags = pa.array(fresh_matched[stays] if self.side.keeps else [None] * len(stays), pa.bool_())
        first = np.zeros(0, np.int64)
        if self.side.keeps:
            had_none = ~kept.matched.fill_null(True).to_numpy(zero_copy_only=False)
            first = np.flatnonzero(now & had_none & self._stays(kept.rows))
        told = kept.rows.of(first)
        rows = np.concatenate([added.key, told.key, self.due_keys])
        if not len(rows):
            return
        entry = pa.concat_arrays(
            [
                _map_keys(added.at_us, number[stays]),
                times_and_numbers([kept.tails[place] for place in first.tolist()]),
                times_and_numbers([tail for _, tail in self.due]),
            ]
        )
        values = pa.concat_arrays(
            [
                self._values(added, flags),
                self._values(told, pa.array(np.ones(len(told), np.bool_))),
                pa.nulls(len(self.due), self.side.field.value_type),
            ]
        )
        deleted = np.arange(len(rows)) >= len(added) + len(told)
        changes.entries[self.side.field.name] = EntryChange(rows, entry, values, deleted)

    def _values(self, rows: _Rows, matched: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([*rows.columns, matched], fields=list(self.side.field.value_type))


class _Output:
    """The rows that a join gives out."""

    def __init__(self, join: IntervalJoin, layout: StateLayout, keyed: KeyedSlice) -> None:
        key, input = layout.key.names, keyed.rows.schema
        self._keyed, self._key, self._kept = keyed, key, join.kept_columns(input, key)
        self._left = [each.name for each in input.field(LEFT_COLUMN).type]
        self.schema = join.output_schema(input, key)
        self._parts = [self.schema.empty_table()]

    def add_pairs(self, left: _Rows, right: _Rows) -> None:
        """Rows of both sides, aligned."""
        self._add(left.key, left.columns, right.columns)

    def add(self, side: _Side, rows: _Rows) -> None:
        """Rows of one side, without a partner."""
        if not len(rows):
            return
        other = self._kept[1 if side.name == "left" else 0]
        nulls = [pa.nulls(len(rows)) for _ in other]
        self._add(rows.key, *((rows.columns, nulls) if side.name == "left" else (nulls, rows.columns)))

    def _add(self, keys: Longs, left: list[pa.Array], right: list[pa.Array]) -> None:
        take = pa.array(keys)
        by_name = dict(zip(self._kept[0], left, strict=True))
        by_name |= {name: column.take(take) for name, column in zip(self._key, self._keyed.keys, strict=True)}
        columns = [*(by_name[name] for name in self._left), *right]
        self._parts.append(
            pa.Table.from_arrays(
                [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)],
                schema=self.schema,
            )
        )

    def table(self) -> pa.Table:
        return pa.concat_tables(self._parts).combine_chunks()


def _map_keys(at_us: Longs, number: Longs) -> pa.Array:
    return pa.StructArray.from_arrays(
        [pa.array(at_us).cast(TIME_TYPE), pa.array(number)], fields=list(TIME_AND_NUMBER)
    )


def _late(join: IntervalJoin, rows: pa.Table, places: Longs, time: EventTime) -> pa.Table:
    schema = join.late_schema(rows.schema)
    late = rows.take(pa.array(places))
    is_left = late[LEFT_COLUMN].is_valid().to_numpy()
    watermark = pa.array([time.before_us] * len(places), pa.int64()).cast(schema.field("watermark").type)
    columns = [
        pa.array(np.where(is_left, "left", "right"), pa.string()),
        late[LEFT_COLUMN].combine_chunks().cast(schema.field("left").type),
        late[RIGHT_COLUMN].combine_chunks().cast(schema.field("right").type),
        watermark,
    ]
    return pa.Table.from_arrays(columns, schema=schema)
