"""What a KafkaSink refuses before it asks anybody, and how it names what it makes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.errors import DefinitionError
from holdfast.secret import Secret


def test_a_sink_that_cannot_be_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"topic": ""}, "has no topic"),
        ({"format": "xml"}, "no format 'xml'"),
        ({"format": "avro"}, "give avro a schema"),
        ({"schema": "{}"}, "does not fit"),
        ({"format": "avro", "schema": "["}, "is no JSON"),
        ({"transaction_seconds": 0.5}, "less than a second"),
        ({"servers": " "}, "no servers"),
        ({"options": {"transactional.id": "mine"}}, "set by Holdfast itself"),
        ({"options": {"acks": 1}}, "set by Holdfast itself"),
        ({"options": {"transaction.timeout.ms": 1}}, "set by Holdfast itself"),
        ({"options": {"sasl.password": "secret"}}, "a secret written down"),
    ]
    for how, said in wrong:
        with pytest.raises(DefinitionError, match=said):
            KafkaSink(**{"servers": "127.0.0.1:1", "topic": "t", **how})


def test_options_that_no_producer_has_are_refused_by_the_check() -> None:
    with pytest.raises(DefinitionError, match=r'No such configuration property: "no\.such"'):
        KafkaSink("127.0.0.1:1", "t", options={"no.such": 1}).check()


def test_every_sink_of_every_job_has_ids_and_marks_of_its_own() -> None:
    sink = KafkaSink("127.0.0.1:1", "totals")
    first, second = sink.lane_writer("job", "out"), sink.lane_writer("job", "a/b")
    other = sink.lane_writer("another job", "out")
    assert len({each.transactional_id(0) for each in (first, second, other)}) == 3
    assert len({each.mark_topic.name for each in (first, second, other)}) == 3
    assert first.transactional_id(0) != first.transactional_id(1)
    assert first.mark_topic.name.startswith("__holdfast-marks-totals-out-")
    assert "/" not in second.mark_topic.name
    long = KafkaSink("127.0.0.1:1", "t" * 249).lane_writer("job", "u" * 300).mark_topic.name
    assert len(long) <= 249
    assert KafkaSink("127.0.0.1:1", "t", marks="mine").lane_writer("job", "out").mark_topic.name == "mine"


def test_a_writer_crosses_to_tasks_without_its_password() -> None:
    options = {"sasl.password": Secret.env("A_PASSWORD")}
    writer = KafkaSink("127.0.0.1:1", "t", options=options).lane_writer("job", "out")
    assert pickle.loads(pickle.dumps(writer)) == writer
