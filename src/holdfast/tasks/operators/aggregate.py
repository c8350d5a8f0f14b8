"""Runs an Aggregation over a shard's slice: whole columns, one row out per touched key.

The rows of an epoch are aggregated per key, then joined with what was kept. Rows may come combined, as
partial rows (see graph.partials): these are merged in the same way.
Always true: arrays are aligned with the keys of the slice; integer and decimal sums are exact or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.aggregates import ACCUMULATOR, Aggregate, AggregateKind, Aggregation
from holdfast.graph.job_graph import MAIN_OUTPUT
from holdfast.graph.partials import HALF_BITS, Partials
from holdfast.state.cells.live_entries import reads_of
from holdfast.state.cells.value_cells import read_column
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.types import relaxed, type_ddl
from holdfast.state.files.delta import ValueChange
from holdfast.tasks.operators.result import EpochContext, OperatorResult, user_error
from holdfast.tasks.operators.shard_rows import Index, KeyedSlice, by_key, in_order

_LONG_MAX = (1 << 63) - 1
_WIDE_DIGITS = 39
_SUM_DIGITS = 60
_LONG_DIGITS = pa.decimal128(19, 0)
_SKIP_NULLS = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


class Overflow(Exception):
    """The sum of key number `key` does not fit its type."""

    def __init__(self, key: int, value: object) -> None:
        super().__init__(key, value)
        self.key, self.value = key, value


def run_aggregate(
    aggregation: Aggregation,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
    partials: Partials | None = None,
) -> OperatorResult:
    """Bring the aggregates of every key in the rows up to date, and emit them. `partials`: the rows are
    partial rows, made by these.

    UserCodeError where a sum overflows.
    """
    if partials is None:
        keyed = replace(keyed, rows=as_stored(aggregation, keyed.rows))
    given = keyed.rows.schema if partials is None else partials.input
    schema = aggregation.output_schema(given, keyed.key_columns)
    changes = keyed.no_changes()
    outputs = {MAIN_OUTPUT: schema.empty_table()}
    if keyed.rows.num_rows:
        field = layout.field(ACCUMULATOR)
        kept, _ = read_column(field, keyed.bases, reads_of(field, state, ctx.instants))
        accumulators, results = folded(aggregation, keyed, kept, ctx, partials)
        struct = pa.StructArray.from_arrays(accumulators, fields=list(field.type))
        changes.values[ACCUMULATOR] = ValueChange(np.arange(keyed.key_count), struct)
        outputs[MAIN_OUTPUT] = pa.Table.from_arrays([*keyed.keys, *results], schema=schema)
    return OperatorResult(outputs, changes)


def as_stored(aggregation: Aggregation, rows: pa.Table) -> pa.Table:
    """The rows, with nested columns that are aggregated in the types that state has: Spark says `not null`
    within them, and names what is in an array, in its own way."""
    columns = {each.column for each in aggregation.aggregates.values()}
    for number, field in enumerate(rows.schema):
        if field.name in columns and pa.types.is_nested(field.type):
            type = relaxed(field.type)
            rows = rows.set_column(number, pa.field(field.name, type), rows.column(number).cast(type))
    return rows


def folded(
    aggregation: Aggregation,
    keyed: KeyedSlice,
    kept: pa.Array,
    ctx: EpochContext,
    partials: Partials | None,
) -> tuple[list[pa.Array], list[pa.Array]]:
    """The accumulators of every key of a slice, from those that are `kept` and its rows, and the results."""
    fields = dict(zip((field.name for field in kept.type), kept.flatten(), strict=True))
    accumulators: list[pa.Array] = []
    results: list[pa.Array] = []
    for name, aggregate in aggregation.aggregates.items():
        own = [fields[field] for field in aggregate.accumulator_names(name)]
        names = [aggregate.column] if partials is None else partials.columns[name]
        columns = [None if each is None else keyed.rows.column(each).combine_chunks() for each in names]
        try:
            if partials is None:
                parts, result = _fold(aggregate, own, columns[0], keyed.index, keyed.key_count)
            else:
                parts, result = _merge(aggregate.kind, own, columns, keyed.index, keyed.key_count)
        except Overflow as overflow:
            key = tuple(column[overflow.key].as_py() for column in keyed.keys)
            text = f"{name!r} is {overflow.value}, too large for {type_ddl(own[0].type)}"
            raise user_error(ctx, key[0] if len(key) == 1 else key, "(any of this key)", text) from overflow
        accumulators += parts
        results.append(result)
    return accumulators, results


def merged(
    aggregation: Aggregation, accumulators: pa.Array, index: Index, count: int
) -> tuple[list[pa.Array], list[pa.Array]]:
    """Accumulators that belong together made one, `count` of them, and their results. `index`: which each
    belongs to; numbers follow the first that has them. Overflow: a sum does not fit."""
    fields = dict(zip((field.name for field in accumulators.type), accumulators.flatten(), strict=True))
    joined: list[pa.Array] = []
    results: list[pa.Array] = []
    for name, aggregate in aggregation.aggregates.items():
        own = [fields[field] for field in aggregate.accumulator_names(name)]
        if aggregate.kind is AggregateKind.COLLECT:
            whole = joined_lists(own[0], index, count, aggregate.limit)
            parts, result = [whole], whole
        else:
            nothing = [pa.nulls(count, each.type) for each in own]
            parts, result = _merge(aggregate.kind, nothing, own, index, count)
        joined += parts
        results.append(result)
    return joined, results


def joined_lists(lists: pa.Array, index: Index, count: int, limit: int) -> pa.Array:
    """The newest `limit` values of the lists that belong together, in their order."""
    owners = index[pc.list_parent_indices(lists).to_numpy()]
    return collected(pa.nulls(count, lists.type), pc.list_flatten(lists), owners, count, limit)


def _fold(
    aggregate: Aggregate, kept: Sequence[pa.Array], column: Any, index: Index, key_count: int
) -> tuple[list[pa.Array], pa.Array]:
    """The next accumulator fields of one aggregate, and its result.

    `kept`: the fields so far, null where none; `column` is None for counting rows.
    """
    match aggregate.kind:
        case AggregateKind.COUNT:
            count = _added(kept[0], counts(column, index, key_count))
            return [count], count
        case AggregateKind.SUM:
            total = _sum(kept[0], column, index)
            return [total], total
        case AggregateKind.MEAN:
            # Not every long is a double: the mean is of the nearest ones.
            values = column.cast(pa.float64(), safe=False)
            total = _added(kept[0], per_key("sum", values, index))
            count = _added(kept[1], counts(column, index, key_count))
            return [total, count], _divided(total, count)
        case AggregateKind.COLLECT:
            values = collected(kept[0], column, index, key_count, aggregate.limit)
            return [values], values
        case AggregateKind.FIRST | AggregateKind.LAST as kind:
            chosen = _at_the_end(kind, kept[0], column, index, key_count)
            return [chosen], chosen
        case AggregateKind.MIN | AggregateKind.MAX as kind:
            chosen = _edge(kind, kept[0], column, index)
            return [chosen], chosen


def _merge(
    kind: AggregateKind, kept: Sequence[pa.Array], parts: Sequence[Any], index: Index, key_count: int
) -> tuple[list[pa.Array], pa.Array]:
    """As `_fold`, with the columns of partial rows in place of a column of rows."""
    match kind:
        case AggregateKind.COUNT:
            count = _added(kept[0], per_key("sum", parts[0], index))
            return [count], count
        case AggregateKind.SUM:
            total = _sum(kept[0], parts[0] if len(parts) == 1 else _of_halves(*parts), index)
            return [total], total
        case AggregateKind.MEAN:
            total, count = (_added(k, per_key("sum", new, index)) for k, new in zip(kept, parts, strict=True))
            return [total, count], _divided(total, count)
        case AggregateKind.FIRST | AggregateKind.LAST:
            values = parts[0]
            if len(parts) > 1:
                order = in_order(pa.table([parts[1]], names=["at"]), ["at"])
                values, index = values.take(order), index[order.to_numpy()]
            chosen = _at_the_end(kind, kept[0], values, index, key_count)
            return [chosen], chosen
        case AggregateKind.MIN | AggregateKind.MAX:
            chosen = _edge(kind, kept[0], parts[0], index)
            return [chosen], chosen
        case AggregateKind.COLLECT:
            raise AssertionError("rows of which values are collected are not combined")


def _of_halves(high: pa.Array, low: pa.Array) -> pa.Array:
    """Sums of longs from the sums of their halves: as longs where these are far from their ends."""
    if max(_largest(high) << HALF_BITS, _largest(low)) < _LONG_MAX // 2:
        return pc.add(pc.shift_left(high, HALF_BITS), low)
    whole = pc.multiply(high.cast(_LONG_DIGITS), pa.scalar(Decimal(1 << HALF_BITS)))
    return pc.add(whole, low.cast(_LONG_DIGITS))


def _divided(total: pa.Array, count: pa.Array) -> pa.Array:
    return pc.divide(total, count.cast(pa.float64(), safe=False))


_EDGES: dict[AggregateKind, Callable[[pa.Array, pa.Array], pa.Array]] = {
    AggregateKind.MIN: pc.min_element_wise,
    AggregateKind.MAX: pc.max_element_wise,
}


def _edge(kind: AggregateKind, kept: pa.Array, column: pa.Array, index: Index) -> pa.Array:
    if pa.types.is_null(kept.type):
        return kept
    return _as_before(_EDGES[kind](_comparable(kept), _extremes(kind, column, index)), kept.type)


def _extremes(kind: AggregateKind, column: pa.Array, index: Index) -> pa.Array:
    return per_key(kind.value, _comparable(column), index)


def extremes(kind: AggregateKind, column: pa.Array, index: Index) -> pa.Array:
    """The smallest or largest value of each key."""
    return _as_before(_extremes(kind, column, index), column.type)


def _comparable(column: pa.Array) -> pa.Array:
    """The same values in the same order, as a type that Arrow compares in every way that is needed."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return column.view(pa.int64())
    return column


def _as_before(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Comparable values in the type that they had."""
    return column.cast(type) if pa.types.is_boolean(type) else column.view(type)


def _at_the_end(
    kind: AggregateKind, kept: pa.Array, column: pa.Array, index: Index, key_count: int
) -> pa.Array:
    """The first or last value that is not null."""
    found = rows_at_the_end(kind, column, index, key_count)
    new = column.take(pa.array(found, mask=found < 0))
    from_kept = kept.is_valid().to_numpy(False) if kind is AggregateKind.FIRST else found < 0
    chosen = np.arange(key_count) + np.where(from_kept, 0, key_count)
    return pa.concat_arrays([kept, new]).take(pa.array(chosen))


def rows_at_the_end(
    kind: AggregateKind, column: pa.Array, index: Index, key_count: int
) -> npt.NDArray[np.int64]:
    """Of each key the row that has its first or last value that is not null; -1: none has. Arrow itself finds
    the values, for few types."""
    rows = np.flatnonzero(column.is_valid().to_numpy(False)) if column.null_count else np.arange(len(column))
    if kind is AggregateKind.FIRST:
        rows = rows[::-1]
    found = np.full(key_count, -1, np.int64)
    # Of several rows of a key the one that is assigned last stays.
    found[index[rows]] = rows
    return found


def per_key(function: str, column: pa.Array, index: Index) -> pa.Array:
    """What a function of Arrow's makes of the values of each key; null of none."""
    grouped = pa.table([pa.array(index), column], names=["key", "value"]).group_by("key", use_threads=False)
    # Groups come in the order of their first row, which is how keys are numbered.
    return grouped.aggregate([("value", function, _SKIP_NULLS)]).column(f"value_{function}").combine_chunks()


def counts(column: pa.Array | None, index: Index, key_count: int) -> pa.Array:
    """How many values each key has that are not null; without a column, how many rows."""
    counted = index if column is None or not column.null_count else index[column.is_valid().to_numpy(False)]
    return pa.array(np.bincount(counted, minlength=key_count))


def _added(kept: pa.Array, new: pa.Array) -> pa.Array:
    if kept.null_count == len(kept):
        return new
    total = pc.add(kept, new)
    return total if not total.null_count else pc.coalesce(total, kept, new)


def _sum(kept: pa.Array, column: pa.Array, index: Index) -> pa.Array:
    if pa.types.is_floating(column.type):
        return _added(kept, per_key("sum", column.cast(pa.float64()), index))
    if pa.types.is_decimal(kept.type):
        # Wide enough for the sum of any rows: Arrow's sums wrap around.
        wide = pa.decimal256(_SUM_DIGITS, kept.type.scale)
        new = per_key("sum", column.cast(wide), index).cast(wide)
        return _narrowed(_added(kept.cast(wide), new), kept.type)
    if _largest(column) * len(column) + _largest(kept) <= _LONG_MAX:
        return _added(kept, per_key("sum", column.cast(pa.int64()), index))
    # Arrow's sums wrap around; where that could happen the sums are made in decimals.
    wide = pa.decimal256(_WIDE_DIGITS, 0)
    if pa.types.is_integer(column.type):
        column = column.cast(_LONG_DIGITS)
    new = per_key("sum", column.cast(pa.decimal128(38, 0)), index)
    return _narrowed(_added(kept.cast(pa.decimal128(38, 0)).cast(wide), new.cast(wide)), pa.int64())


def _largest(column: pa.Array) -> int:
    extremes = pc.min_max(column).as_py()
    return max(abs(int(extremes["min"] or 0)), abs(int(extremes["max"] or 0)))


def _narrowed(sums: pa.Array, to: pa.DataType) -> pa.Array:
    try:
        return sums.cast(to)
    except pa.ArrowInvalid:
        convert = partial(pa.scalar, type=to)
        for key, value in enumerate(sums.to_pylist()):
            try:
                convert(int(value) if value is not None and pa.types.is_integer(to) else value)
            except (pa.ArrowInvalid, OverflowError):
                raise Overflow(key, value) from None
        raise


def collected(kept: pa.Array, column: pa.Array, index: Index, key_count: int, limit: int) -> pa.Array:
    """The newest `limit` values per key: kept ones, then new ones, nulls left out."""
    if column.null_count:
        valid = column.is_valid()
        column, index = column.filter(valid), index[valid.to_numpy(False)]
    owners = np.concatenate([pc.list_parent_indices(kept).to_numpy().astype(np.int32), index])
    values = pa.concat_arrays([pc.list_flatten(kept), column])
    order = by_key(owners, key_count)
    counts = np.bincount(owners, minlength=key_count)
    from_newest = np.cumsum(counts)[owners[order]] - np.arange(len(order))
    offsets: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(np.minimum(counts, limit))])
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), values.take(pa.array(order[from_newest <= limit])), type=kept.type
    )
