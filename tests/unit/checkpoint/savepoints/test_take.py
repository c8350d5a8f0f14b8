from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.pins import pin, read_pins, release
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.view import to_manifest
from holdfast.checkpoint.savepoints import copy
from holdfast.checkpoint.savepoints import take as take_module
from holdfast.checkpoint.savepoints.stored_savepoint import (
    dispose_savepoint,
    read_savepoint,
    verify_savepoint,
)
from holdfast.checkpoint.savepoints.take import PIN_PREFIX, savepoint_manifest, seal_savepoint, take_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.errors import CorruptionError, DefinitionError, HoldfastError, RestoreError, UnknownOutcome
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage, on_each_part
from tests.unit.checkpoint.saved import RANGES, advance, contents, grown, new_checkpoint, take


def test_a_savepoint_holds_the_state_of_its_commit_and_nothing_else() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    view = grown(checkpoint)
    record = take(checkpoint, target)
    assert read_savepoint(target) == record
    assert verify_savepoint(target) == []
    assert contents(target, record.manifest) == contents(checkpoint.storage, to_manifest(view))
    assert (record.job, record.commit, record.format, record.stopped) == (
        "sums",
        view.number,
        "native",
        False,
    )
    assert record.manifest.staged == ()
    assert not any(b"output" in data for data in target.objects.values())
    assert names.UNFINISHED not in target.objects


def test_of_two_snapshots_only_the_newer_is_copied_with_the_deltas_since() -> None:
    checkpoint = new_checkpoint(MemoryStorage())
    view = grown(checkpoint, epochs=9)
    assert len(to_manifest(view).snapshots) == 4
    manifest = savepoint_manifest(view)
    assert [(file.first_group, file.version.epoch) for file in manifest.snapshots] == [(0, 8), (2, 8)]
    assert all(file.sole for file in manifest.snapshots)
    assert {delta.version.epoch for delta in manifest.deltas} == {9}


def test_a_snapshot_that_is_the_newest_of_some_groups_comes_with_its_deltas() -> None:
    checkpoint = new_checkpoint(MemoryStorage())
    view = advance(checkpoint, checkpoint.chain.load())
    view = advance(checkpoint, view, snapshots=((0, 4),))
    view = advance(checkpoint, view)
    view = advance(checkpoint, view, snapshots=((0, 2),))
    manifest = savepoint_manifest(view)
    assert [(file.first_group, file.end_group, file.version.epoch) for file in manifest.snapshots] == [
        (0, 4, 1),
        (0, 2, 3),
    ]
    assert sorted((d.version.epoch, d.first_group) for d in manifest.deltas) == [
        (epoch, first) for epoch in (2, 3, 4) for first in (0, 2)
    ]


def test_deltas_are_packed_into_few_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    view = checkpoint.chain.load()
    for _ in range(20):
        view = advance(checkpoint, view)
    monkeypatch.setattr(copy, "PACK_BYTES", 200)
    record = take(checkpoint, target)
    packs = {file.extent.object for file in record.manifest.deltas}
    assert 2 < len(packs) < 10
    assert contents(target, record.manifest) == contents(checkpoint.storage, to_manifest(view))
    assert copy.repacked(record.manifest, record.id)[0] == record.manifest


@pytest.mark.parametrize("what", ["snapshot", "delta"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_damage_in_the_checkpoint_is_named_and_leaves_nothing_behind(what: str, damage: str) -> None:
    storage, target = MemoryStorage(), MemoryStorage()
    checkpoint = new_checkpoint(storage)
    manifest = savepoint_manifest(grown(checkpoint))
    name = manifest.snapshots[0].object if what == "snapshot" else manifest.deltas[0].extent.object
    if damage == "flipped":
        storage.flip(name)
    elif damage == "cut":
        storage.objects[name] = storage.objects[name][:20]
    else:
        del storage.objects[name]
    with pytest.raises(CorruptionError, match=name):
        take(checkpoint, target)
    assert target.objects == {}
    assert read_pins(storage).records == ()


def test_a_target_that_fails_is_left_empty_or_marked_unfinished() -> None:
    """Every write to the target fails in turn, with and without an answer; then the same call succeeds."""
    checkpoint = new_checkpoint(MemoryStorage())
    grown(checkpoint)
    expected, after = take(checkpoint, MemoryStorage()), 0
    for kind in (FaultKind.FAIL, FaultKind.LOSE_REQUEST, FaultKind.LOSE_ANSWER):
        for after in range(100):
            inner = MemoryStorage()
            target = FaultyStorage(inner, [Fault(kind=kind, after=after)])
            try:
                take(checkpoint, target)
            except HoldfastError:
                assert names.SAVEPOINT not in inner.objects or verify_savepoint(inner) == []
                assert not inner.objects or names.UNFINISHED in inner.objects
                target.heal()
                take(checkpoint, target)
            assert read_savepoint(inner) == expected
            assert verify_savepoint(inner) == []
            assert read_pins(checkpoint.storage).records == ()
            if len(target.calls) <= after:
                break
    assert after > 5, "the faults were to hit every call"


def test_after_an_unanswered_write_the_location_stays_marked() -> None:
    """The write may still land: without the mark, an object would be there that nobody knows of."""
    checkpoint, inner = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    lost = Fault(kind=FaultKind.LOSE_REQUEST, operation="put_stream")
    with pytest.raises(UnknownOutcome):
        take(checkpoint, FaultyStorage(inner, [lost]))
    assert names.UNFINISHED in inner.objects
    dispose_savepoint(inner, 0)
    assert inner.objects == {}


def test_what_an_earlier_try_left_is_not_part_of_the_savepoint() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    lost = Fault(kind=FaultKind.LOSE_ANSWER, operation="put_stream")
    with pytest.raises(UnknownOutcome):
        take(checkpoint, FaultyStorage(target, [lost]))
    left = {name for name in target.objects if name != names.UNFINISHED}
    assert left
    grown(checkpoint)
    record = take(checkpoint, target)
    assert record.commit == 18
    assert not left & target.objects.keys()
    assert verify_savepoint(target) == []


def test_an_occupied_target_is_refused_and_left_alone() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    for name, match in [
        ("notes.txt", r"notes\.txt"),
        (names.JOB, "holds a checkpoint"),
        ("savepoint", "savepoint"),
    ]:
        target.objects = {name: b"precious"}
        with pytest.raises((RestoreError, CorruptionError), match=match):
            take(checkpoint, target)
        assert target.objects == {name: b"precious"}
    assert read_pins(checkpoint.storage).records == ()


def test_two_savepoints_cannot_share_a_location() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    first = take(checkpoint, target, id="sp-1")
    with pytest.raises(RestoreError, match="a savepoint already"):
        take(checkpoint, target, id="sp-2")
    assert take(checkpoint, target, id="sp-1") == first


def test_an_id_that_cannot_be_a_name_is_refused() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    with pytest.raises(DefinitionError, match="a/b"):
        take(checkpoint, target, id="a/b")
    assert target.objects == {}


def test_a_savepoint_is_not_sealed_without_its_objects() -> None:
    checkpoint = new_checkpoint(MemoryStorage())
    grown(checkpoint)
    record = take(checkpoint, MemoryStorage())
    with pytest.raises(RestoreError, match=r"cannot be finished.*missing"):
        seal_savepoint(MemoryStorage(), record)


def test_a_commit_that_is_given_up_is_refused() -> None:
    checkpoint, target = new_checkpoint(MemoryStorage()), MemoryStorage()
    grown(checkpoint)
    with pytest.raises(RestoreError, match=r"commit 2 .* not retained"):
        take_savepoint(checkpoint, 2, target, id="sp-1", stopped=False, clock=ManualClock(1), holder="run-1")
    assert target.objects == {}


def test_a_checkpoint_without_commits_is_refused() -> None:
    target = MemoryStorage()
    with pytest.raises(RestoreError, match="has no commit"):
        take_savepoint(
            new_checkpoint(MemoryStorage()), None, target, id="sp-1", stopped=False, clock=ManualClock(1),
            holder="run-1",
        )  # fmt: skip
    assert target.objects == {}


def test_pins_of_a_leader_that_died_are_released_by_the_next() -> None:
    storage = MemoryStorage()
    checkpoint = new_checkpoint(storage)
    number = grown(checkpoint).number
    for name, holder in [("savepoint-a", "dead"), ("savepoint-b", "us"), ("standby-c", "dead")]:
        pin(History(storage), name, number, holder, 0)
    assert release(storage, PIN_PREFIX, but_of="us") == ["savepoint-a"]
    assert sorted(record.name for record in read_pins(storage).records) == ["savepoint-b", "standby-c"]


class Writer(threading.Thread):
    """A job at work: commits, snapshots and sweeps, as fast as it can, until stopped."""

    def __init__(self, checkpoint: Checkpoint, retention: Retention) -> None:
        super().__init__(daemon=True)
        self._checkpoint, self._retention = checkpoint, retention
        self.stopping = threading.Event()
        self.turns = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            view = self._checkpoint.chain.load()
            while not self.stopping.is_set():
                view = advance(self._checkpoint, view, snapshots=RANGES)
                self._retention.after_commit(view)
                self.turns += 1
        except BaseException as failure:
            self.failure = failure


def savepoints_under_a_running_writer(tmp_path: Path, count: int) -> list[SavepointRecord]:
    """Take `count` savepoints while a job commits and sweeps; the copy is made to take several commits."""
    storage = LocalStorage(tmp_path / "checkpoint", fsync=False)
    checkpoint = new_checkpoint(storage, retain=3)
    writer = Writer(checkpoint, Retention(checkpoint.chain, sweep_every=1))
    writer.start()
    taken = []
    try:
        for index in range(count):
            _await_turns(writer, 3)
            target = LocalStorage(tmp_path / f"savepoint-{index}", fsync=False)
            on_each_part(target, lambda: _await_turns(writer, 1))
            record = take_savepoint(
                checkpoint,
                None,
                target,
                id=f"sp-{index}",
                stopped=False,
                clock=ManualClock(0),
                holder="run-1",
            )
            assert verify_savepoint(target) == []
            taken.append(record)
    finally:
        writer.stopping.set()
        writer.join(timeout=30)
    assert writer.failure is None, writer.failure
    return taken


def _await_turns(writer: Writer, count: int) -> None:
    until = writer.turns + count
    for _ in range(10_000):
        if writer.turns >= until or not writer.is_alive():
            return
        writer.stopping.wait(0.001)
    raise AssertionError("the writer does not get on")


def test_savepoints_under_a_running_writer_are_whole(tmp_path: Path) -> None:
    taken = savepoints_under_a_running_writer(tmp_path, 12)
    assert len({record.commit for record in taken}) == 12


def test_without_the_pin_files_vanish_from_under_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_module, "pin", lambda *_: None)
    with pytest.raises(CorruptionError, match=r"not in|missing"):
        savepoints_under_a_running_writer(tmp_path, 50)
