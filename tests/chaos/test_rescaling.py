"""The number of shards changes under load, online and through savepoints, and drivers are killed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.records import RequestRecord
from holdfast.clock import SystemClock
from holdfast.engine.asking import ask_leader, wait_for_end
from holdfast.steps import Step
from holdfast.storage.places import open_storage
from tests.chaos.apps import LEDGER, Place, Shape
from tests.chaos.harness import DEADLINE_SECONDS, KILLED, Driver, Scenario
from tests.chaos.nemesis import Action, Fault

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

FIRST, *LATER = 1, 2, 4, 3
EPOCHS_BETWEEN = 6


def _ask(scenario: Scenario, verb: str, **arguments: Any) -> RequestRecord:
    storage = open_storage(str(scenario.place.checkpoint))
    return ask_leader(storage, verb, arguments, SystemClock(), by="a test")


def _asked(scenario: Scenario, verb: str, **arguments: Any) -> None:
    request = _ask(scenario, verb, **arguments)
    storage = open_storage(str(scenario.place.checkpoint))
    ended = wait_for_end(
        storage, request.id, SystemClock(), taken_within=DEADLINE_SECONDS, ended_within=DEADLINE_SECONDS
    )
    scenario.history.add("control", f"{verb} {arguments}: {ended.state}")
    assert ended.state == "done", scenario.history.story()


def _wait_epochs(scenario: Scenario, driver: Driver, count: int = EPOCHS_BETWEEN) -> None:
    scenario.wait_for_commit(max(scenario.commits(), default=0) + count, driver)


def _pauses(place: Place) -> list[float]:
    """Seconds between the moments at which neighbouring epochs became visible, the longest first."""
    shown = sorted(file.stat().st_mtime for file in place.sink(LEDGER).glob("*.parquet"))
    return sorted((after - before for before, after in pairwise(shown)), reverse=True)


def _tell_pauses(place: Place, how: str) -> None:
    pauses = _pauses(place)
    usual = pauses[len(pauses) // 2]
    longest = ", ".join(f"{pause:.2f}" for pause in pauses[: len(LATER) + 1])
    print(f"\nrescaling {FIRST} -> {' -> '.join(map(str, LATER))} {how}: output paused for {longest} s "
          f"at the longest, {usual:.2f} s between epochs otherwise")  # fmt: skip


def test_a_running_job_is_rescaled_online(tmp_path: Path) -> None:
    with Scenario(Place(tmp_path), Shape(epochs=60, shards=FIRST)) as scenario:
        driver = scenario.start()
        for shards in LATER:
            _wait_epochs(scenario, driver)
            _asked(scenario, "rescale", parallelism=shards)
        assert driver.wait() == 0, scenario.history.story()
        scenario.expect_exactly_once()
        _tell_pauses(scenario.place, "online")


@pytest.mark.parametrize("step", [Step.PLAN_WRITTEN, Step.RESULTS_CHOSEN, Step.COMMIT_WRITTEN])
def test_a_driver_killed_right_after_a_rescaling_loses_nothing(step: Step, tmp_path: Path) -> None:
    """Every life is told to rescale as soon as it leads, and is killed in the epochs around that."""
    with Scenario(Place(tmp_path), Shape(epochs=40, shards=FIRST)) as scenario:
        driver = scenario.start()
        for shards in LATER:
            _wait_epochs(scenario, driver, 3)
            _asked(scenario, "rescale", parallelism=shards)
            driver.kill()
            driver.close()
            hurt = scenario.start(Fault(step, 2, Action.KILL), shards=shards)
            assert hurt.wait() == KILLED, scenario.history.story()
            hurt.close()
            driver = scenario.start(shards=shards)
        assert driver.wait() == 0, scenario.history.story()
        scenario.expect_exactly_once()


def test_a_job_is_rescaled_through_savepoints(tmp_path: Path) -> None:
    """Stopped with a savepoint, which the next job claims with another number of shards; one in two is killed
    before it can finish, and started again.
    """
    shape = Shape(epochs=40, shards=FIRST)
    place = Place(tmp_path / "0", elsewhere=tmp_path / "out")
    place.root.mkdir()
    with Scenario(place, shape) as first:
        driver = first.start()
        _wait_epochs(first, driver)
        _asked(first, "stop", savepoint=str(tmp_path / "sp-1"))
        assert driver.wait() == 0, first.history.story()
    for number, shards in enumerate(LATER, start=1):
        place = Place(tmp_path / str(number), elsewhere=tmp_path / "out")
        place.root.mkdir()
        begin = ("--from-savepoint", str(tmp_path / f"sp-{number}"), "--claim")
        with Scenario(place, shape, arguments=begin) as scenario:
            driver = scenario.start(shards=shards)
            if number % 2:
                _wait_epochs(scenario, driver, 3)
                driver.kill()
                driver.close()
                driver = scenario.start(shards=shards)
            if number < len(LATER):
                _wait_epochs(scenario, driver, 3)
                _asked(scenario, "stop", savepoint=str(tmp_path / f"sp-{number + 1}"))
            assert driver.wait() == 0, scenario.history.story()
            if number == len(LATER):
                scenario.expect_exactly_once()
                _tell_pauses(place, "through savepoints")
