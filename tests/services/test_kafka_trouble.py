"""A Kafka source in trouble: each kind is one clear error or a wait that is shown, and nothing is lost."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, NewTopic

import holdfast as hf
from holdfast.connectors.kafka.client import Cluster, Connection
from holdfast.connectors.kafka.positions import Partition, Place, Position, in_tasks, ranges_of
from tests.services.certificates import issued
from tests.services.kafka_broker import PASSWORD, USER, KafkaBroker, kafka, topic
from tests.services.kafka_kit import planned, read, reader_of, rows_of, values

__all__ = ["kafka", "topic"]


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
    with pytest.raises(hf.InputVanished, match="are not there any more"):
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
    for _ in range(2):  # a broker that has just started may not know of all topics yet
        with pytest.raises(hf.Unavailable, match="does not know topic"):
            reader.next(first.end, None, 0)
    with pytest.raises(hf.InputVanished, match="was deleted"):
        reader.next(first.end, None, 0)
    kafka.make(topic)
    kafka.send(topic, [b"new", b"and more"])
    of_another_run = reader_of(kafka, topic)
    for call in (lambda: reader.next(first.end, None, 0), lambda: reader.verify(first),
                 lambda: reader.frame(None, first),  # type: ignore[arg-type]
                 lambda: of_another_run.next(first.end, None, 0)):  # fmt: skip
        with pytest.raises(hf.InputVanished, match="deleted and made again"):
            call()


def test_a_log_that_lost_its_end_is_noticed_also_when_it_has_grown_again(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.make(topic)
    for n in range(10):
        kafka.send(topic, [b"old %d" % n])
    reader = reader_of(kafka, topic)
    first = planned(reader)
    assert len(values(kafka, first)) == 10, "the consumer, which is kept, knows the partition"
    kafka.cut_short(topic, 5)
    with pytest.raises(hf.InputVanished, match=rf"offsets 5 to 9 of {topic}-0 .* were read, and are gone"):
        reader.next(first.end, None, 0)
    with pytest.raises(hf.InputVanished, match=r"offsets 5 to 9 .* are gone"):
        reader.frame(None, first)  # type: ignore[arg-type]
    kafka.send(topic, [b"new %d" % n for n in range(10)])
    second = planned(reader, first.end)
    with pytest.raises(hf.InputVanished, match=r"offsets 10 to 14 .* or rows before them, .*skip --epoch"):
        read(kafka, second)


def test_a_slice_over_several_leaders_is_read_in_pieces(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    kafka.send(topic, [b"1", b"2"])
    reader = reader_of(kafka, topic)
    first = planned(reader, max_rows=1)
    kafka.kill()
    kafka.start()
    kafka.send(topic, [b"3", b"4", b"5"])
    slice = planned(reader, first.end)
    tasks = in_tasks(ranges_of(slice.detail), Position.of(slice.end).places, tasks=4, least=1)
    assert len(tasks) == 4
    source = hf.KafkaSource(kafka.servers, topic)
    assert [row["value"] for task in tasks for row in rows_of(source, task)] == [b"2", b"3", b"4", b"5"]


def test_a_slice_whose_end_was_compacted_away_comes_to_an_end(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(
        topic, cleanup_policy="compact", segment_ms="1000", min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="1",
    )  # fmt: skip
    kafka.send(topic, [("k", b"0"), ("k", b"1"), ("k", b"2")], timestamp=1_000)
    reader = reader_of(kafka, topic)
    first = planned(reader, max_rows=2)
    (said,) = reader.news()
    assert f"topic {topic!r} is compacted" in said
    assert "materialize=True" in said
    assert values(kafka, first) == [b"0", b"1"]
    kafka.send(topic, [("other", b"3")])  # much later than the others: it begins a file of its own
    while kafka.committed(topic)[0].offset() == 0:
        time.sleep(0.1)
    assert values(kafka, first) == [], "they are gone, and those behind them are not of the slice"
    assert values(kafka, planned(reader, first.end)) == [b"2", b"3"]
    assert not reader.news(), "it is said once"


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
    assert [row["value"] for row in rows_of(source, tuple(ranges_of(slice.detail)))] == [b"row"]
    monkeypatch.setenv("HOLDFAST_TEST_KAFKA", "a wrong one")
    with pytest.raises(hf.DefinitionError, match=r"refuses us, or we it \(.*check security") as refused:
        source.check()
    assert "a wrong one" not in str(refused.value)
    for ask in (lambda: source.reader([]).next(None, None, 0),
                lambda: rows_of(source, tuple(ranges_of(slice.detail)))):  # fmt: skip
        with pytest.raises(hf.Unavailable, match="refuses us"):
            ask()


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_tls_lets_in_whom_the_authority_is_known_to(
    kafka: KafkaBroker, topic: str, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_KAFKA", PASSWORD)
    kafka.make(topic)
    kafka.send(topic, [b"row"])

    def source(ca: str) -> hf.KafkaSource:
        login = sasl(hf.Secret.env("HOLDFAST_TEST_KAFKA")) if protocol == "SASL_SSL" else {}
        options = {**login, "security.protocol": protocol, "ssl.ca.location": ca}
        return hf.KafkaSource(kafka.listener(protocol), topic, options=options)

    good = source(kafka.ca)
    good.check()
    slice = planned(good.reader([]))
    assert [row["value"] for row in rows_of(good, tuple(ranges_of(slice.detail)))] == [b"row"]
    (tmp_path / "other.pem").write_bytes(issued("somebody else").certificate_pem)
    with pytest.raises(hf.DefinitionError, match=r"or we it \(.*certificate.*check .* certificates"):
        source(str(tmp_path / "other.pem")).check()
    with pytest.raises(hf.DefinitionError, match=r"cannot be made .*ssl\.ca\.location.*correct the option"):
        source(str(tmp_path / "none.pem")).check()


def test_a_topic_that_was_just_made_is_known_a_moment_later(kafka: KafkaBroker, topic: str) -> None:
    """A client that asked too early holds on to the answer that there is no leader."""
    cluster = Cluster(Connection(kafka.servers))
    cluster.topic_names()
    kafka.admin.create_topics([NewTopic(topic, 50, 1)])[topic].result()
    ends: dict[Partition, Place] = {}
    while not ends:
        with contextlib.suppress(hf.Unavailable):
            _, ends = cluster.bounds(Partition(topic, number) for number in range(50))
    assert {each.offset for each in ends.values()} == {0}


def test_an_option_that_there_is_not_is_told_before_spark_starts(kafka: KafkaBroker) -> None:
    with pytest.raises(hf.DefinitionError, match=r'No such configuration property: "no\.option"'):
        hf.KafkaSource(kafka.servers, "any", options={"no.option": 1}).check()


@pytest.mark.parametrize("right", [AclOperation.DESCRIBE, AclOperation.READ], ids=lambda right: right.name)
def test_rights_that_were_taken_away_are_waited_for(
    kafka: KafkaBroker, topic: str, right: AclOperation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_KAFKA", PASSWORD)
    kafka.make(topic)
    kafka.send(topic, [b"row"])
    source = hf.KafkaSource(kafka.guarded, topic, options=sasl(hf.Secret.env("HOLDFAST_TEST_KAFKA")))
    reader = source.reader([])
    slice = planned(reader)
    kafka.deny(USER, topic, right)
    asks = (
        (hf.DefinitionError, source.check),
        (hf.Unavailable, lambda: reader.next(slice.end, None, 0)),
    )
    for kind, ask in asks:
        with pytest.raises(kind, match=f"does not let this user at .*{topic}.*; grant it"):
            ask()
    assert "does not let this user" in reader.health()
    if right is AclOperation.DESCRIBE:
        for call in (lambda: reader.verify(slice),
                     lambda: reader.frame(None, slice)):  # type: ignore[arg-type] # fmt: skip
            with pytest.raises(hf.Unavailable, match="does not let this user"):
                call()
    else:
        with pytest.raises(hf.Unavailable, match=f"does not let this user at the rows of {topic}-0"):
            rows_of(source, tuple(ranges_of(slice.detail)))
    kafka.allow_again(topic)
    kafka.send(topic, [b"next"])
    second = planned(reader, slice.end)
    assert [row["value"] for row in rows_of(source, tuple(ranges_of(second.detail)))] == [b"next"]


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
