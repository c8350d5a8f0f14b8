"""Tables that a sink makes for itself (marks, rejects), and what its user must be allowed.

Always true: a table that is there is not made, so a user who may write it needs no right to make tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.connectors.postgres.server import psycopg_driver
from holdfast.connectors.postgres.table import quoted_column, quoted_name
from holdfast.connectors.postgres.target import refuse_forgetting
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    import psycopg

_LACKING = """
    SELECT wanted, current_user FROM unnest(%s::text[]) WITH ORDINALITY AS asked(wanted, n)
    WHERE NOT CASE WHEN wanted = 'DELETE' THEN has_table_privilege(to_regclass(%s), wanted)
                   ELSE has_any_column_privilege(to_regclass(%s), wanted) END ORDER BY n
"""
_MAKES = """
    SELECT to_regclass(%s) IS NOT NULL, quote_ident(there.name), quote_ident(current_user),
           coalesce(has_schema_privilege(there.name, 'CREATE'), false)
    FROM (SELECT coalesce(
        (SELECT nspname FROM pg_namespace WHERE nspname = %s), CASE WHEN %s THEN current_schema() END
    ) AS name) AS there
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
            _refuse_missing_rights(connection, self.name, self.rights)
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
        try:
            connection.execute(self._statement)
        except (errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation):
            return

    @property
    def _statement(self) -> str:
        return f"CREATE TABLE {quoted_name(self.name)} ({self.columns})"


def marks_table(name: str) -> OwnTable:
    columns = (
        "job text, uid text, lane int, epoch bigint NOT NULL, rows bigint NOT NULL, input text NOT NULL, "
        "written timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, uid, lane)"
    )
    return OwnTable(name, columns, ("SELECT", "INSERT", "UPDATE"))


def rejects_table(name: str) -> OwnTable:
    """Its `row` counts within a lane of an epoch, from 0."""
    columns = (
        "job text, uid text, epoch bigint, lane int, row bigint, reason text, data text, "
        "refused timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, uid, epoch, lane, row)"
    )
    return OwnTable(name, columns, ("INSERT",))


def _refuse_missing_rights(connection: psycopg.Connection[Any], table: str, rights: Sequence[str]) -> None:
    """DefinitionError: the user lacks one of them at a table that is there."""
    quoted = quoted_name(table)
    lacking = connection.execute(_LACKING, [list(rights), quoted, quoted]).fetchall()
    if lacking:
        user = lacking[0][1]
        raise DefinitionError(
            f"user {user!r} lacks {', '.join(right for right, _ in lacking)} on table {table}; "
            f"GRANT {', '.join(rights)} ON {quoted} TO {quoted_column(user)}"
        )
