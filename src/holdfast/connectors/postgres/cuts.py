"""How far a table can be read now, and where it is cut into ranges.

A transaction takes its number when it first writes and may commit hours later, after rows with higher numbers
were read. So a plan ends below every transaction that is still open: below the `xmin` of a snapshot. Of what
lies below it, all is committed or gone for good, once it is on the server's disk: a server with
`synchronous_commit = off` shows rows that a crash takes back, and gives their numbers out again.
Always true: bounds and rows come from one snapshot, or the bound from an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.connectors.postgres.table import quoted_column, quoted_name
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    import psycopg

RANGES_MAX = 16
RANGE_ROWS_MIN = 10_000
"""A slice is cut into at most so many ranges, one task each, and not into smaller ones than this."""

Values = list[str]
"""The values of the growing columns, each as the server writes it as text."""

_LOOK = """
    SELECT system_identifier::text,
           CASE WHEN pg_is_in_recovery() THEN NULL
                ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
           pg_snapshot_xmin(pg_current_snapshot())::text::numeric,
           pg_snapshot_xmax(pg_current_snapshot())::text::numeric,
           CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() - '0/0' END,
           CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() - '0/0' END
    FROM pg_control_system()
"""
_HOLDER = """
    SELECT * FROM (
        SELECT backend_xid::text::numeric AS number,
               'process ' || pid || ' of user ' || coalesce(usename, '?')
               || ' (application ' || quote_literal(coalesce(application_name, ''))
               || coalesce(', ' || state, '') || ')',
               xact_start, 'pg_terminate_backend(' || pid || ')' AS stop
        FROM pg_stat_activity WHERE backend_xid IS NOT NULL
        UNION ALL
        SELECT transaction::text::numeric, 'a prepared transaction ' || quote_literal(gid) || ' of user '
               || owner, prepared, 'COMMIT PREPARED or ROLLBACK PREPARED'
        FROM pg_prepared_xacts
    ) AS open WHERE number = mod(%s::numeric, 4294967296)
"""
"""Who has the oldest open transaction. Activity shows the lower half of its number alone."""


@dataclass(frozen=True)
class Look:
    """A server at one moment. `open_from`: every transaction below it has ended; those from `next_number` on
    have not begun. `written` and `on_disk` are places in its log."""

    server: str
    open_from: int
    next_number: int
    written: int
    on_disk: int


def look(connection: psycopg.Connection[Any]) -> Look:
    row = connection.execute(_LOOK).fetchone()
    assert row is not None
    system, timeline, *numbers = row
    if timeline is None:
        raise Unavailable(
            "the Postgres server is a standby that follows another one, and cannot tell its timeline; read "
            "from the primary"
        )
    return Look(f"{system}/{int(timeline, 16)}", *map(int, numbers))


def holder(connection: psycopg.Connection[Any], number: int) -> str:
    """Who holds up all rows from a transaction on, in words."""
    row = connection.execute(_HOLDER, [number]).fetchone()
    if row is None:
        return f"rows wait for transaction {number}, which is still open"
    _, who, since, stop = row
    if since is None:
        return (
            f"rows wait for transaction {number}, which is still open: {who}; end it: {stop}; since when is "
            "shown only to users with the role pg_read_all_stats"
        )
    return (
        f"rows wait for transaction {number}, open since {since:%Y-%m-%d %H:%M:%S} UTC: {who}; end it: {stop}"
    )


@dataclass(frozen=True)
class OrderedTable:
    """A table and the columns that it is read by, as SQL. `types` are those of the columns."""

    table: str
    by: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def columns(self) -> str:
        return ", ".join(map(quoted_column, self.by))

    def values(self, values: Sequence[str]) -> str:
        """Literals: COPY takes no parameters."""
        typed = zip(values, self.types, strict=True)
        return ", ".join(f"'{value.replace(chr(39), chr(39) * 2)}'::{kind}" for value, kind in typed)

    def between(self, after: Sequence[str] | None, end: Sequence[str] | None) -> str:
        """`after` is out, `end` is in; None: no limit."""
        above = [] if after is None else [f"({self.columns}) > ({self.values(after)})"]
        below = [] if end is None else [f"({self.columns}) <= ({self.values(end)})"]
        return " AND ".join([*above, *below]) or "true"

    def number(self, connection: psycopg.Connection[Any]) -> int:
        """What the server calls it by: another for a table that was made again, the same for one that was
        rewritten or renamed. 0: there is none."""
        asked = "SELECT coalesce(to_regclass(%s)::oid::bigint, 0)"
        (number,) = connection.execute(asked, [quoted_name(self.table)]).fetchone() or (0,)
        return int(number)

    def below_transaction(self, number: int) -> str:
        return f"{quoted_column(self.by[0])} < '{number}'::xid8"

    def newest(self, connection: psycopg.Connection[Any], where: str) -> Values | None:
        texts = ", ".join(f"{quoted_column(name)}::text" for name in self.by)
        order = ", ".join(f"{quoted_column(name)} DESC" for name in self.by)
        row = connection.execute(
            f"SELECT {texts} FROM {quoted_name(self.table)} WHERE {where} ORDER BY {order} LIMIT 1"
        ).fetchone()
        return None if row is None else list(row)

    def any(self, connection: psycopg.Connection[Any], where: str) -> bool:
        row = connection.execute(
            f"SELECT EXISTS (SELECT FROM {quoted_name(self.table)} WHERE {where})"
        ).fetchone()
        return row is not None and bool(row[0])

    def count(self, connection: psycopg.Connection[Any], where: str) -> int:
        row = connection.execute(f"SELECT count(*) FROM {quoted_name(self.table)} WHERE {where}").fetchone()
        assert row is not None
        return int(row[0])

    def cuts(self, connection: psycopg.Connection[Any], where: str, rows: int) -> list[tuple[Values, int]]:
        """The first `rows` rows, and those with the same values as the last of them, in ranges: the end of
        each, and how many rows there are up to there."""
        by, step = self.columns, max(RANGE_ROWS_MIN, -(-rows // RANGES_MAX))
        texts = ", ".join(f"{quoted_column(name)}::text" for name in self.by)
        back = ", ".join(f"{quoted_column(name)} DESC" for name in self.by)
        found = connection.execute(
            f"""
            WITH found AS (
                SELECT {by} FROM {quoted_name(self.table)} WHERE {where}
                ORDER BY {by} FETCH FIRST {rows} ROWS WITH TIES
            ), counted AS (
                SELECT {by}, sum(count(*)) OVER (ORDER BY {by}) AS through FROM found GROUP BY {by}
            )
            SELECT DISTINCT ON (div(through - 1, {step})) {texts}, through FROM counted
            ORDER BY div(through - 1, {step}), {back}
            """
        ).fetchall()
        return [(list(values), int(through)) for *values, through in found]
