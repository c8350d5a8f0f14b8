"""Rows that a test sends, as a table; and back.

Always true: a value either fits its column's type or is refused with the row, the column and a remedy; the
columns of a test do not change once they are known.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.state.encoding.arrow_values import column_of, objects_of
from holdfast.state.encoding.coercion import Misfit, short
from holdfast.state.encoding.row_objects import Row, names_of, row_class
from holdfast.state.encoding.types import TIMESTAMP

_GUESSED: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: TIMESTAMP,
}


def guessed_schema(rows: Sequence[Any]) -> pa.Schema:
    """The columns of rows that are dicts, where their values leave no doubt. DefinitionError: they do."""
    for row in rows:
        if not isinstance(row, Mapping):
            raise DefinitionError(
                f"the row {short(repr(row))} does not name its columns; send dicts, or give the harness "
                "schema='name type, ...'"
            )
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.schema([(name, _guessed_type(name, [row.get(name) for row in rows])) for name in names])


def _guessed_type(name: str, values: list[Any]) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None}
    found = _GUESSED.get(kinds.pop()) if len(kinds) == 1 else None
    if found is None:
        shown = ", ".join(short(repr(value)) for value in values[:3])
        raise DefinitionError(
            f"the type of column {name!r} cannot be guessed from {shown}; give the harness "
            "schema='name type, ...'"
        )
    return found


def table_of_sent(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Rows (dicts, what is missing is null; rows; tuples in the order of the columns) as a table."""
    ordered = [_in_order(row, schema) for row in rows]
    columns = []
    for number, field in enumerate(schema):
        values = [row[number] for row in ordered]
        what = f"column {field.name!r} of a row that was sent"
        try:
            columns.append(column_of(values, field.type))
        except Misfit as misfit:
            raise DefinitionError(misfit.text(what, field.type)) from misfit
        if not field.nullable and None in values:
            raise DefinitionError(f"{what} is declared not null but got None; send a value")
    return pa.Table.from_arrays(columns, schema=schema)


def rows_of_table(table: pa.Table) -> list[Row]:
    """The rows as a function sees them."""
    columns = [objects_of(column) for column in table.columns]
    kind = row_class(tuple(table.column_names))
    return list(map(tuple.__new__, repeat(kind), zip(*columns, strict=True)))


def _in_order(row: Any, schema: pa.Schema) -> Sequence[Any]:
    names, named = schema.names, names_of(row) if isinstance(row, tuple) else ()
    if isinstance(row, Mapping) or named:
        given = dict(row) if isinstance(row, Mapping) else dict(zip(named, row, strict=True))
        unknown = [name for name in given if name not in names]
        if unknown:
            raise DefinitionError(
                f"the row {short(repr(row))} has columns {unknown} that are not among {names}; correct it, "
                "or give the harness schema='name type, ...'"
            )
        return [given.get(name) for name in names]
    if not isinstance(row, tuple | list):
        raise DefinitionError(
            f"{short(repr(row))} is not a row; send a dict, or a tuple in the order {names}"
        )
    if len(row) != len(names):
        raise DefinitionError(
            f"the row {short(repr(row))} has {len(row)} values, the columns are {names}; send one for each"
        )
    return row
