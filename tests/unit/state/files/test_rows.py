"""Names and mistakes of rows; that they say what is stored is in tests/property/test_state_rows.py."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError, RestoreError
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.encoding.types import parse_type
from holdfast.state.files.rows import (
    changes_from,
    changes_of,
    column_names,
    row_schema,
    rows_of,
    schema_problems,
)


def layout(
    key: list[str], *states: str, kind: StateKind = StateKind.VALUE, type: str = "long"
) -> StateLayout:
    fields = tuple(StateField(id, name, kind, parse_type(type)) for id, name in enumerate(states))
    return StateLayout("op", pa.schema([(name, pa.string()) for name in key]), fields)


@pytest.mark.parametrize(
    ("key", "states", "expected"),
    [
        (["user"], ["total"], (["total"], "key_group")),
        (["user"], ["user", "total"], (["user_", "total"], "key_group")),
        (["User"], ["user"], (["user_"], "key_group")),
        (["a"], ["a", "a_"], (["a__", "a_"], "key_group")),
        (["user"], ["key_group"], (["key_group_"], "key_group")),
        (["key_group"], ["total", "key_group_"], (["total", "key_group__"], "key_group_")),
    ],
)
def test_a_name_that_is_taken_gets_an_underscore(
    key: list[str], states: list[str], expected: tuple[list[str], str]
) -> None:
    assert column_names(layout(key, *states)) == expected
    assert len(set(row_schema(layout(key, *states)).names)) == len(key) + len(states) + 1


def test_every_problem_of_a_schema_is_told() -> None:
    wanted = StateLayout(
        "op",
        pa.schema([("user", pa.string())]),
        (
            StateField(0, "total", StateKind.VALUE, pa.int64()),
            StateField(1, "tags", StateKind.LIST, pa.string()),
            StateField(2, "seen", StateKind.MAP, parse_type("map<string,long>")),
        ),
    )
    given = pa.schema([("user", pa.int32()), ("total", pa.int32()), ("tags", pa.string()), ("x", pa.int8())])
    assert schema_problems(wanted, given) == [
        "column 'user' is int, not string",
        "column 'tags' is string, not array<string>",
        "column 'seen' (map<string,long>) is missing",
        "column 'x' is none of its key columns and states",
    ]
    assert schema_problems(wanted, row_schema(wanted)) == []


def test_no_rows_are_no_changes_and_no_entries_no_rows() -> None:
    plain = layout(["user"], "total")
    empty = row_schema(plain).empty_table()
    assert changes_of(plain, empty).values == {}
    assert rows_of(plain, []).num_rows == 0
    assert rows_of(plain, []).schema == row_schema(plain)


def test_a_map_key_that_stands_there_twice_is_refused() -> None:
    maps = layout(["user"], "seen", kind=StateKind.MAP, type="map<string,long>")
    cell = pa.array([[("p", 1), ("q", 2), ("p", 3)]], parse_type("map<string,long>"))
    table = pa.table([pa.array(["ann"]), cell, pa.array([0], pa.int32())], schema=row_schema(maps))
    with pytest.raises(DefinitionError, match="holds the map key 'p' twice for key user='ann'"):
        changes_of(maps, table)


def test_entries_of_a_state_that_nobody_declares_are_refused() -> None:
    wide, narrow = layout(["user"], "total", "more"), layout(["user"], "total")
    base = wide.keys.encode([pa.array(["ann"])], pa.array([3], pa.uint16()).to_numpy())[0]
    with pytest.raises(RestoreError, match="state with the number 1"):
        changes_from(narrow, [(base + b"\x00", b"12345678"), (base + b"\x01", b"12345678")])
