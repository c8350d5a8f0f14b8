"""Lanes of a real Kafka: each row is shown once, whoever writes, dies, is fenced or comes late."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from holdfast.connectors.kafka import lane_writer
from holdfast.connectors.kafka.lane_writer import OpenKafkaLanes
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.lanes import LANES, LaneMark, Outcome
from holdfast.errors import DefinitionError, SinkWentBack, Unavailable
from holdfast.secret import Secret
from holdfast.testing import conformance
from tests.services.cable import Cable
from tests.services.kafka_broker import API, PASSWORD, QUIET, USER, KafkaBroker, kafka, topic
from tests.services.kafka_lanes import MORE, TWO, lane_rows, rows_of, stopped_in_transaction

__all__ = ["kafka", "topic"]

END_OF_TRANSACTION = b"\x00\x1a\x00\x01\x00\x00\x00"
"""How a request to end one begins: its number, its version, the first bytes of a small count."""


def opened(servers: str, topic: str, term: int = 1, **how: Any) -> OpenKafkaLanes:
    sink = KafkaSink(servers, topic, **{"timeout_seconds": 10.0, **how})
    return sink.lane_writer("job", "out").open(term)


def begun(kafka: KafkaBroker, topic: str, **how: Any) -> OpenKafkaLanes:
    """Lanes of a topic of the test's own, with their marks."""
    kafka.make(topic)
    lanes = opened(kafka.servers, topic, **how)
    lanes.begin(0)
    return lanes


def shown(kafka: KafkaBroker, topic: str) -> list[tuple[Any, ...]]:
    """The rows, as a reader finds them that does not look at what was not committed."""
    return [tuple(json.loads(message.value()).values()) for message in kafka.committed(topic)]


def test_it_keeps_what_is_promised_of_a_lane_sink(kafka: KafkaBroker, topic: str) -> None:
    made: set[str] = set()

    def place_of(place: str) -> str:
        name = f"{topic}-{place}"
        if name not in made:
            kafka.make(name, max_message_bytes="2000")
            made.add(name)
        return name

    def make(place: str) -> KafkaSink:
        return KafkaSink(kafka.servers, place_of(place), timeout_seconds=10)

    report = conformance.check_lanes(
        make, lambda place: shown(kafka, place_of(place)), refused=rows_of(("a" * 3000, 1))
    )
    assert set(report.not_asked) == {"disturbed"}, report


def test_a_cluster_that_is_cut_off_is_a_result_and_rows_are_shown_once(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.make(topic)
    with kafka.cable() as cable:

        @contextlib.contextmanager
        def away(place: str) -> Iterator[None]:
            cable.refuse()
            yield
            cable.restore()

        report = conformance.check_lanes(
            lambda place: KafkaSink(cable.hosts, topic, timeout_seconds=5),
            lambda place: shown(kafka, topic),
            disturbed=away,
            only=["disturbed"],
        )
    assert report.kept == ("disturbed",)


def test_an_answer_that_was_lost_after_the_commit_repeats_nothing(kafka: KafkaBroker, topic: str) -> None:
    begun(kafka, topic).close()
    with kafka.cable() as cable:
        lanes = opened(cable.hosts, topic, timeout_seconds=3)
        cable.lose_answers_to = END_OF_TRANSACTION
        result = lanes.write(lane_rows(TWO))
        assert result.outcome is Outcome.UNAVAILABLE, result
        lanes.close()
        cable.lose_answers_to = b""
        again = opened(cable.hosts, topic)
        assert again.marks()[0] == LaneMark(1, 2)
        assert again.write(lane_rows(TWO)).outcome is Outcome.ALREADY
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2)]


def test_a_broker_that_was_killed_is_waited_for_and_has_each_row_once(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic, timeout_seconds=5)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    next_rows = lane_rows(MORE, 2, before=LaneMark(1, 2))
    kafka.kill()
    try:
        result = lanes.write(next_rows)
    finally:
        kafka.start()
    assert result.outcome is Outcome.UNAVAILABLE
    assert result.reason
    again = opened(kafka.servers, topic)
    assert again.marks()[0] == LaneMark(1, 2)
    assert again.write(next_rows).outcome in (Outcome.WRITTEN, Outcome.ALREADY)
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2), ("cleo", 3)]


def test_marks_are_made_once_and_say_what_is_shown(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    fresh = opened(kafka.servers, topic)
    assert fresh.marks() == {}
    fresh.begin(7)
    opened(kafka.servers, topic).begin(9)
    assert fresh.marks() == {lane: LaneMark(7) for lane in range(LANES)}
    assert fresh.write(lane_rows(TWO, 8, lane=3, before=LaneMark(7))).outcome is Outcome.WRITTEN
    assert fresh.marks()[3] == LaneMark(8, 2)
    assert fresh.marks()[3].input == "of epoch 8"


def test_rows_are_shown_once_however_often_they_are_written(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.ALREADY
    assert lanes.write(lane_rows(MORE, 2, before=LaneMark(1, 2))).outcome is Outcome.WRITTEN
    other = opened(kafka.servers, topic)
    assert other.write(lane_rows(TWO)).outcome is Outcome.ALREADY, "a late twin"
    assert other.write(lane_rows(MORE, 2, input="another")).outcome is Outcome.OTHER_ROWS
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2), ("cleo", 3)]


def test_without_the_mark_rows_are_shown_twice(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests around it: the mark is what they see at work."""
    monkeypatch.setattr(lane_writer, "continues", lambda mark, rows: 0)
    lanes = begun(kafka, topic)
    for _ in range(2):
        assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert len(shown(kafka, topic)) == 4


def test_a_mark_is_found_behind_much_that_was_not_committed(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    name = lanes._marks.name
    lanes.close()
    kafka.send(name, [(b"of nobody", b"{}")] * 300)
    again = opened(kafka.servers, topic)
    assert again.marks()[0] == LaneMark(1, 2)
    assert again.write(lane_rows(TWO)).outcome is Outcome.ALREADY


def test_a_writer_that_was_killed_in_its_transaction_leaves_nothing(kafka: KafkaBroker, topic: str) -> None:
    begun(kafka, topic).close()
    with stopped_in_transaction(kafka.servers, topic) as other:
        other.kill()
        other.wait()
    later = opened(kafka.servers, topic, term=2)
    assert later.marks() == {lane: LaneMark(0) for lane in range(LANES)}
    assert later.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2)]


def test_a_writer_that_wakes_up_late_is_fenced(kafka: KafkaBroker, topic: str) -> None:
    begun(kafka, topic).close()
    with stopped_in_transaction(kafka.servers, topic) as other:
        lanes = opened(kafka.servers, topic)
        assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
        other.send_signal(signal.SIGCONT)
        assert other.stdout is not None
        assert other.stdout.readline() == "FENCED\n"
    assert lanes.write(lane_rows(MORE, 2, before=LaneMark(1, 2))).outcome is Outcome.WRITTEN
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2), ("cleo", 3)]


def test_asking_for_marks_ends_a_write_of_our_term_and_leaves_one_of_a_newer_alone(
    kafka: KafkaBroker, topic: str
) -> None:
    begun(kafka, topic).close()
    with stopped_in_transaction(kafka.servers, topic) as other:
        with pytest.raises(Unavailable, match="is being written by another process"):
            opened(kafka.servers, topic, term=0).marks()
        assert opened(kafka.servers, topic, term=1).marks()[0] == LaneMark(0)
        other.send_signal(signal.SIGCONT)
        assert other.stdout is not None
        assert other.stdout.readline() == "FENCED\n"
    assert shown(kafka, topic) == []


def test_asking_for_marks_fences_nobody_who_is_not_writing(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    other = opened(kafka.servers, topic, term=2)
    other.begin(0)
    assert other.marks()[0] == LaneMark(1, 2)
    assert lanes.write(lane_rows(MORE, 2, before=LaneMark(1, 2))).outcome is Outcome.WRITTEN


def test_a_transaction_of_another_lane_that_hangs_hides_no_mark(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    lanes.close()
    with stopped_in_transaction(kafka.servers, topic, lane=1):
        again = opened(kafka.servers, topic)
        assert again.write(lane_rows(TWO)).outcome is Outcome.ALREADY
        more = lane_rows(MORE, 2, before=LaneMark(1, 2))
        assert again.write(more).outcome is Outcome.WRITTEN
        again.close()
        assert opened(kafka.servers, topic).write(more).outcome is Outcome.ALREADY


def test_a_transaction_in_the_partition_of_the_mark_is_not_read_past(kafka: KafkaBroker, topic: str) -> None:
    """The control of the one above: what comes after it in the same partition is not known."""
    lanes = begun(kafka, topic)
    stranger = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic, **QUIET})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(lanes._marks.name, b"{}", b"of nobody", 0)
    assert stranger.flush(30) == 0
    lanes.close()
    again = opened(kafka.servers, topic)
    result = again.write(lane_rows(TWO))
    assert result.outcome is Outcome.UNAVAILABLE
    assert "of somebody else" in result.reason
    stranger.abort_transaction(30)
    assert again.write(lane_rows(TWO)).outcome is Outcome.WRITTEN


def test_marks_that_were_deleted_are_a_sink_that_went_back(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    lanes.close()
    kafka.delete(lanes._marks.name)
    again = opened(kafka.servers, topic)
    assert again.marks() == {}
    result = again.write(lane_rows(MORE, 2, before=LaneMark(1, 2)))
    assert result.outcome is Outcome.WENT_BACK
    assert "topic of marks" in result.reason
    assert "is gone" in result.reason
    again.begin(0)
    assert again.write(lane_rows(MORE, 2, before=LaneMark(1, 2))).outcome is Outcome.WENT_BACK
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2)]


def test_a_topic_that_was_made_again_between_two_runs_is_a_sink_that_went_back(
    kafka: KafkaBroker, topic: str
) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO, 7)).outcome is Outcome.WRITTEN
    lanes.close()
    kafka.delete(topic)
    kafka.make(topic)
    again = opened(kafka.servers, topic)
    said = f"topic '{topic}' .* was deleted and made again: the rows of epochs up to 7 .*'out'.* another uid"
    with pytest.raises(SinkWentBack, match=said):
        again.marks()
    for lane, before in ((0, LaneMark(7, 2)), (1, LaneMark(0))):
        result = again.write(lane_rows(MORE, 8, lane=lane, before=before))
        assert result.outcome is Outcome.REFUSED
        assert "was deleted and made again" in result.reason
    assert shown(kafka, topic) == []
    other = KafkaSink(kafka.servers, topic).lane_writer("job", "another").open(1)
    other.begin(7)
    assert other.write(lane_rows(MORE, 8, before=LaneMark(7))).outcome is Outcome.WRITTEN
    assert shown(kafka, topic) == [("cleo", 3)]


def test_a_topic_that_was_made_again_while_it_is_written_is_noticed_by_the_next_epoch(
    kafka: KafkaBroker, topic: str
) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    kafka.delete(topic)
    kafka.make(topic)
    result = lanes.write(lane_rows(MORE, 2, before=LaneMark(1, 2)))
    assert result.outcome is Outcome.REFUSED
    assert "the rows of epochs up to 1 that sink 'out' had shown are gone" in result.reason
    assert shown(kafka, topic) == []


def test_a_topic_that_was_deleted_while_it_is_written_is_named(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    kafka.delete(topic)
    for rows, said in (
        (lane_rows(MORE, lane=1), f"there is no topic '{topic}' any more"),
        (lane_rows(MORE, 2, before=LaneMark(1, 2)), f"has no topic '{topic}'; correct the name"),
    ):
        result = lanes.write(rows)
        assert result.outcome is Outcome.REFUSED
        assert said in result.reason


def test_a_topic_that_was_made_again_before_anything_was_shown_is_as_good(
    kafka: KafkaBroker, topic: str
) -> None:
    begun(kafka, topic).close()
    kafka.delete(topic)
    kafka.make(topic)
    again = opened(kafka.servers, topic)
    assert again.marks()[0] == LaneMark(0)
    assert again.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2)]


def test_marks_from_before_they_held_the_id_of_the_topic_count(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic)
    name, key = lanes._marks.name, lanes._marks.key(0)
    lanes.close()
    kafka.send(name, [(key, b'{"epoch": 4, "rows": 2, "input": "of epoch 4", "term": 1}')])
    again = opened(kafka.servers, topic)
    assert again.marks()[0] == LaneMark(4, 2)
    assert again.write(lane_rows(TWO, 4)).outcome is Outcome.ALREADY
    assert again.write(lane_rows(MORE, 5, before=LaneMark(4, 2))).outcome is Outcome.WRITTEN


def test_a_topic_that_would_lose_marks_is_refused(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic)
    kafka.make(f"{topic}-few", 3, cleanup_policy="compact")
    kafka.make(f"{topic}-short", LANES, cleanup_policy="delete")
    with pytest.raises(DefinitionError, match="has 3 partitions, and marks need 16"):
        opened(kafka.servers, topic, marks=f"{topic}-few").begin(0)
    with pytest.raises(DefinitionError, match=r"cleanup\.policy=delete"):
        opened(kafka.servers, topic, marks=f"{topic}-short").begin(0)


def test_a_row_that_is_too_large_is_named_and_nothing_of_its_lane_is_shown(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.make(topic, max_message_bytes="5000")
    large = rows_of(("anna", 1), ("b" * 6_000, 2))
    for options, limit in (
        ({}, f"max.message.bytes of topic '{topic}'"),
        ({"message.max.bytes": 4_000}, "options"),
    ):
        lanes = opened(kafka.servers, topic, options=options)
        lanes.begin(0)
        result = lanes.write(lane_rows(large))
        assert result.outcome is Outcome.REFUSED
        assert "row 1 of the lane has 60" in result.reason
        assert limit in result.reason
        assert lanes.marks()[0] == LaneMark(0)
        assert lanes.write(lane_rows(TWO, 1, lane=1)).outcome in (Outcome.WRITTEN, Outcome.ALREADY)
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2)]


def test_a_lane_that_takes_longer_than_a_transaction_may_is_refused(kafka: KafkaBroker, topic: str) -> None:
    lanes = begun(kafka, topic, transaction_seconds=1, options={"linger.ms": 0, "batch.num.messages": 1})
    many = pa.table({"user": ["anna"] * 200_000, "total": range(200_000)})
    result = lanes.write(lane_rows(many))
    assert result.outcome is Outcome.REFUSED
    assert "200000 rows are too many for one transaction" in result.reason
    assert "transaction_seconds" in result.reason
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2)]


def test_what_the_cluster_will_never_allow_is_refused_in_one_line(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(DefinitionError, match=f"has no topic '{topic}'"):
        KafkaSink(kafka.servers, topic).check()
    with pytest.raises(DefinitionError, match=f"has no topic '{topic}'"):
        opened(kafka.servers, topic)
    kafka.make(topic)
    with pytest.raises(DefinitionError, match="transaction_seconds=3600 is more than the cluster allows"):
        opened(kafka.servers, topic, transaction_seconds=3600).begin(0)
    (tmp_path / "secret").write_text("not-the-password")
    options = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": Secret.file(tmp_path / "secret"),
    }  # fmt: skip
    for fails in (
        KafkaSink(kafka.guarded, topic, options=options).check,
        lambda: opened(kafka.guarded, topic, options=options),
    ):
        with pytest.raises(DefinitionError, match="refuses us") as told:
            fails()
        assert "not-the-password" not in str(told.value)


def test_a_connection_that_ends_while_the_user_is_looked_at_is_no_refusal(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """As where a broker is started again: the sink would wait for a person."""
    kafka.make(topic)
    (tmp_path / "secret").write_text(PASSWORD)
    options = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": Secret.file(tmp_path / "secret"),
    }  # fmt: skip
    with Cable(int(kafka.guarded.rpartition(":")[2])) as cable:
        cable.break_every = 2  # the first piece asks for versions, the second says how the user is told
        with pytest.raises(Unavailable, match="handshake failed: Local"):
            opened(cable.hosts, topic, options=options)
        cable.break_every = 0
        opened(cable.hosts, topic, options=options).close()


def test_a_user_who_may_not_write_is_told_so_and_rows_come_later(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(PASSWORD)
    options = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": Secret.file(tmp_path / "secret"),
    }  # fmt: skip
    begun(kafka, topic).close()
    kafka.deny(USER, topic, API.AclOperation.WRITE)
    lanes = opened(kafka.guarded, topic, options=options)
    result = lanes.write(lane_rows(TWO))
    assert result.outcome is Outcome.REFUSED
    assert "does not let this user write" in result.reason
    assert PASSWORD not in result.reason
    kafka.allow_again(topic)
    assert lanes.write(lane_rows(TWO)).outcome is Outcome.WRITTEN
    assert shown(kafka, topic) == [("anna", 1), ("ben", 2)]


def test_keys_headers_times_and_tombstones_arrive(kafka: KafkaBroker, topic: str) -> None:
    kafka.make(topic, partitions=3)
    at = datetime(2024, 5, 6, tzinfo=UTC)
    table = pa.table(
        {
            "user": ["anna", "ben", "anna"], "doc": [b"1", b"2", None], "at": [at, None, at],
            "more": pa.array([[("a", b"x")], None, []], pa.map_(pa.string(), pa.binary())),
        }
    )  # fmt: skip
    how: dict[str, Any] = {
        "format": "bytes",
        "key": "user",
        "value": "doc",
        "headers": "more",
        "timestamp": "at",
    }
    lanes = opened(kafka.servers, topic, **how)
    lanes.begin(0)
    assert lanes.write(lane_rows(table)).outcome is Outcome.WRITTEN
    found = kafka.committed(topic, partitions=3)
    annas = [each for each in found if each.key() == b"anna"]
    assert [each.value() for each in annas] == [b"1", None], "in order, in one partition"
    assert len({each.partition() for each in annas}) == 1
    assert annas[0].timestamp()[1] == int(at.timestamp() * 1000)
    assert annas[0].headers() == [("a", b"x")]
    (ben,) = [each for each in found if each.key() == b"ben"]
    assert (ben.value(), ben.headers()) == (b"2", None)
    assert ben.timestamp()[1] > annas[0].timestamp()[1]
