"""Runs a BatchFunction over a shard's slice: all rows at once, state as columns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.graph.contexts import BatchContext
from holdfast.graph.functions import BatchFunction, output_schema
from holdfast.graph.job_graph import DEAD_LETTERS, MAIN_OUTPUT
from holdfast.state.cells.declarations import ValueState, declared_states
from holdfast.state.cells.live_entries import aged_keys, reads_of
from holdfast.state.cells.value_cells import read_column
from holdfast.state.contract import ShardState, StateReads
from holdfast.state.encoding.layout import StateField, StateLayout, state_keys
from holdfast.state.encoding.types import type_ddl
from holdfast.state.files.delta import Changes, ValueChange
from holdfast.tasks.operators.result import (
    EpochContext,
    OperatorResult,
    OutputMisfit,
    cast_table,
    cause_of,
    dead_letters,
    user_error,
)
from holdfast.tasks.operators.shard_rows import KeyedSlice

_ALL_ROWS = "(the whole slice)"


class ColumnCell:
    """A ValueState of all keys of a slice, as a column aligned with `ctx.keys`."""

    __slots__ = ("_aged", "_cleared", "_column", "_default", "_field", "_is_read", "_written")

    def __init__(
        self, declared: ValueState, field: StateField, bases: Sequence[bytes], state: StateReads
    ) -> None:
        self._field = field
        self._default = pa.scalar(declared.default, field.type)
        column, absent = read_column(field, bases, state)
        if absent and self._default.is_valid:
            column = pc.if_else(pa.array(_flags(len(column), absent)), self._default, column)
        self._column = column
        self._written = self._is_read = False
        self._aged = aged_keys(state, state_keys(field, bases))
        self._cleared: npt.NDArray[np.bool_] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"state {self._field.name!r} has no {name!r} in a BatchFunction; use its column")

    @property
    def column(self) -> pa.Array:
        """The values, the default where nothing is stored, or what was has expired."""
        self._is_read = True
        return self._column

    @column.setter
    def column(self, values: Any) -> None:
        """Assign all keys. Nulls are stored as nulls; `clear` removes."""
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        array = whole if isinstance(whole, pa.Array) else pa.array(whole, from_pandas=False)
        name, declared = self._field.name, self._field.type
        if len(array) != len(self._column):
            wanted = len(self._column)
            text = f"state {name!r} needs {wanted} values, but got {len(array)}; give one per row of ctx.keys"
            raise ValueError(text)
        try:
            self._column = array if array.type == declared else array.cast(declared)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
            what = f"state {name!r} is declared {type_ddl(declared)} but got {array.type}"
            raise TypeError(f"{what}: {cause}; cast it first") from cause
        self._written = True
        self._cleared = None

    def clear(self, where: Any) -> None:
        """Forget the values of the keys where the mask (one boolean per key) is true."""
        mask = np.asarray(where, dtype=np.bool_)
        if mask.shape != (len(self._column),):
            wanted, name = len(self._column), self._field.name
            raise ValueError(f"state {name!r} needs a mask of {wanted}, one boolean per key")
        self._column = pc.if_else(pa.array(mask), self._default, self._column)
        self._cleared = mask if self._cleared is None else self._cleared | mask

    def put_into(self, changes: Changes) -> None:
        if self._written:
            rows = np.arange(len(self._column))
            changes.values[self._field.name] = ValueChange(rows, self._column, self._cleared)
            return
        gone = np.zeros(len(self._column), np.bool_) if self._cleared is None else self._cleared
        rows = np.flatnonzero(gone | self._renewed())
        if len(rows):
            values = self._column.take(pa.array(rows))
            changes.values[self._field.name] = ValueChange(rows, values, gone[rows])

    def _renewed(self) -> npt.NDArray[np.bool_]:
        """The keys whose values are kept because they were read."""
        return _flags(len(self._column), sorted(self._aged) if self._is_read else [])


def run_batch(
    function: BatchFunction,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
) -> OperatorResult:
    """Run the function over the rows of a shard.

    UserCodeError where it fails, whatever `on_error` says: no single row is at fault, none can be set aside.
    """
    changes = keyed.no_changes()
    outputs = {MAIN_OUTPUT: output_schema(function).empty_table()}
    if ctx.on_error == "dead-letter":
        outputs[DEAD_LETTERS] = dead_letters([])
    if keyed.rows.num_rows:
        outputs[MAIN_OUTPUT], cells = _process(function, layout, keyed, state, ctx)
        for cell in cells:
            cell.put_into(changes)
    return OperatorResult(outputs, changes)


def _process(
    function: BatchFunction, layout: StateLayout, keyed: KeyedSlice, state: ShardState, ctx: EpochContext
) -> tuple[pa.Table, list[ColumnCell]]:
    batch = BatchContext(
        pa.Table.from_arrays(list(keyed.keys), schema=layout.key), keyed.index, ctx.epoch, ctx.clock_ms
    )
    own = copy.copy(function)
    try:
        own.open(batch)
        cells = []
        for name, declared in declared_states(type(own)).items():
            assert isinstance(declared, ValueState), f"{name} is not a ValueState"
            field = layout.field(name)
            reads = reads_of(field, state, ctx.instants)
            cells.append(ColumnCell(declared, field, keyed.bases, reads))
            vars(own)[name] = cells[-1]
        return cast_table(own.process(keyed.rows, batch), output_schema(function)), cells
    except HoldfastError:
        raise
    except OutputMisfit as misfit:
        raise user_error(ctx, _ALL_ROWS, _ALL_ROWS, misfit.text) from misfit
    except Exception as error:
        raise user_error(ctx, _ALL_ROWS, _ALL_ROWS, cause_of(error)) from error


def _flags(length: int, set_at: Sequence[int]) -> npt.NDArray[np.bool_]:
    flags = np.zeros(length, dtype=np.bool_)
    flags[set_at] = True
    return flags
