"""Rows into a table of Postgres, by Spark's tasks, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import Atomic
from holdfast.connectors.postgres.lane_writer import PostgresLaneWriter
from holdfast.connectors.postgres.own_tables import marks_table, rejects_table
from holdfast.connectors.postgres.server import PostgresServer
from holdfast.connectors.postgres.target import Merge, fitting_columns
from holdfast.errors import DefinitionError, Unavailable
from holdfast.secret import Secret

if TYPE_CHECKING:
    import pyarrow as pa

Mode = Literal["append", "upsert"]


class PostgresSink:
    """Writes rows into `table`, by the names of their columns. The table is there already.

    `mode="append"` adds them. `mode="upsert"`: a row takes the place of the one with the same `key` (columns
    with a unique index, none of them null). Of rows with the same key in one write the last counts, or with
    `order_by` the one with the highest value there; a row never takes the place of one that is higher.
    `deleted` names a boolean column that is not written: true deletes the key.
    `rejects` names a table for rows that the server refuses (a constraint, a value that it cannot hold); it
    is made if it is not there. Without it such a row holds the sink up.
    `marks` names the table in which the sink remembers what it shows. It is made if it is not there, and must
    be kept and restored with the table.

    A reader sees the rows of a lane in an epoch (a sixteenth, about) at once.
    """

    exactly_once: Final = True
    shared: Final = True
    atomic: Final[Atomic] = "lane"

    def __init__(
        self,
        table: str,
        *,
        dsn: str,
        password: Secret | None = None,
        mode: Mode = "append",
        key: str | Sequence[str] = (),
        order_by: str | None = None,
        deleted: str | None = None,
        rejects: str | None = None,
        marks: str = "holdfast_marks",
        timeout_seconds: float = 10.0,
    ) -> None:
        self.table: Final = table
        self.mode: Final = mode
        self.key: Final = (key,) if isinstance(key, str) else tuple(key)
        self.order_by: Final = order_by
        self.deleted: Final = deleted
        self.rejects: Final = rejects
        self.marks: Final = marks
        self.server: Final = PostgresServer(dsn, password, timeout_seconds)
        self._refuse_what_does_not_go_together()

    def _refuse_what_does_not_go_together(self) -> None:
        if self.mode not in ("append", "upsert"):
            raise DefinitionError(f"PostgresSink has no mode {self.mode!r}; use 'append' or 'upsert'")
        if len({self.table, self.marks, self.rejects}) < 3:
            raise DefinitionError(
                f"PostgresSink({self.table!r}) has rows, marks and rejects in one table; name one for each"
            )
        if self.mode == "append" and (self.key or self.order_by or self.deleted):
            raise DefinitionError(
                "key, order_by and deleted are for mode='upsert'; leave them out, or say so"
            )
        if self.mode == "upsert" and not self.key:
            raise DefinitionError("PostgresSink(mode='upsert') needs key=...: the columns that name a row")
        if self.order_by is not None and self.deleted is not None:
            raise DefinitionError(
                "PostgresSink cannot take order_by and deleted together, because a deleted row leaves "
                "nothing to compare with; keep a column that says so in the table instead"
            )

    @property
    def _merge(self) -> Merge | None:
        return None if self.mode == "append" else Merge(self.key, self.order_by, self.deleted)

    def check_schema(self, schema: pa.Schema) -> None:
        """Against the table as it is. A server that is not there now is met again by the run, which waits."""
        try:
            with self.server.looking("holdfast check", f"looking at table {self.table}") as connection:
                fitting_columns(connection, self.table, schema, self._merge)
                marks_table(self.marks).check(connection)
                if self.rejects is not None:
                    rejects_table(self.rejects).check(connection)
        except Unavailable:
            return

    def lane_writer(self, job: str, uid: str) -> PostgresLaneWriter:
        return PostgresLaneWriter(self.server, self.table, job, uid, self.marks, self._merge, self.rejects)

    def publisher(self, job: str, uid: str) -> LanePublisher:
        return LanePublisher(self.lane_writer(job, uid))
