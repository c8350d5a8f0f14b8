"""State as rows: one row per key, with the key columns, then one column per state, then the key group.

A value has its declared type, a list is an array, a map is a map. A state that shares its name with another
column gets a trailing underscore; so does `key_group` beside a key column of that name.
Always true: a null says that nothing is stored. A value that was stored as null, an empty list and an empty
map are rows' nulls too, so they come back as *nothing stored*; entries and `Changes` keep them apart.
Never here: files (see delta) and where they are (see checkpoint).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import DefinitionError, RestoreError
from holdfast.state.encoding.layout import (
    LONG_KEY_ID,
    StateField,
    StateKind,
    StateLayout,
    in_time_index,
    map_entries,
    map_tails,
)
from holdfast.state.encoding.ttl import Instants, Times, time_of, times_of, without_times
from holdfast.state.encoding.types import type_ddl
from holdfast.state.files.changes import Changes, EntryChange, Rows, ValueChange

GROUP = "key_group"

Item = tuple[bytes, bytes]
"""An entry that is there: its key and its value."""


def column_names(layout: StateLayout) -> tuple[list[str], str]:
    """The columns of the states, in the layout's order, and the one of the key group."""
    taken = {name.lower() for name in layout.key.names}
    group = _free(GROUP, taken)
    taken.add(group)
    clashing = {field.name for field in layout.fields if field.name.lower() in taken}
    taken |= {field.name.lower() for field in layout.fields if field.name not in clashing}
    names = []
    for field in layout.fields:
        name = _free(field.name, taken) if field.name in clashing else field.name
        taken.add(name.lower())
        names.append(name)
    return names, group


def _free(name: str, taken: set[str]) -> str:
    # Spark takes `Total` and `total` for one column.
    while name.lower() in taken:
        name += "_"
    return name


def row_schema(layout: StateLayout) -> pa.Schema:
    """The columns of an operator's state as rows."""
    names, group = column_names(layout)
    states = [pa.field(name, _column_type(field)) for name, field in zip(names, layout.fields, strict=True)]
    return pa.schema([*layout.key, *states, pa.field(group, pa.int32())])


def _column_type(field: StateField) -> pa.DataType:
    return pa.list_(field.type) if field.kind is StateKind.LIST else field.type


def rows_of(layout: StateLayout, entries: Iterable[Item]) -> pa.Table:
    """The rows of some keys' entries, which come whole and in key order. Keys without any state have none."""
    changes = changes_from(layout, entries)
    count = len(changes.bases)
    columns = [_state_column(field, changes, count) for field in layout.fields]
    table = pa.table(
        [*changes.keys, *columns, pa.array(changes.groups, pa.int32())], schema=row_schema(layout)
    )
    # Of a long key whose last map entry was removed, the key itself is still there.
    stored = np.zeros(count, np.bool_)
    for changed in (changes.values, changes.headers):
        for change in changed.values():
            stored[change.rows] = True
    for entries_changed in changes.entries.values():
        stored[entries_changed.rows] = True
    return table if stored.all() else table.filter(pa.array(stored))


def live_items(layout: StateLayout, entries: Iterable[Item], at: Instants) -> Iterator[Item]:
    """The entries of some keys, which come whole and in key order, without what has expired at an instant,
    without keys of which nothing else is left, and without the time index."""
    if not layout.expiring:
        yield from entries
        return
    by_id = {field.id: field for field in layout.fields}
    length = layout.keys.base_length
    own = (item for item in entries if not in_time_index(item[0]))
    for base, of_key in groupby(own, key=lambda item: item[0][: length(item[0])]):
        kept, holds_state = [], False
        for key, value in of_key:
            field = by_id.get(key[len(base)])
            is_header = field is not None and field.kind is StateKind.LIST and len(key) == len(base) + 1
            if field is not None and not is_header:
                if field.ttl is not None and field.ttl.is_expired(time_of(value), at.now(field.ttl)):
                    continue
                holds_state = True
            kept.append((key, value))
        if holds_state:
            yield from kept


def changes_from(layout: StateLayout, entries: Iterable[Item]) -> Changes:
    """The changes that bring these entries about, starting from nothing. Nothing is lost.

    `entries`: all those of some keys, in key order; the time index between them is passed over, since it
    follows from them. RestoreError: an entry of a state that is not declared.
    """
    bases: list[bytes] = []
    long_keys: dict[bytes, bytes] = {}
    cells: dict[int, _Cells] = {field.id: _Cells() for field in layout.fields}
    base, length, row = None, 0, -1
    base_length = layout.keys.base_length
    for key, value in entries:
        if in_time_index(key):
            continue
        if base is None or not key.startswith(base):
            length = base_length(key)
            base, row = key[:length], row + 1
            bases.append(base)
        id = key[length]
        if id == LONG_KEY_ID:
            long_keys[base] = value
            continue
        if id not in cells:
            raise RestoreError(
                f"operator {layout.operator!r} holds entries of a state with the number {id}, which it does "
                "not declare; restore with the code that declares it"
            )
        found = cells[id]
        found.rows.append(row)
        found.tails.append(key[length + 1 :])
        found.values.append(value)
    groups = np.fromiter((int.from_bytes(base[:2], "big") for base in bases), np.uint16, len(bases))
    keys = layout.keys.decode(bases, long_keys)
    changes = Changes(keys, groups, bases, _ranks=np.arange(len(bases)))
    for field in layout.fields:
        cells[field.id].put_into(changes, field)
    return changes


class _Cells:
    """The entries of one state: the row of their key, what follows the state's number, and the value."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.tails: list[bytes] = []
        self.values: list[bytes] = []

    def put_into(self, changes: Changes, field: StateField) -> None:
        if not self.rows:
            return
        rows = np.array(self.rows, np.int64)
        if field.kind is StateKind.LIST:
            self._put_list(changes, field, rows)
            return
        stored, times = split(field, self.values)
        if field.kind is StateKind.VALUE:
            changes.values[field.name] = ValueChange(rows, field.codec.decode(stored), times=times)
        else:
            keys, values = map_entries(field, list(zip(self.tails, stored, strict=True)))
            changes.entries[field.name] = EntryChange(rows, keys, field.codec.decode(values), times=times)

    def _put_list(self, changes: Changes, field: StateField, rows: Rows) -> None:
        header = np.fromiter((not tail for tail in self.tails), np.bool_, len(rows))
        lengths = [int.from_bytes(value, "big") for value, is_header in self._flagged(header) if is_header]
        if lengths:
            changes.headers[field.name] = ValueChange(rows[header], pa.array(lengths, pa.int64()))
        items = [value for value, is_header in self._flagged(header) if not is_header]
        if items:
            numbers = [int.from_bytes(tail, "big", signed=True) for tail in self.tails if tail]
            entry = pa.array(numbers, pa.int64())
            items, times = split(field, items)
            values = field.codec.decode(items)
            changes.entries[field.name] = EntryChange(rows[~header], entry, values, times=times)

    def _flagged(self, flags: npt.NDArray[np.bool_]) -> Iterable[tuple[bytes, bool]]:
        return zip(self.values, flags.tolist(), strict=True)


def split(field: StateField, stored: list[bytes]) -> tuple[list[bytes], Times | None]:
    """What entries of a state hold, and their times if it has a ttl."""
    return (stored, None) if field.ttl is None else (without_times(stored), times_of(stored))


def _state_column(field: StateField, changes: Changes, count: int) -> pa.Array:
    if field.kind is StateKind.VALUE:
        change = changes.values.get(field.name)
        return pa.nulls(count, field.type) if change is None else _spread(change, count)
    entries = changes.entries.get(field.name)
    type = _column_type(field)
    if entries is None:
        return pa.nulls(count, type)
    lengths = np.bincount(entries.rows, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bitmap = pa.py_buffer(np.packbits(lengths > 0, bitorder="little"))
    child = entries.values
    if field.is_map:
        both = [pa.field("key", type.key_type, nullable=False), type.item_field]
        child = pa.StructArray.from_arrays([entries.entry, entries.values], fields=both)
    return pa.Array.from_buffers(type, count, [bitmap, pa.py_buffer(offsets)], children=[child])


def _spread(change: ValueChange, count: int) -> pa.Array:
    """The values at their rows, null in all others."""
    if len(change.rows) == count:
        return change.values
    places = np.full(count, -1, np.int64)
    places[change.rows] = np.arange(len(change.rows))
    return change.values.take(pa.array(places, mask=places < 0))


def schema_problems(layout: StateLayout, given: pa.Schema) -> list[str]:
    """Why columns of this schema are no rows of the operator's state; empty: they are. Order is free.

    The key group may be missing: it follows from the key. A missing state column is a problem too, so that a
    misspelled one is never taken for *nothing stored*.
    """
    wanted = row_schema(layout)
    _, group = column_names(layout)
    problems = []
    for field in wanted:
        if field.name not in given.names:
            if field.name != group:
                problems.append(f"column {field.name!r} ({type_ddl(field.type)}) is missing")
        elif given.names.count(field.name) > 1:
            problems.append(f"column {field.name!r} is there twice")
        elif not _fits(given.field(field.name).type, field.type):
            found = type_ddl(given.field(field.name).type)
            problems.append(f"column {field.name!r} is {found}, not {type_ddl(field.type)}")
    extra = [name for name in given.names if name not in wanted.names]
    return problems + [f"column {name!r} is none of its key columns and states" for name in extra]


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is a value of the other."""
    if type_ddl(given).replace(" not null", "") == type_ddl(wanted).replace(" not null", ""):
        return True
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    return bool(pa.types.is_float32(given) and pa.types.is_float64(wanted))


def changes_of(layout: StateLayout, table: pa.Table) -> Changes:
    """The changes that store these rows, starting from nothing: the inverse of `rows_of`.

    Columns are those of `row_schema`, in any order. DefinitionError: a key stands there twice, or a map key.
    """
    names, group = column_names(layout)
    keys = [_column(table, field.name, field.type) for field in layout.key]
    groups = _column(table, group, pa.int32()).to_numpy(zero_copy_only=False).astype(np.uint16)
    bases = layout.keys.encode(keys, groups)
    _refuse_twice(
        bases,
        lambda row: (
            f"the rows for operator {layout.operator!r} hold the key {key_text(layout, keys, row)} "
            "more than once; keep one row per key"
        ),
    )
    changes = Changes(keys, groups, bases)
    for name, field in zip(names, layout.fields, strict=True):
        column = _column(table, name, _column_type(field))
        present = column.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(present)
        if not len(rows):
            continue
        if field.kind is StateKind.VALUE:
            changes.values[field.name] = ValueChange(rows, column.drop_null())
        else:
            _put_entries(changes, field, column, layout)
    return changes


def _put_entries(changes: Changes, field: StateField, column: pa.Array, layout: StateLayout) -> None:
    offsets = np.asarray(column.offsets).astype(np.int64)
    lengths = np.diff(offsets)
    lengths[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
    begins = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    places = pa.array(np.repeat(offsets[:-1], lengths) + within)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    if not len(rows):
        return
    if field.kind is StateKind.LIST:
        change = EntryChange(rows, pa.array(within), column.values.take(places))
        full = np.flatnonzero(lengths)
        changes.headers[field.name] = ValueChange(full, pa.array(lengths[full]))
    else:
        change = EntryChange(rows, column.keys.take(places), column.items.take(places))
        _refuse_twice(
            list(zip(rows.tolist(), map_tails(field, change.entry)[0], strict=True)),
            lambda at: (
                f"map state {field.name!r} of operator {layout.operator!r} holds the map key "
                f"{change.entry[at].as_py()!r} twice for key {key_text(layout, changes.keys, rows[at])}; "
                "keep one of them"
            ),
        )
    changes.entries[field.name] = change


def key_text(layout: StateLayout, keys: Sequence[pa.Array], row: int) -> str:
    """A key for people: `user='ann', day=3`."""
    named = zip(layout.key.names, keys, strict=True)
    return ", ".join(f"{name}={column[row].as_py()!r}" for name, column in named)


def _refuse_twice(things: Sequence[object], text: Callable[[int], str]) -> None:
    if len(set(things)) == len(things):
        return
    seen: set[object] = set()
    for at, thing in enumerate(things):
        if thing in seen:
            raise DefinitionError(text(at))
        seen.add(thing)


def _column(table: pa.Table, name: str, type: pa.DataType) -> pa.Array:
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return column if column.type == type else column.cast(type)
