"""The seats of the parts of a job, on nodes with a real ZooKeeper. What runs is a double without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.admin.cluster import cluster_standing, visit
from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.nodes.zookeeper_server import ZooKeeperServer
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.parts.part_jobs import PartJob
from tests.services.harness import DEADLINE_SECONDS, Running, wait_until

Start = Callable[..., Running]
pytestmark = pytest.mark.timeout(120)


class PartRun:
    """Ends when it is told to."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes, self.over = wishes, threading.Event()

    @property
    def running(self) -> bool:
        return not (self.over.is_set() or self.wishes.stopping.is_set())

    def wait(self, timeout: float | None = None) -> None:
        if self.running:
            self.over.wait(timeout)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, PartRun]:
    """The newest run of each part."""
    found: dict[str, PartRun] = {}

    def start_as(part: PartJob, wishes: Wishes, *more: Any) -> PartRun:
        found[part.part] = PartRun(wishes)
        return found[part.part]

    monkeypatch.setattr(PartJob, "start_as", start_as)
    return found


def chain_of_three(out: Path) -> hf.Job:
    job = hf.Job("three")
    rows = job.source(hf.MemorySource([("a", 1)], schema="word string, n long"), uid="words")
    middle = rows.into(job.part("middle"), uid="to-middle")
    middle.into(job.part("last"), uid="to-last").sink(hf.FileSink(out, format="json"), uid="out")
    return job


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


def test_the_seats_of_parts_are_shared_by_the_nodes_and_shown(
    start: Start, runs: dict[str, PartRun], tmp_path: Path, server: ZooKeeperServer, cluster: str
) -> None:
    for name in "abc":
        one = start(name, chain_of_three(tmp_path / "out"))
        wait_until(lambda node=one: node.told("is in cluster"), f"{name} to be there", one.story)

    def seats() -> dict[str, str]:
        with visit(ZooKeeperSettings(hosts=server.hosts), cluster, SystemClock()) as visited:
            return {seat["job"]: seat["holder"] for seat in cluster_standing(visited, SystemClock())["seats"]}

    wait_until(lambda: sorted(map(str, seats().values())) == ["a", "b", "c"], "each to hold one", one.story)
    assert sorted(seats()) == ["three.last", "three.main", "three.middle"]
