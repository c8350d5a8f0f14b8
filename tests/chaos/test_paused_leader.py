"""A leader is stopped before its commit, another one takes over, and the first wakes up.

It must learn at its commit that it was superseded. Nothing that it still does may show anywhere, and the
rightful leader must not even notice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import FencedOut
from holdfast.steps import Step
from tests.chaos.apps import Place, Shape
from tests.chaos.harness import Driver, Scenario
from tests.chaos.nemesis import Action, Fault


def _fenced(zombie: Driver, scenario: Scenario) -> None:
    """Wake it up: it ends by itself, with the exit code and the line that say why."""
    zombie.resume()
    assert zombie.wait() == FencedOut.exit_code, scenario.history.story()
    assert "a newer leader exists" in zombie.last_words(), zombie.said()


pytestmark = pytest.mark.timeout(1200)

PAUSED_AT = (Step.PLAN_WRITTEN, Step.BEFORE_COMMIT, Step.COMMIT_WRITTEN, Step.BEFORE_PUBLISH)


@pytest.mark.heavy
@pytest.mark.parametrize("step", PAUSED_AT)
def test_a_leader_that_wakes_up_beside_its_successor_is_fenced_out(step: Step, tmp_path: Path) -> None:
    """The successor is still at work when the first wakes up."""
    with Scenario(Place(tmp_path), Shape(epochs=30)) as scenario:
        zombie = scenario.start(Fault(step, 3, Action.STOP))
        zombie.wait_stopped()
        seen = max(scenario.commits(), default=0)
        rightful = scenario.start()
        scenario.wait_for_commit(seen + 3, rightful)
        _fenced(zombie, scenario)
        assert rightful.running, f"the successor was done too early to be disturbed{scenario.history.story()}"
        assert rightful.wait() == 0, scenario.history.story()
        scenario.expect_exactly_once()


@pytest.mark.heavy
def test_a_node_that_is_frozen_as_a_whole_is_fenced_out_when_it_thaws(tmp_path: Path) -> None:
    """Its workers are stopped in the middle of the next epoch, maybe with the lock of their state held."""
    with Scenario(Place(tmp_path), Shape(epochs=30)) as scenario:
        zombie = scenario.start(Fault(Step.BEFORE_COMMIT, 3, Action.STOP))
        zombie.wait_stopped()
        zombie.pause_all()
        rightful = scenario.start()
        scenario.wait_for_commit(6, rightful)
        _fenced(zombie, scenario)
        assert rightful.wait() == 0, scenario.history.story()
        scenario.expect_exactly_once()


@pytest.mark.heavy
def test_a_commit_that_comes_late_but_before_the_successors_is_adopted(tmp_path: Path) -> None:
    """Both leaders stop just before writing the same commit number, and the old one is the first to wake up.

    Its record is in the chain, so it counts: the new leader throws its own results away and goes on from it.
    """
    with Scenario(Place(tmp_path)) as scenario:
        first = scenario.start(Fault(Step.BEFORE_COMMIT, 3, Action.STOP))
        first.wait_stopped()
        second = scenario.start(Fault(Step.BEFORE_COMMIT, 1, Action.STOP))
        second.wait_stopped()
        assert max(scenario.commits()) == 2
        _fenced(first, scenario)
        assert max(scenario.commits()) >= 3, f"the first leader committed nothing{scenario.history.story()}"
        second.resume()
        assert second.wait() == 0, scenario.history.story()
        assert "came first; going on from it" in second.said()
        scenario.expect_exactly_once()


@pytest.mark.heavy
def test_a_leader_that_wakes_up_when_its_commit_number_was_retired_is_fenced_out(tmp_path: Path) -> None:
    """Its commit's name is free again, so its put succeeds: the floor is what tells it."""
    with Scenario(Place(tmp_path), Shape(epochs=16)) as scenario:
        zombie = scenario.start(Fault(Step.BEFORE_COMMIT, 2, Action.STOP))
        zombie.wait_stopped()
        rightful = scenario.start()
        assert rightful.wait() == 0, scenario.history.story()
        assert min(scenario.commits()) > 2, "retention has not deleted the zombie's commit number"
        _fenced(zombie, scenario)
        assert min(scenario.commits()) == 2, "the zombie did not get to create its commit"
        scenario.expect_exactly_once()
        successor = scenario.start()
        assert successor.wait() == 0, scenario.history.story()
        scenario.expect_exactly_once()
