"""Runs a function that sees single rows over a shard's slice: key after key, or with the shard's lists.

Always true: the rows of a key are handled one after another, in slice order; a row that is set aside as a
dead letter leaves nothing behind, neither in state nor in output. Same rows and state, same result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice, repeat
from types import GeneratorType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.graph.contexts import Context, FunctionContext, ShardContext
from holdfast.graph.functions import (
    OperatorFunction,
    RowsByKey,
    has_timers,
    output_schema,
    side_schemas,
)
from holdfast.graph.job_graph import DEAD_LETTERS, MAIN_OUTPUT
from holdfast.state.cells.binding import bind
from holdfast.state.cells.misuse import Misuse
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.shard_list import OperatorListCell
from holdfast.state.cells.timers import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    TimerCell,
    Timers,
    datetime_of,
    nearest_datetime,
)
from holdfast.state.cells.value_cells import Cell, StateMisfit
from holdfast.state.contract import ShardState
from holdfast.state.encoding.arrow_values import objects_of
from holdfast.state.encoding.coercion import short
from holdfast.state.encoding.layout import StateField, StateLayout
from holdfast.state.encoding.row_objects import Row, row_class
from holdfast.state.files.delta import Changes
from holdfast.tasks.operators.due import due_times, with_keys
from holdfast.tasks.operators.result import (
    EpochContext,
    EventTime,
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
from holdfast.tasks.operators.shard_rows import KeyedSlice, by_key

ANY_ROW = "(any of this key)"
_USUAL_OUTPUT = (GeneratorType, list, type(None))


def run_rows(
    function: RowsByKey,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
    running: Callable[..., RowsRun] | None = None,
) -> OperatorResult:
    """Run the function over the rows of a shard, then over the timers that are due in its key groups.
    UserCodeError where its code fails, or a dead letter."""
    timers = None
    if has_timers(function):
        keyed, timers = due_timers(layout, keyed, state, ctx)
    bound = partial(bind, layout=layout, bases=keyed.bases, state=state, at=ctx.instants)
    run = (running or RowsRun)(function, keyed, ctx, bound, timers=timers)
    run.run()
    return OperatorResult(run.outputs(), run.changes())


@dataclass(frozen=True, slots=True)
class DueTimers:
    """The timers of a slice's keys: cells, and up to when each is due."""

    event: TimerCell
    processing: TimerCell
    event_us: int | None
    processing_us: int

    def begin(self, kind: Literal["event", "processing"]) -> TimerCell | None:
        """Start to fire those of one clock for the key at hand. None: that clock is not known yet."""
        cell, until = (
            (self.event, self.event_us) if kind == "event" else (self.processing, self.processing_us)
        )
        if until is None:
            return None
        cell.begin(until)
        return cell


def due_timers(
    layout: StateLayout, keyed: KeyedSlice, state: ShardState, ctx: EpochContext
) -> tuple[KeyedSlice, DueTimers]:
    """The slice with the keys that have timers which are due, and those timers."""
    fields = layout.field(EVENT_TIMERS), layout.field(PROCESSING_TIMERS)
    time = ctx.time or EventTime()
    limits = time.due_us, ctx.clock_ms * 1_000
    found = [
        {} if until is None else due_times(field, ctx.groups, state, until)
        for field, until in zip(fields, limits, strict=True)
    ]
    keyed, numbers = with_keys(keyed, layout, state, [base for due in found for base in due])
    event, processing = (
        # When the input has ended, a timer that is set by a timer waits: one that sets the next would go on
        # and on.
        TimerCell(field, {numbers[base]: at for base, at in due.items()}, None if joins_not else until)
        for field, due, until, joins_not in zip(fields, found, limits, (time.closing, False), strict=True)
    )
    return keyed, DueTimers(event, processing, *limits)


@dataclass(frozen=True, slots=True)
class UnkeyedResult:
    """Outputs by name, and the lists that are no longer what they were, by state."""

    outputs: dict[str, pa.Table]
    lists: dict[str, ShardList]


def run_unkeyed_rows(
    function: OperatorFunction,
    fields: Sequence[StateField],
    rows: pa.Table,
    lists: Mapping[str, ShardList],
    shards: int,
    ctx: EpochContext,
) -> UnkeyedResult:
    """Run a function without keys over the rows of a shard, with the shard's lists."""
    cells = {field.name: OperatorListCell(field, lists.get(field.name, ShardList())) for field in fields}

    def bind(own: object) -> list[OperatorListCell]:
        vars(own).update(cells)
        return list(cells.values())

    # To the loop over keys a shard's slice is the slice of one key, which is None.
    index = np.zeros(rows.num_rows, dtype=np.int32)
    whole = KeyedSlice((), rows, index, (pa.nulls(1),), np.zeros(1, dtype=np.uint16), [b""])
    run = RowsRun(function, whole, ctx, bind, partial(ShardContext, ctx.shard, shards))
    run.run()
    changed = {name: cell.held() for name, cell in cells.items() if cell.changed}
    return UnkeyedResult(run.outputs(), changed)


class RowsRun:
    """One function over one slice.

    `function` is a KeyedFunction or an OperatorFunction. `bind` puts cells under the declared names of its
    copy, after its `open`; `row_context` makes what `process` gets as `ctx`.
    """

    def __init__(
        self,
        function: Any,
        keyed: KeyedSlice,
        ctx: EpochContext,
        bind: Callable[[object], Sequence[Cell]],
        row_context: Callable[[int, int, dict[str, list[Any]]], FunctionContext] = Context,
        timers: DueTimers | None = None,
    ) -> None:
        self.ctx, self.keyed = ctx, keyed
        self.schemas = {MAIN_OUTPUT: output_schema(function), **side_schemas(function)}
        self.checks = [row_check(schema, name) for name, schema in self.schemas.items()]
        self.made: dict[str, list[Any]] = {name: [] for name in self.schemas}
        self.every_made = list(self.made.values())
        self.dead: list[tuple[str, str, str, int]] = []
        self.row_context = row_context(ctx.epoch, ctx.clock_ms, self.made)
        self.timers = timers
        if isinstance(self.row_context, Context):
            self._set_time(self.row_context)
        self.function = copy.copy(function)
        try:
            self.function.open(self.row_context)
        except Exception as error:
            raise user_error(ctx, "(none yet)", "(none yet: open failed)", cause_of(error)) from error
        self.cells = bind(self.function)
        if timers is not None:
            self.cells = [*self.cells, timers.event, timers.processing]
            self._give_timers(timers)
        columns = [python_objects(column, "of the key", ctx) for column in keyed.keys]
        self.keys: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        self.counts: list[int] = np.bincount(keyed.index, minlength=keyed.key_count).tolist()
        self.ends: dict[str, list[int]] = {name: [] for name in self.schemas}
        """How many rows each output had after each key."""

    def _set_time(self, context: Context) -> None:
        time = self.ctx.time
        self._before = _shown_time(time, time.before_us if time else None)
        self._now = _shown_time(time, time.now_us if time else None)
        context.watermark = self._before
        context.closing = time is not None and time.closing

    def _give_timers(self, timers: DueTimers) -> None:
        time, clock_us = self.ctx.time, self.ctx.clock_ms * 1_000
        before_us = time.before_us if time else None
        assert isinstance(self.row_context, Context)
        self.row_context._timers = Timers(
            timers.event, timers.processing, clock_us, before_us, time is not None
        )

    def rows(self) -> Iterator[Any]:
        """The rows as Python objects, key by key."""
        order = by_key(self.keyed.index, self.keyed.key_count)
        return row_objects(self.keyed.rows.take(pa.array(order)), self.ctx)

    @property
    def process(self) -> Callable[[Any, FunctionContext], Any]:
        """What handles a row."""
        handle: Callable[[Any, FunctionContext], Any] = self.function.process
        return handle

    def run(self) -> None:
        """Every row, as `on_error` says."""
        if self.ctx.on_error == "dead-letter":
            self._set_failures_aside()
        else:
            self._to_the_end()

    def _to_the_end(self) -> None:
        """Every row; the first failure ends it."""
        process, context = self.process, self.row_context
        cells, made, sides = self.cells, self.made[MAIN_OUTPUT], len(self.made) > 1
        extend, ended = made.extend, self.ends[MAIN_OUTPUT].append
        rows = self.rows()
        row = output = None
        try:
            for number, (key, count) in enumerate(zip(self.keys, self.counts, strict=True)):
                context._key = key
                for cell in cells:
                    cell.load(number)
                for row in islice(rows, count):
                    output = process(row, context)
                    if output is not None:
                        extend(output)
                if self.timers is not None:
                    row = output = None
                    for at in self._due():
                        row = at
                        output = self.function.on_timer(at, context)
                        if output is not None:
                            extend(output)
                for cell in cells:
                    cell.keep(number)
                ended(len(made))
                if sides:
                    self._ended_in_sides()
        except HoldfastError:
            raise
        except Exception as error:
            method = "on_timer" if isinstance(row, datetime) else process.__name__
            cause = cause_of(_of_output(output, method) or error)
            may_set_aside = not isinstance(error, Misuse)
            raise user_error(self.ctx, context._key, _named(row), cause, may_set_aside) from error

    def _set_failures_aside(self) -> None:
        """Every row; one that fails, or makes what does not fit, becomes a dead letter and is undone."""
        rows = self.rows()
        for number, (key, count) in enumerate(zip(self.keys, self.counts, strict=True)):
            self.row_context._key = key
            for cell in self.cells:
                cell.load(number)
            for row in islice(rows, count):
                self._one_or_dead(self.process, row, key)
            if self.timers is not None:
                for at in self._due():
                    self._one_or_dead(self.function.on_timer, at, key)
            for cell in self.cells:
                cell.keep(number)
            self.ends[MAIN_OUTPUT].append(len(self.made[MAIN_OUTPUT]))
            self._ended_in_sides()

    def _due(self) -> Iterator[datetime]:
        """The timers of the key at hand that are due, each gone from its state before it is given."""
        assert self.timers is not None
        assert isinstance(self.row_context, Context)
        context, naive = self.row_context, self.ctx.time is not None and self.ctx.time.naive
        context.watermark = self._now
        for kind in ("event", "processing"):
            context.timer = kind
            cell = self.timers.begin(kind)
            while cell is not None and (at_us := cell.pop()) is not None:
                yield datetime_of(at_us, naive and kind == "event")
        context.watermark, context.timer = self._before, None

    def _one_or_dead(self, method: Callable[..., Any], given: Any, key: Any) -> None:
        """Call `process` with a row, or `on_timer` with a time; undo it and set it aside if that fails.
        UserCodeError: the function is at fault, whatever it was given."""
        cells, every = self.cells, self.every_made
        marks = [cell.mark() for cell in cells]
        lengths = [*map(len, every)]
        try:
            self._one_checked(method, given, lengths)
        except HoldfastError:
            raise
        except Misuse as mistake:
            raise user_error(self.ctx, key, _named(given), cause_of(mistake)) from mistake
        except Exception as error:
            self._set_aside(given, key, error)
            for cell, mark in zip(cells, marks, strict=True):
                cell.undo(mark)
            for made, length in zip(every, lengths, strict=True):
                del made[length:]

    def _ended_in_sides(self) -> None:
        for name, ends in self.ends.items():
            if name != MAIN_OUTPUT:
                ends.append(len(self.made[name]))

    def _one_checked(self, method: Callable[..., Any], given: Any, lengths: Sequence[int]) -> None:
        output = method(given, self.row_context)
        if (wrong := _of_output(output, method.__name__)) is not None:
            raise wrong
        if output is not None:
            self.made[MAIN_OUTPUT].extend(output)
        for cell in self.cells:
            cell.check()
        for check, made, length in zip(self.checks, self.every_made, lengths, strict=True):
            for row_made in made[length:]:
                check(row_made)

    def _set_aside(self, row: Row | datetime, key: Any, error: Exception) -> None:
        cause = str(error) if isinstance(error, OutputMisfit) else cause_of(error)
        self.dead.append((json_text(_named(row)), plain_text(key), cause, self.ctx.epoch))

    def outputs(self) -> dict[str, pa.Table]:
        """All that was made, in the declared schemas."""
        tables = {}
        for name, made in self.made.items():
            try:
                tables[name] = table_of(made, self.schemas[name], name)
            except OutputMisfit as misfit:
                key = self.keys[int(np.searchsorted(self.ends[name], misfit.index, side="right"))]
                raise user_error(self.ctx, key, ANY_ROW, misfit.text, may_set_aside=True) from misfit
        if self.ctx.on_error == "dead-letter":
            tables[DEAD_LETTERS] = dead_letters(self.dead)
        return tables

    def changes(self) -> Changes:
        """What became of the state."""
        changes = self.keyed.no_changes()
        for cell in self.cells:
            try:
                cell.put_into(changes)
            except StateMisfit as misfit:
                key = self.keys[misfit.key]
                raise user_error(self.ctx, key, ANY_ROW, misfit.text, may_set_aside=True) from misfit
        return changes


def row_objects(rows: pa.Table, ctx: EpochContext) -> Iterator[Any]:
    """Rows as Python objects, in their order."""
    columns = [python_objects(rows.column(name), repr(name), ctx) for name in rows.column_names]
    return map(tuple.__new__, repeat(row_class(tuple(rows.column_names))), zip(*columns, strict=True))


def python_objects(column: pa.Array, name: str, ctx: EpochContext) -> list[Any]:
    """A column as Python objects. UserCodeError: it holds a value that Python has no object for."""
    try:
        return objects_of(column)
    except (OverflowError, ValueError) as error:
        cause = (
            f"column {name} holds a value of type {column.type} that Python has no object for ({error}); "
            "keep such rows away with a transform before key_by(...): no dead letter can hold them"
        )
        raise user_error(ctx, "(not known)", "(not known)", cause) from error


def _of_output(output: object, method: str) -> TypeError | None:
    """The error of a method that gave back what holds no rows."""
    if output.__class__ in _USUAL_OUTPUT:
        return None
    holds_none = isinstance(output, str | bytes | Mapping | Row) or not isinstance(output, Iterable)
    if not holds_none:
        return None
    got = f"{short(repr(output))} ({type(output).__name__})"
    return TypeError(f"{method}() returned {got}; yield each output row, or return a list of rows")


def _named(row: Row | datetime | None) -> dict[str, Any] | None:
    """A row as errors and dead letters show it; of a timer its time."""
    if isinstance(row, datetime):
        return {"timer": row}
    return None if row is None else row._asdict()


def _shown_time(time: EventTime | None, at_us: int | None) -> datetime | None:
    return None if time is None or at_us is None else nearest_datetime(at_us, time.naive)
