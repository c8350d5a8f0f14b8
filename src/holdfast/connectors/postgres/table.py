"""What a table that is read by a growing column looks like, and whether it can be read so.

Never here: rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.connectors.postgres.columns import PgColumn, parse_flat_schema, refusal
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    import psycopg

_KINDS = {
    "r": "",
    "p": "",
    "v": "a view; name the table that it shows",
    "m": "a materialized view, whose rows come and go; name the table that it shows",
    "f": "a foreign table, whose transactions another server counts; read it there",
}
_COLUMNS = """
    SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
           pg_get_expr(d.adbin, d.adrelid)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_SET_BY_TRIGGER = """
    SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal AND tgenabled <> 'D'
                   AND tgtype & 1 = 1 AND tgtype & 2 = 2 AND tgtype & 4 = 4)
"""
"""Whether a trigger runs before each row that is inserted: it may set the column."""
_INDEXED = """
    SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = %s AND i.indisvalid AND i.indpred IS NULL
                   AND (SELECT array_agg(a.attname::text ORDER BY k.n)
                        FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
                             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                        WHERE k.n <= %s) = %s::text[])
"""


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalogue shows it. `indexed`: an index begins with the columns that it is read by."""

    columns: tuple[PgColumn, ...]
    set_by_trigger: bool
    indexed: bool

    def column(self, name: str) -> PgColumn | None:
        return next((column for column in self.columns if column.name == name), None)


def look_at(connection: psycopg.Connection[Any], table: str, by: Sequence[str]) -> TableFacts:
    """DefinitionError: there is no such table, it is not a table, or it may not be read."""
    quoted = quoted_name(table)
    found = connection.execute(
        "SELECT c.oid, c.relkind::text, has_table_privilege(c.oid, 'SELECT') OR "
        "has_any_column_privilege(c.oid, 'SELECT') FROM pg_class c WHERE c.oid = to_regclass(%s)",
        [quoted],
    ).fetchone()
    if found is None:
        raise DefinitionError(
            f"there is no table {table} in the database, or not for this user; create it, correct the name, "
            "or grant USAGE on its schema"
        )
    oid, kind, readable = found
    if kind not in _KINDS or _KINDS[kind]:
        raise DefinitionError(f"{table} is {_KINDS.get(kind) or 'no table; name a table'}")
    if not readable:
        raise DefinitionError(f"the user may not read table {table}; GRANT SELECT ON {quoted} to it")
    columns = tuple(PgColumn(*row) for row in connection.execute(_COLUMNS, [oid]))
    (by_trigger,) = connection.execute(_SET_BY_TRIGGER, [oid]).fetchone() or (False,)
    (indexed,) = connection.execute(_INDEXED, [oid, len(by), list(by)]).fetchone() or (False,)
    return TableFacts(columns, by_trigger, indexed)


def refuse_unreadable(facts: TableFacts, table: str, by: Sequence[str], schema: str, lag: bool) -> None:
    """DefinitionError: the table cannot be read as it is wanted."""
    wanted = parse_flat_schema(schema)
    reasons = [refusal(each, facts.column(each.name), table) for each in wanted]
    reasons += [_unordered(facts.column(name), name, table) for name in by]
    reasons.append(_unsafe(facts, table, by[0], lag))
    for reason in filter(None, reasons):
        raise DefinitionError(reason)


def _unordered(column: PgColumn | None, name: str, table: str) -> str | None:
    if column is None:
        return f"table {table} has no column {name!r} to read it by; correct by=..."
    if not column.not_null:
        return (
            f"column {name!r} of table {table} may be null, and rows without it would never be read; "
            f"ALTER TABLE {quoted_name(table)} ALTER COLUMN {quoted_column(name)} SET NOT NULL"
        )
    return None


def _unsafe(facts: TableFacts, table: str, name: str, lag: bool) -> str | None:
    """Whether a transaction that takes its number early and commits late would be missed."""
    column = facts.column(name)
    if column is None or lag:
        return None
    add = f"{quoted_column(name)} SET DEFAULT pg_current_xact_id()"
    if column.type != "xid8":
        return (
            f"column {name!r} of table {table} is {column.declared}: a row may appear below one that was "
            "read before it, and would be missed; read by a column of type xid8 whose default is "
            "pg_current_xact_id(), or give lag=... and accept that"
        )
    if "pg_current_xact_id()" not in (column.default or "") and not facts.set_by_trigger:
        return (
            f"column {name!r} of table {table} is not the number of the transaction that inserted the row; "
            f"ALTER TABLE {quoted_name(table)} ALTER COLUMN {add}"
        )
    return None


def quoted_column(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_name(table: str) -> str:
    """The name of a table, with or without its schema, as SQL."""
    return ".".join(map(quoted_column, table.split(".")))
