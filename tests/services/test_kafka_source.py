"""A Kafka source against a real broker: what it plans, what tasks read, what it says of trouble."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import NewPartitions

import holdfast as hf
from holdfast.connectors.kafka.positions import ranges_of
from tests.services.kafka_broker import KafkaBroker, kafka, topic
from tests.services.kafka_kit import planned, producer, read, reader_of, values

__all__ = ["kafka", "producer", "topic"]


def test_every_column_of_a_message_arrives(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic, partitions=2)
    kafka.send(
        topic, [(b"k", b"v")], partition=1, headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123
    )
    kafka.send(topic, [(None, None)], partition=1)
    first, second = read(kafka, planned(reader_of(kafka, topic)))
    assert first == {
        "key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        "timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC), "partition": 1, "offset": 0,
        "topic": topic,
    }  # fmt: skip
    assert (second["key"], second["value"], second["headers"], second["offset"]) == (None, None, None, 1)


def test_a_slice_ends_where_a_transaction_is_open(kafka: KafkaBroker, topic: str, producer: Producer) -> None:
    kafka.send(topic, [b"before"])
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    kafka.send(topic, [b"after"])
    reader = reader_of(kafka, topic)
    first = planned(reader)
    assert values(kafka, first) == [b"before"]
    assert reader.next(first.end, None, 0) is None
    producer.commit_transaction(30)
    rest = planned(reader, first.end)
    assert values(kafka, rest) == [b"after", b"open"], (
        "the marker of the commit is the last offset, and no row"
    )


def test_rows_that_were_given_up_are_not_read(kafka: KafkaBroker, topic: str, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"given up")
    producer.flush(30)
    producer.abort_transaction(30)
    reader = reader_of(kafka, topic)
    nothing = planned(reader)
    assert values(kafka, nothing) == [], "offsets without rows come to an end, too"
    kafka.send(topic, [b"row"])
    assert values(kafka, planned(reader, nothing.end)) == [b"row"]
    assert values(kafka, nothing) == [], "read again, with rows after it"


def test_a_limit_is_shared_by_partitions_and_pieces_add_up(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic, partitions=3)
    kafka.send(topic, [b"a%d" % n for n in range(50)], partition=0)
    kafka.send(topic, [b"b"], partition=2)
    reader, after, seen = reader_of(kafka, topic), None, []
    while (slice := reader.next(after, 20, 0)) is not None:
        assert sum(each.size for each in ranges_of(slice.detail)) <= 20
        seen += values(kafka, slice)
        after = slice.end
    assert sorted(seen) == sorted([b"a%d" % n for n in range(50)] + [b"b"])


@pytest.mark.parametrize("start", ["latest", "timestamp", "offsets"])
def test_a_new_job_begins_where_it_is_told_to(kafka: KafkaBroker, topic: str, start: str) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"old", b"older"], timestamp=1_000)
    kafka.send(topic, [b"new"], timestamp=2_000)
    places: dict[str, Any] = {
        "latest": "latest", "timestamp": datetime.fromtimestamp(2, UTC), "offsets": {topic: {0: 1}},
    }  # fmt: skip
    reader = reader_of(kafka, topic, start=places[start])
    # The place is written down before there are rows: a crash must not move it.
    first = reader.next(None, None, 0) if start == "latest" else planned(reader)
    assert first is not None
    expected = {"latest": [], "timestamp": [b"new"], "offsets": [b"new", b"older"]}
    assert values(kafka, first) == expected[start]
    assert (first.rows == 0) is (start == "latest"), "a place to begin at is kept although no rows are there"
    kafka.send(topic, [b"next"])
    again = reader_of(kafka, topic, start=places[start])
    assert values(kafka, planned(again, first.end)) == [b"next"]


def test_partitions_that_are_added_are_read_from_their_beginning(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    reader = reader_of(kafka, topic, start="latest")
    first = planned(reader)
    kafka.admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    while kafka.admin.list_topics(topic, timeout=30).topics[topic].partitions.keys() != {0, 1, 2}:
        pass
    kafka.send(topic, [b"of 2"], partition=2)
    second = planned(reader, first.end)
    assert values(kafka, second) == [b"of 2"]
    assert reader.partitions(second) == {f"{topic}-0": False, f"{topic}-1": False, f"{topic}-2": True}


def test_topics_that_fit_a_pattern_are_found_while_it_runs(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(f"{topic}.a")
    kafka.make(f"{topic}.other")
    kafka.send(f"{topic}.other", [b"other"])
    kafka.send(f"{topic}.a", [b"a"])
    reader = hf.KafkaSource(kafka.servers, pattern=rf"{topic}\.[ab]").reader([])
    first = planned(reader)
    assert values(kafka, first) == [b"a"]
    kafka.make(f"{topic}.b")
    kafka.send(f"{topic}.b", [b"b"])
    second = reader.next(first.end, None, 3_600_000)
    assert second is not None
    assert values(kafka, second) == [b"b"]


def test_monitors_see_how_far_the_job_has_committed(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"1", b"2"])
    reader = reader_of(kafka, topic, group=f"group-of-{topic}")
    reader.committed(planned(reader).end)
    asked = kafka.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"group-of-{topic}")])
    (told,) = [future.result().topic_partitions for future in asked.values()]
    assert [(each.topic, each.partition, each.offset) for each in told] == [(topic, 0, 2)]


def test_a_drain_ends_at_what_is_there(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"1", b"2"])
    reader = reader_of(kafka, topic)
    end = reader.end_at(None, 0, None)
    kafka.send(topic, [b"3"])
    first = planned(reader)
    assert values(kafka, first) == [b"1", b"2"]
    assert first.end == end
    assert reader.next(first.end, None, 0) is None
    assert reader.exhausted(first.end)
