"""A job in three parts in one process, killed at the steps of the protocol by whichever part comes there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.checkpoint.chain.history import History
from holdfast.steps import Step
from holdfast.storage.urls import open_storage
from tests.chaos.apps import Place, Shape
from tests.chaos.harness import Scenario
from tests.chaos.nemesis import DRIVER_STEPS, Fault

pytestmark = pytest.mark.timeout(1200)

SHAPE = Shape(epochs=8, rows=150, keys=20)
LONG = {Step.FLOOR_RAISED: Shape(epochs=21, rows=60, keys=20)}
COUNTS = {Step.TERM_CLAIMED: 2, Step.RECOVERY_READ: 2, Step.FLOOR_RAISED: 1}
"""At which time of passing the step a life ends: the fifth, by any part, unless a life gets there less."""


def scenario_of(root: Path, shape: Shape = SHAPE) -> Scenario:
    return Scenario(Place(root), shape, app="tests.chaos.parts_app")


def finish(scenario: Scenario) -> None:
    """One life without a fault, to the end of the input; then everything must be right."""
    driver = scenario.start()
    code = driver.wait()
    assert code == 0, f"the last life failed with {code}: {driver.last_words()}{scenario.history.story()}"
    check(scenario)


def check(scenario: Scenario) -> None:
    """Every sink shows each row once, in every part."""
    place, shape = scenario.place, scenario.shape
    keys = Counter(shape.key_of(event) for event in range(shape.events))
    numbered = Counter((key, n) for key, count in keys.items() for n in range(1, count + 1))
    story = scenario.history.story()
    assert Counter(rows(place, "events", "event")) == Counter((e,) for e in range(shape.events)), story
    assert Counter(rows(place, "numbers", "key", "n")) == numbered, story
    met = Counter(rows(place, "met", "key", "way", "n"))
    assert met == Counter({(key, way, n): 1 for key, n in numbered for way in ("short", "long")}), story
    last = {
        key: max(row[2] for row in rows(place, "met", "key", "way", "total") if row[0] == key) for key in keys
    }
    assert last == {key: count * (count + 1) // 2 for key, count in keys.items()}, story


def rows(place: Place, sink: str, *columns: str) -> list[tuple[object, ...]]:
    table = pq.read_table(place.sink(sink), columns=list(columns))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


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
        for _ in range(3):
            scenario.suffer(Fault(step, COUNTS.get(step, 5)))
        finish(scenario)


@pytest.mark.heavy
def test_channels_are_let_go_when_they_are_read(tmp_path: Path) -> None:
    with scenario_of(tmp_path, Shape(epochs=40, rows=20, keys=20)) as scenario:
        finish(scenario)
        sent = open_storage(str(scenario.place.checkpoint / "parts" / "main"))
        for uid, channel in History(sent).load().channels.items():
            assert channel.released >= 20, (uid, channel.released)
            assert len({file.epoch for file in channel.files}) <= 20, uid
