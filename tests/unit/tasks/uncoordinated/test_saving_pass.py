"""Saves while no epoch runs, without Spark: the body of the driver's small job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.state.contract import Version
from holdfast.tasks.messages import UncoordinatedResult, decode_result
from holdfast.tasks.uncoordinated import saver
from holdfast.tasks.uncoordinated.saver import Flight, SavedOperator
from holdfast.tasks.uncoordinated.saving_pass import PassTask
from tests.unit.tasks.uncoordinated.kit import GROUPS, MemoryStates, Shard, uncoordinated


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    saver._savers.clear()
    yield
    saver._savers.clear()


def passed(shard: Shard, after_ms: int = 0, everything: bool = False) -> UncoordinatedResult | None:
    task, version = shard.task(), Version(shard.version.epoch, shard.version.attempt, shard.version.result)
    operator = SavedOperator(
        task.work.workspace, task.uid, task.work.run, task.term, task.function, task.lineage, shard.settings
    )
    made = PassTask(operator, shard.now_ms + after_ms, {0: (GROUPS, version)}, everything)
    (batch,) = made(iter([pa.record_batch([pa.array([0])], ["shard"])]))
    return decode_result(batch.column(0)[0].as_py()).uncoordinated


def test_a_pass_saves_what_is_due_and_nothing_twice(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="20s"))
    shard.epoch(["ann", "bob"])
    early = passed(shard, after_ms=19_000)
    assert early is not None
    assert (states.saved, early.unsaved) == ({}, 2)
    assert early.due_ms == shard.now_ms + 20_000
    done = passed(shard, after_ms=20_000)
    assert done is not None
    assert (states.events(), done.unsaved, done.counts.saved) == ({"ann": 1, "bob": 1}, 0, 2)
    again = passed(shard, after_ms=40_000)
    assert again is not None
    assert again.counts.saved == 0
    assert shard.epoch(["ann"]) == {"ann": 2}


def test_the_last_pass_saves_everything_also_more_than_the_pools_have_room_for(tmp_path: Path) -> None:
    states = MemoryStates()
    small = hf.SavingPool(threads=2, outstanding=6)
    given = uncoordinated(states, events=1_000_000, batch=2, serializing=small, storing=small)
    shard = Shard(tmp_path, given)
    users = [f"u{i}" for i in range(50)]
    shard.epoch(users)
    done = passed(shard, everything=True)
    assert done is not None
    assert set(states.events()) == set(users)
    assert done.unsaved == 0


def test_the_last_pass_also_saves_what_came_while_a_save_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch(["ann"])
    states.open.clear()
    shard.epoch(["ann"], after_ms=2_000)  # its save, of one event, hangs
    wait = Flight.wait

    def going_on(flight: Flight, seconds: float) -> bool:
        states.open.set()
        return wait(flight, seconds)

    monkeypatch.setattr(Flight, "wait", going_on)
    done = passed(shard, everything=True)
    assert done is not None
    assert (states.events(), done.unsaved) == ({"ann": 2}, 0)


def test_a_pass_with_the_storage_down_ends_and_says_what_is_left(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1s"))
    shard.epoch(["ann"] * 3)
    states.down = True
    done = passed(shard, everything=True)
    assert done is not None
    assert (done.unsaved, done.counts.failed) == (3, 1)
    assert "the storage is down" in done.counts.error


def test_working_state_at_another_version_is_left_alone(tmp_path: Path) -> None:
    states = MemoryStates()
    shard = Shard(tmp_path, uncoordinated(states, every="1h"))
    shard.epoch(["ann"])
    shard.epoch(["ann"], chosen=False)
    assert passed(shard, everything=True) is None
    assert states.saved == {}
