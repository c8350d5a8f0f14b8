"""Whether a job goes on, so that a sink that refuses stops alone, or is started. Leading is played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.errors import StorageError
from holdfast.runtime import driver as module
from holdfast.runtime import stored_fit
from holdfast.runtime.driver import Prepared, takes_over
from holdfast.runtime.epoch_loop import Ending
from tests.unit.runtime.test_driver import Graph, Played, Run, commit, epoch, stop


def told_of(run: Run, monkeypatch: pytest.MonkeyPatch, *acts: Any) -> list[tuple[bool, bool]]:
    """What each time of leading is told: whether the job goes on, and whether its sinks were asked. One that
    fails on its way raises."""
    told: list[tuple[bool, bool]] = []
    left = list(acts)

    def led(context: Any, view: CheckpointView, shards: int) -> Played:
        told.append((context.goes_on, context.asked))
        act = left.pop(0)
        if isinstance(act, Exception):
            raise act
        return Played(act, view)

    monkeypatch.setattr(module, "EpochLoop", led)
    run.run()
    return told


def failing(led: Played) -> Ending:
    raise StorageError("the commit was not written; try again")


@pytest.mark.parametrize(
    ("on_node", "code", "goes_on"), [(True, "f", True), (True, "other", False), (False, "f", False)]
)
def test_a_job_goes_on_where_a_node_has_its_code_and_where_the_run_has_led(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_node: bool, code: str, goes_on: bool
) -> None:
    """Whoever starts it by hand is there to see to a sink that refuses."""
    before = Run(tmp_path, monkeypatch, [stop])
    before.run()
    commit(before, epoch(1))
    monkeypatch.setattr(module, "fingerprint", lambda graph: code)
    monkeypatch.setattr(stored_fit, "fingerprint", lambda graph: code)
    run = Run(tmp_path, monkeypatch, [])
    if on_node:
        run.driver._prepared = Prepared(owner="b")
    graph: Any = Graph
    settings = run.driver.settings
    assert takes_over(run.driver._prepared, graph, run.storage, settings) is goes_on
    not_led = StorageError("a sink could not be bound")
    told = told_of(run, monkeypatch, not_led, failing, stop)
    assert told == [(goes_on, False), (goes_on, False), (True, True)]


def test_where_the_newest_commits_are_lost_sinks_have_to_say_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetting(led: Played) -> Ending:
        commit(run, epoch(1), epoch(2))
        led.view = Chain(run.storage).load()
        (newest,) = [each.name for each in run.storage.list(names.COMMITS) if names.number_of(each.name) == 2]
        run.storage.delete([newest])
        return failing(led)

    run = Run(tmp_path, monkeypatch, [])
    assert told_of(run, monkeypatch, forgetting, stop) == [(False, False), (True, False)]


def test_what_begins_has_no_sinks_that_took_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that begins a job with the savepoint of another one, whose code is the same."""
    run = Run(tmp_path, monkeypatch, [])
    seeded = msgspec.structs.replace(epoch(1), fingerprint="same")
    monkeypatch.setattr(module, "fingerprint", lambda graph: "same")
    monkeypatch.setattr(stored_fit, "fingerprint", lambda graph: "same")
    monkeypatch.setattr(stored_fit, "stored_view", lambda *given: SimpleNamespace(fingerprint="same"))
    run.driver._prepared = Prepared(owner="b")
    graph: Any = Graph
    assert not takes_over(run.driver._prepared, graph, run.storage, run.driver.settings)
    monkeypatch.undo()
    run = Run(tmp_path, monkeypatch, [])
    run.driver._prepared = Prepared(owner="b")
    monkeypatch.setattr(module, "fingerprint", lambda graph: "same")
    monkeypatch.setattr(module, "seed", lambda *given: commit(run, seeded))
    assert told_of(run, monkeypatch, stop) == [(False, False)]
