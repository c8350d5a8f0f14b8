"""Saves of single keys in Postgres: one row per key, replaced only by a later save.

The table is made when it is first used. A save is one transaction: durable as `synchronous_commit` says.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import DefinitionError, MachineError, StorageError
from holdfast.storage.key_saves.contract import ORDER_BYTES, StateId, StateStorage

_open = threading.local()


@dataclass(frozen=True)
class PostgresStateStorage(StateStorage):
    """Saves in a table of the database at `dsn`. One table per checkpoint."""

    dsn: str
    table: str = "holdfast_saved_keys"
    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?", self.table):
            raise DefinitionError(
                f"{self.table!r} cannot be the name of a table; use lower-case letters, digits and '_'"
            )

    def save(self, id: StateId, data: bytes) -> None:
        self.save_many([(id, data)])

    def save_many(self, saves: Sequence[tuple[StateId, bytes]]) -> None:
        statement = (
            f"INSERT INTO {self.table} AS there (operator, key, data) VALUES (%s, %s, %s) "
            "ON CONFLICT (operator, key) DO UPDATE SET data = excluded.data "
            f"WHERE substr(there.data, 1, {ORDER_BYTES}) <= substr(excluded.data, 1, {ORDER_BYTES})"
        )

        def work(connection: Any) -> int:
            with connection.cursor() as cursor:
                # In one order everywhere, so that two savers never wait for each other.
                rows = sorted((id.operator, id.key, data) for id, data in saves)
                cursor.executemany(statement, rows)
                return int(cursor.rowcount)

        kept = self._call(work)
        if kept < len(saves):
            raise self.superseded(saves[0][0])

    def fetch(self, id: StateId) -> bytes | None:
        return self.fetch_many([id])[0]

    def fetch_many(self, ids: Sequence[StateId]) -> list[bytes | None]:
        statement = f"SELECT key, data FROM {self.table} WHERE operator = %s AND key = ANY(%s)"
        found: dict[tuple[str, bytes], bytes] = {}
        for operator in {id.operator for id in ids}:
            keys = [id.key for id in ids if id.operator == operator]
            rows = self._call(lambda c, o=operator, k=keys: c.execute(statement, (o, k)).fetchall())
            found |= {(operator, bytes(key)): bytes(data) for key, data in rows}
        return [found.get((id.operator, id.key)) for id in ids]

    def keys(self, operator: str) -> Iterator[StateId]:
        statement = f"SELECT key FROM {self.table} WHERE operator = %s"
        for (key,) in self._call(lambda connection: connection.execute(statement, (operator,)).fetchall()):
            yield StateId(operator, bytes(key))

    def _call(self, work: Any) -> Any:
        psycopg = _psycopg()
        try:
            connection = self._connection(psycopg)
            with self._transaction(connection):
                return work(connection)
        except psycopg.Error as cause:
            self._forget()
            raise StorageError(f"Postgres refused: {' '.join(str(cause).split())}") from cause

    def _connection(self, psycopg: Any) -> Any:
        """One for each thread, opened again after an error."""
        mine: dict[PostgresStateStorage, Any] = _open.__dict__.setdefault("connections", {})
        if self not in mine:
            connection = psycopg.connect(
                self.dsn,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=max(2, int(self.timeout_seconds)),
            )
            # Two that create it at once: IF NOT EXISTS lets one of them fail, at its name, type or row.
            made = (
                psycopg.errors.DuplicateTable,
                psycopg.errors.DuplicateObject,
                psycopg.errors.UniqueViolation,
            )
            with contextlib.suppress(*made), self._transaction(connection):
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {self.table} "
                    "(operator text, key bytea, data bytea NOT NULL, PRIMARY KEY (operator, key))"
                )
            mine[self] = connection
        return mine[self]

    @contextlib.contextmanager
    def _transaction(self, connection: Any) -> Iterator[None]:
        """It has its time-out with it: behind a pooler the next one may be another session's."""
        patience = f"{int(self.timeout_seconds * 1_000)}ms"
        with connection.transaction():
            connection.execute("SELECT set_config('statement_timeout', %s, true)", [patience])
            yield

    def _forget(self) -> None:
        connection = _open.__dict__.setdefault("connections", {}).pop(self, None)
        if connection is not None:
            connection.close()


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as cause:
        raise MachineError(
            "PostgresStateStorage needs the package psycopg; install it: pip install 'holdfast[postgres]'"
        ) from cause
    return psycopg
