"""The seats of the parts of a job, on nodes with a real ZooKeeper. What runs is a double without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.admin.cluster import cluster_standing, visit
from holdfast.checkpoint.chain.checkpoint import read_layout
from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import DefinitionError, FencedOut, HoldfastError, RestoreError
from holdfast.graph.protection import Protection
from holdfast.nodes import seat_allocation
from holdfast.nodes.zookeeper_server import ZooKeeperServer
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.parts.part_jobs import PartJob
from holdfast.runtime.progress import Listener, Progress
from holdfast.storage.urls import open_storage
from tests.services.harness import DEADLINE_SECONDS, Running, wait_until

Start = Callable[..., Running]
pytestmark = pytest.mark.timeout(120)


class PartRun:
    """Ends when it is told to."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes, self.over = wishes, threading.Event()
        self.failure: Exception | None = None

    @property
    def running(self) -> bool:
        return not (self.over.is_set() or self.wishes.stopping.is_set())

    def wait(self, timeout: float | None = None) -> None:
        if self.running:
            self.over.wait(timeout)
        if self.over.is_set() and self.failure is not None:
            raise self.failure

    def fail(self, failure: Exception) -> None:
        self.failure = failure
        self.over.set()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, PartRun]:
    """The newest run of each part."""
    found: dict[str, PartRun] = {}

    def start_as(
        part: PartJob, wishes: Wishes, checkpoint: str, spark: Any, note: Listener, *more: Any
    ) -> PartRun:
        found[part.part] = PartRun(wishes)
        note(Progress(job=part.part, term=1))
        return found[part.part]

    monkeypatch.setattr(PartJob, "start_as", start_as)
    return found


def chain_of_three(
    out: Path, middle_is: Protection | None = None, more: hf.Source | None = None, fourth: bool = False
) -> hf.Job:
    """`fourth`: another part reads the last; `more`: is read in a part that has nothing to do with these."""
    job = hf.Job("three")
    rows = job.source(hf.MemorySource([("a", 1)], schema="word string, n long"), uid="words")
    middle = rows.into(job.part("middle", protection=middle_is or hf.Rollback()), uid="to-middle")
    last = middle.into(job.part("last"), uid="to-last")
    last.sink(hf.FileSink(out, format="json"), uid="out")
    if fourth:
        fourth_rows = last.into(job.part("fourth"), uid="to-fourth")
        fourth_rows.sink(hf.FileSink(out / "fourth", format="json"), uid="fourth-out")
    if more is not None:
        aside = job.source(more, uid="more", part=job.part("aside"))
        aside.sink(hf.FileSink(out / "aside", format="json"), uid="aside-out")
    return job


def holders(server: ZooKeeperServer, cluster: str) -> dict[str, str]:
    """Seat -> the node that holds it, as it is shown."""
    with visit(ZooKeeperSettings(hosts=server.hosts), cluster, SystemClock()) as visited:
        return {seat["job"]: seat["holder"] for seat in cluster_standing(visited, SystemClock())["seats"]}


def spread(server: ZooKeeperServer, cluster: str) -> bool:
    return sorted(map(str, holders(server, cluster).values())) == ["a", "b", "c"]


def ended(run: PartRun) -> bool:
    """Whether the parts before it are known to be over."""
    return not run.wishes.parts_before_run()


def test_a_part_reads_on_until_the_parts_before_it_are_over(
    start: Start, runs: dict[str, PartRun], tmp_path: Path
) -> None:
    """Also when they were over once, and are run again."""
    for number in range(2):
        runs.clear()
        a = start(f"a-{number}", chain_of_three(tmp_path / "out"), until="exhausted")
        wait_until(lambda: len(runs) == 3, "all parts to run", a.story)
        assert [ended(runs[part]) for part in ("main", "middle", "last")] == [True, False, False], a.story()
        runs["main"].over.set()
        wait_until(lambda: ended(runs["middle"]), "the middle to know that the first is over", a.story)
        assert not ended(runs["last"]), a.story()
        runs["middle"].over.set()
        wait_until(lambda: ended(runs["last"]), "the last to know that the middle is over", a.story)
        runs["last"].over.set()
        a.thread.join(DEADLINE_SECONDS)
        assert not a.alive, a.story()
        assert a.failure is None, a.story()


@pytest.mark.parametrize("failing", ["main", "last"])
def test_a_failed_part_ends_the_others_of_a_job_that_ends_by_itself(
    start: Start,
    runs: dict[str, PartRun],
    tmp_path: Path,
    server: ZooKeeperServer,
    cluster: str,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
) -> None:
    """Those after it wait for rows, those before it for room in a channel."""
    monkeypatch.setattr(seat_allocation, "BALANCE_SECONDS", 0.5)
    nodes = []
    for name in "abc":
        nodes.append(start(name, chain_of_three(tmp_path / "out"), until="exhausted"))
        wait_until(lambda node=nodes[-1]: node.told("is in cluster"), f"{name} to be there", nodes[-1].story)

    def story() -> str:
        return "\n".join(node.story() for node in nodes)

    wait_until(lambda: spread(server, cluster), "each to hold one", story)
    wait_until(lambda: all(run.running for run in runs.values()), "all parts to run there", story)
    held = holders(server, cluster)[f"three.{failing}"]
    runs[failing].fail(RestoreError("its checkpoint is gone; restore it"))
    for node in nodes:
        node.thread.join(DEADLINE_SECONDS)
        assert not node.alive, story()
        assert "its checkpoint is gone; restore it" in str(node.failure), story()
        if node.name != held:
            assert f"three.{failing} has failed" in str(node.failure), story()
    assert all(run.wishes.stopping.is_set() for part, run in runs.items() if part != failing), "in good order"


def test_a_failed_part_leaves_the_others_of_a_job_without_end_alone(
    start: Start, runs: dict[str, PartRun], tmp_path: Path
) -> None:
    a = start("a", chain_of_three(tmp_path / "out"))
    wait_until(lambda: len(runs) == 3, "all parts to run", a.story)
    runs["main"].fail(RestoreError("its checkpoint is gone; restore it"))
    wait_until(lambda: a.told("three.main: FAILED"), "the failure to be told", a.story)
    b = start("b", chain_of_three(tmp_path / "out"))
    wait_until(lambda: runs["main"].running, "it to be tried again", a.story)
    assert runs["middle"].running, a.story()
    assert runs["last"].running, a.story()
    b.leave()
    a.leave()


@pytest.mark.parametrize("how", ["another node joins", "its node ends"])
def test_a_part_that_ends_because_the_job_stops_is_taken_on_by_no_node(
    start: Start, runs: dict[str, PartRun], tmp_path: Path, server: ZooKeeperServer, cluster: str, how: str
) -> None:
    """A node joins, or ends, while sinks show what came before the barrier at which the job stops."""
    a = start("a", chain_of_three(tmp_path / "out"))
    wait_until(lambda: len(runs) == 3, "all parts to run", a.story)
    first = dict(runs)
    for run in first.values():
        run.wishes.job_stops.set()
    b = start("b", chain_of_three(tmp_path / "out"))
    wait_until(lambda: b.told("is in cluster"), "the other to be there", b.story)
    if how == "its node ends":
        a.leave()
    wait_until(lambda: any(run.wishes.leaving.is_set() for run in first.values()), "one to be given", a.story)

    def seen_to() -> bool:
        with visit(ZooKeeperSettings(hosts=server.hosts), cluster, SystemClock()) as visited:
            seats = cluster_standing(visited, SystemClock())["seats"]
        over = {seat["job"] for seat in seats if seat["over"] is not None}
        given = {part for part, run in first.items() if run.wishes.leaving.is_set()}
        return all(f"three.{part}" in over or runs[part] is not first[part] for part in given)

    wait_until(seen_to, "what was given to be over, or to be taken", b.story)
    assert runs == first, b.story()
    for run in first.values():
        run.over.set()


def test_the_seats_of_parts_are_shared_by_the_nodes_and_shown(
    start: Start, runs: dict[str, PartRun], tmp_path: Path, server: ZooKeeperServer, cluster: str
) -> None:
    for name in "abc":
        one = start(name, chain_of_three(tmp_path / "out"))
        wait_until(lambda node=one: node.told("is in cluster"), f"{name} to be there", one.story)

    wait_until(lambda: spread(server, cluster), "each to hold one", one.story)
    assert sorted(holders(server, cluster)) == ["three.last", "three.main", "three.middle"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"fourth": True}, "job 'three.last' is not as node a leads it: outlet to-fourth is only here"),
        ({"more": hf.MemorySource([], schema="n long")}, "job 'three.aside' is in no job that node a runs"),
        (
            {"middle_is": hf.ActiveReplicas(k=1)},
            "job 'three.middle' is not as node a leads it: protection ActiveReplicas(1) is only here",
        ),
    ],
)
def test_a_node_with_other_parts_is_refused_and_changes_nothing(
    start: Start,
    runs: dict[str, PartRun],
    tmp_path: Path,
    server: ZooKeeperServer,
    cluster: str,
    other: dict[str, Any],
    told: str,
) -> None:
    """Else the nodes that run the job could not be started again: of a part that they do not have."""
    a = start("a", chain_of_three(tmp_path / "out"))
    wait_until(lambda: len(runs) == 3, "all parts to run", a.story)
    place = open_storage(a.place)
    held, layout, found = holders(server, cluster), read_layout(place), {e.name for e in place.list("")}
    b = start("b", chain_of_three(tmp_path / "out", **other))
    wait_until(lambda: not b.alive, "it to be refused", b.story)
    assert isinstance(b.failure, DefinitionError), b.story()
    assert told in str(b.failure)
    assert "start the same code, or --allow-other-code" in str(b.failure)
    assert (read_layout(place), {e.name for e in place.list("")}) == (layout, found)
    assert holders(server, cluster) == held
    a.leave()
    again = start("again", chain_of_three(tmp_path / "out"))
    wait_until(lambda: again.told("three.main: TAKING"), "the job to be run again", again.story)


def test_an_old_node_that_is_started_in_an_upgrade_that_adds_a_part_is_told_of_it(
    start: Start, runs: dict[str, PartRun], tmp_path: Path
) -> None:
    """To give the part up, as a job that has it no more may, would be the wrong thing to do."""
    a = start("a", chain_of_three(tmp_path / "out"))
    wait_until(lambda: len(runs) == 3, "all parts to run", a.story)
    new = chain_of_three(tmp_path / "out", more=hf.MemorySource([], schema="n long"))
    b = start("b", new, allow_other_code=True)
    wait_until(lambda: b.told("three.aside: TAKING"), "the new part to be run", b.story)
    layout = read_layout(open_storage(a.place))
    old = start("old", chain_of_three(tmp_path / "out"), options={"allow_dropped_state": True})
    wait_until(lambda: not old.alive, "it to be refused", old.story)
    assert isinstance(old.failure, DefinitionError), old.story()
    assert "node b runs 'three.aside', a part that the job does not have in the code here" in str(old.failure)
    forced = start("forced", chain_of_three(tmp_path / "out"), allow_other_code=True)
    wait_until(lambda: not forced.alive, "it to be refused", forced.story)
    assert isinstance(forced.failure, RestoreError), forced.story()
    assert "being upgraded to code that adds it, start that code here, too" in str(forced.failure)
    assert read_layout(open_storage(a.place)) == layout
    assert a.alive, a.story()


def test_a_node_of_another_cluster_is_refused_and_changes_nothing(
    start: Start, runs: dict[str, PartRun], tmp_path: Path
) -> None:
    a = start("a", chain_of_three(tmp_path / "out"))
    wait_until(lambda: len(runs) == 3, "all parts to run", a.story)
    layout = read_layout(open_storage(a.place))
    b = start("b", chain_of_three(tmp_path / "out", fourth=True), cluster="another")
    wait_until(lambda: not b.alive, "it to be refused", b.story)
    assert isinstance(b.failure, HoldfastError), b.story()
    assert "belongs to cluster" in str(b.failure)
    assert read_layout(open_storage(a.place)) == layout


def test_a_part_that_gets_another_protection_is_left_to_the_nodes_that_know_it(
    start: Start, runs: dict[str, PartRun], tmp_path: Path
) -> None:
    """Else nodes of both kinds would found a set of replicas and claim terms in turn, for ever."""
    a = start("a", chain_of_three(tmp_path / "out"))
    wait_until(lambda: len(runs) == 3, "all parts to run", a.story)
    alone = runs["middle"]
    replicas = chain_of_three(tmp_path / "out", middle_is=hf.ActiveReplicas(k=1))
    b = start("b", replicas, allow_other_code=True)
    wait_until(lambda: b.told("three.middle~2: TAKING"), "a seat of the set to be taken", b.story)
    alone.fail(FencedOut(1, 2, "claimed by the set"))
    wait_until(
        lambda: a.told("three.middle: LEFT TO NODES OF OTHER CODE", "protection"), "a to see it", a.story
    )
