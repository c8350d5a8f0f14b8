"""Partial aggregates: what Spark makes of an operator's rows before they go to their shards.

A partial row stands for some rows of one key. Merged with what is kept (see tasks.operators.aggregate), the
partial rows of a key give what its rows would have given, however they were cut: sums of floats are added in
another order, everything else is the same.
Always true: no partial overflows, so that a sum is refused only where its total does not fit; every buffer
has a fixed width, because Spark sorts rows to aggregate any other, which costs more than it saves.
Never here: whether combining pays (see runtime.epoch.combining).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.graph.aggregates import Aggregate, AggregateKind, Aggregation
from holdfast.graph.event_time import TIME_MAX_US, micros_sql
from holdfast.graph.windows import TimeWindow, Windowed
from holdfast.state.encoding.routing import quoted
from holdfast.state.encoding.types import DECIMAL_DIGITS_MAX

ROWS_COLUMN = "__hf_rows"
"""How many rows a partial row stands for."""
PANE_COLUMN = "__hf_pane"
"""Where the pane of a partial row begins, in µs since 1970; null: its rows have no time."""
HALF_BITS = 32
"""Longs are summed as two halves of this many bits, of which no epoch has too many."""
LOW_HALF = (1 << HALF_BITS) - 1
SUM_EXTRA_DIGITS = 10
"""Spark sums decimals with so many digits more: an epoch has fewer rows than ten to the power of that."""


@dataclass(frozen=True)
class Partials:
    """How the rows of one operator are combined. `input`: the columns of its rows."""

    input: pa.Schema
    columns: Mapping[str, tuple[str, ...]]
    """Name of an aggregate -> the columns of a partial row that hold it."""
    expressions: tuple[str, ...]
    """Spark SQL text, by which a group of rows becomes a partial row: its grouping columns aside."""
    pane: str | None = None
    """Spark SQL text of the pane that a row is in, where rows of a key are held apart by it."""
    exact: bool = False
    """Whether they give the same to the last bit, however the rows of a key were cut."""


def partials_of(
    function: Aggregation | Windowed, rows: pa.Schema, order_by: Sequence[str]
) -> Partials | None:
    """How rows of this schema are combined; None: they cannot be."""
    if isinstance(function, Aggregation):
        return _partials(function, rows, order_by)
    # How far a session reaches, and which rows are counted together, is known of all rows of a key alone.
    if not isinstance(function.window, TimeWindow) or not isinstance(function.computation, Aggregation):
        return None
    partials = _partials(function.computation, rows, order_by)
    assert function.on is not None
    return partials and replace(partials, pane=_pane(function.window, function.on, rows))


def _pane(window: TimeWindow, on: str, rows: pa.Schema) -> str:
    """The pane of a row, as tasks.operators.windows finds it."""
    time = micros_sql(quoted(on), naive=rows.field(on).type.tz is None)
    start = f"{time} - pmod({time} - {window.offset_us}L, {window.pane_us}L)"
    return f"case when {time} between -{TIME_MAX_US}L and {TIME_MAX_US}L then {start} end"


def _partials(aggregation: Aggregation, rows: pa.Schema, order_by: Sequence[str]) -> Partials | None:
    """None: one of the aggregates cannot be combined."""
    columns: dict[str, tuple[str, ...]] = {}
    expressions = [f"count(1) as {ROWS_COLUMN}"]
    for number, (name, aggregate) in enumerate(aggregation.aggregates.items()):
        parts = _parts(aggregate, rows, order_by)
        if parts is None:
            return None
        named = {f"__hf_{number}_{part}": text for part, text in parts.items()}
        columns[name] = tuple(named)
        expressions += [f"{text} as {column}" for column, text in named.items()]
    exact = all(_is_exact(aggregate, rows) for aggregate in aggregation.aggregates.values())
    return Partials(rows, columns, tuple(expressions), exact=exact)


def _is_exact(aggregate: Aggregate, rows: pa.Schema) -> bool:
    """A mean is summed in doubles, and which of several rows in the same place is the first or the last
    depends on how they came. Of floats even an extreme does: zero has two signs."""
    if aggregate.column is None or aggregate.kind is AggregateKind.COUNT:
        return True
    known = aggregate.kind in (AggregateKind.SUM, AggregateKind.MIN, AggregateKind.MAX)
    return known and not pa.types.is_floating(rows.field(aggregate.column).type)


def _parts(aggregate: Aggregate, rows: pa.Schema, order_by: Sequence[str]) -> dict[str, str] | None:
    """The parts of one aggregate, each as Spark SQL text."""
    if aggregate.column is None:
        return {"count": "count(1)"}
    value, type = quoted(aggregate.column), rows.field(aggregate.column).type
    match aggregate.kind:
        case AggregateKind.COUNT:
            return {"count": f"count({value})"}
        case AggregateKind.SUM:
            return _sum(value, type)
        case AggregateKind.MEAN:
            return {"sum": f"sum(cast({value} as double))", "count": f"count({value})"}
        case AggregateKind.COLLECT:
            return None
    if not _has_fixed_width(type):
        return None
    if aggregate.kind is AggregateKind.MIN:
        # To Spark NaN is the largest value, and here it counts only where there is nothing else.
        return {"edge": f"min({value})"}
    if aggregate.kind is AggregateKind.MAX:
        numbers = f"max({value}) filter (where not isnan({value}))"
        return {
            "edge": f"coalesce({numbers}, max({value}))" if pa.types.is_floating(type) else f"max({value})"
        }
    places = [rows.field(name).type for name in order_by]
    # Spark has no buffer of fixed width for a place by several columns.
    if len(places) > 1 or not all(map(_has_fixed_width, places)):
        return None
    return _at_the_end(aggregate.kind, value, *map(quoted, order_by))


def _sum(value: str, type: pa.DataType) -> dict[str, str] | None:
    if pa.types.is_floating(type):
        return {"sum": f"sum(cast({value} as double))"}
    if pa.types.is_decimal(type):
        exact = type.precision + SUM_EXTRA_DIGITS <= DECIMAL_DIGITS_MAX
        return {"sum": f"sum({value})"} if exact else None
    if type == pa.int64():
        return {
            "high": f"sum(shiftright({value}, {HALF_BITS}))",
            "low": f"sum({value} & {LOW_HALF})",
        }
    return {"sum": f"sum(cast({value} as bigint))"}


def _at_the_end(kind: AggregateKind, value: str, at: str | None = None) -> dict[str, str]:
    """The first or last value that is not null, and its place in the order `at`: rows without one come
    first."""
    if at is None:
        return {"value": f"first({value}, true)"}
    unplaced, placed = f"{value} is not null and {at} is null", f"{value} is not null and {at} is not null"
    any_unplaced = f"first({value}) filter (where {unplaced})"
    if kind is AggregateKind.FIRST:
        first = f"min({at}) filter (where {placed})"
        return {
            "value": f"coalesce({any_unplaced}, min_by({value}, {at}) filter (where {placed}))",
            "at": f"case when count(1) filter (where {unplaced}) = 0 then {first} end",
        }
    return {
        "value": f"coalesce(max_by({value}, {at}) filter (where {placed}), {any_unplaced})",
        "at": f"max({at}) filter (where {placed})",
    }


def holds_floats(type: pa.DataType) -> bool:
    """Whether a type is that of floats, or they are within it."""
    if pa.types.is_nested(type):
        return any(holds_floats(type.field(number).type) for number in range(type.num_fields))
    return bool(pa.types.is_floating(type))


def _has_fixed_width(type: pa.DataType) -> bool:
    """Whether Spark aggregates values of a type in place."""
    return bool(
        pa.types.is_boolean(type)
        or pa.types.is_integer(type)
        or pa.types.is_floating(type)
        or pa.types.is_decimal(type)
        or pa.types.is_date(type)
        or pa.types.is_timestamp(type)
        or pa.types.is_duration(type)
    )
