"""What is refused before anything is connected to, and that passwords stay references."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.kafka.client import Connection
from holdfast.connectors.kafka.reading import RangesReader

PASSWORD = "the-pass-5512"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "topics or a pattern"),
        ({"topics": "a", "pattern": "b"}, "topics or a pattern"),
        ({"pattern": "("}, "no pattern"),
        ({"topics": "a", "format": "xml"}, "no format 'xml'"),
        ({"topics": "a", "format": "json"}, "give json or avro a schema"),
        ({"topics": "a", "schema": "n long"}, "bytes none"),
        ({"topics": "a", "format": "avro", "schema": '"string"'}, "no record"),
        ({"topics": "a", "format": "avro", "schema": "{"}, "no JSON"),
        ({"topics": "a", "start": "newest"}, "'earliest', 'latest'"),
        ({"topics": "a", "start": datetime(2026, 1, 1)}, "no time zone"),
        ({"topics": "a", "on_expired": "skip"}, "'fail' or 'continue'"),
        ({"topics": "a", "options": {"group.id": "g"}}, "set by Holdfast itself"),
        ({"topics": "a", "options": {"sasl.password": PASSWORD}}, r"hf\.Secret\.env"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(given: dict[str, Any], told: str) -> None:
    with pytest.raises(hf.DefinitionError, match=told) as refused:
        hf.KafkaSource("localhost:9092", **given)
    assert PASSWORD not in str(refused.value)


def test_the_columns_are_those_that_are_declared() -> None:
    source = hf.KafkaSource("localhost:9092", "a", format="json", schema="n long", start=datetime.now(UTC))
    assert "value struct<n long>" in source.schema
    assert source.sifts
    assert not hf.KafkaSource("localhost:9092", ["a", "b"]).sifts


def test_what_is_sent_to_tasks_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_PASSWORD", PASSWORD)
    connection = Connection("localhost:9092", {"sasl.password": hf.Secret.env("HOLDFAST_TEST_PASSWORD")})
    assert connection.settings()["sasl.password"] == PASSWORD
    reader = RangesReader(connection, ())
    assert PASSWORD not in repr(reader)
    assert PASSWORD.encode() not in pickle.dumps(reader)
    assert connection.without_secrets(f"no: {PASSWORD}") == "no: ***"


def test_a_password_that_is_missing_is_told_before_spark_starts() -> None:
    options = {"sasl.password": hf.Secret.env("HOLDFAST_TEST_NOT_SET")}
    with pytest.raises(hf.DefinitionError, match="HOLDFAST_TEST_NOT_SET is not set"):
        hf.KafkaSource("localhost:9092", "a", options=options).check()
