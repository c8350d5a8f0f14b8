"""The rows of two streams that a join by time goes by: those of an epoch, those that state keeps, and what is
given out of them. Whole columns throughout.

Always true: a kept row has a map key of its own, its time and a number that no other row has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.graph.time_joins import TimeJoin
from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN
from holdfast.state.encoding.layout import (
    TIME_AND_NUMBER,
    TIME_TYPE,
    StateField,
    StateLayout,
    times_and_numbers,
)
from holdfast.tasks.operators.result import EpochContext, EventTime
from holdfast.tasks.operators.shard_rows import KeyedSlice
from holdfast.tasks.operators.time_pairs import Longs
from holdfast.tasks.operators.windows.window_rows import micros_of

Flags = npt.NDArray[np.bool_]
NUMBER_BITS = 32
"""A kept row has a number beside its time: that of its epoch, and in these bits its place in the slice."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one side: their columns but the key's, the number of each row's key, and its time."""

    columns: list[pa.Array]
    key: Longs
    at_us: Longs

    def __len__(self) -> int:
        return len(self.key)

    def of(self, numbers: Any) -> Rows:
        """Some of the rows."""
        picked = np.asarray(numbers, dtype=np.int64)
        take = pa.array(picked)
        return Rows([column.take(take) for column in self.columns], self.key[picked], self.at_us[picked])

    def followed_by(self, other: Rows) -> Rows:
        return Rows(
            [pa.concat_arrays(both) for both in zip(self.columns, other.columns, strict=True)],
            np.concatenate([self.key, other.key]),
            np.concatenate([self.at_us, other.at_us]),
        )


@dataclass(frozen=True, slots=True)
class Arrived:
    """One side's rows of an epoch: those that are not late, with their places in the slice; and the places of
    those that are."""

    rows: Rows
    places: Longs
    late: Longs

    def of(self, numbers: Any) -> Arrived:
        """Some of those that are not late."""
        return Arrived(self.rows.of(numbers), self.places[numbers], self.late)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two streams. `keeps`: whether its rows are given out without a partner."""

    name: str
    column: str
    on: str
    field: StateField
    keeps: bool
    row_type: tuple[pa.Field, ...]

    def arrived(self, keyed: KeyedSlice, is_late: Callable[[Longs], Flags]) -> Arrived:
        """This side's rows of a slice. A row without a time is late."""
        given = keyed.rows[self.column].combine_chunks()
        places = np.flatnonzero(given.is_valid().to_numpy(zero_copy_only=False))
        own = given.take(pa.array(places))
        by_name = dict(zip((each.name for each in own.type), own.flatten(), strict=True))
        at_us, usable = micros_of(by_name[self.on])
        columns = [by_name[each.name].cast(each.type) for each in self.row_type]
        rows = Rows(columns, keyed.index[places].astype(np.int64), at_us)
        late = ~usable | is_late(at_us)
        fresh = np.flatnonzero(~late)
        return Arrived(rows.of(fresh), places[fresh], places[late])

    def decoded(
        self, keys: Longs, tails: Sequence[bytes], values: Sequence[bytes | None]
    ) -> tuple[Rows, list[pa.Array]]:
        """Entries of state as rows, and what else is kept of them."""
        at_us = times_and_numbers(list(tails)).field(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        columns = self.field.codec.decode(values).flatten()
        width = len(self.row_type)
        return Rows(columns[:width], keys, at_us), columns[width:]

    def values(self, rows: Rows, *flags: pa.Array) -> pa.Array:
        """What is kept of rows."""
        return pa.StructArray.from_arrays([*rows.columns, *flags], fields=list(self.field.value_type))


def sides_of(join: TimeJoin, layout: StateLayout) -> tuple[Side, Side]:
    """Both streams of a join."""
    flags = len(join.row_flags)
    fields = [layout.field(name) for name in join.states]
    left, right = (
        Side(name, column, on, field, keeps, tuple(field.value_type)[: field.value_type.num_fields - flags])
        for name, column, on, field, keeps in zip(
            ("left", "right"), (LEFT_COLUMN, RIGHT_COLUMN), join.on, fields, join.keeps, strict=True
        )
    )
    return left, right


def whole_keys(keyed: KeyedSlice) -> Flags:
    """Which keys have no null: one that has matches nothing."""
    whole = np.ones(keyed.key_count, np.bool_)
    for column in keyed.keys:
        whole &= column.is_valid().to_numpy(zero_copy_only=False)
    return whole


def map_keys(arrived: Arrived, ctx: EpochContext) -> pa.Array:
    """The map keys of rows that are kept from now on."""
    number = (ctx.epoch << NUMBER_BITS) + arrived.places
    return pa.StructArray.from_arrays(
        [pa.array(arrived.rows.at_us).cast(TIME_TYPE), pa.array(number)], fields=list(TIME_AND_NUMBER)
    )


class JoinOutput:
    """The rows that a join gives out."""

    def __init__(self, join: TimeJoin, layout: StateLayout, keyed: KeyedSlice) -> None:
        key, input = layout.key.names, keyed.rows.schema
        self._keyed, self._key, self._kept = keyed, key, join.kept_columns(input, key)
        self._leading = [each.name for each in join.leading_columns(input, key)]
        self.schema = join.output_schema(input, key)
        self._parts = [self.schema.empty_table()]

    def add_pairs(self, left: Rows, right: Rows, also: Mapping[str, pa.Array] | None = None) -> None:
        """Rows of both sides, aligned. `also`: further columns."""
        self._add(left.key, left.columns, right.columns, also)

    def add(self, side: Side, rows: Rows, also: Mapping[str, pa.Array] | None = None) -> None:
        """Rows of one side, without a partner."""
        if not len(rows):
            return
        other = self._kept[1 if side.name == "left" else 0]
        nulls = [pa.nulls(len(rows)) for _ in other]
        both = (rows.columns, nulls) if side.name == "left" else (nulls, rows.columns)
        self._add(rows.key, *both, also)

    def _add(
        self, keys: Longs, left: list[pa.Array], right: list[pa.Array], also: Mapping[str, pa.Array] | None
    ) -> None:
        take = pa.array(keys)
        by_name = {**dict(zip(self._kept[0], left, strict=True)), **(also or {})}
        by_name |= {name: column.take(take) for name, column in zip(self._key, self._keyed.keys, strict=True)}
        columns = [*(by_name[name] for name in self._leading), *right]
        self._parts.append(
            pa.Table.from_arrays(
                [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)],
                schema=self.schema,
            )
        )

    def table(self) -> pa.Table:
        return pa.concat_tables(self._parts).combine_chunks()


def late_rows(join: TimeJoin, rows: pa.Table, arrived: Sequence[Arrived], time: EventTime) -> pa.Table:
    """The rows of a slice that are late, with the watermark that they were behind."""
    schema = join.late_schema(rows.schema)
    late = rows.take(pa.array(np.sort(np.concatenate([each.late for each in arrived]))))
    is_left = late[LEFT_COLUMN].is_valid().to_numpy()
    watermark = pa.array([time.before_us] * late.num_rows, pa.int64()).cast(schema.field("watermark").type)
    columns = [
        pa.array(np.where(is_left, "left", "right"), pa.string()),
        late[LEFT_COLUMN].combine_chunks().cast(schema.field("left").type),
        late[RIGHT_COLUMN].combine_chunks().cast(schema.field("right").type),
        watermark,
    ]
    return pa.Table.from_arrays(columns, schema=schema)
