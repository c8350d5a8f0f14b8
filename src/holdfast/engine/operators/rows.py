"""Runs a function that sees single rows over a shard's slice: row by row, key after key.

Always true: the rows of a key are handled one after another, in slice order; a row that is set aside as a
dead letter leaves nothing behind, neither state nor output. Same rows and state, same result.
"""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.engine.operators.result import (
    DEAD,
    MAIN,
    EpochContext,
    OperatorResult,
    OutputMisfit,
    cause_of,
    dead_letters,
    json_text,
    plain_text,
    row_check,
    table_of,
    user_error,
)
from holdfast.engine.operators.slices import KeyedSlice, by_key, cut
from holdfast.errors import HoldfastError
from holdfast.graph.functions import KeyedFunction, OperatorFunction, output_schema, side_schemas
from holdfast.state.binding import bind
from holdfast.state.cells import Cell, StateMisfit
from holdfast.state.delta import Changes
from holdfast.state.layout import StateLayout
from holdfast.state.values import objects_of
from holdfast.state.working import ShardState


class RowContext:
    """What `process` knows besides its row.

    `key` is a tuple where there are several key columns; `timestamp` is the plan's processing time in ms.
    """

    __slots__ = ("_sides", "epoch", "key", "timestamp")

    def __init__(self, epoch: int, timestamp: int, sides: dict[str, list[Any]]) -> None:
        self.key: Any = None
        self.epoch = epoch
        self.timestamp = timestamp
        self._sides = sides

    def emit_to(self, name: str, row: Any) -> None:
        """Add a row to the side output `name`."""
        side = self._sides.get(name)
        if side is None:
            declared = ", ".join(repr(known) for known in self._sides if known) or "none"
            raise ValueError(f"there is no side output {name!r}; declared in `outputs`: {declared}")
        side.append(row)


def run_rows(
    function: KeyedFunction,
    layout: StateLayout,
    rows: pa.Table,
    groups: npt.NDArray[Any],
    key_columns: Sequence[str],
    order_by: Sequence[str],
    state: ShardState,
    ctx: EpochContext,
) -> OperatorResult:
    """Run the function over the rows of a shard. UserCodeError where its code fails, or a dead letter."""
    keyed = cut(layout, rows, groups, key_columns, order_by)
    run = RowsRun(function, keyed, ctx, lambda own: bind(own, layout, keyed.bases, state))
    run.run()
    return OperatorResult(run.outputs(), run.changes(), keyed.rows.num_rows)


class RowsRun:
    """One function over one slice.

    `bind` puts cells under the declared names of the function's copy, after its `open`; `row_context` makes
    what `process` gets as `ctx`.
    """

    def __init__(
        self,
        function: KeyedFunction | OperatorFunction,
        keyed: KeyedSlice,
        ctx: EpochContext,
        bind: Callable[[object], Sequence[Cell]],
        row_context: Callable[[int, int, dict[str, list[Any]]], RowContext] = RowContext,
    ) -> None:
        self.ctx, self.keyed = ctx, keyed
        self.schemas = {MAIN: output_schema(function), **side_schemas(function)}
        self.checks = {name: row_check(schema) for name, schema in self.schemas.items()}
        self.made: dict[str, list[Any]] = {name: [] for name in self.schemas}
        self.dead: list[tuple[str, str, str, int]] = []
        self.row_context = row_context(ctx.epoch, ctx.clock_ms, self.made)
        self.function = copy.copy(function)
        try:
            self.function.open(self.row_context)
        except Exception as error:
            raise user_error(ctx, "(none yet)", "(none yet: open failed)", cause_of(error)) from error
        self.cells = bind(self.function)
        columns = [objects_of(column) for column in keyed.keys]
        self.keys: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        self.counts: list[int] = np.bincount(keyed.index, minlength=keyed.key_count).tolist()
        self.ends: list[int] = []
        """How many main output rows there were after each key."""

    def run(self) -> None:
        """Every row, as `on_error` says."""
        if self.ctx.on_error == "dead-letter":
            self._set_failures_aside()
        else:
            self._to_the_end()

    def _to_the_end(self) -> None:
        """Every row; the first failure ends it."""
        process, context = self.function.process, self.row_context
        cells, made = self.cells, self.made[MAIN]
        extend, ended = made.extend, self.ends.append
        rows = _row_objects(self.keyed, self.keys)
        row = None
        try:
            for number, (key, count) in enumerate(zip(self.keys, self.counts, strict=True)):
                context.key = key
                for cell in cells:
                    cell.load(number)
                for row in islice(rows, count):
                    output = process(row, context)
                    if output is not None:
                        extend(output)
                for cell in cells:
                    cell.keep(number)
                ended(len(made))
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(self.ctx, context.key, _named(row), cause_of(error)) from error

    def _set_failures_aside(self) -> None:
        """Every row; one that fails, or makes what does not fit, becomes a dead letter and is undone."""
        rows = _row_objects(self.keyed, self.keys)
        for number, (key, count) in enumerate(zip(self.keys, self.counts, strict=True)):
            self.row_context.key = key
            for cell in self.cells:
                cell.load(number)
            for row in islice(rows, count):
                marks = [cell.mark() for cell in self.cells]
                lengths = [len(made) for made in self.made.values()]
                try:
                    self._one_checked(row, lengths)
                except HoldfastError:
                    raise
                except Exception as error:
                    self._set_aside(row, key, error)
                    for cell, mark in zip(self.cells, marks, strict=True):
                        cell.undo(mark)
                    for made, length in zip(self.made.values(), lengths, strict=True):
                        del made[length:]
            for cell in self.cells:
                cell.keep(number)
            self.ends.append(len(self.made[MAIN]))

    def _one_checked(self, row: Any, lengths: Sequence[int]) -> None:
        output = self.function.process(row, self.row_context)
        if output is not None:
            self.made[MAIN].extend(output)
        for cell in self.cells:
            cell.check()
        for (name, made), length in zip(self.made.items(), lengths, strict=True):
            if len(made) > length:
                for row_made in made[length:]:
                    self.checks[name](row_made)

    def _set_aside(self, row: Any, key: Any, error: Exception) -> None:
        cause = str(error) if isinstance(error, OutputMisfit) else cause_of(error)
        self.dead.append((json_text(_named(row)), plain_text(key), cause, self.ctx.epoch))

    def outputs(self) -> dict[str, pa.Table]:
        """All that was made, in the declared schemas."""
        tables = {}
        for name, made in self.made.items():
            try:
                tables[name] = table_of(made, self.schemas[name])
            except OutputMisfit as misfit:
                key: Any = f"(one of {len(self.keys)}, in side output {name!r})"
                if name == MAIN:
                    key = self.keys[int(np.searchsorted(self.ends, misfit.index, side="right"))]
                raise user_error(self.ctx, key, f"yielded {made[misfit.index]!r}", misfit.text) from misfit
        if self.ctx.on_error == "dead-letter":
            tables[DEAD] = dead_letters(self.dead)
        return tables

    def changes(self) -> Changes:
        """What became of the state."""
        changes = Changes(list(self.keyed.keys), self.keyed.groups, self.keyed.bases)
        for cell in self.cells:
            try:
                cell.put_into(changes)
            except StateMisfit as misfit:
                key = self.keys[misfit.key]
                raise user_error(self.ctx, key, "(any of this key)", misfit.text) from misfit
        return changes


def row_class(names: Sequence[str]) -> type[tuple[Any, ...]]:
    """A tuple class whose columns are read as `row.name`, `row["name"]` or `row[0]`."""
    base: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    places = {name: place for place, name in enumerate(names)}
    plain_item = tuple.__getitem__

    def __getitem__(self: Any, at: Any) -> Any:
        return plain_item(self, places[at] if isinstance(at, str) else at)

    members: dict[str, Any] = {"__slots__": (), "__getitem__": __getitem__, "columns_": tuple(names)}
    for place, name in enumerate(names):
        if not hasattr(base, name):
            members[name] = getattr(base, f"_{place}")
    row: type[tuple[Any, ...]] = type("Row", (base,), members)
    return row


def _row_objects(keyed: KeyedSlice, keys: list[Any]) -> Iterator[Any]:
    """The rows as Python objects, key by key."""
    order = by_key(keyed.index, keyed.key_count)
    rows = keyed.rows.take(pa.array(order))
    columns = [objects_of(column) for column in rows.columns]
    return map(tuple.__new__, repeat(row_class(rows.column_names)), zip(*columns, strict=True))


def _named(row: Any) -> dict[str, Any] | None:
    return None if row is None else dict(zip(row.columns_, row, strict=True))
