"""Columns of rows beside those of the table that they go to: what fits, and rows as the table has them.

Always true: rows of columns that `check_against` accepts can be appended whatever values they hold. Columns
are known by their names, in any order; those of the table that the rows lack are null.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from holdfast.connectors.parquet_rows import listed
from holdfast.errors import DefinitionError


def check_against(what: str, rows: pa.Schema, table: pa.Schema) -> None:
    """Refuse columns that the table cannot take."""
    if new := [field for field in rows if field.name not in table.names]:
        raise DefinitionError(
            f"{what} has no column for {listed(new)}; add it to the table, or drop it with transform(...)"
        )
    for field in rows:
        wanted = table.field(field.name)
        if _form(field.type) != _form(wanted.type):
            raise DefinitionError(
                f"{what} has column {field.name!r} as {wanted.type}, the rows have it as {field.type}; cast "
                "it with transform(...)"
            )
    if needed := [field for field in table if not field.nullable]:
        raise DefinitionError(
            f"{what} takes no nulls in {listed(needed)}, and rows may have them; let the table take nulls"
        )


def as_table_has_them(rows: pa.Table, table: pa.Schema) -> pa.Table:
    """The rows with the table's columns, in its order. For columns that `check_against` accepts: of others
    values would be left out without a word."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in table
    ]
    return pa.Table.from_arrays(columns, schema=table)


def _form(type: pa.DataType) -> object:
    """Types that hold the same values are equal here: zones, large forms and the names of inner fields do not
    matter."""
    if types.is_timestamp(type):
        return ("timestamp", type.unit, type.tz is not None)
    if types.is_string(type) or types.is_large_string(type):
        return "string"
    if types.is_binary(type) or types.is_large_binary(type):
        return "binary"
    if types.is_struct(type):
        return ("struct", *((field.name, _form(field.type)) for field in type))
    if types.is_map(type):
        return ("map", _form(type.key_type), _form(type.item_type))
    if types.is_list(type) or types.is_large_list(type):
        return ("list", _form(type.value_type))
    return type
