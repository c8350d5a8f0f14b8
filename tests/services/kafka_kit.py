"""A Kafka source as an epoch uses it, without Spark."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import holdfast as hf
from holdfast.connectors.kafka.positions import Range, ranges_of
from holdfast.connectors.kafka.reader import KafkaReader
from holdfast.connectors.kafka.reading import RangesReader
from tests.services.kafka_broker import QUIET, KafkaBroker


def reader_of(kafka: KafkaBroker, topic: str, **how: Any) -> KafkaReader:
    return hf.KafkaSource(kafka.servers, topic, **how).reader([])


def planned(reader: KafkaReader, after: Any = None, max_rows: int | None = None) -> hf.Slice:
    """The next slice, as soon as there is one: what was committed shows a little later."""
    while (slice := reader.next(after, max_rows, 0)) is None:
        time.sleep(0.02)
    return slice


def rows_of(source: hf.KafkaSource, ranges: tuple[Range, ...]) -> list[dict[str, Any]]:
    """As one task of an epoch reads them."""
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    batches = RangesReader(source.connection, (ranges,))(iter([numbers]))
    return [row for batch in batches for row in batch.to_pylist()]


def read(kafka: KafkaBroker, slice: hf.Slice) -> list[dict[str, Any]]:
    ranges = tuple(each for each in ranges_of(slice.detail) if each.size)
    return rows_of(hf.KafkaSource(kafka.servers, "any"), ranges)


def values(kafka: KafkaBroker, slice: hf.Slice) -> list[bytes]:
    return sorted(row["value"] for row in read(kafka, slice))


@pytest.fixture
def producer(kafka: KafkaBroker, topic: str) -> Producer:
    """One that writes in transactions; the topic is made."""
    kafka.make(topic)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic, **QUIET})
    producer.init_transactions(30)
    return producer
