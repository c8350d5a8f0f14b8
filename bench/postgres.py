"""How fast is an append by PostgresSink, against a plain COPY of the same rows on the same server?

    python -m bench.postgres [ROWS] [ROUNDS]

The plain COPY sends bytes that were made before, in one transaction: the fastest there is, and what the
server alone takes. It is done in both formats; beside them stands what a user of psycopg writes, row by row.
The sink begins with staged rows, as in a job: it reads and verifies them, encodes and sends them and moves
the mark, in one lane, and in sixteen one after the other as a task writes an epoch. All write tables without
an index, through one connection, with the server's own settings: every commit waits for the disk.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from itertools import chain, count
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv

from bench.turns import Turns, machine
from holdfast.checkpoint.store.records import Extent
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome
from holdfast.connectors.postgres.binary_rows import HEADER, TRAILER, binary_chunks
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import load_extent, pack_rows
from tests.services.servers import postgres_server

COLUMNS = 'id bigint, "user" text, amount double precision, at timestamptz'
KINDS = ["int8", "text", "float8", "timestamptz"]
TEXT_BYTES = 1 << 20
BASE = "plain COPY, binary"


def rows_of(rows: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "user": pa.array([f"user number {n % 100_000}" for n in range(rows)]),
            "amount": pa.array([n / 7 for n in range(rows)]),
            "at": pa.array(range(1_700_000_000_000_000, 1_700_000_000_000_000 + rows)).cast(
                pa.timestamp("us", "UTC")
            ),
        }
    )


def as_text(table: pa.Table) -> list[bytes]:
    """The lines of a text COPY, ready to be sent."""
    out = pa.BufferOutputStream()
    pa_csv.write_csv(
        table, out, pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    )
    data = bytes(out.getvalue())
    return [data[start : start + TEXT_BYTES] for start in range(0, len(data), TEXT_BYTES)]


def copy(db: psycopg.Connection[Any], format: str, chunks: Iterable[bytes | memoryview]) -> None:
    with db.transaction(), db.cursor().copy(f"COPY bench FROM STDIN (FORMAT {format})") as sent:
        for chunk in chunks:
            sent.write(chunk)


def copy_rows(db: psycopg.Connection[Any], table: pa.Table) -> None:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    with db.transaction(), db.cursor().copy("COPY bench FROM STDIN (FORMAT binary)") as sent:
        sent.set_types(KINDS)
        for row in rows:
            sent.write_row(row)


class StagedLanes:
    """An epoch whose rows are in so many lanes, staged in files, written again and again as the next one."""

    def __init__(self, url: str, uid: str, staged: LocalStorage, table: pa.Table, lanes: int) -> None:
        self._open = PostgresSink("bench", dsn=url).lane_writer("bench", uid).open(1)
        self._open.begin(0)
        size = -(-table.num_rows // lanes)
        self._parts = [
            _staged(staged, f"{uid}-{lane}", table.slice(lane * size, size), lane) for lane in range(lanes)
        ]
        self._epochs = count(1)
        self._marks = dict.fromkeys(range(lanes), LaneMark(0))

    def write(self) -> None:
        epoch = next(self._epochs)
        for part in self._parts:
            rows = LaneRows(part.part, epoch, self._marks[part.part], part.rows, 1, "", (part,))
            assert self._open.write(rows).outcome is Outcome.WRITTEN
            self._marks[part.part] = rows.end


def _staged(storage: LocalStorage, name: str, table: pa.Table, lane: int) -> StagedPart:
    data = pack_rows(table)
    storage.put(name, data)
    extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
    return StagedPart(lane, table.num_rows, partial(load_extent, storage.url, extent), "", len(data))


def main(rows: int, rounds: int) -> None:
    print(machine())
    table = rows_of(rows)
    binary, text = list(binary_chunks(table, KINDS)), as_text(table)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory,
        postgres_server() as server,
        psycopg.connect(server.url, autocommit=True) as db,
    ):
        db.execute(f"CREATE TABLE bench ({COLUMNS})")
        storage = LocalStorage(directory)
        one, many = (StagedLanes(server.url, f"out-{n}", storage, table, n) for n in (1, LANES))

        def emptied(name: str) -> None:
            db.execute("TRUNCATE bench")
            db.execute("CHECKPOINT")

        turns = Turns(
            {
                BASE: lambda: copy(db, "binary", chain([HEADER], binary, [TRAILER])),
                "plain COPY, text": lambda: copy(db, "text", text),
                "psycopg's COPY, row by row": lambda: copy_rows(db, table),
                "PostgresSink, one lane": one.write,
                f"PostgresSink, {LANES} lanes": many.write,
            },
            emptied,
        )
        turns.take(rounds)
        assert db.execute("SELECT count(*) FROM bench").fetchone() == (rows,)
    turns.show(rows, BASE)


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*[*given, *[1_000_000, 7][len(given) :]])
