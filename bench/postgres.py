"""How fast is a lane of PostgresSink, against a plain binary COPY of the same rows from one process?

    python -m bench.postgres [ROWS]

Both write the same Arrow table in one process, to tables without an index, in turns: one transaction each.
The plain COPY is psycopg's own, row by row, with the types set. Started with a server of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import psycopg
import pyarrow as pa

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LaneMark, LaneRows, Outcome
from holdfast.connectors.postgres.binary_rows import HEADER, TRAILER, binary_chunks
from holdfast.connectors.postgres.lane_writer import OpenPostgresLanes
from holdfast.connectors.postgres.sink import PostgresSink
from tests.services.servers import postgres_server

ROUNDS = 5
COLUMNS = 'id bigint, "user" text, amount double precision, at timestamptz'
KINDS = ["int8", "text", "float8", "timestamptz"]


def rows_of(count: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "user": pa.array([f"user number {n % 100_000}" for n in range(count)]),
            "amount": pa.array([n / 7 for n in range(count)]),
            "at": pa.array(range(1_700_000_000_000_000, 1_700_000_000_000_000 + count)).cast(
                pa.timestamp("us", "UTC")
            ),
        }
    )


def plain_copy(db: psycopg.Connection[Any], table: pa.Table) -> None:
    """As a user of psycopg writes it."""
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    with db.transaction(), db.cursor().copy("COPY plain FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(KINDS)
        for row in rows:
            copy.write_row(row)


def ready_copy(db: psycopg.Connection[Any], chunks: list[bytes]) -> None:
    """Bytes that are encoded already: what the server alone takes."""
    with db.transaction(), db.cursor().copy("COPY ready FROM STDIN (FORMAT binary)") as copy:
        for chunk in (HEADER, *chunks, TRAILER):
            copy.write(chunk)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(count: int) -> None:
    table = rows_of(count)
    with postgres_server() as server, psycopg.connect(server.url, autocommit=True) as db:
        for name in ("plain", "ready", "lane"):
            db.execute(f"CREATE TABLE {name} ({COLUMNS})")
        lanes = PostgresSink("lane", dsn=server.url).lane_writer("bench", "out").open(1)
        lanes.begin(0)
        chunks = list(binary_chunks(table, KINDS))
        found: dict[str, list[float]] = {"plain COPY": [], "COPY of ready bytes": [], "a lane": []}
        for epoch in range(1, ROUNDS + 1):
            part = StagedPart(0, count, lambda: table)
            rows = LaneRows(0, epoch, LaneMark(epoch - 1), count, 1, "", (part,))
            found["plain COPY"].append(timed(lambda: plain_copy(db, table)))
            found["COPY of ready bytes"].append(timed(lambda: ready_copy(db, chunks)))
            found["a lane"].append(timed(partial(write, lanes, rows)))
            db.execute("TRUNCATE plain, ready, lane")
    base = median(found["plain COPY"])
    for name, seconds in found.items():
        took = median(seconds)
        print(f"{name:22} {count / took:12,.0f} rows/s   {base / took:5.2f}x of a plain COPY")


def write(lanes: OpenPostgresLanes, rows: LaneRows) -> None:
    assert lanes.write(rows).outcome is Outcome.WRITTEN


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
