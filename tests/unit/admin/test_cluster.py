"""A cluster from outside: what is said of its seats and of its sets of replicas is one and the same."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from holdfast.admin.cluster import cluster_standing
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.cli.cluster_tables import cluster_picture, state_of
from holdfast.clock import SystemClock
from holdfast.cluster.node_records import HolderRecord, NodeRecord, PulseRecord
from holdfast.cluster.ranking import ClusterSeen, SeatSeen, seat_name
from holdfast.cluster.replica_seats import SILENT_BEATS
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime.replica import join
from holdfast.storage.local_directory import LocalStorage

BEAT_MS, NOW_MS = 1_000, 60_000


def standing(checkpoint: Path, phases: str, heard_ms: int = NOW_MS) -> dict[str, Any]:
    """Of a part whose members are in these phases; `heard_ms`: when the last of them was heard of."""
    names = [seat_name("shop.scored", number) for number, _ in enumerate(phases.split(), 1)]
    seats = {name: _seat(checkpoint, name, phase) for name, phase in zip(names, phases.split(), strict=True)}
    last = seats[names[-1]]
    seats[names[-1]] = SeatSeen(holder=last.holder, pulse=last.pulse, pulse_ms=heard_ms)
    nodes = {f"node-{name}": _node(f"node-{name}", names) for name in [*names, "that stands by"]}
    cluster: Any = SimpleNamespace(name="shop", look=lambda: ClusterSeen(nodes=nodes, seats=seats))
    return cluster_standing(cluster, SystemClock())


def _seat(checkpoint: Path, name: str, phase: str) -> SeatSeen:
    node = f"node-{name}"
    holder = HolderRecord(node=node, instance=node, since_ms=0, checkpoint=str(checkpoint), code={})
    pulse = PulseRecord(node=node, instance=node, term=1, phase=phase, beat_ms=BEAT_MS)
    return SeatSeen(holder=holder, pulse=pulse, pulse_ms=NOW_MS)


def _node(name: str, jobs: list[str]) -> NodeRecord:
    return NodeRecord(
        name=name, instance=name, host="h", pid=1, since_ms=0, standby="cold", code={job: {} for job in jobs}
    )


@pytest.mark.parametrize(
    ("phases", "survives"),
    [
        ("running running", 1),
        ("running joining", 0),
        ("running restoring", 0),
        ("running running running", 2),
    ],
)
def test_a_seat_and_its_set_survive_the_same(tmp_path: Path, phases: str, survives: int) -> None:
    told = standing(tmp_path, phases)
    (part,) = told["replicas"]
    assert part["survives"] == survives
    assert {seat["survives"] for seat in told["seats"]} == {survives}
    assert [len(part[how]) for how in ("running", "joining")] == [
        phases.split().count("running"), len(phases.split()) - phases.split().count("running"),
    ]  # fmt: skip


def test_a_frozen_member_is_not_counted_though_it_holds_its_seat(tmp_path: Path) -> None:
    told = standing(tmp_path, "running running", heard_ms=NOW_MS - (SILENT_BEATS + 1) * BEAT_MS)
    (part,) = told["replicas"]
    assert (part["silent"], part["survives"]) == (["shop.scored~2"], 0)
    assert {seat["survives"] for seat in told["seats"]} == {0}
    out = io.StringIO()
    Console(file=out, width=200).print(cluster_picture(told))
    assert out.getvalue().count("no more nodes") == 2
    assert "1 of 2 replicas run; NOTHING IS HEARD OF shop.scored~2; it survives the end of 0" in part["told"]


def test_what_the_node_before_was_heard_to_do_is_not_said_of_the_one_that_takes_over(tmp_path: Path) -> None:
    before = _seat(tmp_path, "shop", "running")
    holder = HolderRecord(node="b", instance="b", since_ms=0, checkpoint=str(tmp_path), code={})
    seats = {"shop": SeatSeen(holder=holder, pulse=before.pulse, pulse_ms=NOW_MS)}
    seen = ClusterSeen(nodes={"b": _node("b", ["shop"])}, seats=seats)
    cluster: Any = SimpleNamespace(name="shop", look=lambda: seen)
    told = cluster_standing(cluster, SystemClock())
    (seat,) = told["seats"]
    assert (seat["holder"], seat["phase"], seat["heard_ms"]) == ("b", None, None)
    assert state_of(seat, told["now_ms"]) == "starting, not heard of yet, NOBODY STANDS BY"


def test_the_seats_of_a_set_that_votes_survive_what_the_votes_allow(tmp_path: Path) -> None:
    storage, clock = LocalStorage(tmp_path), SystemClock()
    open_checkpoint(storage, "shop.scored", 4, clock, identity="id")
    join(storage, ActiveReplicas(k=2, vote=True), 1, "process", "f", 1, clock)
    told = standing(tmp_path, "running running running")
    assert [seat["survives"] for seat in told["seats"]] == [1, 1, 1]
    assert told["replicas"][0]["survives"] == 1
