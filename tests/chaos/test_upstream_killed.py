"""A part that saves no state is killed while windows are open: they are had again from the channel."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.steps import Step
from tests.chaos.apps import Place, Shape
from tests.chaos.harness import Scenario
from tests.chaos.nemesis import Fault
from tests.chaos.parts_checker import storage_of
from tests.chaos.upstream_app import wrong

pytestmark = pytest.mark.timeout(1200)

SHAPE = Shape(epochs=10, rows=60, keys=7)


def test_windows_that_are_in_no_checkpoint_lose_and_double_nothing(tmp_path: Path) -> None:
    """After a commit point of some part, and before one; and while rows are read again."""
    with Scenario(Place(tmp_path), SHAPE, app="tests.chaos.upstream_app") as scenario:
        scenario.suffer(Fault(Step.COMMIT_WRITTEN, 9))
        scenario.suffer(Fault(Step.BEFORE_COMMIT, 8))
        scenario.suffer(Fault(Step.COMMIT_WRITTEN, 5))
        driver = scenario.start()
        code = driver.wait()
        story = f"{driver.last_words()}{scenario.history.story()}"
        assert code == 0, f"the last life failed with {code}: {story}"
        problems = wrong(scenario.place, SHAPE)
        assert not problems, f"{problems}{scenario.history.story()}"
        history = History(storage_of(scenario.place, "recent"))
        records = [history.record(number) for number in history.numbers()]
        assert not any(record.deltas or record.snapshots for record in records)
        assert "is read again, from epoch" in driver.said()
        # Nothing of the state is in storage, but how far its rows are needed.
        stored = [entry.name for entry in storage_of(scenario.place, "recent").list("")]
        assert not [name for name in stored if name.startswith(names.SNAPSHOTS) or "delta" in name], stored
        # The part after it saves its state as ever, and rows of closed windows leave the channel: the part
        # before it, which had come to its end by then, sees to that when it next begins.
        assert History(storage_of(scenario.place, "kept")).load().deltas["totals"]
        assert scenario.start().wait() == 0, scenario.history.story()
        assert not wrong(scenario.place, SHAPE)
        assert History(storage_of(scenario.place, "main")).load().channels["events-in"].released >= 4
