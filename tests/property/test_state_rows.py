"""Whatever the types and values: state and its rows say the same."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import DefinitionError
from holdfast.state.encoding.layout import LONG_KEY_SUFFIX, StateField, StateKind, StateLayout
from holdfast.state.files.delta import Changes, read_delta, to_entries, write_delta
from holdfast.state.files.rows import (
    changes_from,
    changes_of,
    column_names,
    row_schema,
    rows_of,
    schema_problems,
)
from tests.property.state_values import columns, exact, layouts_and_changes, map_keys, present, values

_calm = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def layouts_and_rows(draw: st.DrawFn) -> tuple[StateLayout, pa.Table]:
    """A layout and rows of it, each key once."""
    layout, changes = draw(layouts_and_changes())
    size = len(changes.bases)
    states = [pa.array(draw(_cells(field, size)), _type(field)) for field in layout.fields]
    groups = pa.array(changes.groups, pa.int32())
    return layout, pa.table([*changes.keys, *states, groups], schema=row_schema(layout))


def _type(field: StateField) -> pa.DataType:
    return pa.list_(field.type) if field.kind is StateKind.LIST else field.type


def _cells(field: StateField, size: int) -> st.SearchStrategy[list[Any]]:
    if field.kind is StateKind.VALUE:
        return columns(field.type, size).map(lambda column: column.to_pylist())
    if field.kind is StateKind.LIST:
        cell: st.SearchStrategy[Any] = st.lists(values(field.type), max_size=3)
    else:
        key = map_keys(field) if field.kind is StateKind.TIMED else present(field.type.key_type)
        pairs = st.tuples(key, values(field.type.item_type))
        cell = st.lists(pairs, max_size=3, unique_by=lambda pair: _key_bytes(field, pair[0]))
    return st.lists(st.none() | cell, min_size=size, max_size=size)


def _key_bytes(field: StateField, key: Any) -> bytes:
    return field.map_keys.key_bytes([pa.array([key], field.type.key_type)])[0]


def _said(layout: StateLayout, table: pa.Table) -> dict[bytes, list[Any]]:
    """What rows say, by key: empty lists and maps are nothing, the order within a map means nothing."""
    names, group = column_names(layout)
    keys = [table.column(name).combine_chunks() for name in layout.key.names]
    groups = table.column(group).to_numpy().astype("uint16")
    states = [table.column(name).to_pylist() for name in names]
    said = {}
    for base, *cells in zip(layout.keys.encode(keys, groups), *states, strict=True):
        row = []
        for field, cell in zip(layout.fields, cells, strict=True):
            if field.is_map and cell:
                cell = sorted(([_key_bytes(field, key), value] for key, value in cell), key=lambda e: e[0])
            row.append(exact(cell) if cell or field.kind is StateKind.VALUE else None)
        if any(cell is not None for cell in row):
            said[base] = row
    return said


@_calm
@given(layouts_and_rows())
def test_rows_are_stored_and_read_back(drawn: tuple[StateLayout, pa.Table]) -> None:
    layout, table = drawn
    delta = write_delta(layout, changes_of(layout, table))
    entries = to_entries(layout, read_delta(layout, delta, "d"))
    assert all(value is not None for _, value in entries)
    read = rows_of(layout, entries)  # type: ignore[arg-type]
    read.validate(full=True)
    assert read.schema == row_schema(layout)
    assert _said(layout, read) == _said(layout, table)
    assert not schema_problems(layout, read.schema)


@_calm
@given(layouts_and_rows(), st.integers(0, 6), st.integers(0, 6))
def test_a_slice_of_rows_is_stored_as_just_these(
    drawn: tuple[StateLayout, pa.Table], start: int, count: int
) -> None:
    layout, table = drawn
    part = table.slice(start, count)
    read = rows_of(layout, to_entries(layout, changes_of(layout, part)))  # type: ignore[arg-type]
    assert _said(layout, read) == _said(layout, part)


@_calm
@given(layouts_and_changes())
def test_entries_come_back_exactly_nulls_and_list_lengths_included(
    drawn: tuple[StateLayout, Changes],
) -> None:
    layout, changes = drawn
    entries = [(key, value) for key, value in to_entries(layout, changes) if value is not None]
    length = layout.keys.base_length
    stored = {key[: length(key)] for key, _ in entries if key[length(key) :] != LONG_KEY_SUFFIX}
    # The real key behind a shortened one is not state: alone it is left out.
    expected = [(key, value) for key, value in entries if key[: length(key)] in stored]
    assert to_entries(layout, changes_from(layout, entries)) == expected


@_calm
@given(layouts_and_rows())
def test_a_key_that_stands_there_twice_is_refused(drawn: tuple[StateLayout, pa.Table]) -> None:
    layout, table = drawn
    assume(table.num_rows)
    with pytest.raises(DefinitionError, match="more than once"):
        changes_of(layout, pa.concat_tables([table, table.slice(0, 1)]))
