"""Two nodes, a real ZooKeeper and Spark: the leader is killed, frozen, or asked to hand over.

State and sinks must equal a run without faults, and nobody may commit after having been replaced.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from holdfast.checkpoint.records import FailoverRecord
from tests.chaos.apps import Shape
from tests.chaos.nodes import Cluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3_600)]

FAILOVERS = int(os.environ.get("HOLDFAST_FAILOVERS", "6"))
SEED = int(os.environ.get("HOLDFAST_FAILOVER_SEED", "1"))


def test_a_killed_leader_is_replaced_by_the_standby(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first, second = cluster.pair()
        first.kill()
        cluster.wait(lambda: len(cluster.failovers()) == 2, "the failover to be written down")
        failover = cluster.failovers()[-1]
        assert (failover.node, failover.before, failover.term) == ("second", "first", 2), cluster.told()
        assert failover.detect_ms is not None
        assert 3_000 <= failover.detect_ms <= 6_500, "a session time-out of 4 s, in ticks of 0.5 s"
        assert failover.replay_ms is not None
        cluster.finish(second)


def test_a_frozen_leader_wakes_up_replaced_and_stands_by(tmp_path: Path) -> None:
    """Its permit has ended with its session: the zombie commits nothing, and the chain would refuse it."""
    with Cluster(tmp_path) as cluster:
        first, second = cluster.pair()
        first.pause_all()
        cluster.wait(lambda: second.told("TAKING THE SEAT", "first had it"), "the standby to take over")
        before = cluster.number()
        cluster.wait(lambda: cluster.number() > before + 2, "the standby to commit")
        first.resume_all()
        cluster.wait(lambda: first.told("ENDING"), "the first node to learn it")
        cluster.wait(lambda: first.told("the run ended"), "the first node to stand by")
        cluster.finish(first, second)


def test_random_failovers_under_load_end_as_a_run_without_them(tmp_path: Path) -> None:
    """Kills, freezes and hand-overs by the seed; the node that was hurt comes back as a standby."""
    chance = random.Random(SEED)
    with Cluster(tmp_path, Shape(epochs=150 * FAILOVERS)) as cluster:
        leader, standby = cluster.pair()
        for number in range(FAILOVERS):
            what = chance.choice(("kill", "freeze", "handover"))
            cluster.story.add(leader.name, what)
            if what == "kill":
                leader.kill()
            elif what == "freeze":
                leader.pause_all()
            else:
                done = cluster.command("handover")
                assert done.returncode == 0, done.stderr + cluster.told()
            cluster.wait(lambda by=standby: cluster.leader() == by.name, f"{standby.name} to lead")
            if what == "freeze":
                leader.resume_all()
                cluster.wait(lambda by=leader: by.told("the run ended"), f"{leader.name} to stand by")
            if what != "handover":
                # Thawed or dead, it makes room for a fresh one.
                leader.close()
                leader = cluster.start(f"node-{number}")
                cluster.wait(lambda by=leader: by.told("is in cluster"), f"{leader.name} to stand by")
            leader, standby = standby, leader
        cluster.finish(leader, standby)
        assert len(cluster.failovers()) == FAILOVERS + 1, cluster.told()
        for failover in cluster.failovers():
            print(failover.node, failover.reason, *phases_ms(failover))


def phases_ms(failover: FailoverRecord) -> list[int | None]:
    return [failover.detect_ms, failover.take_over_ms, failover.restore_ms, failover.replay_ms]


def test_a_handover_loses_no_epoch(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first, second = cluster.pair()
        done = cluster.command("handover", "--to", "second")
        assert done.returncode == 0, done.stderr + cluster.told()
        assert "handed over from first to second" in done.stdout
        before = cluster.number()
        cluster.wait(lambda: cluster.number() > before, "the second node to commit")
        status = cluster.command("status", "--json")
        assert status.returncode == 0, status.stderr
        (seat,) = json.loads(status.stdout)["seats"]
        assert (seat["holder"], seat["term"], seat["heir"]) == ("second", 2, "first"), seat
        cluster.finish(first, second)
        assert first.told("ENDING in good order"), cluster.told()
        planned = [attempt for record in cluster.commits() for attempt in record.attempts.values()]
        assert set(planned) == {min(planned)}, "an epoch was planned twice: somebody left one unfinished"
