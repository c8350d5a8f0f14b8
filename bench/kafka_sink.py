"""How fast is a lane of KafkaSink, against a plain idempotent producer of the same rows?

    python -m bench.kafka_sink [ROWS]

All write the same Arrow table from one process into topics of one partition, in turns. The plain producer is
confluent-kafka's with `enable.idempotence`, as a user of it writes it: JSON made row by row. The ready one is
given bytes that are made already: what the client and the broker alone take. It has a broker of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import pyarrow as pa
from confluent_kafka import Producer

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.kafka.lane_writer import OpenKafkaLanes
from holdfast.connectors.kafka.messages import MessageForm, Messages
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.lanes import LaneMark, LaneRows, Outcome
from tests.services.kafka_broker import QUIET, shared_broker

ROUNDS = 5
FORM = MessageForm("json", key=("user",))


def rows_of(count: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "user": pa.array([f"user number {n % 100_000}" for n in range(count)]),
            "amount": pa.array([n / 7 for n in range(count)]),
        }
    )


def plain(producer: Producer, table: pa.Table) -> None:
    for row in table.to_pylist():
        put(producer, "plain", json.dumps(row).encode(), row["user"].encode())
    assert producer.flush(120) == 0


def ready(producer: Producer, messages: Messages) -> None:
    for key, value, _, _ in messages.in_tuples():
        put(producer, "ready", value, key)
    assert producer.flush(120) == 0


def put(producer: Producer, topic: str, value: bytes, key: bytes) -> None:
    while True:
        try:
            return producer.produce(topic, value, key)
        except BufferError:
            producer.poll(0.1)


def lane(lanes: OpenKafkaLanes, rows: LaneRows) -> None:
    assert lanes.write(rows).outcome is Outcome.WRITTEN


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(count: int) -> None:
    table, broker = rows_of(count), shared_broker()
    for name in ("plain", "ready", "lane"):
        broker.make(name)
    settings = {"bootstrap.servers": broker.servers, "enable.idempotence": True, **QUIET}
    producer = Producer(settings)
    messages = FORM.messages([table])
    found: dict[str, list[float]] = {"plain producer": [], "producer of ready bytes": [], "a lane": []}
    lanes = KafkaSink(broker.servers, "lane", key="user").lane_writer("bench", "out").open(1)
    lanes.begin(0)
    for epoch in range(1, ROUNDS + 1):
        part = StagedPart(0, count, lambda: table)
        rows = LaneRows(0, epoch, LaneMark(epoch - 1), count, 1, "", (part,))
        found["plain producer"].append(timed(partial(plain, producer, table)))
        found["producer of ready bytes"].append(timed(partial(ready, producer, messages)))
        found["a lane"].append(timed(partial(lane, lanes, rows)))
    base = median(found["plain producer"])
    for name, seconds in found.items():
        took = median(seconds)
        print(f"{name:24} {count / took:12,.0f} rows/s   {base / took:5.2f}x of the plain producer")
    best = median(found["producer of ready bytes"])
    print(f"a lane is {best / median(found['a lane']):.2f}x of the producer of ready bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
