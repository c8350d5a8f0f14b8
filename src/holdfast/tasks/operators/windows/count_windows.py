"""Runs aggregates over windows of so many rows of a key: whole columns, one row out per full window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from holdfast.graph.job_graph import LATE_ROWS, MAIN_OUTPUT
from holdfast.graph.windows import COUNTED, COUNTED_ROWS, CountWindow, Windowed
from holdfast.state.cells.value_cells import read_column
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.delta import ValueChange
from holdfast.tasks.operators.result import EpochContext, OperatorResult
from holdfast.tasks.operators.shard_rows import KeyedSlice, by_key, firsts, numbered
from holdfast.tasks.operators.windows.computations import Emitting, computation_of, window_table
from holdfast.tasks.operators.windows.window_rows import Numbers, of_pairs, paired


def run_count_windows(
    function: Windowed,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
) -> OperatorResult:
    """Add the rows to the windows of their keys, in the order of the slice, and emit those that are full.
    UserCodeError where a sum overflows."""
    assert isinstance(function.window, CountWindow)
    computation = computation_of(function)
    keyed = replace(keyed, rows=computation.stored(keyed.rows))
    schema = function.output_schema(keyed.rows.schema, keyed.key_columns)
    changes, outputs = keyed.no_changes(), {MAIN_OUTPUT: schema.empty_table(), LATE_ROWS: keyed.rows[:0]}
    if not keyed.rows.num_rows:
        return OperatorResult(outputs, changes)
    size, field = function.window.rows, layout.field(COUNTED)
    kept, _ = read_column(field, keyed.bases, state)
    before = np.asarray(kept.field(COUNTED_ROWS).fill_null(0))
    before = np.where(np.asarray(kept.is_valid()), before, 0)
    windows = (before[keyed.index] + _places(keyed)) // size

    index = numbered(paired(keyed.index.astype(np.int64), windows))
    at = firsts(index)
    keys, windows = keyed.index[at].astype(np.int64), windows[at]
    goes_on = windows == before[keys] // size
    # Of a key whose last window was full nothing is kept but the number of its rows.
    open_now = goes_on & (before[keys] % size > 0)
    pairs = of_pairs(keyed, index, keys)
    so_far = kept.take(pa.array(keys, mask=~open_now))
    accumulators = computation.folded(pairs, so_far, ctx)

    counts = before + np.bincount(keyed.index, minlength=keyed.key_count)
    full = windows < counts[keys] // size
    if full.any():
        done = pa.StructArray.from_arrays(
            [column.filter(pa.array(full)) for column in accumulators], fields=list(field.type)[1:-1]
        )
        emitting = Emitting(keyed, keys[full], ctx, numbers=windows[full])
        results = computation.emitted(done, np.arange(len(done), dtype=np.int32), emitting)
        outputs[MAIN_OUTPUT] = window_table(schema, emitting, results)
    rest = np.full(keyed.key_count, -1, np.int64)
    rest[keys[~full]] = np.flatnonzero(~full)
    left = pa.array(rest, mask=rest < 0)
    revision = np.full(keyed.key_count, ctx.epoch, np.int64)
    fields = [pa.array(counts), *(column.take(left) for column in accumulators), pa.array(revision)]
    values = pa.StructArray.from_arrays(fields, fields=list(field.type))
    changes.values[COUNTED] = ValueChange(np.arange(keyed.key_count), values)
    return OperatorResult(outputs, changes)


def _places(keyed: KeyedSlice) -> Numbers:
    """Which row of its key, counted from 0, each row is."""
    order = by_key(keyed.index, keyed.key_count)
    counts = np.bincount(keyed.index, minlength=keyed.key_count)
    begins = np.cumsum(counts) - counts
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order)) - begins[keyed.index[order]]
    return places
