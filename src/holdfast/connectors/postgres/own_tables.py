"""Tables that a sink makes for itself: marks, rejects.

Always true: a table that is there is not made, so a user who may write it needs no right to make tables.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.connectors.postgres.server import psycopg_driver
from holdfast.connectors.postgres.table import quoted_name
from holdfast.connectors.postgres.target import refuse_forgetting, refuse_missing_rights
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    import psycopg

_MAKES = """
    SELECT to_regclass(%s) IS NOT NULL, quote_ident(there.name), quote_ident(current_user),
           coalesce(has_schema_privilege(there.name, 'CREATE'), false)
    FROM (SELECT coalesce(
        (SELECT nspname FROM pg_namespace WHERE nspname = %s), CASE WHEN %s THEN current_schema() END
    ) AS name) AS there
"""
_NAMES_TABLE = """
    SELECT EXISTS (SELECT FROM pg_attribute
                   WHERE attrelid = to_regclass(%s) AND attname = 'table_oid' AND NOT attisdropped)
"""


@dataclass(frozen=True)
class OwnTable:
    """`rights`: what a user needs at it."""

    name: str
    columns: str
    rights: tuple[str, ...]

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """DefinitionError: it is there and of no use, or is not there and cannot be made."""
        schema, _, _ = self.name.rpartition(".")
        found = connection.execute(_MAKES, [quoted_name(self.name), schema, not schema]).fetchone()
        assert found is not None, "a SELECT without a table gives one row"
        exists, place, user, may_make = found
        if exists:
            refuse_forgetting(connection, self.name)
            refuse_missing_rights(connection, self.name, self.rights)
        elif not may_make:
            raise DefinitionError(
                f"there is no table {self.name}, which the sink needs for itself, and the user may not make "
                f"it; GRANT CREATE ON SCHEMA {place or schema} TO {user}, or have it made: "
                f"{self._statement}, and GRANT {', '.join(self.rights)} ON {quoted_name(self.name)} TO {user}"
            )

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Unless it is there: then IF NOT EXISTS asks for the right to make it all the same. Of two that
        create it at once one may fail, at its name, type or row."""
        found = connection.execute("SELECT to_regclass(%s)", [quoted_name(self.name)]).fetchone()
        if found is not None and found[0] is not None:
            return
        errors = psycopg_driver().errors
        with (
            suppress(errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation),
            connection.transaction(),
        ):
            connection.execute(self._statement)

    @property
    def _statement(self) -> str:
        return f"CREATE TABLE {quoted_name(self.name)} ({self.columns})"


def marks_table(name: str) -> OwnTable:
    """Its `table_oid` is the table that shows the rows of the mark; null: not known."""
    columns = (
        "job text, uid text, lane int, epoch bigint NOT NULL, rows bigint NOT NULL, input text NOT NULL, "
        "written timestamptz NOT NULL DEFAULT now(), table_oid oid, PRIMARY KEY (job, uid, lane)"
    )
    return OwnTable(name, columns, ("SELECT", "INSERT", "UPDATE"))


def names_table(connection: psycopg.Connection[Any], marks: str) -> bool:
    """Whether marks say in which table their rows are: those of older versions do not."""
    found = connection.execute(_NAMES_TABLE, [quoted_name(marks)]).fetchone()
    return found is not None and bool(found[0])


def let_marks_name_table(connection: psycopg.Connection[Any], marks: str) -> None:
    """Add what an older version has made without it. Where that cannot be (it is somebody else's table or a
    view, someone else is at it, changes are forbidden) it stays as it is, until a later start."""
    if not names_table(connection, marks):
        with suppress(psycopg_driver().errors.DatabaseError), connection.transaction():
            connection.execute(f"ALTER TABLE {quoted_name(marks)} ADD COLUMN IF NOT EXISTS table_oid oid")


def rejects_table(name: str) -> OwnTable:
    """Its `row` counts within a lane of an epoch, from 0."""
    columns = (
        "job text, uid text, epoch bigint, lane int, row bigint, reason text, data text, "
        "refused timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, uid, epoch, lane, row)"
    )
    return OwnTable(name, columns, ("INSERT",))
