"""What a node does with the seats of a part that several nodes run together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast.cluster.node_records import HolderRecord, NodeRecord, OverRecord, PulseRecord, WishRecord
from holdfast.cluster.ranking import ClusterSeen, SeatSeen, seat_name
from holdfast.cluster.seat_lease import Limits, Stage
from holdfast.errors import DefinitionError, UserCodeError
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.nodes.job_seat import JobSeat
from holdfast.nodes.node import Node
from holdfast.nodes.registration import NodeContext
from holdfast.nodes.seat_allocation import SeatKeeper
from holdfast.runtime.parts.part_jobs import part_jobs
from holdfast.testing.clocks import ManualClock
from tests.unit.nodes.test_job_on_node import Count

HERE, SEATS = "here", ("shop.main", "shop.main~2", "shop.main~3")


class FakeSeat:
    """A seat in a cluster of one test."""

    def __init__(self, cluster: FakeCluster, job: str) -> None:
        self._cluster, self._job = cluster, job

    def take(self, holder: HolderRecord) -> int | None:
        if self._job in self._cluster.holders:
            return None
        self._cluster.holders[self._job] = holder
        return 1

    def end(self, over: OverRecord) -> None:
        self._cluster.over[self._job] = over

    def set_pulse(self, pulse: PulseRecord) -> None:
        self._cluster.pulses[self._job] = pulse

    def wish(self, wish: WishRecord) -> None:
        raise AssertionError("nothing is to be given away here")

    def unwish(self) -> None:
        pass

    def release(self) -> None:
        del self._cluster.holders[self._job]


class FakeCluster:
    """Seats that are held or over, and the nodes that are there."""

    def __init__(self) -> None:
        self.holders: dict[str, HolderRecord] = {}
        self.pulses: dict[str, PulseRecord] = {}
        self.over: dict[str, OverRecord] = {}

    def seat(self, job: str) -> FakeSeat:
        return FakeSeat(self, job)

    def look(self, watch: Callable[[], None]) -> ClusterSeen:
        nodes = {HERE: node(HERE), **{each.node: node(each.node) for each in self.holders.values()}}
        seats = {
            job: SeatSeen(
                holder=self.holders.get(job), over=self.over.get(job), pulse=self.pulses.get(job), pulse_ms=1
            )
            for job in SEATS
        }  # fmt: skip
        return ClusterSeen(nodes=nodes, seats=seats)


def node(name: str) -> NodeRecord:
    code = {job: {"operator count": "old"} for job in SEATS}
    return NodeRecord(name=name, instance=name, host="h", pid=1, since_ms=0, standby="cold", code=code)


def holder(name: str, since_ms: int = 0, code: str = "old") -> HolderRecord:
    return HolderRecord(
        node=name, instance=name, since_ms=since_ms, checkpoint="c", code={"operator count": code}
    )


class Here:
    """This node."""

    def __init__(self, root: Path, survive: int = 1, *, vote: bool = False) -> None:
        self.cluster, self.said = FakeCluster(), list[str]()
        registration = SimpleNamespace(
            name=HERE, instance=HERE, standby="cold", cluster=self.cluster, tell=lambda lags: None,
            mark_checkpoint=lambda job, move: None, other_code=_other_code,
        )  # fmt: skip
        self.clock = ManualClock()
        context = NodeContext(
            registration=cast(Any, registration), owner="o", clock=self.clock, say=self.said.append,
            limits=lambda: Limits(session_seconds=9.0, resign_seconds=60.0), on_progress=lambda now: None,
        )  # fmt: skip
        self.seats = {job.name: JobSeat(job, context) for job in _jobs(root, vote)}
        for seat in self.seats.values():
            seat.fellows = tuple(each for each in self.seats.values() if each is not seat)
        self.keeper = SeatKeeper(context, self.seats, survive)

    def turn(self) -> list[str]:
        """Look and seek, as a node does; gives the seats that it holds then."""
        assert self.keeper.look(lambda: None)
        self.keeper.seek()
        return [job for job, held in self.cluster.holders.items() if held.node == HERE]


def _other_code(job: JobOnNode, holder: HolderRecord) -> str:
    return "" if holder.code == {"operator count": "old"} else "other code"


def _jobs(root: Path, vote: bool) -> list[JobOnNode]:
    job = hf.Job("shop")
    part = job.part("main", protection=hf.ActiveReplicas(k=2, vote=vote))
    rows = job.source(hf.MemorySource([(1,)], schema="n long"), uid="rows", part=part)
    rows.key_by("n").process(Count(1), uid="count").sink(hf.FileSink(root, format="json"), uid="out")
    (found,) = part_jobs(job.graph(), str(root))
    return [JobOnNode(found.in_seat(seat), found.checkpoint, {}) for seat in found.seats]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr("holdfast.nodes.job_seat.Run", lambda *given: SimpleNamespace(progress=None))
    return Here(tmp_path)


def test_a_node_takes_one_of_several_free_seats_of_a_part(here: Here) -> None:
    assert tuple(seat_name("shop.main", seat) for seat in (1, 2, 3)) == SEATS
    assert here.turn() == ["shop.main"]
    assert here.turn() == ["shop.main"]
    assert [seat.stage for seat in here.seats.values()].count(Stage.STANDING_BY) == 2


def test_a_part_that_has_come_to_its_end_has_done_so_in_its_empty_seats_too(here: Here) -> None:
    here.cluster.holders["shop.main~2"] = holder("there")
    here.turn()
    here.keeper.end("shop.main", "finished")
    assert sorted(here.cluster.over) == sorted(SEATS)
    assert here.keeper.look(lambda: None)
    assert here.keeper.all_over


def test_a_part_that_failed_in_one_seat_may_go_on_in_the_others(here: Here) -> None:
    here.keeper.end("shop.main~2", "failed", "why")
    assert list(here.cluster.over) == ["shop.main~2"]


def fail(here: Here, job: str) -> Any:
    """Let the run of a seat end with what is an error of the job; gives the node, as far as it minds that."""
    node: Any = SimpleNamespace(
        _keeper=here.keeper, _say=here.said.append, _leaving=threading.Event(), told_to_leave=False,
        _failure=None, _seats=here.seats,
    )  # fmt: skip
    failure = UserCodeError("count", 3, "1", "(1,)", "it broke")
    run: Any = SimpleNamespace(failure=failure, is_handed_on=False, progress=None)
    here.seats[job].run = run
    Node._ended(node, here.seats[job], run)
    return node


def test_a_seat_whose_member_failed_is_left_to_a_node_that_stands_by(here: Here) -> None:
    here.cluster.holders["shop.main~2"] = holder("there")
    here.turn()
    assert here.turn() == ["shop.main"]
    node = fail(here, "shop.main")
    assert (here.cluster.over, node._failure) == ({}, None)
    assert any("shop.main: FAILED HERE, left to the other nodes" in text for text in here.said)
    assert "shop.main" not in here.cluster.holders
    here.clock.advance(timedelta(minutes=1))
    assert here.turn() == [], "also of the other free seat: it would fail there as well"


def test_a_part_whose_last_member_failed_is_over_in_that_seat(here: Here) -> None:
    here.turn()
    assert here.turn() == ["shop.main"]
    node = fail(here, "shop.main")
    assert [over.state for over in here.cluster.over.values()] == ["failed"]
    assert isinstance(node._failure, UserCodeError)


def test_a_part_whose_newest_member_has_other_code_is_left_to_nodes_of_that_code(here: Here) -> None:
    """Also its free seats: there the two would take turns in founding sets of their own."""
    here.cluster.holders["shop.main~2"] = holder("there", since_ms=1)
    here.cluster.holders["shop.main~3"] = holder("newer", since_ms=2, code="new")
    with pytest.raises(DefinitionError, match="start the same code"):
        here.turn()
    assert all(seat.job.superseded for seat in here.seats.values())
    assert "shop.main" not in here.cluster.holders


def test_a_member_goes_on_until_those_of_other_code_have_founded_their_set(here: Here) -> None:
    assert here.turn() == ["shop.main"]
    here.cluster.holders["shop.main~2"] = holder("newer", since_ms=2, code="new")
    assert here.turn() == ["shop.main"]
    assert not any(seat.job.superseded for seat in here.seats.values())


@pytest.mark.parametrize(
    ("vote", "survive", "lacks"), [(False, 2, 0), (False, 3, 1), (True, 1, 0), (True, 2, 1)]
)
def test_nodes_that_lack_are_those_without_which_too_few_would_be_left(
    tmp_path: Path, vote: bool, survive: int, lacks: int
) -> None:
    """There are three nodes. Of a set that votes two have to be left, of any other part one."""
    here = Here(tmp_path, survive, vote=vote)
    here.cluster.holders = {SEATS[1]: holder("there"), SEATS[2]: holder("yonder")}
    here.keeper.look(lambda: None)
    told = [text for text in here.said if "LACKS NODES" in text]
    assert len(told) == (len(SEATS) if lacks else 0)
    assert all(text.endswith(f"is to survive {survive}; start {lacks} more") for text in told)


def test_a_node_says_what_the_part_lacks_until_enough_members_run(here: Here) -> None:
    first = "shop.main"
    assert here.turn() == [first]
    assert here.cluster.pulses[first].beat_ms == 900, "others can tell when a sign of life is overdue"
    lacks = f"{first}: LACKS NODES: it survives the end of 0, and is to survive 1; start 1 more"
    assert lacks in here.said
    here.cluster.holders["shop.main~2"] = holder("there")
    for job, phase in ((first, "running"), ("shop.main~2", "joining")):
        here.cluster.pulses[job] = PulseRecord(node="n", instance=_instance(job), phase=phase)
    here.said.clear()
    here.turn()
    waits = "LACKS MEMBERS: 0 of its members may end unnoticed, instead of 1; wait until 2 run"
    empty = "NO NODE HAS shop.main~3: start 1 more; it survives the end of"
    assert f"{first}: {waits}" in here.said
    assert f"{first}: 1 of 3 replicas run, 1 is joining; {empty} 0 more nodes" in here.said
    here.cluster.pulses["shop.main~2"] = PulseRecord(node="n", instance="there", phase="running")
    here.said.clear()
    here.turn()
    assert f"{first}: there are nodes enough: it survives the end of 1" in here.said
    assert f"{first}: 2 of 3 replicas run; {empty} 1 more node" in here.said
    here.said.clear()
    here.turn()
    assert here.said == []


def _instance(job: str) -> str:
    return HERE if job == "shop.main" else "there"
