"""The table that a sink writes: whether it can take the rows, and the statements that write them.

Never here: marks, lanes and transactions (see lane_writer).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors.postgres.binary_rows import takes
from holdfast.connectors.postgres.columns import PgColumn
from holdfast.connectors.postgres.table import quoted_column, quoted_name
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    import psycopg

ROW_NUMBER = "holdfast_row"

_KINDS = {
    "r": "",
    "p": "",
    "f": "a foreign table: its own server commits for itself, and rows and marks would not be written in one "
    "step; write to that server",
    "v": "a view; name the table that it shows",
    "m": "a materialized view; name a table",
}
_TABLE = """
    SELECT relkind::text, row_security_active(oid),
           ARRAY(SELECT each FROM unnest(%s::text[]) AS each WHERE NOT has_table_privilege(oid, each)),
           current_database()::text, has_database_privilege(current_database(), 'TEMP')
    FROM pg_class WHERE oid = to_regclass(%s)
"""
_COLUMNS = """
    SELECT a.attname, CASE t.typtype WHEN 'e' THEN 'enum' ELSE t.typname END,
           format_type(a.atttypid, a.atttypmod), a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
           a.attgenerated
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEYED = """
    SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = to_regclass(%s)
                   AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indimmediate
                   AND i.indnkeyatts = %s
                   AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text)
                        FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
                             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                        WHERE k.n <= i.indnkeyatts AND a.attnotnull) = %s::text[])
"""

_FORGETTING = """
    WITH RECURSIVE part(oid) AS (
        SELECT to_regclass(%s)::oid
        UNION SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid
                     JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition)
    SELECT c.oid::regclass::text, c.relpersistence = 't' FROM part JOIN pg_class c ON c.oid = part.oid
    WHERE c.relpersistence <> 'p' ORDER BY 1 LIMIT 1
"""


@dataclass(frozen=True)
class Merge:
    """How rows take the place of those with the same key. `order_by`: the one with the highest value stays;
    without it the last. `deleted` names a boolean column that is not written: true deletes the key."""

    key: tuple[str, ...]
    order_by: str | None = None
    deleted: str | None = None


def fitting_columns(
    connection: psycopg.Connection[Any], table: str, schema: pa.Schema, merge: Merge | None
) -> list[str]:
    """The Postgres types of the columns of `schema`, by their order. DefinitionError: the table cannot take
    them."""
    _refuse_unwritable(connection, table, merge)
    refuse_forgetting(connection, table)
    found = connection.execute(_COLUMNS, [quoted_name(table)]).fetchall()
    columns = {row[0]: (PgColumn(*row[:4]), row[4]) for row in found}
    marker = None if merge is None else merge.deleted
    kinds = []
    for field in schema:
        if field.name == marker:
            if field.type != pa.bool_():
                raise DefinitionError(
                    f"column {marker!r} is to delete rows and is {field.type}; make it boolean"
                )
            kinds.append("bool")
            continue
        kinds.append(_fitting(field, columns.get(field.name), table))
    missing = [name for name, (column, _) in columns.items() if column.not_null and name not in schema.names]
    if missing:
        raise DefinitionError(
            f"table {table} needs a value for {', '.join(map(repr, missing))}, and the rows have no such "
            "column; give it a default, or add it to the rows"
        )
    if merge is not None:
        _refuse_key(connection, table, schema, merge)
    return kinds


def _refuse_unwritable(connection: psycopg.Connection[Any], table: str, merge: Merge | None) -> None:
    """DefinitionError: there is no such table, or rows cannot be written there by this user."""
    rights = ["INSERT"] if merge is None else ["SELECT", "INSERT", "UPDATE"]
    rights += ["DELETE"] if merge is not None and merge.deleted is not None else []
    found = connection.execute(_TABLE, [rights, quoted_name(table)]).fetchone()
    if found is None:
        raise DefinitionError(
            f"there is no table {table} in the database, or not for this user; create it, correct the name, "
            "or grant USAGE on its schema"
        )
    kind, secured, lacking, database, may_stage = found
    if _KINDS.get(kind) != "":
        raise DefinitionError(f"table {table} is {_KINDS.get(kind, 'no table; name a table')}")
    if lacking:
        raise DefinitionError(
            f"the user lacks rights on table {table}: {', '.join(lacking)}; GRANT {', '.join(lacking)} ON "
            f"{quoted_name(table)} to it"
        )
    if merge is not None and not may_stage:
        raise DefinitionError(
            f"the user may not make temporary tables, through which rows go to table {table}; "
            f"GRANT TEMPORARY ON DATABASE {quoted_column(database)} to it"
        )
    if merge is None and secured:
        raise DefinitionError(
            f"table {table} has row-level security for this user, and COPY does not write there; write as "
            "its owner, or as a user with BYPASSRLS"
        )


def refuse_forgetting(connection: psycopg.Connection[Any], table: str) -> None:
    """DefinitionError: the table, or a partition of it, does not outlive a crash of the server, after which
    rows or marks would stand alone. A table that is not there yet is not refused."""
    found = connection.execute(_FORGETTING, [quoted_name(table)]).fetchone()
    if found is None:
        return
    name, temporary = found
    if temporary:
        raise DefinitionError(f"table {name} is temporary: its rows end with a session; name one that stays")
    raise DefinitionError(
        f"table {name} is unlogged: a crash of the server empties it, and what was in it is not written "
        f"again; ALTER TABLE {name} SET LOGGED"
    )


def _fitting(field: pa.Field, found: tuple[PgColumn, str] | None, table: str) -> str:
    if found is None:
        raise DefinitionError(
            f"table {table} has no column {field.name!r}; add it, or take it out of the rows with "
            "transform(...)"
        )
    column, generated = found
    if generated:
        raise DefinitionError(
            f"column {field.name!r} of table {table} is generated by the server; take it out of the rows"
        )
    fits = takes(column.type, field.type)
    if fits and pa.types.is_decimal(field.type):
        typed = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", column.declared)
        whole = field.type.precision - field.type.scale
        fits = typed is None or (int(typed[2]) >= field.type.scale and int(typed[1]) - int(typed[2]) >= whole)
    if fits and pa.types.is_timestamp(field.type):
        # Fewer digits of a second would be rounded to.
        fits = re.match(r"timestamp\([0-5]\)", column.declared) is None
    if not fits:
        raise DefinitionError(
            f"column {field.name!r} is {field.type}, which column {field.name!r} of table {table} "
            f"({column.declared}) does not take; cast one of them, or make text of it for a text column"
        )
    return column.type


def _refuse_key(connection: psycopg.Connection[Any], table: str, schema: pa.Schema, merge: Merge) -> None:
    for name in filter(None, (*merge.key, merge.order_by, merge.deleted)):
        if name not in schema.names:
            raise DefinitionError(
                f"the rows have no column {name!r}; correct key, order_by or deleted of the sink"
            )
    if ROW_NUMBER in schema.names:
        raise DefinitionError(
            f"the rows have a column {ROW_NUMBER!r}, a name that upserts use themselves; rename it"
        )
    (unique,) = connection.execute(
        _KEYED, [quoted_name(table), len(merge.key), sorted(merge.key)]
    ).fetchone() or (False,)
    if not unique:
        columns = ", ".join(map(quoted_column, merge.key))
        never_null = ", ".join(f"ALTER COLUMN {quoted_column(name)} SET NOT NULL" for name in merge.key)
        raise DefinitionError(
            f"table {table} has no unique index on ({columns}), all of them NOT NULL, so rows cannot take "
            f"the place of others; CREATE UNIQUE INDEX ON {quoted_name(table)} ({columns}), and where they "
            f"may be null ALTER TABLE {quoted_name(table)} {never_null}"
        )


def locked_columns(
    connection: psycopg.Connection[Any], table: str, schema: pa.Schema, merge: Merge | None
) -> list[str]:
    """`fitting_columns`, which stay so until the end of the transaction."""
    connection.execute(f"LOCK TABLE ONLY {quoted_name(table)} IN ROW EXCLUSIVE MODE")
    return fitting_columns(connection, table, schema, merge)


def append_statements(table: str, columns: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """What to do before the COPY, the COPY, and what to do after it."""
    return [], _copy(quoted_name(table), columns), []


def merge_statements(table: str, columns: Sequence[str], merge: Merge) -> tuple[list[str], str, list[str]]:
    """The same for rows that take the place of others. Rows are locked in the order of their keys, so two
    lanes that meet wait for each other, and seldom in a circle."""
    target, key = quoted_name(table), [quoted_column(name) for name in merge.key]
    names = [quoted_column(name) for name in columns if name != merge.deleted]
    typed = ", ".join(names) + ("" if merge.deleted is None else f", false AS {quoted_column(merge.deleted)}")
    newest = [] if merge.order_by is None else [f"{quoted_column(merge.order_by)} DESC NULLS LAST"]
    keys, same = ", ".join(key), " AND ".join(f"there.{name} = latest.{name}" for name in key)
    rest = [name for name in names if name not in key]
    changes = ", ".join(f"{name} = excluded.{name}" for name in rest)
    older = ""
    if merge.order_by is not None:
        order = quoted_column(merge.order_by)
        older = f" WHERE excluded.{order} >= there.{order} OR there.{order} IS NULL"
    latest = "holdfast_latest"
    before = [
        f"CREATE TEMP TABLE holdfast_staged ON COMMIT DROP AS SELECT {typed}, 0::bigint AS {ROW_NUMBER} "
        f"FROM {target} WITH NO DATA"
    ]
    kept = "true" if merge.deleted is None else f"NOT coalesce({quoted_column(merge.deleted)}, false)"
    after = [
        f"CREATE TEMP TABLE {latest} ON COMMIT DROP AS SELECT DISTINCT ON ({keys}) * FROM holdfast_staged "
        f"ORDER BY {', '.join([*key, *newest, f'{ROW_NUMBER} DESC'])}",
        f"SELECT count(*) FROM (SELECT FROM {target} AS there JOIN {latest} AS latest ON {same} "
        f"ORDER BY {', '.join(f'there.{name}' for name in key)} FOR UPDATE OF there) AS locked",
        f"INSERT INTO {target} AS there ({', '.join(names)}) SELECT {', '.join(names)} FROM {latest} "
        f"WHERE {kept} ORDER BY {keys} ON CONFLICT ({keys}) DO "
        + (f"UPDATE SET {changes}{older}" if changes else "NOTHING"),
    ]
    if merge.deleted is not None:
        after.append(f"DELETE FROM {target} AS there USING {latest} AS latest WHERE {same} AND NOT ({kept})")
    return (
        before,
        _copy("holdfast_staged", [*columns, ROW_NUMBER]),
        [*after, f"DROP TABLE holdfast_staged, {latest}"],
    )


def _copy(table: str, columns: Sequence[str]) -> str:
    return f"COPY {table} ({', '.join(map(quoted_column, columns))}) FROM STDIN (FORMAT binary)"
