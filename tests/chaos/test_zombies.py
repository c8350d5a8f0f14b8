"""A leader is frozen at a step of the protocol, replaced, and wakes up: what it writes then is counted.

Two nodes take turns. Each was started with a step at which it stops once it is armed; woken up and fenced
out, it stands by, and takes over when it is the other's turn. Every write that its processes made or tried is
on record and gets a fate: refused, orphaned, adopted. None may contradict the chain, and none be seen twice.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.checkpoint.store import names
from holdfast.steps import Step
from tests.chaos.apps import Shape
from tests.chaos.harness import show
from tests.chaos.nodes import ENDLESS, Cluster, NodeProcess
from tests.chaos.recorded_storage import read_writes
from tests.chaos.zombies import Fate, Waking, account_of, epoch_shown, waking_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3_600)]

ROUNDS = int(os.environ.get("HOLDFAST_ZOMBIES", "4"))
"""How often a leader is frozen, in each test."""
PAD = 600
"""Makes a task's results too large to travel with it: they become files of their own."""


class Rounds:
    """Freezes one node after the other, and remembers when."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._times: list[tuple[NodeProcess, float, float]] = []

    def freeze(self, leader: NodeProcess) -> float:
        """Wait until it stops at its step, and stop whatever belongs to it."""
        leader.arm()
        self._cluster.wait(lambda: leader.hit, f"{leader.name} to get to its step")
        leader.pause_all()
        return time.time()

    def wake(self, zombie: NodeProcess, stopped: float) -> None:
        self._times.append((zombie, stopped, time.time()))
        zombie.resume_all()

    def wakings(self) -> list[Waking]:
        """What became of all that was written, now that everything is over."""
        account = account_of(self._cluster.storage)
        return [
            waking_of(node.name, account, read_writes(node.writes), stopped, woken)
            for node, stopped, woken in self._times
        ]


def judged(wakings: list[Waking], capsys: pytest.CaptureFixture[str]) -> None:
    for waking in wakings:
        show(str(waking), capsys)
        assert not waking.contradictions(), waking


@pytest.mark.parametrize(
    "steps",
    [(Step.BEFORE_COMMIT, Step.COMMIT_WRITTEN), (Step.TASK_FILES_WRITTEN, Step.BEFORE_PUBLISH)],
    ids=lambda steps: "-".join(steps),
)
def test_what_a_woken_leader_writes_is_refused_or_orphaned(
    steps: tuple[Step, Step], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path, Shape(epochs=ENDLESS, pad=PAD), retain=ENDLESS) as cluster:
        leader, standby = cluster.pair(*steps)
        rounds = Rounds(cluster)
        for _ in range(ROUNDS):
            stopped = rounds.freeze(leader)
            term = cluster.term()
            cluster.wait(lambda old=term: cluster.term() > old, f"{standby.name} to commit")
            cluster.wait_progress()
            rounds.wake(leader, stopped)
            cluster.wait_standing_by(leader)
            leader, standby = standby, leader
        cluster.stop(leader, standby)
        wakings = rounds.wakings()
    judged(wakings, capsys)
    for number, waking in enumerate(wakings):
        assert not waking.late(), f"it committed or showed something after it was replaced: {waking}"
        match steps[number % 2]:
            case Step.BEFORE_COMMIT:
                assert waking.count(Fate.REFUSED, names.COMMITS) == 1, waking
            case Step.COMMIT_WRITTEN:
                commits = [fate for write, fate in waking.before if write.name.startswith(names.COMMITS)]
                assert commits[-1] is Fate.ADOPTED, waking
                assert waking.count(Fate.REFUSED, names.COMMITS) == 0, waking
            case Step.TASK_FILES_WRITTEN:
                orphans = [write for write, fate in waking.before if fate is Fate.ORPHANED]
                assert any(write.name.startswith(names.DATA) for write in orphans), waking
            case Step.BEFORE_PUBLISH:
                # The mark in the sink says that the epoch is shown: its file is tried once at most, in vain.
                assert waking.count(Fate.ADOPTED, "ledger-out-") == 0, waking
                assert waking.count(Fate.REFUSED, "ledger-out-") <= 1, waking


def test_a_commit_that_comes_before_the_successors_first_is_adopted_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are frozen just before they write the same commit number, and the old leader is woken first."""
    with Cluster(tmp_path, Shape(epochs=ENDLESS, pad=PAD), session="6s", retain=ENDLESS) as cluster:
        first, second = cluster.pair(Step.BEFORE_COMMIT, Step.BEFORE_COMMIT)
        rounds = Rounds(cluster)
        stopped = rounds.freeze(first)
        before = cluster.number()
        second.arm()
        cluster.wait(lambda: second.hit, "the second node to get to its first commit")
        assert cluster.number() == before, cluster.told()
        rounds.wake(first, stopped)
        cluster.wait(lambda: cluster.number() > before, "the first node to commit")
        second.resume_all()
        cluster.wait(lambda: cluster.term() == 2, "the second node to commit")
        cluster.wait_standing_by(first)
        assert second.told("came first; going on from it"), cluster.told()
        cluster.stop(first, second)
        wakings = rounds.wakings()
    judged(wakings, capsys)
    late = [write.name for write in wakings[0].late()]
    assert late[0] == names.commit(before + 1), wakings[0]
    # It counts, so whoever is first may show it.
    assert all(epoch_shown(name) == before + 1 for name in late[1:]), wakings[0]
