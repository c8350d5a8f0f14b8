"""What operators over windows keep of their rows, and what they make of it: aggregates, one row, or all rows.

A window (or pane, or session) has a struct of accumulators. Rows are folded into it, structs that belong
together are merged, and what is emitted follows from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.contexts import Context
from holdfast.graph.job_graph import MAIN_OUTPUT
from holdfast.graph.partials import Partials
from holdfast.graph.window_functions import REDUCED, ROWS, Reduction, WindowBounds, WindowProcess
from holdfast.graph.windows import Windowed
from holdfast.state.cells.timers import nearest_datetime
from holdfast.state.encoding.arrow_values import column_of, objects_of
from holdfast.state.encoding.coercion import Misfit
from holdfast.state.encoding.row_objects import Row
from holdfast.tasks.operators.aggregate import Overflow, as_stored, collected, folded, joined_lists, merged
from holdfast.tasks.operators.result import EpochContext, OutputMisfit, cause_of, table_of, user_error
from holdfast.tasks.operators.row_function import python_objects
from holdfast.tasks.operators.shard_rows import Index, KeyedSlice, by_key
from holdfast.tasks.operators.windows.window_rows import Numbers, Times

_ALL = 1 << 62


@dataclass(frozen=True)
class Emitting:
    """Windows that are emitted: the key of each, by its number in the slice, and its bounds or number."""

    keyed: KeyedSlice
    keys: Numbers
    ctx: EpochContext
    starts: Times | None = None
    ends: Times | None = None
    numbers: Numbers | None = None

    def key(self, window: int) -> Any:
        key = tuple(column[int(self.keys[window])].as_py() for column in self.keyed.keys)
        return key[0] if len(key) == 1 else key

    def bounds(self) -> Iterator[WindowBounds]:
        """Of each window."""
        if self.numbers is not None:
            return (WindowBounds(number=number) for number in self.numbers.tolist())
        assert self.starts is not None
        assert self.ends is not None
        naive = self.ctx.time is not None and self.ctx.time.naive
        times = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return (_bounds(start, end, naive) for start, end in times)


def _bounds(start_us: int, end_us: int, naive: bool) -> WindowBounds:
    return WindowBounds(nearest_datetime(start_us, naive), nearest_datetime(end_us, naive))


@dataclass(frozen=True)
class Results:
    """Columns of results, and the window of each of their rows."""

    columns: list[pa.Array]
    windows: Numbers


class WindowComputation(ABC):
    """What is computed of windows. `index` numbers by first place, as everywhere."""

    @abstractmethod
    def stored(self, rows: pa.Table) -> pa.Table:
        """The rows, in the types that state has."""

    @abstractmethod
    def folded(self, keyed: KeyedSlice, kept: pa.Array, ctx: EpochContext) -> list[pa.Array]:
        """The accumulators of every key of a slice, from those that are kept (null: nothing) and its rows."""

    @abstractmethod
    def merged(self, values: pa.Array, index: Index, emitting: Emitting) -> list[pa.Array]:
        """Accumulators that belong together made one. `emitting` says whose they are, for errors."""

    @abstractmethod
    def emitted(self, values: pa.Array, index: Index, emitting: Emitting) -> Results:
        """What is emitted of windows: `values` are the accumulators of what they consist of."""


def computation_of(function: Windowed, partials: Partials | None = None) -> WindowComputation:
    """`partials`: the rows are partial rows, made by these."""
    match function.computation:
        case Aggregation() as aggregation:
            return _Aggregates(aggregation, partials)
        case Reduction() as reduction:
            return _Reduced(reduction)
        case WindowProcess() as process:
            return _Rows(process, function.on)


class _Aggregates(WindowComputation):
    def __init__(self, aggregation: Aggregation, partials: Partials | None) -> None:
        self._aggregation, self._partials = aggregation, partials

    def stored(self, rows: pa.Table) -> pa.Table:
        return as_stored(self._aggregation, rows) if self._partials is None else rows

    def folded(self, keyed: KeyedSlice, kept: pa.Array, ctx: EpochContext) -> list[pa.Array]:
        return folded(self._aggregation, keyed, kept, ctx, self._partials)[0]

    def merged(self, values: pa.Array, index: Index, emitting: Emitting) -> list[pa.Array]:
        return self._merged(values, index, emitting)[0]

    def emitted(self, values: pa.Array, index: Index, emitting: Emitting) -> Results:
        results = self._merged(values, index, emitting)[1]
        return Results(results, np.arange(len(emitting.keys)))

    def _merged(
        self, values: pa.Array, index: Index, emitting: Emitting
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        try:
            return merged(self._aggregation, values, index, len(emitting.keys))
        except Overflow as overflow:
            text = f"a sum over a window is {overflow.value}, too large for its type"
            key = emitting.key(overflow.key)
            raise user_error(emitting.ctx, key, "(any of this key)", text) from overflow


class _Reduced(WindowComputation):
    def __init__(self, reduction: Reduction) -> None:
        self._fn = reduction.fn

    def stored(self, rows: pa.Table) -> pa.Table:
        return rows

    def folded(self, keyed: KeyedSlice, kept: pa.Array, ctx: EpochContext) -> list[pa.Array]:
        type, count = kept.type.field(REDUCED).type, keyed.key_count
        rows = _structs(keyed.rows, type)
        _see_that_python_has(keyed.rows, ctx)
        so_far = _field(kept, REDUCED)
        there = np.asarray(so_far.is_valid())
        values = pa.concat_arrays([so_far.filter(pa.array(there)), rows])
        owners = np.concatenate([np.flatnonzero(there), keyed.index]).astype(np.int32)
        return self._reduced(values, owners, Emitting(keyed, np.arange(count), ctx))

    def merged(self, values: pa.Array, index: Index, emitting: Emitting) -> list[pa.Array]:
        return self._reduced(values.field(REDUCED), index, emitting)

    def emitted(self, values: pa.Array, index: Index, emitting: Emitting) -> Results:
        reduced = self.merged(values, index, emitting)[0]
        keys = emitting.keyed.key_columns
        columns = [
            column
            for field, column in zip(reduced.type, reduced.flatten(), strict=True)
            if field.name not in keys
        ]
        return Results(columns, np.arange(len(emitting.keys)))

    def _reduced(self, rows: pa.Array, owners: Index, emitting: Emitting) -> list[pa.Array]:
        """One row for each owner."""
        count = len(emitting.keys)
        objects = iter(objects_of(rows.take(pa.array(by_key(owners, count)))))
        made: list[Any] = []
        row: Row | None = None
        for window, length in enumerate(np.bincount(owners, minlength=count).tolist()):
            try:
                own = list(islice(objects, length))
                row = own[0]
                result = own[0]
                for row in own[1:]:
                    result = self._fn(result, row)
                made.append(column_of([result], rows.type)[0])
            except HoldfastError:
                raise
            except Misfit as misfit:
                text = misfit.text("what reduce gives back", rows.type)
                raise user_error(emitting.ctx, emitting.key(window), _named(row), text) from misfit
            except Exception as error:
                raise user_error(emitting.ctx, emitting.key(window), _named(row), cause_of(error)) from error
        return [pa.array(made, rows.type)]


class _Rows(WindowComputation):
    def __init__(self, process: WindowProcess, on: str | None) -> None:
        self._function, self._on = process.function, on
        self._schema = pa.schema(process.output_fields(pa.schema([]), ()))

    def stored(self, rows: pa.Table) -> pa.Table:
        return rows

    def folded(self, keyed: KeyedSlice, kept: pa.Array, ctx: EpochContext) -> list[pa.Array]:
        so_far = _field(kept, ROWS)
        rows = _structs(keyed.rows, so_far.type.value_type)
        _see_that_python_has(keyed.rows, ctx)
        return [collected(so_far, rows, keyed.index, keyed.key_count, _ALL)]

    def merged(self, values: pa.Array, index: Index, emitting: Emitting) -> list[pa.Array]:
        return [joined_lists(values.field(ROWS), index, len(emitting.keys), _ALL)]

    def emitted(self, values: pa.Array, index: Index, emitting: Emitting) -> Results:
        lists = objects_of(self.merged(values, index, emitting)[0])
        ctx = emitting.ctx
        context = Context(ctx.epoch, ctx.clock_ms, {MAIN_OUTPUT: []})
        if ctx.time is not None and ctx.time.now_us is not None:
            context.watermark = nearest_datetime(ctx.time.now_us, ctx.time.naive)
        context.closing = ctx.time is not None and ctx.time.closing
        made: list[Any] = []
        owners: list[int] = []
        for window, (bounds, rows) in enumerate(zip(emitting.bounds(), lists, strict=True)):
            context._key = emitting.key(window)
            if self._on is not None:
                rows = sorted(rows, key=lambda row: row[self._on])
            try:
                made += self._function.process(bounds, rows, context) or ()
            except HoldfastError:
                raise
            except Exception as error:
                given = f"the {len(rows)} rows of {bounds}"
                raise user_error(ctx, context._key, given, cause_of(error)) from error
            owners += [window] * (len(made) - len(owners))
        try:
            table = table_of(made, self._schema)
        except OutputMisfit as misfit:
            key = emitting.key(owners[misfit.index])
            raise user_error(ctx, key, "(any of this key)", misfit.text) from misfit
        columns = [column.combine_chunks() for column in table.columns]
        return Results(columns, np.array(owners, np.int64))


def _structs(rows: pa.Table, type: pa.StructType) -> pa.Array:
    """Rows as one column of structs."""
    columns = [rows.column(field.name).combine_chunks().cast(field.type) for field in type]
    return pa.StructArray.from_arrays(columns, fields=list(type))


def _see_that_python_has(rows: pa.Table, ctx: EpochContext) -> None:
    """UserCodeError: a row holds a time that Python has no object for. Seen before it is kept: when its
    window closes nothing could be done about it any more."""
    for name in rows.column_names:
        column = rows.column(name).combine_chunks()
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            ends = pc.min_max(column)
            python_objects(pa.array([ends["min"], ends["max"]], column.type), repr(name), ctx)
        elif _holds_times(column.type):
            python_objects(column, repr(name), ctx)


def _holds_times(type: pa.DataType) -> bool:
    inner = [type.field(place).type for place in range(type.num_fields)]
    return bool(pa.types.is_temporal(type)) or any(map(_holds_times, inner))


def _field(kept: pa.Array, name: str) -> pa.Array:
    """A field of structs, null where the struct is."""
    return kept.flatten()[[field.name for field in kept.type].index(name)]


def _named(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else row._asdict()


def window_table(
    schema: pa.Schema, emitting: Emitting, results: Results, deleted: bool | None = None
) -> pa.Table:
    """The rows of windows: key, window, results, revision, and for sessions whether they are `deleted`."""
    windows, keys = results.windows, pa.array(emitting.keys[results.windows])
    places = [emitting.numbers] if emitting.numbers is not None else [emitting.starts, emitting.ends]
    first = len(emitting.keyed.keys)
    columns = [column.take(keys) for column in emitting.keyed.keys]
    for number, place in enumerate(places):
        assert place is not None
        columns.append(pa.array(place[windows]).cast(schema.field(first + number).type))
    columns += [*results.columns, pa.array(np.full(len(windows), emitting.ctx.epoch, np.int64))]
    if deleted is not None:
        columns.append(pa.array(np.full(len(windows), deleted)))
    return pa.Table.from_arrays(columns, schema=schema)
