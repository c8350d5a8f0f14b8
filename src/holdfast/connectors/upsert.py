"""Rows by key into any store that can replace them: what a user writes is one function.

A row takes the place of the one with the same key, so writing it again changes nothing. That makes a sink
exactly once as far as its last write goes; a publisher that was replaced and wakes up late could still put
old rows over new ones. So the store is told the epoch of every row and keeps the newer one, or the sink is
at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.contract import StagedPart
from holdfast.errors import DefinitionError

_NUMBER = "holdfast_row"

Write = Callable[[pa.Table, pa.Table, int], None]


class UpsertSink:
    """`write(rows, deletions, epoch)` puts rows into a store, by `key`, and takes keys away. `rows` has one
    row for each key, without the column `deleted`; `deletions` has the columns of the key alone. It is called
    on the driver, once for each epoch with rows, and again for the same epoch after a failure: raise
    `hf.Unavailable` where the store is not there now.

    `deleted` names a boolean column: true takes the key away. Of several rows of a key in an epoch the last
    counts, or with `order_by` the one with the highest value there.
    `keeps_newest=True` is the user's word that the store keeps, for each key, the epoch that it was written
    or deleted with, and that `write` changes nothing where that is higher than `epoch`. Each key then shows
    its newest row, whoever writes when: exactly once. Without it a leader that was replaced may write old
    rows over new ones, and the job is at least once here.

    A reader sees an epoch as `write` shows it: key by key, unless that is one transaction.
    """

    atomic: Final = ""

    def __init__(
        self,
        write: Write,
        *,
        key: str | Sequence[str],
        keeps_newest: bool,
        deleted: str | None = None,
        order_by: str | None = None,
    ) -> None:
        self.write: Final = write
        self.key: Final = (key,) if isinstance(key, str) else tuple(key)
        self.keeps_newest: Final = keeps_newest
        self.deleted: Final = deleted
        self.order_by: Final = order_by
        if not self.key:
            raise DefinitionError("UpsertSink has no key; give key=...: the columns that name a row")

    @property
    def exactly_once(self) -> bool:
        return self.keeps_newest

    def check_schema(self, schema: pa.Schema) -> None:
        for name in filter(None, (*self.key, self.deleted, self.order_by)):
            if name not in schema.names:
                raise DefinitionError(
                    f"the rows have no column {name!r}, which UpsertSink needs; correct key, deleted or "
                    "order_by"
                )
        if self.deleted is not None and schema.field(self.deleted).type != pa.bool_():
            raise DefinitionError(f"column {self.deleted!r} is to delete rows; make it boolean")
        for name in self.key:
            if pa.types.is_nested(schema.field(name).type):
                raise DefinitionError(f"column {name!r} is nested and cannot be a key; make text of it")

    def publisher(self, job: str, uid: str) -> UpsertPublisher:
        return UpsertPublisher(self)


class UpsertPublisher:
    def __init__(self, sink: UpsertSink) -> None:
        self._sink = sink

    def published_through(self) -> int:
        """It cannot say: what is written again changes nothing."""
        return 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        tables = [part.load() for part in parts if part.rows]
        if not tables:
            return
        latest = self._latest(pa.concat_tables(tables))
        deleted, key = self._sink.deleted, list(self._sink.key)
        if deleted is None:
            self._sink.write(latest, latest.select(key).slice(0, 0), epoch)
            return
        gone = pc.fill_null(latest.column(deleted), False)
        kept = latest.filter(pc.invert(gone)).drop_columns([deleted])
        self._sink.write(kept, latest.filter(gone).select(key), epoch)

    def _latest(self, rows: pa.Table) -> pa.Table:
        """One row for each key."""
        order = self._sink.order_by
        if order is not None:
            # Rows without a value are the lowest; equal values stay in their order: the last of them counts.
            without = pc.is_null(rows.column(order))
            valued = rows.filter(pc.invert(without))
            valued = valued.append_column(_NUMBER, pa.array(range(valued.num_rows), pa.int64()))
            valued = valued.sort_by([(order, "ascending"), (_NUMBER, "ascending")]).drop_columns([_NUMBER])
            rows = pa.concat_tables([rows.filter(without), valued])
        numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
        last = numbered.group_by(list(self._sink.key)).aggregate([(_NUMBER, "max")]).column(f"{_NUMBER}_max")
        return rows.take(last.combine_chunks().sort())

    def close(self) -> None:
        return
