"""Inside a Spark task: one range of a table becomes Arrow batches.

The server writes the rows as CSV and Arrow's own parser reads them: no row is ever a Python object.
Always true: what was planned is read, row for row, or the task fails; so it does at a value that its type
cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import csv

from holdfast.connectors.postgres.columns import parse_flat_schema
from holdfast.connectors.postgres.cuts import OrderedTable, look
from holdfast.connectors.postgres.server import PostgresServer, Silence
from holdfast.connectors.postgres.table import quoted_column, quoted_name
from holdfast.errors import InputVanished, RestoreError, first_line

if TYPE_CHECKING:
    import psycopg

BLOCK_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Arrow takes one away at the beginning of what it parses: that of a text, if there was no other."""


@dataclass(frozen=True)
class Range:
    """Rows of a table: `after` is out (None: from the beginning), `end` is in."""

    after: tuple[str, ...] | None
    end: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class TableRead:
    """All that a task has to know. `identity` is the server that was planned by."""

    server: PostgresServer
    identity: str
    table: OrderedTable
    schema: str
    ranges: tuple[Range, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each row that comes in is the number of a range."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.read(self.ranges[number])

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        for each in self.ranges:
            yield from self.read(each)

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        place = f"reading table {self.table.table}"
        connection = self.server.connect("holdfast source")
        with (
            self.server.told(place),
            connection,
            Silence(connection, self.server.timeout_seconds) as silence,
            self.server.transaction(connection),
        ):
            if (identity := look(connection).server) != self.identity:
                raise InputVanished(
                    f"table {self.table.table} was planned at server {self.identity}, and this is "
                    f"{identity}; connect to the one that was planned by"
                )
            silence.heard()
            rows = 0
            for batch in self._batches(connection, silence, wanted):
                rows += batch.num_rows
                yield batch
            if rows != wanted.rows:
                raise InputVanished(changed(self.table, wanted.after, wanted.end, wanted.rows, rows))

    def _batches(
        self, connection: psycopg.Connection[Any], silence: Silence, wanted: Range
    ) -> Iterator[pa.RecordBatch]:
        columns = parse_flat_schema(self.schema)
        chosen = ", ".join(_selected(column.name, column.type) for column in columns)
        where = self.table.between(wanted.after, wanted.end)
        query = f"SELECT {chosen} FROM {quoted_name(self.table.table)} WHERE {where}"
        with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy:
            for block in _whole_rows(copy, silence):
                try:
                    found = _parsed(block, [(column.name, column.type) for column in columns])
                except pa.ArrowInvalid as cause:
                    raise RestoreError(
                        f"table {self.table.table} has a row that does not fit the schema "
                        f"'{self.schema}', where {where}: {first_line(cause)}; declare the column as string, "
                        "or correct the row"
                    ) from cause
                yield from found


def _whole_rows(copy: psycopg.Copy, silence: Silence) -> Iterator[bytes]:
    """Blocks of about `BLOCK_BYTES`, or of one row that is larger: the server sends each row by itself."""
    rows, size = [BYTE_ORDER_MARK], 0
    while row := copy.read():
        silence.heard()
        rows.append(bytes(row))
        size += len(row)
        if size >= BLOCK_BYTES:
            yield b"".join(rows)
            rows, size = [BYTE_ORDER_MARK], 0
    if size:
        yield b"".join(rows)


def _selected(name: str, kind: pa.DataType) -> str:
    column = quoted_column(name)
    if kind == pa.binary():
        return f"encode({column}, 'hex')"
    return f"{column}::text" if kind == pa.string() else column


def _parsed(block: bytes, columns: Sequence[tuple[str, pa.DataType]]) -> list[pa.RecordBatch]:
    names = [name for name, _ in columns]
    table = csv.read_csv(
        pa.BufferReader(block),
        csv.ReadOptions(use_threads=False, block_size=len(block), column_names=names),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict(columns),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    return [
        pa.RecordBatch.from_arrays(
            [
                _unhexed(array) if kind == pa.binary() else array
                for array, (_, kind) in zip(batch, columns, strict=True)
            ],
            names,
        )
        for batch in table.to_batches()
    ]


def _unhexed(array: pa.Array) -> pa.Array:
    """All values at once: two digits are a byte, so offsets are halved."""
    import numpy as np

    compact = pa.concat_arrays([array])
    validity, offsets, data = compact.buffers()
    ends = np.frombuffer(offsets, np.int32, len(compact) + 1, compact.offset * 4)
    digits = b"" if data is None else data.to_pybytes()[ends[0] : ends[-1]]
    halves = ((ends - ends[0]) // 2).astype(np.int32)
    valid = None if validity is None else pa.array(compact.is_valid()).buffers()[1]
    made = [valid, pa.py_buffer(halves), pa.py_buffer(bytes.fromhex(digits.decode()))]
    return pa.Array.from_buffers(pa.binary(), len(compact), made)


def changed(
    table: OrderedTable, after: Sequence[str] | None, end: Sequence[str], planned: int, found: int
) -> str:
    """What to say where rows were taken away, or came where none could come any more."""
    return (
        f"table {table.table} had {planned} rows where {table.between(after, end)} when they were planned, "
        f"and has {found} now; rows that are read must stay until their epoch is committed: put them back, "
        "or give the epoch up with `holdfast skip`"
    )
