"""Lanes of a sink in Kafka, written without a job."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LaneMark, LaneRows


def rows_of(*rows: tuple[str, int]) -> pa.Table:
    users, totals = [user for user, _ in rows], [total for _, total in rows]
    return pa.table({"user": pa.array(users, pa.string()), "total": pa.array(totals, pa.int64())})


def lane_rows(table: pa.Table, epoch: int = 1, **more: Any) -> LaneRows:
    given = {"lane": 0, "before": LaneMark(0), "term": 1, "input": f"of epoch {epoch}"} | more
    part = StagedPart(given["lane"], table.num_rows, lambda: table, given["input"])
    return LaneRows(epoch=epoch, rows=table.num_rows, parts=(part,), **given)


TWO = rows_of(("anna", 1), ("ben", 2))
MORE = rows_of(("cleo", 3))

STOPS_BEFORE_COMMIT = """
import os, signal, sys
from holdfast.connectors.kafka.lane_producer import LaneProducer
from holdfast.connectors.kafka.sink import KafkaSink
from tests.services.kafka_lanes import TWO, lane_rows

look, times = LaneProducer._look, []
def stop(producer, *more):
    times.append(1)
    if len(times) == 1:
        producer._producer.flush(30)  # the mark is there, and a row: the transaction is open
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    look(producer, *more)
LaneProducer._look = stop
servers, topic, lane = sys.argv[1:]
lanes = KafkaSink(servers, topic).lane_writer("job", "out").open(1)
print(lanes.write(lane_rows(TWO, lane=int(lane))).outcome.name, flush=True)
"""


@contextlib.contextmanager
def stopped_in_transaction(servers: str, topic: str, lane: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes two rows under term 1, and is stopped (not ended) before it commits."""
    command = [sys.executable, "-c", STOPS_BEFORE_COMMIT, servers, topic, str(lane)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": "src:."})
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "stopped\n"
        yield other
    finally:
        other.kill()
        other.wait()
