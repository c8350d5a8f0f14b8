"""A real cluster with two executors: they are killed, and tasks have twins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.steps import Step
from tests.chaos import nemesis
from tests.chaos.apps import HOLD_VARIABLE, Place, Shape
from tests.chaos.cluster import Cluster
from tests.chaos.harness import Driver, Scenario, wait_until
from tests.chaos.nemesis import Action, Fault

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

SHAPE = Shape(epochs=12, shards=4)
SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
}
PATIENT = {"spark.python.task.killTimeout": "600s"}
"""A task that lost to its twin is left alone: what it does when it wakes up is ours to see."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def ends_well(driver: Driver, scenario: Scenario) -> None:
    assert driver.wait() == 0, driver.said()[-3000:] + scenario.history.story()
    scenario.expect_exactly_once()


def placements(path: Path) -> list[dict[str, str]]:
    """Shard -> executor, epoch after epoch."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line)["executors"] for line in lines if line.endswith("\n")]


def test_shards_stay_on_their_executor_and_losing_one_moves_only_its_shards(
    cluster: Cluster, tmp_path: Path
) -> None:
    told = tmp_path / "placement"
    with Scenario(Place(tmp_path), Shape(epochs=20, shards=4), cluster.arguments()) as scenario:
        driver = scenario.start(arguments=["--placement", str(told)])
        scenario.wait_for_commit(6, driver)
        before = placements(told)
        at_home = before[0]
        assert len(set(at_home.values())) == 2, f"the shards are not spread: {at_home}"
        assert all(epoch == at_home for epoch in before), before
        lost = at_home["ledger/0"]
        scenario.history.add("nemesis", f"kills the executor in {lost}")
        nemesis.kill(cluster.executor_in(lost.partition(":")[2]).pid)
        ends_well(driver, scenario)
    # The epoch in hand may have been told by either; the one after it knows.
    after = placements(told)[len(before) + 1 :]
    assert after
    for epoch in after:
        stayed = {shard: executor for shard, executor in at_home.items() if executor != lost}
        assert {shard: epoch[shard] for shard in stayed} == stayed, "shards moved that had lost nothing"
        assert lost not in epoch.values()
    assert all(epoch == after[-1] for epoch in after[2:]), "the moved shards did not settle"


@pytest.mark.parametrize("step", [Step.TASK_STATE_READY, Step.TASK_FILES_WRITTEN])
def test_an_executor_killed_with_the_shuffle_files_that_others_read(
    step: Step, cluster: Cluster, tmp_path: Path
) -> None:
    """Its map output is gone while reduce tasks still need it: Spark runs both again."""
    fault = Fault(step, 2, Action.STOP)
    arguments = cluster.arguments(environment=fault.setting(tmp_path / "token"))
    with Scenario(Place(tmp_path), SHAPE, arguments) as scenario:
        driver = scenario.start()
        worker = cluster.stopped_worker()
        scenario.history.add("nemesis", f"kills the executor of {worker.pid}, stopped at {step}")
        nemesis.kill(cluster.executor_of(worker).pid)
        nemesis.kill(worker.pid)
        ends_well(driver, scenario)


def test_an_executor_killed_while_it_feeds_the_shuffle(cluster: Cluster, tmp_path: Path) -> None:
    hold = {HOLD_VARIABLE: str(tmp_path / "token")}
    arguments = (*cluster.arguments(environment=hold), "--python-map-side")
    with Scenario(Place(tmp_path), SHAPE, arguments) as scenario:
        driver = scenario.start()
        worker = cluster.stopped_worker()
        scenario.history.add("nemesis", f"kills the executor of {worker.pid}, stopped in the map side")
        nemesis.kill(cluster.executor_of(worker).pid)
        nemesis.kill(worker.pid)
        ends_well(driver, scenario)


@pytest.mark.parametrize("step", [Step.TASK_COMPUTED, Step.TASK_FILES_WRITTEN, Step.TASK_APPLIED])
def test_a_task_that_wakes_up_after_its_twin_was_chosen_changes_nothing(
    step: Step, cluster: Cluster, tmp_path: Path
) -> None:
    """A task hangs, Spark starts a twin on the other host, the driver takes its result, the first goes on."""
    fault = Fault(step, 3, Action.STOP)
    arguments = cluster.arguments(SPECULATING | PATIENT, fault.setting(tmp_path / "token"))
    with Scenario(Place(tmp_path), SHAPE, arguments) as scenario:
        driver = scenario.start()
        worker = cluster.stopped_worker()
        seen = max(scenario.commits(), default=0)
        scenario.history.add("nemesis", f"worker {worker.pid} hangs at {step} after commit {seen}")
        scenario.wait_for_commit(seen + 3, driver)
        assert nemesis.is_stopped(worker.pid), "Spark has ended it: nobody can wake up late"
        scenario.history.add("nemesis", f"wakes worker {worker.pid}")
        nemesis.resume(worker.pid)
        ends_well(driver, scenario)


def test_executors_killed_one_after_the_other(cluster: Cluster, tmp_path: Path) -> None:
    """At no step in particular: whatever they are at."""
    with Scenario(Place(tmp_path), Shape(epochs=24, shards=4), cluster.arguments()) as scenario:
        driver = scenario.start()
        for number in (4, 9, 14):
            scenario.wait_for_commit(number, driver)
            wait_until(lambda: len(cluster.executors()) == 2, "both executors to be there", scenario.history)
            victim = min(cluster.executors(), key=lambda process: process.pid)
            scenario.history.add("nemesis", f"kills executor {victim.pid}")
            nemesis.kill(victim.pid)
        ends_well(driver, scenario)
