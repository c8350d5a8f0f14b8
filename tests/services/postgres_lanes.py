"""Lanes of a sink in Postgres, written without a job."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psycopg
import pyarrow as pa

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LaneMark, LaneRows
from holdfast.connectors.postgres.lane_writer import OpenPostgresLanes
from holdfast.connectors.postgres.sink import PostgresSink

SCHEMA = pa.schema([("user", pa.string()), ("total", pa.int64())])


def rows_of(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)],
        schema=schema,
    )


def lane_rows(table: pa.Table, epoch: int = 1, **more: Any) -> LaneRows:
    """All rows of a lane in an epoch, as the engine gives them."""
    given = {"lane": 0, "before": LaneMark(0), "term": 1, "input": f"of epoch {epoch}"} | more
    part = StagedPart(given["lane"], table.num_rows, lambda: table, given["input"])
    return LaneRows(epoch=epoch, rows=table.num_rows, parts=(part,), **given)


def opened(url: str, table: str, term: int = 1, **how: Any) -> OpenPostgresLanes:
    """A sink whose marks are there, and are of this table alone."""
    lanes = PostgresSink(table, dsn=url, **how).lane_writer("job", table).open(term)
    lanes.begin(0)
    return lanes


def shown(url: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


STOPS_IN_COPY = """
import os, signal, sys
from holdfast.connectors.postgres.server import Silence
from holdfast.connectors.postgres.sink import PostgresSink
from tests.services.postgres_lanes import lane_rows, rows_of

heard, times = Silence.heard, []
def stop(silence, patience=1.0):
    times.append(patience)
    if len(times) == 3:  # the mark is locked, the first bytes of the rows are sent
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    heard(silence, patience)
Silence.heard = stop
url, table = sys.argv[1:]
lanes = PostgresSink(table, dsn=url, timeout_seconds=600).lane_writer("job", "out").open(1)
print(lanes.write(lane_rows(rows_of(("anna", 1), ("ben", 2)))).outcome.name, flush=True)
"""


def stopped_in_copy(url: str, table: str) -> subprocess.Popen[str]:
    """Another process that writes two rows, under term 1, and is stopped (not ended) in the middle of it."""
    command = [sys.executable, "-c", STOPS_IN_COPY, url, table]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": "src:."})
    assert other.stdout is not None
    assert (line := other.stdout.readline()) == "stopped\n", line
    return other
