"""The driver is killed at a step of the protocol, and again while it recovers, until the job is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.store import names
from holdfast.steps import Step
from tests.chaos.apps import Place, Shape
from tests.chaos.harness import Scenario, wait_until
from tests.chaos.nemesis import DRIVER_STEPS, Fault

pytestmark = pytest.mark.timeout(1200)

RECOVERY_STEPS = (Step.TERM_CLAIMED, Step.RECOVERY_READ, Step.BEFORE_PUBLISH)

COUNTS = {Step.TERM_CLAIMED: 1, Step.RECOVERY_READ: 1, Step.FLOOR_RAISED: 1}
"""At which time of passing the step a life ends: the second, unless a life gets there only once."""
LONG = {Step.FLOOR_RAISED: Shape(epochs=21)}
"""The floor is raised every third commit, after the first nine."""


def test_killed_at_the_steps_that_matter_most_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """After the commit point, while recovering from that, and before the commit point."""
    with Scenario(Place(tmp_path)) as scenario:
        scenario.suffer(Fault(Step.COMMIT_WRITTEN, 3))
        scenario.suffer(Fault(Step.BEFORE_PUBLISH, 1))
        scenario.suffer(Fault(Step.BEFORE_COMMIT, 3))
        scenario.finish()


@pytest.mark.heavy
@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_killed_at_any_step_and_again_while_recovering_nothing_is_lost_or_doubled(
    step: Step, tmp_path: Path
) -> None:
    with Scenario(Place(tmp_path), LONG.get(step, Shape())) as scenario:
        for again_at in RECOVERY_STEPS:
            scenario.suffer(Fault(step, COUNTS.get(step, 2)))
            scenario.suffer(Fault(again_at))
        scenario.finish()


@pytest.mark.heavy
def test_killed_at_no_step_in_particular_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """From outside, whenever the chain has got so far: whatever the driver is at."""
    with Scenario(Place(tmp_path)) as scenario:
        for number in (2, 5, 8):
            driver = scenario.start()
            scenario.wait_for_commit(number, driver)
            driver.kill()
        scenario.finish()


@pytest.mark.heavy
def test_killed_with_a_snapshot_that_no_commit_names_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with Scenario(Place(tmp_path)) as scenario:
        snapshots = scenario.place.checkpoint / names.SNAPSHOTS
        driver = scenario.start()
        wait_until(lambda: any(snapshots.glob("*/*")) or not driver.running, "a snapshot", scenario.history)
        assert driver.running, scenario.history.story()
        driver.kill()
        scenario.finish()


@pytest.mark.heavy
def test_killed_and_started_with_another_parallelism_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """Every life cuts the key groups into other shards: state is read across the old ones."""
    with Scenario(Place(tmp_path)) as scenario:
        scenario.suffer(Fault(Step.COMMIT_WRITTEN, 4), shards=2)
        scenario.suffer(Fault(Step.BEFORE_COMMIT, 3), shards=3)
        scenario.suffer(Fault(Step.SINK_PUBLISHED, 3), shards=1)
        scenario.finish()
