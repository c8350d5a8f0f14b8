"""The parts of one job on several nodes, with a real ZooKeeper and Spark.

Nodes are killed, frozen, cut off and asked to hand over: a part goes on elsewhere, the others go on
meanwhile, and in the end every sink and the state of every part equal a run without faults.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from holdfast.errors import DefinitionError
from tests.chaos.harness import show
from tests.chaos.part_faults import TROUBLES, HandOver, Kill, Trouble
from tests.chaos.part_nodes import NEW_APP, PartsCluster, seat_of
from tests.chaos.parts_checker import PARTS

pytestmark = pytest.mark.timeout(3_600)

FAULTS = int(os.environ.get("HOLDFAST_PART_FAULTS", "30"))
SEED = int(os.environ.get("HOLDFAST_PART_SEED", "1"))


def test_the_parts_of_a_killed_node_go_on_elsewhere_until_all_is_read(tmp_path: Path) -> None:
    with PartsCluster(tmp_path) as cluster:
        nodes = cluster.start_cold("first", "second")
        cluster.wait(lambda: len({*cluster.holders().values()}) == 2, "both to hold seats")
        cluster.wait(lambda: all(cluster.numbers().values()), "every part to commit")
        shows_seats(cluster)
        victim = cluster.holder("numbered")
        (survivor,) = (node for node in nodes if node is not victim)
        victim.kill()
        cluster.drain()
        cluster.finish(survivor)
        failover = cluster.failovers_of("numbered")[-1]
        assert (failover.node, failover.before) == (survivor.name, victim.name), cluster.told()


def shows_seats(cluster: PartsCluster) -> None:
    """`holdfast status` knows the seats of the parts, for programs and for people."""
    told = cluster.command("status", "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert {seat["job"] for seat in found["seats"]} == {seat_of(part) for part in PARTS}
    assert {seat["holder"] for seat in found["seats"]} == {node.name for node in cluster.nodes}
    assert sum(len(node["seats"]) for node in found["nodes"]) == len(PARTS)
    text = cluster.command("status").stdout
    assert all(seat_of(part) in text for part in PARTS), text


def in_short(trouble: Trouble) -> str:
    """What a fault did, in a line."""
    outage = trouble.outage()
    took = f"{trouble.ended - trouble.began:5.1f} s"
    if outage is None:
        return f"{took}  {trouble}"
    seconds, others = outage
    meanwhile = ", ".join(f"{part} {count:+}" for part, count in others.items())
    return f"{took}  {trouble}; {trouble.part} commits again after {seconds:.1f} s, meanwhile {meanwhile}"


def chosen(cluster: PartsCluster, chance: random.Random, number: int) -> Trouble:
    """A fault of whichever node holds a random part, or of one that stands by."""
    part = chance.choice((*PARTS, None))
    kind = chance.choice(
        TROUBLES if part is not None else [each for each in TROUBLES if each is not HandOver]
    )
    victim = cluster.holder(part) if part is not None else chance.choice(cluster.idle())
    return kind(cluster, victim, part, number)


def first_of(cluster: PartsCluster) -> Trouble:
    return Kill(cluster, cluster.holder("numbered"), "numbered", 0)


def goes_on_without_numbered(killed: Trouble) -> None:
    """`main` fills its channel between the death of the node of `numbered` and its next commit."""
    assert killed.hurt == ["numbered"], "they were spread at the beginning"
    outage = killed.outage()
    assert outage is not None
    assert outage[1]["main"] > 0, killed.cluster.told()


@pytest.mark.heavy
def test_random_faults_of_nodes_end_as_a_run_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    with PartsCluster(tmp_path) as cluster:
        cluster.start_cold("a", "b", "c", "d", "e")
        cluster.wait_spread()
        for number in range(FAULTS):
            cluster.wait(lambda: len(cluster.holders()) == len(PARTS), "every seat to be held")
            cluster.wait_progress_of(*PARTS)
            cluster.wait(lambda: bool(cluster.idle()), "a node that stands by")
            trouble = chosen(cluster, chance, number) if number else first_of(cluster)
            trouble.suffer()
            line = in_short(trouble)
            show(f"{trouble.began:6.0f} s  fault {number + 1} of {FAULTS}, seed {SEED}: {line}", capsys)
            if number == 0:
                goes_on_without_numbered(trouble)
        there = [node for node in cluster.nodes if node.running]
        for node in there:
            # One that came only now would take the end of the job for an order to try again.
            cluster.wait_joined(node)
        cluster.drain()
        cluster.finish(*there)


@pytest.mark.heavy
def test_a_part_with_a_passive_standby_is_followed_by_nodes_that_are_cold_otherwise(tmp_path: Path) -> None:
    with PartsCluster(tmp_path, protection="PassiveStandby()") as cluster:
        nodes = cluster.start_cold("first", "second")
        cluster.wait(lambda: len({*cluster.holders().values()}) == 2, "both to hold seats")
        cluster.wait_progress_of(*PARTS)
        victim = cluster.holder("numbered")
        (survivor,) = (node for node in nodes if node is not victim)
        cluster.wait(lambda: survivor.told("diamond.numbered: HOT"), "it to follow")
        victim.kill()
        cluster.wait(lambda: cluster.failovers_of("numbered")[-1].before == victim.name, "the takeover")
        failover = cluster.failovers_of("numbered")[-1]
        assert (failover.node, failover.standby) == (survivor.name, "hot"), cluster.told()
        for part in ("main", "joined"):
            assert {each.standby for each in cluster.failovers_of(part)} == {"cold"}, part
            assert not survivor.told(f"diamond.{part}: HOT"), cluster.told()
        cluster.drain()
        cluster.finish(survivor)


@pytest.mark.heavy
def test_a_job_in_parts_is_upgraded_node_by_node(tmp_path: Path) -> None:
    """Only `numbered` has other code. Its node is the first to go: the old nodes keep the other parts."""
    with PartsCluster(tmp_path) as cluster:
        cluster.start_cold("old-1", "old-2", "old-3")
        cluster.wait_spread()
        refuses_other_code(cluster)
        leaving = [cluster.holder(part) for part in ("numbered", "main", "joined")]
        new = []
        for number, node in enumerate(leaving):
            terms = {part: cluster.term_of(part) for part in PARTS}
            parts = cluster.held_by(node)
            new += cluster.start_cold(f"new-{number}", app=NEW_APP, more=("--allow-other-code",))
            cluster.timeline.note(f"{node.name} ({', '.join(parts)}) is to be replaced by {new[-1].name}")
            node.ask_to_end()
            cluster.wait(
                lambda before=terms, moved=parts: all(cluster.term_of(p) > before[p] for p in moved),
                f"{', '.join(parts)} to go on",
            )
            cluster.wait(lambda node=node: not node.running, f"{node.name} to end")
            assert node.code == 0, cluster.told()
            stayed = [part for part in PARTS if part not in parts]
            assert [cluster.term_of(part) for part in stayed] == [terms[part] for part in stayed], (
                cluster.told()
            )
            assert all(old.running for old in leaving[number + 1 :]), cluster.told()
        assert all(old.told("diamond.numbered: LEFT TO NODES OF OTHER CODE") for old in leaving[1:])
        cluster.wait_progress_of(*PARTS)
        cluster.timeline.note("drain")
        cluster.drain()
        cluster.judge(*new, new=True)


def refuses_other_code(cluster: PartsCluster) -> None:
    """A node with other code for one part only is told which, and by which node that is led."""
    refused, holder = cluster.start("refused", "cold", app=NEW_APP), cluster.holder("numbered").name
    cluster.wait(lambda: not refused.running, "the node to be refused")
    assert refused.code == DefinitionError.exit_code, refused.said()
    told = f"job 'diamond.numbered' is not as node {holder} leads it: operator number differs; start the same"
    assert told in refused.said()
