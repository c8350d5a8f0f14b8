"""What the driver asks a cluster: a client that failed is not asked again."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, admin

import holdfast as hf
from holdfast.connectors.kafka.client import NO_ID, Cluster, Connection, is_another_topic
from holdfast.connectors.kafka.positions import Partition, Place


class Stubborn:
    """A client that holds on to what it knew when it was made: the first one knows of no leader."""

    made = 0

    def __init__(self, settings: dict[str, Any]) -> None:
        Stubborn.made += 1
        self._knows = Stubborn.made > 1

    def list_offsets(self, wanted: Any, **_: Any) -> dict[Any, Future[Any]]:
        return {each: self._answered(SimpleNamespace(offset=7, leader_epoch=0)) for each in wanted}

    def list_topics(self, timeout: float) -> Any:
        if not self._knows:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return SimpleNamespace(topics={"t": None, "__consumer_offsets": None})

    def poll(self, seconds: float) -> None:
        pass

    def _answered(self, answer: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._knows:
            future.set_result(answer)
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
        return future


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(admin, "AdminClient", Stubborn)
    Stubborn.made = 0
    return Cluster(Connection("localhost:9092"))


def test_offsets_that_a_client_does_not_know_are_asked_of_a_new_one(cluster: Cluster) -> None:
    with pytest.raises(hf.Unavailable, match="not there for the offsets of t-0"):
        cluster.bounds([Partition("t", 0)])
    for _ in range(2):
        assert cluster.bounds([Partition("t", 0)])[1] == {Partition("t", 0): Place(7, 0)}
    assert Stubborn.made == 2, "one that is answered is kept"


def test_topics_that_a_client_does_not_know_are_asked_of_a_new_one(cluster: Cluster) -> None:
    with pytest.raises(hf.Unavailable, match="not there for the list of its topics"):
        cluster.topic_names()
    assert cluster.topic_names() == ["t"]


def test_an_answer_without_an_offset_is_none(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for an offset it would be one before all others: every row would be gone."""
    Stubborn.made = 1
    cut_off = SimpleNamespace(offset=OFFSET_INVALID, leader_epoch=-1)
    monkeypatch.setattr(Stubborn, "_answered", lambda self, answer: future_of(cut_off))
    for ask in (cluster.bounds, lambda partitions: cluster.at_time(partitions, 0)):
        with pytest.raises(hf.Unavailable, match="not there for the offsets of t-0"):
            ask([Partition("t", 0)])
    assert Stubborn.made == 3, "the one that was cut off is not asked again"


def test_a_partition_without_rows_after_a_time_is_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stubborn.made = 1
    monkeypatch.setattr(
        Stubborn, "_answered", lambda self, answer: future_of(SimpleNamespace(offset=-1, leader_epoch=-1))
    )
    assert cluster.at_time([Partition("t", 0)], 0) == {}


def test_topics_of_a_cluster_that_gives_them_no_ids_are_taken_for_the_same() -> None:
    assert is_another_topic("one", "another")
    for id, ours in (("one", "one"), ("", "one"), (NO_ID, "one"), ("one", NO_ID)):
        assert not is_another_topic(id, ours)


def future_of(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future
