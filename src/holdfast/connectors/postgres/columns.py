"""Columns of a Postgres table, and the Spark SQL types that they can be read as.

Always true: a type that is accepted holds every value of the column, or reading a value that it cannot hold
fails: never nulls, never cut off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import DefinitionError

DECIMAL_DIGITS_MAX = 38

_ARROW = {
    "boolean": pa.bool_(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_READ_AS = {
    "bool": ("boolean",),
    "int2": ("short", "int", "long"),
    "int4": ("int", "long"),
    "int8": ("long",),
    "oid": ("long",),
    "xid8": ("long",),
    "float4": ("float", "double"),
    "float8": ("double",),
    "bytea": ("binary",),
    "date": ("date",),
    "timestamp": ("timestamp_ntz",),
    "timestamptz": ("timestamp",),
}
"""By the name of the Postgres type; the first is what is inferred. Everything can be read as a string, but
bytes cannot; `numeric` as decimals and doubles."""

_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*[:\s]\s*"
    r"(?P<type>\w+(?:\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\))?)(?:\s+not\s+null)?\s*",
    re.IGNORECASE,
)
_DECIMAL = re.compile(r"(?:decimal|numeric|dec)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")


@dataclass(frozen=True)
class PgColumn:
    """A column of a table. `type` is the name in the catalogue (`int4`), `declared` as people write it."""

    name: str
    type: str
    declared: str
    not_null: bool = False
    default: str | None = None


@dataclass(frozen=True)
class WantedColumn:
    """A column of a flat Spark SQL schema."""

    name: str
    type: pa.DataType


def parse_flat_schema(ddl: str) -> list[WantedColumn]:
    """Read columns of plain types, such as `id long, amount decimal(10,2)`. What a table holds besides is
    read as a string."""
    found = []
    for text in re.split(r",(?![^(]*\))", ddl):
        match = _COLUMN.fullmatch(text)
        kind = None if match is None else _arrow_type(match["type"].lower())
        if match is None or kind is None:
            raise DefinitionError(
                f"the column {text.strip()!r} of the schema cannot be read from Postgres; use "
                f"{', '.join(sorted(_ARROW))} or decimal(p,s), and string for all else"
            )
        found.append(WantedColumn(match["plain"] or match["quoted"].replace("``", "`"), kind))
    return found


def _arrow_type(name: str) -> pa.DataType | None:
    if (match := _DECIMAL.fullmatch(name)) is None:
        return _ARROW.get(name)
    digits, scale = int(match[1] or 10), int(match[2] or 0)
    return pa.decimal128(digits, scale) if 0 < digits <= DECIMAL_DIGITS_MAX and scale <= digits else None


def inferred_schema(columns: Sequence[PgColumn]) -> str:
    """The schema of a table where none was declared."""
    return ", ".join(f"`{column.name.replace('`', '``')}` {_inferred(column)}" for column in columns)


def _inferred(column: PgColumn) -> str:
    if column.type in _READ_AS:
        return _READ_AS[column.type][0]
    match = re.fullmatch(r"numeric\((\d+),(\d+)\)", column.declared)
    fits = match is not None and int(match[2]) <= int(match[1]) <= DECIMAL_DIGITS_MAX
    return f"decimal({match[1]},{match[2]})" if match is not None and fits else "string"


def refusal(wanted: WantedColumn, column: PgColumn | None, table: str) -> str | None:
    """Why a column cannot be read as it is wanted, with a remedy; None: it can."""
    if column is None:
        return f"table {table} has no column {wanted.name!r}; correct the schema"
    allowed = [_ARROW[name] for name in _READ_AS.get(column.type, ())]
    if column.type != "bytea":
        allowed.append(pa.string())
    numeric = column.type == "numeric" and (pa.types.is_decimal(wanted.type) or wanted.type == pa.float64())
    if numeric or wanted.type in allowed:
        return None
    better = "decimal(p,s), double or string" if column.type == "numeric" else _names(allowed)
    return (
        f"column {wanted.name!r} of table {table} is {column.declared}, which cannot be read as "
        f"{_names([wanted.type])}; declare it as {better}"
    )


def _names(types: Sequence[pa.DataType]) -> str:
    by_type = {kind: name for name, kind in reversed(_ARROW.items())}
    return " or ".join(by_type.get(kind, str(kind)) for kind in types)
