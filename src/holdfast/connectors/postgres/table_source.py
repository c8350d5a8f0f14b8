"""Rows of a Postgres table, in the order of a column that grows, each read once.

A position holds the values of the growing columns at the end of what was read, and the identity of the server
(system identifier and timeline): where another one answers, or one that has gone back, the run ends and says
so. Rows are read by Spark tasks, a range each (see range_reading).
Always true: by an `xid8` column no row is missed, whenever its transaction commits (see cuts).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import duration_ms
from holdfast.connectors.contract import Json, Slice
from holdfast.connectors.postgres.columns import inferred_schema, parse_flat_schema
from holdfast.connectors.postgres.cuts import Look, OrderedTable, Values, holder, look
from holdfast.connectors.postgres.range_reading import Range, TableRead, changed
from holdfast.connectors.postgres.server import PostgresServer, Silence
from holdfast.connectors.postgres.table import (
    TableFacts,
    look_at,
    quoted_column,
    quoted_name,
    refuse_unreadable,
)
from holdfast.errors import DefinitionError, InputVanished, RestoreError, Unavailable
from holdfast.secret import Secret

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame, SparkSession

SLICE_ROWS_MAX = 250_000
"""Rows of a slice when no limit is given."""


class TableSource:
    """A Postgres table that rows are added to, and not changed in, read by a column that grows.

    `by`: a column of type `xid8`, not null, with the default `pg_current_xact_id()` and an index. All rows of
    a transaction are then in one epoch, and `max_rows` is kept about; with a second column
    (`by=("txid", "id")`, unique together, one index on both) large transactions are cut, and it is kept
    exactly.
    `schema`: the columns to read; None: all of them, as the table has them when the job first runs. A table
    that has other columns at a later start is refused then.
    `lag`: read by a column of another type (a number, a time), and take a row for read once one as high was
    seen so long ago. **Not exactly once**: a row whose transaction commits later than that is never read.
    `accept`: a server to go on with after a failover, or a table that was made again, as the refusal names
    it. Say so only of one that has every row that the former one had, under the same numbers.
    """

    replayable: Final = True

    def __init__(
        self,
        table: str,
        *,
        dsn: str,
        by: str | Sequence[str],
        schema: str | None = None,
        password: Secret | None = None,
        lag: str | None = None,
        accept: str | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.table: Final = table
        self.by: Final = (by,) if isinstance(by, str) else tuple(by)
        if not 1 <= len(self.by) <= 2:
            raise DefinitionError(
                f"TableSource reads by one column or by two, not by {self.by!r}; correct by="
            )
        self.declared: Final = schema
        self._schema = schema
        self.lag: Final = lag
        self._lag_ms = None if lag is None else duration_ms(lag)
        self.accept: Final = accept
        self.server: Final = PostgresServer(dsn, password, timeout_seconds)
        if schema is not None:
            parse_flat_schema(schema)

    @property
    def schema(self) -> str:
        """As declared, or else as the table has it when this is first asked."""
        if self._schema is None:
            self._schema = inferred_schema(self._facts().columns)
        return self._schema

    @property
    def misses(self) -> str | None:
        """Which rows it may never read, for a person; None: none."""
        if self.lag is None:
            return None
        return (
            f"rows that are committed more than {self.lag} after a row with a higher {self.by[0]} was seen "
            "are never read"
        )

    def check(self) -> None:
        try:
            facts = self._facts()
        except Unavailable:
            return  # the run meets it again, and waits
        refuse_unreadable(facts, self.table, self.by, self.schema, self.lag is not None)

    def reader(self, notes: Sequence[Json]) -> TableReader:
        """`notes`: the schema that was inferred when the table was first read."""
        return TableReader(self, *notes[-1:])

    def _facts(self) -> TableFacts:
        with self.server.looking("holdfast source", f"looking at table {self.table}") as connection:
            return look_at(connection, self.table, self.by)


class TableReader:
    """A position is {"by": the values, "server": its identity, "table": the number that the server has given
    the table}; older ones lack the last."""

    def __init__(self, source: TableSource, schema_then: str | None = None) -> None:
        self._source = source
        self._schema_then = schema_then
        self._connection: psycopg.Connection[Any] | None = None
        self._table: OrderedTable | None = None
        self._identity = ""
        self._open_look: Look | None = None
        """The oldest look that was not seen to be on disk."""
        self._safe: Look | None = None
        self._seen: deque[tuple[int, Values]] = deque()
        """With a lag: the highest values, and when they were first seen."""
        self._end: Values | None = None
        self._nothing = False
        """Told to end before there was a row."""
        self._health = ""
        self._news: list[str] = []

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        with self._open() as (connection, table, now):
            self._refuse_other_server(now, after)
            number = table.number(connection)
            self._refuse_other_table(now, number, after)
            start = None if after is None else after["by"]
            limit = self._limit(connection, table, now, now_ms)
            self._health = self._held_up(connection, table, now, start)
            if limit is None or self._nothing:
                return None
            where = f"{table.between(start, self._end)} AND {limit}"
            cuts = table.cuts(connection, where, max_rows or SLICE_ROWS_MAX)
        if not cuts:
            return None
        rows = [through for _, through in cuts]
        counts = [count - before for count, before in zip(rows, [0, *rows], strict=False)]
        detail = [[values, count] for (values, _), count in zip(cuts, counts, strict=True)]
        end = {"by": cuts[-1][0], "server": now.server, "table": number}
        return Slice(after, end, rows[-1], detail, (self._source.schema,), replaces_notes=True)

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        """What can be planned now: rows that wait for an open transaction are not at hand."""
        if end is None:
            with self._open() as (connection, table, now):
                limit = self._limit(connection, table, now, now_ms)
                newest = None if limit is None else table.newest(connection, limit)
                at = {"server": now.server, "table": table.number(connection)}
                end = after if newest is None else {"by": newest, **at}
        self._end, self._nothing = None if end is None else end["by"], end is None
        return end

    def exhausted(self, after: Json | None) -> bool:
        with self._open() as (connection, table, _):
            start = None if after is None else after["by"]
            return self._nothing or not table.any(connection, table.between(start, self._end))

    def lag(self, after: Json | None) -> int | None:
        return None

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        after = None if slice.start is None else tuple(slice.start["by"])
        end = tuple(slice.end["by"])
        with self._open() as (connection, table, now):
            self._refuse_other_server(now, slice.end)
            self._refuse_other_table(now, table.number(connection), slice.end)
            found = table.count(connection, table.between(after, end))
            if found != slice.rows:
                raise InputVanished(changed(table, after, end, slice.rows or 0, found))
        read = self.tasks(slice)
        numbers = spark.range(0, len(read.ranges), 1, len(read.ranges))
        return numbers.mapInArrow(read, self._source.schema)

    def tasks(self, slice: Slice) -> TableRead:
        """What the tasks do that read a slice."""
        assert self._table is not None, "no look was taken at the table"
        after = None if slice.start is None else tuple(slice.start["by"])
        ends = [tuple(values) for values, _ in slice.detail]
        ranges = tuple(
            Range(start, until, rows)
            for start, until, (_, rows) in zip([after, *ends], ends, slice.detail, strict=False)
        )
        source = self._source
        return TableRead(source.server, self._identity, self._table, source.schema, ranges)

    def follow(self, slice: Slice) -> None:
        """All that a plan goes by is in its position, but for the columns where they were inferred."""
        for schema in slice.notes[-1:]:
            self._refuse_other_columns(schema)

    def health(self) -> str:
        return self._health

    def news(self) -> Sequence[str]:
        said, self._news = self._news, []
        return said

    @contextmanager
    def _open(self) -> Iterator[tuple[psycopg.Connection[Any], OrderedTable, Look]]:
        """A connection, the table and a look at the server. After an error the next call connects anew."""
        source = self._source
        if self._connection is None:
            self._connection = source.server.connect("holdfast source")
            # Another server may answer: what was safe there is not so here.
            self._safe = self._open_look = None
        connection = self._connection
        try:
            with (
                source.server.told(f"looking at table {source.table}"),
                Silence(connection, source.server.timeout_seconds),
                source.server.transaction(connection),
            ):
                self._table = self._table or self._checked_table(connection)
                now = look(connection)
                self._identity = now.server
                yield connection, self._table, now
        except BaseException:
            connection.close()
            self._connection = None
            raise

    def _checked_table(self, connection: psycopg.Connection[Any]) -> OrderedTable:
        """The table as it is wanted; looked at once per run."""
        source = self._source
        facts = look_at(connection, source.table, source.by)
        refuse_unreadable(facts, source.table, source.by, source.schema, source.lag is not None)
        self._refuse_other_columns(self._schema_then)
        if not facts.indexed:
            by = ", ".join(map(quoted_column, source.by))
            self._news.append(
                f"table {source.table} has no index on ({by}): every look reads all of it; "
                f"CREATE INDEX ON {quoted_name(source.table)} ({by})"
            )
        types = tuple(column.declared for name in source.by if (column := facts.column(name)) is not None)
        return OrderedTable(source.table, source.by, types)

    def _refuse_other_columns(self, then: str | None) -> None:
        source = self._source
        if source.declared is None and then not in (None, source.schema):
            raise DefinitionError(
                f"table {source.table} had the columns {then} when it was first read, and has "
                f"{source.schema} now; say which of them count: TableSource(..., schema=...)"
            )

    def _limit(
        self, connection: psycopg.Connection[Any], table: OrderedTable, now: Look, now_ms: int
    ) -> str | None:
        """Up to where no row can come any more, as SQL; None: not known yet."""
        lag_ms = self._source._lag_ms
        if lag_ms is not None:
            newest = table.newest(connection, "true")
            if newest is not None and (not self._seen or self._seen[-1][1] != newest):
                self._seen.append((now_ms, newest))
            while len(self._seen) > 1 and self._seen[1][0] <= now_ms - lag_ms:
                self._seen.popleft()
            old = self._seen and self._seen[0][0] <= now_ms - lag_ms
            return table.between(None, self._seen[0][1]) if old else None
        self._open_look = self._open_look or now
        if now.on_disk < self._open_look.written:
            now = look(connection)  # the disk is seldom behind for long
        if now.on_disk >= self._open_look.written:
            self._safe, self._open_look = self._open_look, None
        return None if self._safe is None else table.below_transaction(self._safe.open_from)

    def _held_up(
        self, connection: psycopg.Connection[Any], table: OrderedTable, now: Look, start: Values | None
    ) -> str:
        if self._source.lag is not None:
            return ""
        column, unread = quoted_column(table.by[0]), table.between(start, None)
        # Asked of the snapshot that shows them: what has committed since the look is not among them.
        if table.any(connection, f"{unread} AND {column} >= pg_snapshot_xmax(pg_current_snapshot())"):
            return (
                f"rows of table {table.table} have numbers of transactions that the server has not come to "
                f"yet ({now.next_number}), as in a table that was copied from another server, and wait until "
                f"it does; give them numbers of this one: UPDATE {quoted_name(table.table)} SET {column} = "
                f"DEFAULT WHERE {column} >= '{now.next_number}'::xid8"
            )
        waiting = table.any(connection, f"{unread} AND {column} > '{now.open_from}'::xid8")
        return holder(connection, now.open_from) if waiting else ""

    def _refuse_other_server(self, now: Look, position: Json | None) -> None:
        if position is None:
            return
        table, then = self._source.table, position["server"]
        if now.server not in (then, self._source.accept):
            raise RestoreError(
                f"table {table} was read at server {then} (system identifier/timeline), and {now.server} "
                "answers now: another server, a restored backup or a failover; where it has every row that "
                f"the former one had committed, say TableSource(..., accept={now.server!r}); otherwise begin "
                "anew, or connect to the former one"
            )
        if self._source.lag is None and int(position["by"][0]) >= now.next_number:
            raise RestoreError(
                f"table {table} was read up to transaction {position['by'][0]}, and server {now.server} has "
                f"come to {now.next_number} only: it has gone back, as a restored backup does; rows would be "
                "missed without a trace: begin anew, or connect to the server that has them"
            )

    def _refuse_other_table(self, now: Look, number: int, position: Json | None) -> None:
        """A table that was made again lacks rows that were never read, and gives others, which were, new
        numbers of transactions. Another server that was accepted may have given it another number; that there
        is none (0) is said by the server."""
        if position is None or position["server"] != now.server:
            return
        if number in (0, position.get("table", number)):
            return
        accepted = f"table {number}"
        if self._source.accept != accepted:
            read = ", ".join(position["by"])
            raise InputVanished(
                f"table {self._source.table} was dropped and made again, or another took its name, since it "
                f"was read up to {read}: rows after that may be lost, and rows before it may come again; "
                "bring the former table back, give the source another uid, which then reads all of this "
                f"one, or, where every row has the number that it had, say TableSource(accept={accepted!r})"
            )
