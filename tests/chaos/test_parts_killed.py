"""A job in three parts in one process, killed at the steps of the protocol by whichever part comes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.chaos.faults import RECOVERY_STEPS
from holdfast.chaos.inside.child import MANIFEST_EVERY
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import newest_term
from holdfast.runtime.parts.channel_source import Position
from holdfast.steps import Step
from tests.chaos.apps import RETAIN, Place, Shape
from tests.chaos.harness import Scenario, wait_until
from tests.chaos.nemesis import DRIVER_STEPS, Fault
from tests.chaos.parts_app import gates_of
from tests.chaos.parts_checker import gather, judge, storage_of

pytestmark = pytest.mark.timeout(1200)

SHAPE = Shape(epochs=8, rows=150, keys=20)
LONGER = Shape(epochs=12, rows=100, keys=20)
LONG = {
    Step.FLOOR_RAISED: Shape(epochs=21, rows=60, keys=20), Step.MANIFEST_WRITTEN: LONGER,
    Step.RETIRED: LONGER,
}  # fmt: skip
COUNTS = {**dict.fromkeys(RECOVERY_STEPS, 2), Step.FLOOR_RAISED: 1}
"""At which time of passing the step a life ends: the fifth, by any part, unless a life gets there less."""
KILLS = 3


def scenario_of(root: Path, shape: Shape = SHAPE, *arguments: str) -> Scenario:
    return Scenario(Place(root), shape, arguments, app="tests.chaos.parts_app")


def finish(scenario: Scenario) -> None:
    """One life without a fault, to the end of the input; then everything must be right."""
    driver = scenario.start()
    code = driver.wait()
    assert code == 0, f"the last life failed with {code}: {driver.last_words()}{scenario.history.story()}"
    wrong = judge(gather(scenario.place), scenario.shape, scenario.shape.events)
    assert not wrong, f"{wrong}{scenario.history.story()}"


def test_parts_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    """After a commit point of some part, and before one."""
    with scenario_of(tmp_path) as scenario:
        scenario.suffer(Fault(Step.COMMIT_WRITTEN, 7))
        scenario.suffer(Fault(Step.BEFORE_COMMIT, 8))
        finish(scenario)


@pytest.mark.heavy
@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_parts_that_are_killed_at_any_step_lose_and_double_nothing(step: Step, tmp_path: Path) -> None:
    with scenario_of(tmp_path, LONG.get(step, SHAPE)) as scenario:
        for _ in range(KILLS):
            scenario.suffer(Fault(step, COUNTS.get(step, 5)))
        finish(scenario)


def least_passes(step: Step, shape: Shape) -> int:
    """How often a run without a fault passes a step at least, all parts together. What a life passes and the
    next one passes again comes on top."""
    if step in RECOVERY_STEPS:
        # In every life again, once in each part.
        return KILLS * 3
    # Part `joined` has the rows of both its inputs.
    epochs = (shape.epochs, shape.epochs, 2 * shape.epochs)
    given_up = [max(0, each - RETAIN - 1) for each in epochs]
    if step is Step.MANIFEST_WRITTEN:
        return sum(each // MANIFEST_EVERY for each in epochs)
    if step is Step.FLOOR_RAISED:
        return sum(each // MANIFEST_EVERY for each in given_up)
    if step is Step.RETIRED:
        return len(epochs) + sum(given_up)
    return sum(epochs)


@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_the_input_is_long_enough_for_every_kill(step: Step) -> None:
    assert least_passes(step, LONG.get(step, SHAPE)) >= KILLS * COUNTS.get(step, 5)


@pytest.mark.heavy
def test_channels_are_let_go_when_they_are_read(tmp_path: Path) -> None:
    shape = Shape(epochs=40, rows=20, keys=20)
    half, readers = shape.epochs // 2, {"numbered": "long-way", "joined": "short-way"}
    with scenario_of(tmp_path, shape, "--gated", "--retain", str(RETAIN)) as scenario:
        main_gate, long_gate = gates_of(scenario.place, shape)
        long_gate.open()
        driver = scenario.start()

        def all_read() -> bool:
            found = {part: storage_of(scenario.place, part) for part in readers}
            return all(
                newest_term(storage) is not None
                and Position.of(History(storage).load().positions.get(readers[part])) == Position(half)
                for part, storage in found.items()
            )

        wait_until(lambda: all_read() or not driver.running, "both channels to be read", scenario.history)
        main_gate.open()
        assert driver.wait() == 0, f"{driver.last_words()}{scenario.history.story()}"
        for uid, channel in History(storage_of(scenario.place, "main")).load().channels.items():
            # What the readers' retained commits go back to stays.
            assert channel.released >= half - RETAIN - 1, (uid, channel.released)
            assert min(file.epoch for file in channel.files) > channel.released, uid
