"""Python workers are killed in the middle of a task: Spark runs it again, the driver chooses what counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.steps import Step
from tests.chaos.apps import Place
from tests.chaos.harness import Scenario
from tests.chaos.nemesis import WORKER_STEPS, Fault

pytestmark = pytest.mark.timeout(600)

RETRYING = ("--master", "local[2,4]")
"""Two cores, and a task may fail three times before its job does."""


@pytest.mark.heavy
@pytest.mark.parametrize("step", WORKER_STEPS)
def test_a_worker_killed_at_any_step_is_replaced_and_its_work_counts_once(step: Step, tmp_path: Path) -> None:
    with Scenario(Place(tmp_path), arguments=RETRYING) as scenario:
        driver = scenario.start(Fault(step, 2))
        assert driver.wait() == 0, scenario.history.story()
        assert driver.hit, f"the worker was never killed{scenario.history.story()}"
        scenario.expect_exactly_once()


@pytest.mark.heavy
def test_a_task_that_no_retry_can_save_ends_the_run_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """`local[2]` retries nothing: the epoch fails, nothing of it is visible, and a restart repeats it."""
    with Scenario(Place(tmp_path)) as scenario:
        driver = scenario.start(Fault(Step.TASK_APPLIED, 3))
        assert driver.wait() == 75, scenario.history.story()
        assert "nothing of it became visible" in driver.last_words()
        scenario.finish()
