"""Nodes with a real ZooKeeper and a real S3 server that stops answering."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.checkpoint.chain.terms import newest_term
from holdfast.checkpoint.store import names
from holdfast.nodes.zookeeper_server import ZooKeeperServer
from holdfast.storage.urls import open_storage
from tests.services.cable import Cable
from tests.services.harness import nodes_of, wait_until
from tests.services.object_store import ObjectStore


@pytest.fixture
def cable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cable]:
    """The way to an S3 server, for this process and those that it starts."""
    with ObjectStore() as store:
        cable = Cable(store.port)
        for name, value in store.environment(cable.port).items():
            monkeypatch.setenv(name, value)
        yield cable
        cable.close()


def test_a_leader_that_storage_does_not_answer_resigns_and_one_of_them_goes_on_when_it_does(
    cable: Cable, server: ZooKeeperServer, cluster: str
) -> None:
    """It still reaches ZooKeeper, so no other node would take the seat from it."""
    place = f"{ObjectStore.url}/{cluster}"
    with nodes_of(place, server.hosts) as start:
        a = start("a", cluster=cluster, resign_seconds=1.0)
        wait_until(lambda: len(open_storage(place).list(names.COMMITS)) > 2, "a to lead", a.story)
        b = start("b", cluster=cluster, resign_seconds=1.0)
        wait_until(lambda: b.told("is in cluster"), "b to stand by", b.story)
        cable.cut()
        try:
            wait_until(lambda: a.told("ENDING: resigned: nothing could be committed"), "a to resign", a.story)
            wait_until(lambda: b.told("TAKING THE SEAT", "resigned"), "b to try", b.story)
        finally:
            cable.restore()

        def newest() -> str:
            return max(entry.name for entry in open_storage(place).list(names.COMMITS))

        def led_again() -> bool:
            record = newest_term(open_storage(place))
            return record is not None and record.term > 1

        wait_until(led_again, "a node to lead", lambda: a.story() + b.story())
        wait_until(lambda: a.told("the run ended"), "a to stand by", a.story)
        seen = newest()
        wait_until(lambda: newest() > seen, "commits to go on", lambda: a.story() + b.story())
