"""Nodes of old and new code in one cluster: what is led with other code is left alone, the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.admin.cluster import cluster_standing, hand_over, visit
from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import DefinitionError
from holdfast.nodes import seat_allocation
from holdfast.nodes.zookeeper_server import ZooKeeperServer
from tests.services.harness import Running, SteadyJob, steady, wait_until

Start = Callable[..., Running]
pytestmark = pytest.mark.timeout(120)


class Seats:
    """The seats of the cluster, from outside."""

    def __init__(self, hosts: str, cluster: str) -> None:
        self._hosts, self._cluster = hosts, cluster

    @contextmanager
    def _visit(self) -> Iterator[Any]:
        with visit(ZooKeeperSettings(hosts=self._hosts), self._cluster, SystemClock()) as visited:
            yield visited

    def hand_over(self, job: str, to: str) -> None:
        with self._visit() as visited:
            assert hand_over(visited, job, to, SystemClock(), 20.0).taker == to

    def standing(self) -> dict[str, dict[str, Any]]:
        with self._visit() as visited:
            return {seat["job"]: seat for seat in cluster_standing(visited, SystemClock())["seats"]}

    def holders(self) -> dict[str, str | None]:
        return {job: seat["holder"] for job, seat in self.standing().items()}


@pytest.fixture
def seats(server: ZooKeeperServer, cluster: str, monkeypatch: pytest.MonkeyPatch) -> Seats:
    monkeypatch.setattr(seat_allocation, "BALANCE_SECONDS", 0.5)
    return Seats(server.hosts, cluster)


def jobs(version: int) -> list[SteadyJob]:
    """Only `counts` is another job in another version."""
    return [steady("counts", version), steady("sums")]


def half_upgraded(start: Start, seats: Seats) -> tuple[Running, Running]:
    """An old node that leads `sums`, and a new one that has taken `counts` from it."""
    old = start("old", *jobs(1))
    wait_until(lambda: old.told("counts: TAKING") and old.told("sums: TAKING"), "old to lead", old.story)
    new = start("new", *jobs(2), allow_other_code=True)
    wait_until(lambda: new.told("sums: TAKING"), "the seats to be balanced", new.story)
    seats.hand_over("counts", "new")
    wait_until(
        lambda: seats.holders() == {"counts": "new", "sums": "old"}, "each to hold one",
        lambda: old.story() + new.story(),
    )  # fmt: skip
    return old, new


def test_a_job_that_is_led_with_other_code_is_left_alone_and_the_others_go_on(
    start: Start, seats: Seats
) -> None:
    old, new = half_upgraded(start, seats)
    wait_until(
        lambda: old.told("counts: LEFT TO NODES OF OTHER CODE", "node new", "transform 1 differs"),
        "old to see it", old.story,
    )  # fmt: skip
    assert seats.standing()["counts"]["heir"] is None, "the old node would not take it"
    taken = sum("counts: TAKING" in text for text in old.said)
    new.leave()
    wait_until(lambda: seats.holders() == {"counts": None, "sums": "old"}, "the seat to be free", old.story)
    third = start("third", *jobs(2), allow_other_code=True)
    wait_until(lambda: third.told("counts: TAKING", "new had it"), "third to lead", third.story)
    assert sum("counts: TAKING" in text for text in old.said) == taken, old.story()
    assert old.alive, old.story()
    assert seats.holders() == {"counts": "third", "sums": "old"}


def test_a_job_that_is_led_with_our_code_again_is_stood_by_for_again(start: Start, seats: Seats) -> None:
    old, new = half_upgraded(start, seats)
    wait_until(lambda: old.told("counts: LEFT TO NODES"), "old to see it", old.story)
    start("back", *jobs(1), allow_other_code=True)
    wait_until(lambda: seats.standing()["counts"]["heir"] == "back", "back to stand by", new.story)
    seats.hand_over("counts", "back")
    wait_until(lambda: old.told("counts:", "standing by for it again"), "old to see it", old.story)
    assert seats.standing()["counts"]["heir"] is not None


def test_a_node_whose_every_job_is_led_with_other_code_ends(start: Start, seats: Seats) -> None:
    old = start("old", steady())
    wait_until(lambda: old.told("TAKING THE SEAT"), "old to lead", old.story)
    new = start("new", steady(version=2), allow_other_code=True)
    wait_until(lambda: new.told("is in cluster"), "new to stand by", new.story)
    seats.hand_over("counts", "new")
    wait_until(lambda: not old.alive, "old to end", old.story)
    assert isinstance(old.failure, DefinitionError), old.story()
    assert "job 'counts' is not as node new leads it: transform 1 differs; start" in str(old.failure)
    assert new.alive, new.story()


def test_a_new_node_is_told_which_of_its_jobs_differs(start: Start, seats: Seats) -> None:
    old = start("old", *jobs(1))
    wait_until(lambda: old.told("counts: TAKING") and old.told("sums: TAKING"), "old to lead", old.story)
    new = start("new", *jobs(2))
    wait_until(lambda: not new.alive, "new to be refused", new.story)
    assert "job 'counts' is not as node old leads it: transform 1 differs" in str(new.failure), new.story()
