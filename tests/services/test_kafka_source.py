"""A Kafka source against a real broker: what it plans, what tasks read, what it says of trouble."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import NewPartitions

import holdfast as hf
from holdfast.connectors.kafka.positions import ranges_of
from holdfast.connectors.kafka.reader import MISSES_MAX, KafkaReader
from holdfast.connectors.kafka.reading import RangesReader
from tests.services.kafka_broker import PASSWORD, QUIET, USER, KafkaBroker, kafka, topic

__all__ = ["kafka", "topic"]


def reader_of(kafka: KafkaBroker, topic: str, **how: Any) -> KafkaReader:
    return hf.KafkaSource(kafka.servers, topic, **how).reader([])


def planned(reader: KafkaReader, after: Any = None, max_rows: int | None = None) -> hf.Slice:
    """The next slice, as soon as there is one: what was committed shows a little later."""
    while (slice := reader.next(after, max_rows, 0)) is None:
        time.sleep(0.02)
    return slice


def read(kafka: KafkaBroker, slice: hf.Slice) -> list[dict[str, Any]]:
    """As the tasks of an epoch do, without Spark."""
    source = hf.KafkaSource(kafka.servers, "any")
    ranges = tuple(each for each in ranges_of(slice.detail) if each.size)
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    return [
        row
        for batch in RangesReader(source.connection, (ranges,))(iter([numbers]))
        for row in batch.to_pylist()
    ]


def values(kafka: KafkaBroker, slice: hf.Slice) -> list[bytes]:
    return sorted(row["value"] for row in read(kafka, slice))


@pytest.fixture
def producer(kafka: KafkaBroker, topic: str) -> Producer:
    """One that writes in transactions; the topic is made."""
    kafka.make(topic)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic, **QUIET})
    producer.init_transactions(30)
    return producer


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
    first = planned(reader)
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


def test_rows_that_expired_are_told_and_never_passed_over(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"%d" % n for n in range(10)])
    reader = reader_of(kafka, topic)
    first = planned(reader, max_rows=4)
    kafka.forget(topic, 0, before=7)
    with pytest.raises(hf.InputVanished, match=rf"offsets 4 to 6 of {topic}-0 .*on_expired='continue'"):
        reader.next(first.end, None, 0)
    with pytest.raises(hf.InputVanished, match=r"offsets 0 to 3 .* have expired.*holdfast skip --epoch"):
        reader.frame(None, first)  # type: ignore[arg-type]
    with pytest.raises(hf.InputVanished, match="not all there any more"):
        read(kafka, first)
    lenient = reader_of(kafka, topic, on_expired="continue")
    assert values(kafka, planned(lenient, first.end)) == [b"7", b"8", b"9"]
    (said,) = lenient.news()
    assert "offsets 4 to 6" in said


def test_a_topic_that_was_made_again_is_another_one(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"old"])
    reader = reader_of(kafka, topic)
    first = planned(reader)
    kafka.delete(topic)
    for _ in range(MISSES_MAX - 1):
        with pytest.raises(hf.Unavailable, match="does not know topic"):
            reader.next(first.end, None, 0)
    with pytest.raises(hf.InputVanished, match="was deleted"):
        reader.next(first.end, None, 0)
    kafka.make(topic)
    kafka.send(topic, [b"new", b"and more"])
    for call in (lambda: reader.next(first.end, None, 0), lambda: reader.verify(first),
                 lambda: reader.frame(None, first)):  # type: ignore[arg-type] # fmt: skip
        with pytest.raises(hf.InputVanished, match="deleted and made again"):
            call()


def test_a_topic_that_is_not_there_is_refused_before_spark_starts(kafka: KafkaBroker, topic: str) -> None:
    with pytest.raises(hf.DefinitionError, match=f"no topic '{topic}'; correct the name"):
        hf.KafkaSource(kafka.servers, topic).check()


def sasl(secret: hf.Secret) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": secret,
    }  # fmt: skip


def test_a_password_lets_in_and_a_wrong_one_is_told(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"row"])
    source = hf.KafkaSource(kafka.guarded, topic, options=sasl(hf.Secret.env("HOLDFAST_TEST_KAFKA")))
    monkeypatch.setenv("HOLDFAST_TEST_KAFKA", PASSWORD)
    source.check()
    slice = planned(source.reader([]))
    ranges = tuple(ranges_of(slice.detail))
    (batch,) = RangesReader(source.connection, (ranges,))(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert batch.column("value").to_pylist() == [b"row"]
    monkeypatch.setenv("HOLDFAST_TEST_KAFKA", "a wrong one")
    with pytest.raises(hf.DefinitionError, match=r"refuses us \(.*check security") as refused:
        source.check()
    assert "a wrong one" not in str(refused.value)
    with pytest.raises(hf.Unavailable, match="refuses us"):
        source.reader([]).next(None, None, 0)


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


def test_a_broker_that_is_away_is_waited_for_and_keeps_its_rows(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"before"])
    source = hf.KafkaSource(kafka.servers, topic)
    reader = source.reader([])
    first = planned(reader)
    kafka.kill()
    try:
        source.check()  # whether it can be read is not known: no reason not to start
        with pytest.raises(hf.Unavailable, match=f"Kafka at {kafka.servers} is not there"):
            reader.next(first.end, None, 0)
        assert "is not there" in reader.health()
    finally:
        kafka.start()
    kafka.send(topic, [b"after"])
    assert values(kafka, planned(reader, first.end)) == [b"after"], "the leader's epoch is another one now"
    assert values(kafka, first) == [b"before"]
    assert not reader.health()
