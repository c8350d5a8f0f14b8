"""Two nodes, a real ZooKeeper and Spark: the leader is killed, frozen, or asked to hand over.

State and sinks must equal a run without faults, and nobody may commit after having been replaced.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.nodes import Cluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


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


def test_a_handover_loses_no_epoch(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first, second = cluster.pair()
        done = cluster.command("handover", "--to", "second")
        assert done.returncode == 0, done.stderr + cluster.told()
        assert "handed over from first to second" in done.stdout
        before = cluster.number()
        cluster.wait(lambda: cluster.number() > before, "the second node to commit")
        status = cluster.command("status")
        assert "second (warm)" in status.stdout, status.stdout + status.stderr
        cluster.finish(first, second)
        assert first.told("ENDING in good order"), cluster.told()
        planned = [attempt for record in cluster.commits() for attempt in record.attempts.values()]
        assert set(planned) == {min(planned)}, "an epoch was planned twice: somebody left one unfinished"
