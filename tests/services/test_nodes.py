"""Nodes with a real ZooKeeper: sessions expire, cables are cut, the server is killed and loses its data.

The job commits to a real chain and needs no Spark: what is tested is who may commit when.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.admin.cluster import cluster_standing, hand_over, visit
from holdfast.checkpoint.chain.checkpoint import cluster_of
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.log.incidents import read_failovers
from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import DefinitionError, InputVanished, MachineError
from holdfast.nodes import node, seat_allocation
from holdfast.nodes.zookeeper_server import ZooKeeperServer
from holdfast.storage.urls import open_storage
from tests.services.cable import Cable
from tests.services.harness import (
    DEADLINE_SECONDS,
    SESSION_SECONDS,
    Running,
    Skewed,
    SteadyJob,
    SteadyRun,
    expire,
    steady,
    wait_until,
)

Start = Callable[..., Running]
pytestmark = pytest.mark.timeout(120)


class Chain:
    """What a checkpoint's chain says."""

    def __init__(self, checkpoint: Path) -> None:
        self._storage = open_storage(str(checkpoint))

    def terms(self) -> list[int]:
        """The term of each retained commit, oldest first."""
        history = History(self._storage)
        newest = history.load()
        numbers = range(max(newest.retained_from, 1), newest.number + 1)
        return [history.record(number).term for number in numbers]

    def in_order(self) -> bool:
        """Whether no leader committed after a newer one. Read once: the chain may grow meanwhile."""
        terms = self.terms()
        return terms == sorted(terms)

    def newest_of(self, term: int) -> int:
        """The number of the newest retained commit of a term."""
        history = History(self._storage)
        newest = history.load()
        numbers = range(max(newest.retained_from, 1), newest.number + 1)
        return max((number for number in numbers if history.record(number).term == term), default=0)

    def number(self) -> int:
        return History(self._storage).load().number

    def term(self) -> int:
        return (self.terms() or [0])[-1]

    def grows(self, *nodes: Running, term: int | None = None) -> None:
        """Wait for a new commit, of `term` if that is given or of a later one."""
        before = self.number()
        wait_until(
            lambda: self.number() > before + 1 and (term is None or self.term() >= term),
            f"commits of term {term}",
            lambda: "\n".join(node.story() for node in nodes),
        )


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "ck")


def leading(first: Running, chain: Chain) -> Running:
    wait_until(lambda: first.told("TAKING THE SEAT") and chain.number() > 1, f"{first.name}", first.story)
    return first


def standing_by(second: Running) -> Running:
    wait_until(lambda: second.told("is in cluster"), f"{second.name} to join", second.story)
    assert not second.told("TAKING THE SEAT"), second.story()
    return second


def test_an_expired_session_gives_the_seat_to_the_standby_and_the_old_leader_stands_by(
    start: Start, chain: Chain, tmp_path: Path
) -> None:
    a = leading(start("a"), chain)
    b = standing_by(start("b"))
    expire(a)
    wait_until(lambda: b.told("TAKING THE SEAT", "a had it"), "b to take over", b.story)
    chain.grows(a, b, term=2)
    wait_until(lambda: a.told("the run ended"), "a to stand by", a.story)
    assert a.alive
    assert chain.in_order(), "an old leader committed after a new one"
    storage = open_storage(str(tmp_path / "ck"))
    wait_until(lambda: len(read_failovers(storage)) == 2, "the failover to be written down", b.story)
    failover = read_failovers(storage)[-1]
    assert (failover.node, failover.before, failover.term) == ("b", "a", 2)
    assert failover.detect_ms is not None
    assert failover.replay_ms is not None


def test_a_leader_cut_off_pauses_before_the_standby_takes_over_and_then_stands_by(
    start: Start, chain: Chain, server: ZooKeeperServer
) -> None:
    cable = Cable(server.port)
    try:
        a = leading(start("a", at=cable.hosts), chain)
        b = standing_by(start("b"))
        cable.cut()
        wait_until(lambda: a.told("PAUSED"), "a to pause", a.story)
        at_pause = chain.number()
        wait_until(lambda: b.told("TAKING THE SEAT"), "b to take over", lambda: a.story() + b.story())
        paused = next(float(text.split()[0]) for text in a.said if "PAUSED" in text)
        taken = next(float(text.split()[0]) for text in b.said if "TAKING" in text)
        assert paused < taken, a.story() + b.story()
        chain.grows(a, b, term=2)
        assert chain.newest_of(1) <= at_pause + 1, "it went on committing: one may have been under way"
        cable.restore()
        wait_until(lambda: a.told("session has ended"), "a to learn it", a.story)
        wait_until(lambda: a.told("the run ended"), "a to stand by", a.story)
        assert chain.in_order()
    finally:
        cable.close()


def test_a_cut_that_ends_in_time_changes_nothing(start: Start, chain: Chain, server: ZooKeeperServer) -> None:
    cable = Cable(server.port)
    try:
        a = leading(start("a", at=cable.hosts), chain)
        b = standing_by(start("b"))
        cable.cut()
        time.sleep(SESSION_SECONDS / 4)  # the length of the cut is what is tested
        cable.restore()
        chain.grows(a, b)
        assert chain.term() == 1
        assert not a.told("PAUSED"), a.story()
        assert not b.told("TAKING"), b.story()
    finally:
        cable.close()


def test_a_killed_and_restarted_zookeeper_pauses_the_leader_who_then_goes_on(
    start: Start, chain: Chain, server: ZooKeeperServer
) -> None:
    a, b = leading(start("a"), chain), start("b")
    standing_by(b)
    server.kill()
    try:
        wait_until(lambda: a.told("PAUSED"), "a to pause", a.story)
        time.sleep(0.2)  # for a commit that was under way
        at_pause = chain.number()
        time.sleep(0.5)  # ten commits' worth
        assert chain.number() == at_pause, a.story()
    finally:
        server.start()
    wait_until(lambda: a.told("RESUMED"), "a to go on", a.story)
    chain.grows(a, b)
    assert chain.term() == 1, a.story() + b.story()


def test_a_zookeeper_that_lost_its_data_is_told_everything_again(
    start: Start,
    chain: Chain,
    server: ZooKeeperServer,
    cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seat_allocation, "COOL_SECONDS", 0.5)
    a = leading(start("a"), chain)
    before = cluster_of(open_storage(str(tmp_path / "ck")))
    server.kill()
    shutil.rmtree(server.data_dir / "data")
    server.start()
    wait_until(lambda: a.told("ZOOKEEPER LOST ITS DATA"), "a to notice", a.story)
    chain.grows(a, term=2)
    assert cluster_of(open_storage(str(tmp_path / "ck"))) == before, "the same cluster, under the same id"
    with visit(ZooKeeperSettings(hosts=server.hosts), cluster, SystemClock()) as visited:
        standing = cluster_standing(visited, SystemClock())
    assert [node["node"] for node in standing["nodes"]] == ["a"]
    assert standing["seats"][0]["holder"] == "a"


def test_a_handover_loses_no_epoch_and_goes_to_the_node_it_names(
    start: Start, chain: Chain, server: ZooKeeperServer, cluster: str
) -> None:
    a = leading(start("a"), chain)
    b, c = standing_by(start("b")), standing_by(start("c"))
    with visit(ZooKeeperSettings(hosts=server.hosts), cluster, SystemClock()) as visited:
        done = hand_over(visited, None, "c", SystemClock(), 20.0)
        assert (done.giver, done.taker) == ("a", "c"), a.story() + b.story() + c.story()
        chain.grows(a, c, term=2)
        assert a.told("ENDING in good order: hand-over"), a.story()
        assert not a.told("the run ended:"), "it ended by failing"
        with pytest.raises(DefinitionError, match="cannot take"):
            hand_over(visited, None, "nobody", SystemClock(), 1.0)
        standing = cluster_standing(visited, SystemClock())
        assert standing["seats"][0]["handing_over"] is None


def test_clocks_that_are_hours_apart_change_nothing(start: Start, chain: Chain, tmp_path: Path) -> None:
    """Sessions are counted by one clock, seats are won by being first, commits are ordered by the chain."""
    a = leading(start("a", clock=Skewed(-7)), chain)
    b = standing_by(start("b", clock=Skewed(5)))
    expire(a)
    wait_until(lambda: b.told("TAKING THE SEAT", "a had it"), "b to take over", b.story)
    chain.grows(a, b, term=2)
    storage = open_storage(str(tmp_path / "ck"))
    wait_until(lambda: len(read_failovers(storage)) == 2, "the failover to be written down", b.story)
    detect_ms = read_failovers(storage)[-1].detect_ms
    assert detect_ms is not None
    assert detect_ms < 10_000
    assert chain.in_order()


class DefiantJob(SteadyJob):
    """Commits without asking whether it may."""

    def start_as(self, *args, **more):  # type: ignore[no-untyped-def]
        return DefiantRun(self.name, args[0], str(args[1]), args[4], {})


class DefiantRun(SteadyRun):
    obedient = False


def test_storage_alone_stops_a_leader_that_does_not_obey(
    start: Start, chain: Chain, server: ZooKeeperServer
) -> None:
    """ZooKeeper elects, storage decides: without the politeness above, the chain is still one chain."""
    cable = Cable(server.port)
    try:
        defiant = steady()
        defiant.__class__ = DefiantJob
        a = leading(start("a", defiant, at=cable.hosts), chain)
        b = standing_by(start("b"))
        cable.cut()
        wait_until(lambda: a.told("PAUSED"), "a to be told to pause", a.story)
        at_pause = chain.number()
        wait_until(lambda: chain.number() > at_pause + 2, "a to go on all the same", a.story)
        wait_until(lambda: b.told("TAKING THE SEAT"), "b to take over", lambda: a.story() + b.story())
        chain.grows(a, b, term=2)
        wait_until(lambda: a.told("the run ended: a newer leader exists"), "a to be refused", a.story)
        assert chain.in_order()
        assert set(chain.terms()) <= {1, 2}
    finally:
        cable.close()


class StuckJob(SteadyJob):
    """Wants to commit and never can."""

    def start_as(self, *args, **more):  # type: ignore[no-untyped-def]
        return StuckRun(self.name, args[0], str(args[1]), args[4], {})


class StuckRun(SteadyRun):
    def _lead(self, name: str, checkpoint: str, options: object) -> None:
        self._wishes.permit.want()
        self._wishes.stopping.wait()
        self._wishes.permit.refuse_if_revoked()


def test_a_leader_that_cannot_commit_resigns(start: Start, chain: Chain) -> None:
    stuck = steady()
    stuck.__class__ = StuckJob
    a = start("a", stuck, resign_seconds=1.0)
    wait_until(lambda: a.told("TAKING THE SEAT"), "a to lead", a.story)
    b = start("b")
    wait_until(lambda: a.told("resigned: nothing could be committed"), "a to resign", a.story)
    wait_until(lambda: b.told("TAKING THE SEAT", "a had it", "resigned"), "b to lead", b.story)
    chain.grows(a, b)


def test_seats_are_balanced_when_a_node_joins(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seat_allocation, "BALANCE_SECONDS", 0.5)
    jobs = [steady("counts"), steady("sums")]
    a = start("a", *jobs)
    wait_until(lambda: a.told("counts: TAKING") and a.told("sums: TAKING"), "a to hold both", a.story)
    b = start("b", steady("counts"), steady("sums"))
    wait_until(lambda: b.told("sums: TAKING THE SEAT", "hand-over to b"), "b to get one", b.story)
    Chain(tmp_path / "ck" / "counts").grows(a, b)
    Chain(tmp_path / "ck" / "sums").grows(a, b, term=2)
    assert not b.told("counts: TAKING"), b.story()


def test_every_node_ends_when_the_job_has_finished(start: Start, chain: Chain) -> None:
    a, b = start("a", until="exhausted"), start("b", until="exhausted")
    wait_until(lambda: not a.alive and not b.alive, "both to end", lambda: a.story() + b.story())
    assert a.failure is None
    assert b.failure is None
    assert chain.number() == 20


def test_a_node_told_to_end_hands_its_seat_on_at_once(start: Start, chain: Chain) -> None:
    a = leading(start("a"), chain)
    b = standing_by(start("b"))
    a.leave()
    left = time.monotonic()
    wait_until(lambda: b.told("TAKING THE SEAT", "told to end"), "b to lead", b.story)
    assert time.monotonic() - left < SESSION_SECONDS, "it waited for a session to end"
    chain.grows(b, term=2)


class FailingJob(SteadyJob):
    """Fails on the node that has this object for as long as `failure` is set, once it is let; else it is as
    steady."""

    failure: Exception | None = None
    let: threading.Event

    def start_as(self, *args: Any, **more: Any) -> Any:
        if self.failure is not None:
            assert self.let.wait(DEADLINE_SECONDS)
            raise self.failure
        return super().start_as(*args, **more)


def failing(failure: Exception) -> FailingJob:
    job = steady()
    job.__class__ = FailingJob
    assert isinstance(job, FailingJob)
    job.failure, job.let = failure, threading.Event()
    return job


@pytest.mark.parametrize(
    "failure",
    [
        FileNotFoundError("/mnt/input is not there"),
        MachineError("Spark needs Java 17; install one"),
        InputVanished("file 'a' is gone; restore it"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_failure_that_may_be_the_nodes_own_gives_the_seat_to_another(
    start: Start, chain: Chain, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LOOK_SECONDS", 0.5)
    ill = failing(failure)
    a = start("a", ill)
    wait_until(lambda: a.told("TAKING THE SEAT"), "a to lead", a.story)
    b = standing_by(start("b"))
    ill.let.set()
    wait_until(lambda: a.told("FAILED HERE", str(failure)), "a to fail", a.story)
    wait_until(lambda: b.told("TAKING THE SEAT", "a had it", str(failure)), "b to lead", b.story)
    chain.grows(a, b)
    assert a.alive, a.story()
    wait_until(lambda: a.told("standing by for it again"), "a to see b's commits", a.story)
    # What it lacked is there now, and the other node leaves.
    ill.failure = None
    b.leave()
    wait_until(lambda: a.told("TAKING THE SEAT", "b had it"), "a to lead", a.story)
    chain.grows(a, term=2)


def test_a_job_that_failed_on_every_node_is_over_and_each_is_shown(
    start: Start, server: ZooKeeperServer, cluster: str
) -> None:
    first, second = failing(OSError("no mount")), failing(OSError("no java"))
    a = start("a", first)
    wait_until(lambda: a.told("TAKING THE SEAT"), "a to lead", a.story)
    b = standing_by(start("b", second))
    first.let.set()
    wait_until(lambda: b.told("TAKING THE SEAT", "no mount"), "b to lead", b.story)
    settings = ZooKeeperSettings(hosts=server.hosts, session_seconds=SESSION_SECONDS)
    with visit(settings, cluster, SystemClock()) as visited:
        standing = cluster_standing(visited, SystemClock())
        assert [each["unfit"] for each in standing["nodes"]] == [{"counts": "no mount"}, {}]
        assert standing["seats"][0]["heir"] is None
        second.let.set()
        wait_until(lambda: not a.alive and not b.alive, "both to end", lambda: a.story() + b.story())
        (seat,) = cluster_standing(visited, SystemClock())["seats"]
    assert seat["over"]["state"] == "failed"
    assert seat["over"]["error"] == "it failed on every node: a: no mount; b: no java"
    assert (str(a.failure), str(b.failure)) == ("no mount", "no java")


def test_a_failure_of_the_job_itself_ends_it_for_all(start: Start) -> None:
    failure = DefinitionError("two operators have uid 'x'; rename one")
    broken = failing(failure)
    a = start("a", broken)
    wait_until(lambda: a.told("TAKING THE SEAT"), "a to lead", a.story)
    b = standing_by(start("b"))
    broken.let.set()
    wait_until(lambda: not a.alive and not b.alive, "both to end", lambda: a.story() + b.story())
    assert a.failure is failure
    assert b.failure is None
    assert not b.told("TAKING THE SEAT"), b.story()
