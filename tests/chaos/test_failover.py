"""Two nodes, a real ZooKeeper and Spark: the leader is killed, frozen, or asked to hand over.

State and sinks must equal a run without faults, and nobody may commit after having been replaced.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from holdfast.checkpoint.store.log_records import FailoverRecord
from tests.chaos.apps import Shape
from tests.chaos.harness import show
from tests.chaos.nodes import ENDLESS, Cluster, NodeProcess

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
        cluster.wait_standing_by(first)
        cluster.finish(first, second)


class Trouble:
    """One way to make a leader be replaced. `begin`, wait for the successor, `end`."""

    def __init__(self, cluster: Cluster, leader: NodeProcess, number: int) -> None:
        self.cluster, self.leader, self.number = cluster, leader, number

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """What was hurt stands by again."""
        self.cluster.wait_standing_by(self.leader)


class Kill(Trouble):
    def begin(self) -> None:
        self.leader.kill()

    def end(self) -> None:
        self.leader.close()
        self.cluster.start(f"node-{self.number}")


class KillAndRestartZooKeeper(Kill):
    """Sessions are counted anew by the server that comes back."""

    def begin(self) -> None:
        self.cluster.server.kill()
        self.leader.kill()
        self.cluster.server.start()


class Freeze(Trouble):
    def begin(self) -> None:
        self.leader.pause_all()

    def end(self) -> None:
        self.leader.resume_all()
        super().end()


class Cut(Trouble):
    def begin(self) -> None:
        self.leader.cables.zookeeper.cut()

    def end(self) -> None:
        self.leader.cables.zookeeper.restore()
        super().end()


class HandOver(Trouble):
    def begin(self) -> None:
        done = self.cluster.command("handover")
        assert done.returncode == 0, done.stderr + self.cluster.told()


TROUBLES = (Kill, KillAndRestartZooKeeper, Freeze, Cut, HandOver)


def test_random_failovers_under_load_end_as_a_run_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever leads is hurt, by the seed, as soon as it has committed and somebody stands by.

    Three nodes, so that one can start while the others lead and are hurt.
    """
    chance, began = random.Random(SEED), time.monotonic()
    with Cluster(tmp_path, Shape(epochs=ENDLESS), epoch_interval="100ms", session="3s") as cluster:
        cluster.pair()
        cluster.start("third")
        for number in range(FAILOVERS):
            cluster.wait(lambda: bool(cluster.standing_by(cluster.leader())), "somebody beside the leader")
            known, leader = len(cluster.failovers()), cluster.leader()
            trouble = chance.choice(TROUBLES)(cluster, leader, number)
            after, what = time.monotonic() - began, type(trouble).__name__
            at = f"{what} of {leader.name} at commit {cluster.number()}"
            show(f"{after:6.0f} s  failover {number + 1} of {FAILOVERS}, seed {SEED}: {at}", capsys)
            trouble.begin()
            cluster.wait(lambda by=leader, seen=known: replaced(cluster, by, seen), f"{leader.name} replaced")
            trouble.end()
        there = [node for node in cluster.nodes if node.running]
        for node in there:
            # One that came only now would take it for an order to try again.
            cluster.wait_joined(node)
        cluster.stop(*there)
        for failover in cluster.failovers():
            show(f"{failover.node}: {failover.reason}; phases in ms {phases_ms(failover)}", capsys)


def replaced(cluster: Cluster, leader: NodeProcess, known: int) -> bool:
    """Whether a failover after the first `known` has ended with another leader's commit."""
    return len(cluster.failovers()) > known and cluster.leader() is not leader


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
