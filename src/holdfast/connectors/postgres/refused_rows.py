"""Rows that the server refuses for what they are: found by halves, and put where refused rows go.

Always true: a refused row is in the table of rejects, or nothing of its lane is written; rejects are
committed with the mark of their lane.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from holdfast.connectors.lanes import LaneRows
from holdfast.connectors.postgres.server import psycopg_driver
from holdfast.connectors.postgres.table import quoted_name
from holdfast.connectors.postgres.target import ROW_NUMBER
from holdfast.errors import DefinitionError, one_line

if TYPE_CHECKING:
    import psycopg

_REFUSALS = ("22", "23", "P0001", "54", "44")
"""Beginnings of SQLSTATEs that speak of a row: a value, a constraint, a trigger, a limit, a view's check."""


class _Named(Protocol):
    @property
    def job(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def table(self) -> str: ...


@dataclass(frozen=True)
class Rejects:
    """The table of refused rows."""

    table: str

    def put(
        self,
        connection: psycopg.Connection[Any],
        sink: _Named,
        rows: LaneRows,
        number: int,
        why: str,
        data: str,
    ) -> None:
        connection.execute(
            f"INSERT INTO {quoted_name(self.table)} (job, uid, epoch, lane, row, reason, data) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [sink.job, sink.uid, rows.epoch, rows.lane, number, why, data],
        )


def is_refusal(cause: Exception) -> bool:
    """Whether an error speaks of a row, and not of the server or the table."""
    return str(getattr(cause, "sqlstate", None) or "").startswith(_REFUSALS)


def written_apart(
    connection: psycopg.Connection[Any],
    put: Callable[[int, int], None],
    table: pa.Table,
    rows: LaneRows,
    sink: _Named,
    rejects: Rejects | None,
) -> tuple[int, str]:
    """Write all rows but those that the server refuses: how many these were, and why the first of them was.
    DefinitionError: one is refused, and there is no place for it."""
    waiting, refused, first = [(0, table.num_rows)], 0, ""
    while waiting:
        start, end = waiting.pop()
        try:
            with connection.transaction():
                put(start, end)
        except psycopg_driver().Error as cause:
            if not is_refusal(cause):
                raise
            if end - start > 1:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
                continue
            why = one_line(cause)
            if rejects is None:
                raise DefinitionError(
                    f"table {sink.table} refuses row {start} of lane {rows.lane} in epoch {rows.epoch}: "
                    f"{_short(cause)}; change what refuses it, name a table for such rows with rejects=, or "
                    "set them aside with `holdfast sinks set-aside`"
                ) from None
            rejects.put(connection, sink, rows, start, why.replace("\0", ""), _as_text(table.slice(start, 1)))
            refused, first = refused + 1, first or _short(cause)
    return refused, first


def _short(cause: Exception) -> str:
    """What the server says first: its details may hold whole rows."""
    said = getattr(getattr(cause, "diag", None), "message_primary", None)
    return one_line(cause) if said is None else str(said)


def _as_text(row: pa.Table) -> str:
    """A row as JSON, whatever it holds: also what no text of the server can."""
    values = {
        name: column[0].as_py() if _is_plain(column.type) else _shown(column[0])
        for name, column in zip(row.column_names, row.columns, strict=True)
        if name != ROW_NUMBER
    }
    return json.dumps(values)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _shown(value: Any) -> str | None:
    if not value.is_valid:
        return None
    if pa.types.is_string(value.type) or pa.types.is_binary(value.type):
        return str(value.as_buffer().to_pybytes().decode("utf-8", "backslashreplace"))
    return str(value.cast(pa.string()).as_py())
