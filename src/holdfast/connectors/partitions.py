"""Rows by the values of some of their columns, which are then the name of a place and no part of a file.

Always true: the values of columns that `check_partition_columns` accepts can be told as text, and every row
is in one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from holdfast.connectors.columns_as_text import utf8
from holdfast.errors import DefinitionError


def check_partition_columns(what: str, schema: pa.Schema, names: Sequence[str]) -> None:
    """Raise DefinitionError unless `what` can be partitioned by these columns, whatever they hold."""
    for name in names:
        if name not in schema.names:
            raise DefinitionError(
                f"partition_by={list(names)}: the rows have no column {name!r}; they have "
                f"{', '.join(map(repr, schema.names))}"
            )
        type = schema.field(name).type
        if not (types.is_string(type) or types.is_integer(type) or types.is_boolean(type)):
            raise DefinitionError(
                f"{what} are not partitioned by column {name!r} ({type}) here; use text, whole numbers or "
                "booleans, made with transform(...): date_format(day, 'yyyy-MM-dd'), say"
            )
    if names and len(set(names)) == len(schema.names):
        raise DefinitionError(f"partition_by={list(names)} leaves no column for the files; leave one out")


def partitions(rows: pa.Table, by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition in their order, without these columns, and what the columns hold as text."""
    if not by:
        return [({}, rows)]
    # By place, because Arrow takes some names for paths; and as text that is told alike is in one partition.
    places = [str(place) for place in range(len(by))]
    told = [_readable(rows.column(name)) for name in by]
    numbered = pa.table([*told, pa.array(range(rows.num_rows), pa.int64())], [*places, "row"])
    groups = numbered.group_by(places).aggregate([("row", "list")])
    found = []
    for group in groups.to_pylist():
        values = {name: _as_text(group[place]) for name, place in zip(by, places, strict=True)}
        numbers = pa.array(sorted(group["row_list"]), pa.int64())
        found.append((values, rows.take(numbers).drop_columns(list(by))))
    return found


def _readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not types.is_string(column.type):
        return column
    return pa.chunked_array([utf8(chunk) for chunk in column.chunks], column.type)


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
