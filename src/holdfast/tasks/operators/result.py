"""What an operator gives back for a shard's slice, and how what the user's code made becomes that.

Always true: an output has exactly its declared schema; what does not fit is the user's error, by column.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import UserCodeError
from holdfast.graph.column_types import DEAD_LETTER_SCHEMA
from holdfast.graph.event_time import bounded
from holdfast.graph.functions import Declaring
from holdfast.graph.job_graph import MAIN_OUTPUT, OnError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.cells.declarations import declared_states
from holdfast.state.cells.value_cells import Cell, uses_of
from holdfast.state.encoding.arrow_values import column_of
from holdfast.state.encoding.coercion import Misfit, settler, short
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.row_objects import as_dicts, names_of
from holdfast.state.encoding.ttl import Instants
from holdfast.state.encoding.types import type_ddl
from holdfast.state.files.delta import Changes, Entry, to_entries

_LIBRARIES = [sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")]
_HOLDFAST = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True)
class EventTime:
    """How far event time is for one operator in one epoch, in µs since 1970, and `bounded`. None: not known
    yet.

    Rows are judged by `before`, as it was in the epoch before; then everything up to `now` is due. `closing`:
    there will be no more rows, so that everything is due.
    """

    before_us: int | None = None
    now_us: int | None = None
    closing: bool = False
    closed_through: int = 0
    """The newest epoch before this one that was `closing`; 0: none."""
    naive: bool = False
    """Times have no time zone, as in a timestamp_ntz column."""

    def __post_init__(self) -> None:
        # Plans of earlier versions may have any watermark.
        for name, at_us in (("before_us", self.before_us), ("now_us", self.now_us)):
            if at_us is not None:
                object.__setattr__(self, name, bounded(at_us))

    @property
    def due_us(self) -> int | None:
        """Up to when everything is due."""
        return FOREVER_US if self.closing else self.now_us


FOREVER_US = (1 << 63) - 1
"""Later than every time."""
NO_GROUPS = KeyGroupRange(KeyGroup(0), KeyGroup(0))


@dataclass(frozen=True, slots=True)
class EpochContext:
    """What every task of an epoch knows. `clock_ms` is the plan's: the same however often the epoch runs."""

    uid: str
    epoch: int
    clock_ms: int
    shard: int
    on_error: OnError
    time: EventTime | None = None
    """None: there is no event time before the operator."""
    groups: KeyGroupRange = NO_GROUPS
    """The key groups of the shard, in which timers may be due."""

    @property
    def instants(self) -> Instants:
        """The time by which states with a ttl are judged: one for the whole epoch."""
        return Instants(self.clock_ms * 1_000, None if self.time is None else self.time.now_us)


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """Outputs by name (the main one, side outputs, dead letters in that mode), and state changes."""

    outputs: dict[str, pa.Table]
    changes: Changes
    index: tuple[Entry, ...] = ()
    """What else becomes of the index of expiries, which follows from state and is in no delta."""
    late: int = 0
    """Late rows that came combined: of them only the number is known."""
    partial_rows: int | None = None
    """How many partial rows its rows make, or are; None: one for each key."""
    expires_us: int | None = None
    """When the last thing is let go of that its rows have a part in, by event time: of windows and joins by
    time. None: in nothing, or it is not known."""

    def entries(self, layout: StateLayout) -> list[Entry]:
        """What becomes of working state, sorted by key."""
        entries = to_entries(layout, self.changes)
        return sorted({**dict(self.index), **dict(entries)}.items()) if self.index else entries


class OutputMisfit(Exception):
    """Output row number `index` does not fit the declared schema; the text says where and why."""

    def __init__(self, index: int, text: str) -> None:
        super().__init__(index, text)
        self.index, self.text = index, text

    def __str__(self) -> str:
        return self.text


def table_of(made: list[Any], schema: pa.Schema, output: str = MAIN_OUTPUT) -> pa.Table:
    """Output rows (tuples in column order, dicts, rows with names) as a table, or the first OutputMisfit."""
    width = len(schema)
    side = f" of side output {output!r}" if output else ""
    if made and not (set(map(type, made)) == {tuple} and set(map(len, made)) == {width}):
        made = [_in_order(index, row, schema, side) for index, row in enumerate(made)]
    columns = []
    for number, field in enumerate(schema):
        try:
            column = column_of([row[number] for row in made], field.type)
        except Misfit as misfit:
            text = misfit.text(f"output column {field.name!r}{side}", field.type, _not_null(field))
            raise OutputMisfit(misfit.index, text) from misfit
        if not field.nullable and column.null_count:
            index = column.is_null().index(True).as_py()
            raise OutputMisfit(index, _null_text(field, side))
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def row_check(schema: pa.Schema, output: str = MAIN_OUTPUT) -> Callable[[Any], None]:
    """What raises OutputMisfit for one output row that does not fit, cheaply for one that does."""
    width = len(schema)
    settlers = [settler(field.type) for field in schema]
    nullable = all(field.nullable for field in schema)

    def check(row: Any) -> None:
        if row.__class__ is tuple and len(row) == width and (nullable or None not in row):
            try:
                for settle, value in zip(settlers, row, strict=True):
                    settle(value)
                return
            except Misfit:
                pass  # said below, with its column
        table_of([row], schema, output)

    return check


def cast_table(table: object, schema: pa.Schema) -> pa.Table:
    """A table the user made, in the declared schema: columns found by name, cast where no value is lost."""
    if not isinstance(table, pa.Table):
        raise OutputMisfit(0, f"process() returned a {type(table).__name__}; return a pyarrow.Table")
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            names = f"there are {table.column_names}"
            raise OutputMisfit(0, f"output column {field.name!r} is missing, {names}; add it to the table")
        column = table.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
            wanted, got = type_ddl(field.type), column.type
            why = _one_line(str(cause))
            text = f"output column {field.name!r} is declared {wanted} but is {got}: {why}; cast it first"
            raise OutputMisfit(0, text) from cause
        if not field.nullable and column.null_count:
            raise OutputMisfit(0, _null_text(field, ""))
    return pa.Table.from_arrays(columns, schema=schema)


def user_error(
    ctx: EpochContext, key: object, row: object, cause: str, may_set_aside: bool = False
) -> UserCodeError:
    """The error of one row or key, its values shown short."""
    shown = short(plain_text(key)), short(plain_text(row))
    return UserCodeError(ctx.uid, ctx.epoch, *shown, cause, may_set_aside)


def cause_of(error: BaseException) -> str:
    """One line: type, message, and the innermost line of the user's own code."""
    outer = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_HOLDFAST)]
    own = [frame for frame in outer if not frame.filename.startswith(("<frozen ", *_LIBRARIES))]
    said = _missing_attribute(error) if isinstance(error, AttributeError) else str(error)
    text = _one_line(f"{type(error).__name__}: {said}" if said else type(error).__name__)
    place = (own or outer)[-1:]
    return f"{text} at {place[0].filename}:{place[0].lineno}" if place else text


def _missing_attribute(error: AttributeError) -> str:
    # Said here and not by a __getattr__ of functions and cells, which would slow down all reading of them.
    owner = error.obj
    if isinstance(owner, Cell):
        return f"{owner!r} has no {error.name!r}; it has {', '.join(uses_of(owner))}"
    if isinstance(owner, Declaring):
        states = ", ".join(declared_states(type(owner))) or "none"
        return f"{type(owner).__name__} has no attribute {error.name!r}; its states: {states}"
    return str(error)


def plain_text(value: object) -> str:
    """A value as a person and a program can read it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: object) -> str:
    return msgspec.json.encode(as_dicts(value), enc_hook=repr).decode()


def dead_letters(letters: Sequence[tuple[str, str, str, int]]) -> pa.Table:
    """The table of the rows set aside."""
    return table_of(list(letters), DEAD_LETTER_SCHEMA)


def _in_order(index: int, row: Any, schema: pa.Schema, side: str) -> tuple[Any, ...]:
    names = schema.names
    pick: Callable[[str], Any] | None = None
    has: Any = ()
    if isinstance(row, Mapping):
        pick, has = row.__getitem__, list(row)
    elif isinstance(row, tuple):
        # Named tuples and Spark's Row say their columns; where those are others, the order counts.
        has = names_of(row)
        by_name = dict(zip(has, row, strict=False))
        pick = by_name.__getitem__ if set(names) <= by_name.keys() else None
    elif not isinstance(row, list):
        shown = f"{short(repr(row))} ({type(row).__name__})"
        remedy = "yield each row as a tuple or a dict, or return a list of them"
        raise OutputMisfit(index, f"an output row{side} is {shown}; {remedy}")
    if pick is not None:
        missing = [name for name in names if name not in has]
        unknown = [name for name in has if name not in names] if isinstance(row, Mapping) else []
        if missing or unknown:
            raise OutputMisfit(
                index,
                f"the output row {short(repr(row))}{side} has the columns {list(has)}, declared are {names}; "
                "give just these",
            )
        return tuple(pick(name) for name in names)
    if len(row) != len(names):
        count = f"{len(row)} {'value' if len(row) == 1 else 'values'}"
        raise OutputMisfit(
            index,
            f"the output row {short(repr(row))}{side} has {count}, declared are {len(names)} columns: "
            f"{names}; give one value for each",
        )
    return tuple(row)


def _not_null(field: pa.Field) -> str:
    return "" if field.nullable else " not null"


def _null_text(field: pa.Field, side: str) -> str:
    declared = type_ddl(field.type) + _not_null(field)
    return (
        f"output column {field.name!r}{side} is declared {declared} but got None; give a value, "
        "or leave out 'not null'"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
