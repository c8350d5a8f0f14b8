"""A leader with a real Spark is cut off from ZooKeeper, or from storage; or ZooKeeper is gone for all.

Connections go through proxies on loopback. While one is cut nothing passes, and neither end is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.apps import Shape
from tests.chaos.nodes import ENDLESS, Cluster
from tests.services.object_store import ObjectStore

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1_200)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with ObjectStore() as started:
        for name, value in started.environment(started.port).items():
            monkeypatch.setenv(name, value)
        yield started


def test_a_leader_out_of_reach_of_zookeeper_pauses_and_resumes_in_time_or_is_replaced(tmp_path: Path) -> None:
    """A short cut; a ZooKeeper that is killed and started again; and a cut that lasts."""
    with Cluster(tmp_path, Shape(epochs=ENDLESS), session="9s") as cluster:
        first, second = cluster.pair()
        cable, server = first.cables.zookeeper, cluster.server
        for break_off, restore in [(cable.cut, cable.restore), (server.kill, server.start)]:
            paused, resumed = first.times_told("PAUSED"), first.times_told("RESUMED")
            break_off()
            cluster.wait(lambda seen=paused: first.times_told("PAUSED") > seen, "the first node to pause")
            restore()
            cluster.wait(lambda seen=resumed: first.times_told("RESUMED") > seen, "the first node to go on")
            cluster.wait_progress()
        assert cluster.term() == 1, cluster.told()
        assert not second.told("TAKING THE SEAT"), cluster.told()

        paused = first.times_told("PAUSED")
        cable.cut()
        cluster.wait(lambda: first.times_told("PAUSED") > paused, "the first node to pause")
        at_pause = cluster.number()
        cluster.wait(lambda: second.told("TAKING THE SEAT", "first had it"), "the second node to take over")
        assert first.last_told_at("PAUSED") < second.last_told_at("TAKING THE SEAT"), cluster.told()
        cluster.wait(lambda: cluster.term() == 2, "the second node to commit")
        cable.restore()
        cluster.wait_standing_by(first)
        cluster.stop(first, second)
        of_first = [record.number for record in cluster.commits() if record.term == 1]
        assert max(of_first) <= at_pause + 1, "it went on committing: one may have been under way"


def test_a_leader_cut_off_from_storage_resigns_and_another_goes_on(
    tmp_path: Path, store: ObjectStore
) -> None:
    """It still reaches ZooKeeper, so nobody would take the seat from it."""
    with Cluster(tmp_path, Shape(epochs=ENDLESS), resign_after="5s", store=store) as cluster:
        first, second = cluster.pair()
        assert first.cables.storage is not None
        first.cables.storage.cut()
        cluster.wait(lambda: first.told("ENDING: resigned"), "the first node to resign")
        cluster.wait(lambda: second.told("TAKING THE SEAT", "resigned"), "the second node to take over")
        cluster.wait(lambda: cluster.term() == 2, "the second node to commit")
        first.cables.storage.restore()
        cluster.wait_standing_by(first)
        cluster.stop(first, second)
