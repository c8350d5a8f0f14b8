"""A part with active replicas on several nodes, with a real ZooKeeper and Spark.

Members are killed, frozen, told to leave and asked for things: the others go on meanwhile, a node that stands
by takes the empty seat, and in the end the sink and the state equal a run without faults.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import deque
from itertools import cycle, islice
from pathlib import Path

import pytest

from holdfast.errors import DefinitionError
from holdfast.steps import Step
from tests.chaos.harness import show
from tests.chaos.nodes import NodeProcess
from tests.chaos.part_nodes import NEW_APP, PartsCluster, seat_of
from tests.chaos.parts_checker import PARTS
from tests.chaos.replica_nodes import PART, ReplicasCluster, largest_after, members_of

pytestmark = pytest.mark.timeout(3_600)

KILLS = int(os.environ.get("HOLDFAST_REPLICA_KILLS", "20"))
FREEZES = int(os.environ.get("HOLDFAST_REPLICA_FREEZES", "6"))
MIXED_KILLS = int(os.environ.get("HOLDFAST_MIXED_KILLS", "8"))
SEED = int(os.environ.get("HOLDFAST_PART_SEED", "1"))
JOINING = (Step.TERM_CLAIMED, Step.RECOVERY_READ)
"""What a node passes as it becomes a member."""
LEADING = (Step.SNAPSHOT_WRITTEN, Step.FLOOR_RAISED, Step.RETIRED)
"""What only the member does whose commits come first. It is the same one for a long time, or for ever."""
STEPS = (*(step for step in Step if step not in JOINING), *JOINING)


def test_when_a_member_is_killed_the_other_goes_on_and_a_third_node_takes_the_seat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ReplicasCluster(tmp_path) as cluster:
        cluster.start_cold("first", "second", "third")
        members = cluster.wait_members(2)
        victim, survivor = members[1], members[2]
        cluster.wait_progress_of(PART)
        before, killed_at = cluster.number_of(PART), time.time()
        victim.kill()
        third = cluster.wait_replaced(victim)
        cluster.wait(lambda: cluster.failovers_of(PART)[-1].node == third.name, "a record of the takeover")
        failover = cluster.failovers_of(PART)[-1]
        assert failover.before == victim.name, cluster.told()
        assert failover.commit > before + 1, "the other went on before the seat was taken"
        assert cluster.term_of(PART) == 1, "members come and go under one term"
        cluster.drain()
        cluster.finish(survivor, third)
        (after,) = largest_after(cluster.shown_at(), [killed_at], 5.0)
        show(f"{cluster.gaps()}; {after:.2f} s after the kill; {protected_again(cluster)}", capsys)


def protected_again(cluster: PartsCluster) -> str:
    """How long the newest takeover of a seat took, from the last sign of life of the member before."""
    last = cluster.failovers_of(PART)[-1]
    phases = (last.detect_ms, last.take_over_ms, last.restore_ms, last.replay_ms)
    told = " + ".join(f"{(phase or 0) / 1_000:.1f}" for phase in phases)
    return f"whole again after {sum(phase or 0 for phase in phases) / 1_000:.1f} s ({told})"


class Doomed:
    """Nodes that each die at a step of their own, the oldest first."""

    def __init__(self, cluster: ReplicasCluster, steps: list[Step]) -> None:
        self.cluster, self._steps = cluster, deque(enumerate(steps))
        self.waiting: list[tuple[NodeProcess, Step]] = []

    def start(self) -> None:
        """Start the next, if there is one; else one that lives on."""
        number, step = self._steps.popleft() if self._steps else (len(self.cluster.nodes), None)
        node = self.cluster.start(f"n{number}", "cold", stop_at=step)
        self.cluster.wait_joined(node)
        self.cluster.favour_members()
        if step is not None:
            self.waiting.append((node, step))
            if step in JOINING:
                node.arm()

    def next(self) -> tuple[NodeProcess, Step]:
        """The next that gets to its step. One that does so as it joins is the first; the others wait until
        the set is whole: all members run, so they are warm."""
        joining = [each for each in self.waiting if each[1] in JOINING]
        self.cluster.wait(
            lambda: len(self.cluster.members()) == 2 or any(node.hit for node, _ in joining),
            "a whole set, or a step as a node joins",
        )
        self.cluster.favour_members()
        victim, step = next((each for each in joining if each[0].hit), self.waiting[0])
        self.waiting.remove((victim, step))
        if step not in JOINING:
            victim.arm()
        while step in LEADING and not victim.hit:
            self._give_lead(victim)
        self.cluster.wait(lambda: victim.hit, f"{victim.name} to get to {step}")
        return victim, step

    def _give_lead(self, member: NodeProcess) -> None:
        """Hold the others up for a moment, and see for some commits whether that was enough."""
        others = [node for node in self.cluster.members().values() if node is not member]
        for node in others:
            node.pause_all()
        self._wait_commits(1, member)
        for node in others:
            node.resume_all()
        self._wait_commits(20, member)

    def _wait_commits(self, commits: int, member: NodeProcess) -> None:
        """Wait for so many commits, or until a member gets to its step."""
        until = self.cluster.number_of(PART) + commits
        self.cluster.wait(lambda: member.hit or self.cluster.number_of(PART) >= until, f"commit {until}")


@pytest.mark.heavy
def test_killed_at_every_step_a_member_is_not_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = list(islice(cycle(STEPS), KILLS))
    with ReplicasCluster(tmp_path, retain=5) as cluster:
        doomed, moments = Doomed(cluster, steps), []
        for _ in range(3):
            doomed.start()
        cluster.wait_members(2)
        while doomed.waiting:
            victim, step = doomed.next()
            moments.append(time.time())
            victim.kill()
            victim.close()
            cluster.timeline.note(f"{victim.name} is killed at {step}")
            cluster.wait_progress_of(PART, commits=2)
            doomed.start()
            told = told_gaps(cluster, moments[-1])
            show(f"kill {len(moments)} of {KILLS}, at {step}: {told}", capsys)
        cluster.wait_members(2)
        there = [node for node in cluster.nodes if node.running]
        cluster.drain()
        cluster.finish(*there)
        show(in_short(cluster, moments), capsys)


def told_gaps(cluster: ReplicasCluster, moment: float) -> str:
    """The gap that a fault fell into, and the largest until the set is whole, or nearly so."""
    shown = cluster.shown_at()
    (hit,), (later,) = largest_after(shown, [moment]), largest_after(shown, [moment], 5.0)
    return f"a gap of {hit:.2f} s, then at most {later:.2f} s"


def in_short(cluster: ReplicasCluster, moments: list[float]) -> str:
    """The gaps, over all and after the faults at these times, and how often members were out of step."""
    gaps, after = cluster.gaps(), max(largest_after(cluster.shown_at(), moments, 5.0))
    adopted = sum(node.times_told("came first; going on from it") for node in cluster.nodes)
    failed = sum(node.times_told("FAILURE") for node in cluster.nodes)
    behind = sum(node.times_told("BEHIND") for node in cluster.nodes)
    return (
        f"{gaps}; after faults at most {after:.2f} s ({after / gaps.usual:.1f} times the median); {adopted} "
        f"times work was thrown away, {behind} times a member was behind, {failed} failures"
    )


@pytest.mark.heavy
def test_a_member_that_is_frozen_does_no_harm_when_it_wakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ReplicasCluster(tmp_path) as cluster:
        cluster.start_cold("a", "b", "c")
        moments = []
        for number in range(FREEZES):
            members = cluster.wait_members(2)
            cluster.wait_progress_of(PART, commits=2)
            victim, replaced = members[1 + number // 2 % 2], number % 2 == 0
            cluster.timeline.note(f"{victim.name} is frozen")
            moments.append(time.time())
            victim.pause_all()
            if replaced:
                cluster.wait_replaced(victim)
            else:
                cluster.wait_progress_of(PART, commits=3)
            victim.resume_all()
            if replaced:
                cluster.wait_standing_by(victim)
            cluster.wait_progress_of(PART, commits=2)
            told = told_gaps(cluster, moments[-1])
            kind = "until it was replaced" if replaced else "for three commits"
            show(f"{victim.name} was frozen {kind}: {told}", capsys)
        cluster.wait_members(2)
        cluster.drain()
        cluster.finish(*cluster.nodes)
        show(in_short(cluster, moments), capsys)


@pytest.mark.heavy
def test_parts_of_three_protections_survive_kills_of_random_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    with PartsCluster(tmp_path, protection="ActiveReplicas(k=1)", joined_by="PassiveStandby()") as cluster:
        cluster.start_cold("a", "b", "c", "d")
        for number in range(MIXED_KILLS):
            cluster.wait(
                lambda: len(cluster.holders()) == len(PARTS) and len(members_of(cluster)) == 2,
                "every seat to be held, and both members to run",
            )
            cluster.wait_progress_of(*PARTS)
            victim = chance.choice([node for node in cluster.nodes if node.running])
            seats = cluster.timeline.seen.held_by(victim.name)
            cluster.timeline.note(f"{victim.name} is killed")
            at = time.time()
            victim.kill()
            victim.close()
            cluster.start_cold(f"n{number}")
            cluster.wait_progress_of(*PARTS, commits=2)
            took = time.time() - at
            show(f"kill {number + 1}: {victim.name} with {seats}; all go on after {took:.1f} s", capsys)
        there = [node for node in cluster.nodes if node.running]
        cluster.drain()
        cluster.finish(*there)


@pytest.mark.heavy
def test_what_a_user_asks_of_a_part_with_replicas(tmp_path: Path) -> None:
    """Three seats and at first two nodes: what is missing is said, and everything can be asked for."""
    with ReplicasCluster(tmp_path, protection="ActiveReplicas(k=2)", seats=3) as cluster:
        first, second = cluster.start_cold("a", "b")
        cluster.wait_members(2)
        says_what_is_missing(cluster)
        refused = cluster.command("handover", "--job", seat_of(PART))
        assert refused.returncode != 0, refused.stdout
        assert "start one first" in refused.stderr
        cluster.start_cold("c", "d")
        cluster.wait_members(3)
        term = cluster.term_of(PART)
        hands_over(cluster)
        takes_a_savepoint(cluster)
        assert cluster.term_of(PART) == term, "members come and go under one term"
        rescales(cluster)
        leaves(cluster)
        asked = cluster.run("stop", "--checkpoint", cluster.url, "--timeout", "3m")
        assert asked.returncode == 0, asked.stderr + cluster.told()
        cluster.finish(*(node for node in cluster.nodes if node not in (first, second) or node.running))


def says_what_is_missing(cluster: ReplicasCluster) -> None:
    told = json.loads(cluster.command("status", "--json").stdout)
    (part,) = told["replicas"]
    assert (part["part"], part["seats"], part["survives"]) == (seat_of(PART), 3, 1), part
    assert (len(part["running"]), len(part["empty"])) == (2, 1)
    text = " ".join(cluster.command("status").stdout.split())
    empty = part["empty"][0]
    words = f"2 of 3 replicas run; NO NODE HAS {empty}: start 1 more; it survives the end of 1 more node"
    assert words in text, text
    cluster.wait(lambda: any(node.told(words) for node in cluster.nodes), "the nodes to say so")


def hands_over(cluster: ReplicasCluster) -> None:
    giver = cluster.members()[2]
    done = cluster.command("handover", "--job", seat_of(PART, 2))
    assert done.returncode == 0, done.stderr + cluster.told()
    cluster.wait(
        lambda: len(cluster.members()) == 3 and cluster.members()[2] is not giver, "the seat to change hands"
    )
    assert giver.running, cluster.told()


def takes_a_savepoint(cluster: ReplicasCluster) -> None:
    done = cluster.run("savepoint", str(cluster.root / "savepoint"), "--checkpoint", cluster.url)
    assert done.returncode == 0, done.stderr + cluster.told()


def rescales(cluster: ReplicasCluster) -> None:
    term = cluster.term_of(PART)
    done = cluster.run("rescale", "--parallelism", "3", "--checkpoint", cluster.url)
    assert done.returncode == 0, done.stderr + cluster.told()
    cluster.wait(lambda: cluster.term_of(PART) > term, "a set with other shards")
    cluster.wait_members(3)
    status = cluster.run("status", "--json", "--checkpoint", cluster.url)
    assert json.loads(status.stdout)["parts"][PART]["checkpoint"]["parallelism"] == 3, status.stdout


def leaves(cluster: ReplicasCluster) -> None:
    """A node that is told to end gives its seat up, and another takes it."""
    leaving, term = cluster.members()[1], cluster.term_of(PART)
    leaving.ask_to_end()
    cluster.wait(lambda: not leaving.running, f"{leaving.name} to end")
    assert leaving.code == 0, cluster.told()
    cluster.wait_members(3)
    assert cluster.term_of(PART) == term, cluster.told()


@pytest.mark.heavy
def test_a_part_with_replicas_is_upgraded_node_by_node(tmp_path: Path) -> None:
    """The first node of newer code founds a set of its own. The old nodes go on until then, and leave the
    part to nodes of that code."""
    with ReplicasCluster(tmp_path) as cluster:
        leaving, last = cluster.start_cold("old-1", "old-2")
        cluster.wait_members(2)
        cluster.wait_progress_of(PART)
        new = cluster.start_cold("new-1", app=NEW_APP, more=("--allow-other-code",))
        leaving.ask_to_end()
        cluster.wait(lambda: not leaving.running, f"{leaving.name} to end")
        assert leaving.code == 0, cluster.told()
        cluster.wait_progress_of(PART)
        assert last.running, cluster.told()
        cluster.wait(lambda: not last.running, f"{last.name} to leave the part to the newer code")
        assert last.code == DefinitionError.exit_code, cluster.told()
        assert last.told(seat_of(PART), "LEFT TO NODES OF OTHER CODE"), cluster.told()
        new += cluster.start_cold("new-2", app=NEW_APP, more=("--allow-other-code",))
        cluster.wait_members(2)
        assert cluster.term_of(PART) == 2, "one set of old code, and one of new"
        cluster.wait_progress_of(PART)
        cluster.drain()
        cluster.finish(*new)
