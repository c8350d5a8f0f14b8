"""Lanes in Postgres: one transaction locks a lane's mark, writes its rows and moves the mark.

A transaction says in its `application_name` which lane it writes or that it is at all marks, and under which
term. Whoever waits for a lane in vain looks there: a transaction of a lower term, or one that has waited for
its own client for long, is ended. Without that, a client that was stopped in the middle of a COPY would hold
its lane for ever: no time-out of the server counts there.
Always true: rows and mark are committed together, durably, under READ COMMITTED: a mark that was waited for
is read as its last writer left it. A mark counts for the table that shows its rows, and for no other one of
that name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result, continues
from holdfast.connectors.postgres.binary_rows import HEADER, TRAILER, binary_chunks
from holdfast.connectors.postgres.own_tables import (
    let_marks_name_table,
    marks_table,
    names_table,
    rejects_table,
)
from holdfast.connectors.postgres.refused_rows import Rejects, is_refusal, written_apart
from holdfast.connectors.postgres.server import PostgresServer, Silence, psycopg_driver
from holdfast.connectors.postgres.table import quoted_name
from holdfast.connectors.postgres.target import (
    ROW_NUMBER,
    Merge,
    append_statements,
    fitting_columns,
    locked_columns,
    merge_statements,
)
from holdfast.errors import DefinitionError, SinkWentBack, Unavailable, one_line

if TYPE_CHECKING:
    import psycopg

LOCK_SECONDS = 2.0
"""How long a lane is waited for before another writer is taken to be at it."""
ALL_LANES = "all"
STALLED_SECONDS = 30
"""A transaction that waits for its own client so long has lost it."""
TRIES_MAX = 3
WRITING_PATIENCE = 12.0
"""How many times as long as usual a server may be silent while it merges or commits."""

_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
"""Marks must outlive a crash of the server."""

_STALE = """
    SELECT pid, application_name, pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND application_name LIKE ANY (%s) AND (
        substring(application_name FROM 'term ([0-9]+)')::bigint < %s
        OR (wait_event = 'ClientRead' AND xact_start < now() - make_interval(secs => %s)))
"""


@dataclass(frozen=True)
class PostgresLaneWriter:
    """One sink of one job. `merge`: None appends. `rejects`: the table for refused rows."""

    server: PostgresServer
    table: str
    job: str
    uid: str
    marks_table: str
    merge: Merge | None = None
    rejects: str | None = None

    def open(self, term: int) -> OpenPostgresLanes:
        return OpenPostgresLanes(self, self.server.connect(f"holdfast sink {self.uid}"), term)

    @property
    def digest(self) -> str:
        """Names job and sink in the name of an application, which has room for 63 letters."""
        return hashlib.sha256(f"{self.job}\0{self.uid}".encode()).hexdigest()[:12]

    def application(self, lane: int | str, term: int) -> str:
        return f"holdfast {self.digest} lane {lane} term {term} {self.uid}"


class OpenPostgresLanes:
    def __init__(self, writer: PostgresLaneWriter, connection: psycopg.Connection[Any], term: int) -> None:
        self._writer, self._connection, self._term = writer, connection, term
        self._marks = quoted_name(writer.marks_table)
        self._kinds: tuple[pa.Schema, list[str]] | None = None
        self._marks_name_table = False

    def begin(self, through: int) -> None:
        writer = self._writer
        if writer.rejects is not None:
            with (
                writer.server.told(f"making the table of rejects {writer.rejects}"),
                self._listening(),
                self._transaction(ALL_LANES, self._term),
            ):
                rejects_table(writer.rejects).create(self._connection)
        with (
            writer.server.told(f"making the table of marks {writer.marks_table}"),
            self._listening(),
            self._transaction(ALL_LANES, self._term),
        ):
            marks_table(writer.marks_table).create(self._connection)
            let_marks_name_table(self._connection, writer.marks_table)
            self._connection.execute(
                f"INSERT INTO {self._marks} (job, uid, lane, epoch, rows, input) "
                "SELECT %s, %s, lane, %s, 0, '' FROM generate_series(0, %s) AS lane ON CONFLICT DO NOTHING",
                [writer.job, writer.uid, through, LANES - 1],
            )

    def marks(self) -> Mapping[int, LaneMark]:
        """The rows are locked for a moment: what is being written is waited for, or ended."""
        writer = self._writer
        with writer.server.told("reading the marks"), self._listening() as silence:
            for _ in range(TRIES_MAX):
                silence.heard()
                try:
                    with self._transaction(ALL_LANES, self._term):
                        asked = "SELECT to_regclass(%s) IS NOT NULL"
                        exists = self._connection.execute(asked, [self._marks]).fetchone()
                        if exists is None or not exists[0]:
                            return {}
                        found = self._connection.execute(
                            f"SELECT lane, epoch, rows, input FROM {self._marks} WHERE job = %s AND uid = %s "
                            "ORDER BY lane FOR UPDATE",
                            [writer.job, writer.uid],
                        ).fetchall()
                        self._refuse_other_table_if_known()
                    return {lane: LaneMark(epoch, rows, input) for lane, epoch, rows, input in found}
                except psycopg_driver().errors.LockNotAvailable:
                    self._end_stale("%", self._term)
        raise Unavailable(
            f"a lane of sink {writer.uid!r} is being written by another process, and its mark cannot be "
            "known; it is asked again"
        )

    def write(self, rows: LaneRows) -> Result:
        why = ""
        try:
            prepared = self._prepared(pa.concat_tables(list(rows.load())))
            for _ in range(TRIES_MAX):
                try:
                    with self._listening() as silence:
                        return self._write(rows, prepared, silence)
                except psycopg_driver().Error as cause:
                    result = self._failed(rows, cause)
                    if result is not None:
                        return result
                    why = one_line(cause)
        except SinkWentBack as other:
            # Whether that is as it should be a person has to say: the sink waits for it, alone.
            return Result(Outcome.REFUSED, reason=one_line(other))
        except (DefinitionError, Unavailable) as failure:
            outcome = Outcome.REFUSED if isinstance(failure, DefinitionError) else Outcome.UNAVAILABLE
            return Result(outcome, reason=one_line(failure))
        return Result(Outcome.BUSY, reason=f"lane {rows.lane} is held by another writer: {why}")

    def close(self) -> None:
        self._connection.close()

    def _prepared(self, table: pa.Table) -> _Prepared:
        """All that can be done before the lane is locked."""
        writer = self._writer
        if self._kinds is None or self._kinds[0] != table.schema:
            with (
                writer.server.told(f"looking at table {writer.table}"),
                self._listening(),
                writer.server.transaction(self._connection),
            ):
                kinds = fitting_columns(self._connection, writer.table, table.schema, writer.merge)
            self._kinds = table.schema, kinds
        return _Prepared(writer, table, self._kinds[1])

    def _write(self, rows: LaneRows, prepared: _Prepared, silence: Silence) -> Result:
        writer, connection = self._writer, self._connection
        with self._transaction(rows.lane, rows.term) as writing:
            mark = self._locked_mark(rows)
            silence.heard()
            start = continues(mark, rows)
            if isinstance(start, Outcome):
                return Result(start, mark, reason=f"its mark is {mark}")
            given = prepared.schema
            if locked_columns(connection, writer.table, given, writer.merge) != prepared.kinds:
                # Numbers of one type are not refused as another of the same width, but taken for it.
                return Result(Outcome.BUSY, mark, f"the columns of table {writer.table} have changed")
            table = self._table()
            self._refuse_other_table(table)
            silence.heard()
            put = partial(prepared.put, connection, silence)
            rejected, reason = 0, ""
            try:
                with connection.transaction():
                    put(0, rows.rows)
            except psycopg_driver().Error as cause:
                if not is_refusal(cause):
                    raise
                rejects = None if writer.rejects is None else Rejects(writer.rejects)
                rejected, reason = written_apart(connection, put, prepared.table, rows, writer, rejects)
            self._move_mark(rows, table)
            # The table is locked and stays as it is; its name may have gone to another one, with its schema.
            if self._table() != table:
                raise psycopg_driver().Rollback(writing)
            silence.heard(WRITING_PATIENCE)
            return Result(Outcome.WRITTEN, rows.end, reason, rejected)
        return Result(Outcome.BUSY, mark, f"another table has become {writer.table} meanwhile")

    def _table(self) -> int | None:
        """The number of the table that has the name now."""
        asked = "SELECT to_regclass(%s)::oid::bigint"
        found = self._connection.execute(asked, [quoted_name(self._writer.table)]).fetchone()
        return None if found is None else found[0]

    def _locked_mark(self, rows: LaneRows) -> LaneMark | None:
        writer = self._writer
        # What is checked at the commit could not be told by rows.
        self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        found = self._connection.execute(
            f"SELECT epoch, rows, input FROM {self._marks} WHERE job = %s AND uid = %s AND lane = %s "
            "FOR UPDATE",
            [writer.job, writer.uid, rows.lane],
        ).fetchone()
        return None if found is None else LaneMark(*found)

    def _move_mark(self, rows: LaneRows, table: int | None) -> None:
        writer, changed = self._writer, ""
        given: list[Any] = [rows.epoch, rows.rows, rows.input]
        if self._marks_name_table:
            changed, given = ", table_oid = %s", [*given, table]
        self._connection.execute(
            f"UPDATE {self._marks} SET epoch = %s, rows = %s, input = %s{changed}, written = now() "
            "WHERE job = %s AND uid = %s AND lane = %s",
            [*given, writer.job, writer.uid, rows.lane],
        )

    def _refuse_other_table_if_known(self) -> None:
        """The same before anything is written. A schema that the user may not look into is met by what writes
        there, which is refused alone."""
        with suppress(psycopg_driver().errors.InsufficientPrivilege), self._connection.transaction():
            self._refuse_other_table(self._table())

    def _refuse_other_table(self, table: int | None) -> None:
        """SinkWentBack: the rows that the marks tell of were shown in another table than the one that has the
        name now."""
        writer, connection = self._writer, self._connection
        if not self._marks_name_table:
            self._marks_name_table = names_table(connection, writer.marks_table)
        if not self._marks_name_table:
            return
        found = connection.execute(
            "SELECT mark.epoch, there.oid::regclass::text, "
            "marks.relnamespace::regnamespace::text || '.' || quote_ident(marks.relname) "
            f"FROM {self._marks} AS mark JOIN pg_class AS marks ON marks.oid = to_regclass(%s) "
            "LEFT JOIN pg_class AS there ON there.oid = mark.table_oid "
            "WHERE job = %s AND uid = %s AND table_oid <> %s ORDER BY mark.epoch DESC LIMIT 1",
            [self._marks, writer.job, writer.uid, table],
        ).fetchone()
        if found is None:
            return
        epoch, renamed, marks = found
        became = f"is {renamed} now" if renamed else "is gone (it was dropped, or is not in a restored dump)"
        raise SinkWentBack(
            f"table {writer.table} of Postgres at {writer.server.place} is not the one in which sink "
            f"{writer.uid!r} had shown the rows of epochs up to {epoch}: that one {became}; put it back, or, "
            "where this one has these rows or need not have them, let the sink go on in it with "
            f"UPDATE {marks} SET table_oid = NULL WHERE job = {_literal(writer.job)} "
            f"AND uid = {_literal(writer.uid)}"
        )

    @contextmanager
    def _transaction(self, lane: int | str, term: int) -> Iterator[psycopg.Transaction]:
        """It says in its name what it is at."""
        server = self._writer.server
        # Sooner than the silence of a server that waits for a lock is taken for its end.
        patience = min(LOCK_SECONDS, server.timeout_seconds / 2)
        settings = {
            "application_name": self._writer.application(lane, term),
            "lock_timeout": f"{int(1_000 * patience)}ms",
        }
        with server.transaction(self._connection, **settings) as begun:
            self._connection.execute(_DURABLE)
            yield begun

    def _failed(self, rows: LaneRows, cause: Exception) -> Result | None:
        """What an error of the server means; None: it is worth another try at once."""
        errors = psycopg_driver().errors
        if isinstance(cause, errors.LockNotAvailable):
            try:
                with self._listening():
                    self._end_stale(str(rows.lane), rows.term)
            except (psycopg_driver().Error, Unavailable) as failure:
                return Result(Outcome.BUSY, reason=one_line(failure))
            return None
        if isinstance(cause, errors.DeadlockDetected | errors.SerializationFailure):
            return None
        if isinstance(cause, errors.UndefinedTable) and f'"{self._writer.marks_table}"' in str(cause):
            reason = f"its table of marks {self._writer.marks_table} is gone"
            return Result(Outcome.WENT_BACK, reason=reason)
        told = self._writer.server.error(cause, f"writing table {self._writer.table}")
        outcome = Outcome.UNAVAILABLE if isinstance(told, Unavailable) else Outcome.REFUSED
        return Result(outcome, reason=one_line(told))

    def _end_stale(self, lane: str, term: int) -> None:
        """End transactions that hold a lane and will not give it back by themselves."""
        names = [f"holdfast {self._writer.digest} lane {each} term %" for each in (lane, ALL_LANES)]
        self._connection.execute(_STALE, [names, term, STALLED_SECONDS])

    def _listening(self) -> Silence:
        return Silence(self._connection, self._writer.server.timeout_seconds)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class _Prepared:
    """Rows that were read and verified, and the statements that write them. They are encoded as they are
    sent: the server takes a chunk in while the next one is made, and none of them is kept."""

    def __init__(self, writer: PostgresLaneWriter, table: pa.Table, kinds: list[str]) -> None:
        names, merge = table.column_names, writer.merge
        self.schema, self.kinds = table.schema, kinds
        self._before, self._copy, self._after = (
            append_statements(writer.table, names)
            if merge is None
            else merge_statements(writer.table, names, merge)
        )
        if merge is not None:
            numbers = pa.array(np.arange(table.num_rows))
            table, kinds = table.append_column(ROW_NUMBER, numbers), [*kinds, "int8"]
        self.table, self._sent_as = table, kinds

    def put(self, connection: psycopg.Connection[Any], silence: Silence, start: int, end: int) -> None:
        """Write some rows, inside a transaction."""
        encoded = binary_chunks(self.table.slice(start, end - start), self._sent_as)
        chunks: Iterable[bytes | memoryview] = chain([HEADER], encoded, [TRAILER])
        for statement in self._before:
            connection.execute(statement)
        try:
            with connection.cursor() as cursor, cursor.copy(self._copy) as sent:
                for chunk in chunks:
                    sent.write(chunk)
                    silence.heard()
                silence.heard(WRITING_PATIENCE)
        except ValueError as cause:
            # The last words of a server, and those of its pooler, are one error more than the library takes.
            if not connection.broken:
                raise
            raise psycopg_driver().OperationalError("the connection was lost inside COPY") from cause
        for statement in self._after:
            connection.execute(statement)
            silence.heard(WRITING_PATIENCE)
