"""When a member of a set of replicas is said to run: it is warm, and level with the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import StorageError
from holdfast.runtime import joining as module
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch_loop import EpochLoop
from holdfast.runtime.joining import EPOCHS_MAX, IDLE_SECONDS, Joining
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.epoch.test_committer import Shown
from tests.unit.runtime.epoch.test_committer_of_replicas import Member as Committing
from tests.unit.runtime.leader_kit import leader_of


class Member(Committing):
    """One that has just loaded what is committed, with a clock that stands still."""

    def __init__(self, root: Path, seat: int) -> None:
        super().__init__(root, seat, Shown())
        self.clock = ManualClock()
        self.context = replace(self.context, clock=self.clock)
        self.joining = Joining(self.context, 1)
        self.context.monitor.update(phase=self.joining.phase)
        self.work.on_epoch = self.joining.ran

    @property
    def phase(self) -> str:
        assert self.context.monitor.progress.phase == self.joining.phase
        return self.joining.phase

    def wait(self, seconds: float = 0.0) -> str:
        self.clock.advance(timedelta(seconds=seconds))
        self.joining.waits()
        return self.phase


@pytest.fixture
def two(tmp_path: Path) -> tuple[Member, Member]:
    return Member(tmp_path, 1), Member(tmp_path, 2)


@pytest.fixture
def warm_ups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards of each warm-up."""
    done: list[int] = []
    monkeypatch.setattr(
        module, "warm_up", lambda spark, program, settings, shards, rounds: done.append(shards)
    )
    return done


def test_a_process_that_leads_alone_runs_at_once(tmp_path: Path) -> None:
    assert Joining(leader_of(LocalStorage(tmp_path)), 1).phase == "running"


def test_a_member_runs_when_its_first_epoch_is_committed(two: tuple[Member, Member]) -> None:
    first, second = two
    assert (first.phase, second.phase) == ("joining", "joining")
    first.commit(1)
    assert (first.phase, second.phase) == ("running", "joining")


def test_a_member_that_is_always_preceded_by_another_runs_all_the_same(two: tuple[Member, Member]) -> None:
    first, second = two
    first.commit(1)
    second.commit(1)
    assert second.phase == "running"
    assert not second.work.has_lead


def test_what_covers_no_epoch_warms_no_member(two: tuple[Member, Member]) -> None:
    first, second = two
    first.tell(barrier=1)
    second.tell(barrier=1)
    assert (first.phase, second.phase) == ("joining", "joining")


def test_a_member_is_joining_until_it_is_level_with_the_others(two: tuple[Member, Member]) -> None:
    first, second = two
    for epoch in (1, 2, 3):
        first.commit(epoch)
    second.commit(1)
    assert second.phase == "joining", "were the other gone, output would wait for two epochs and more"
    second.commit(2)
    assert second.phase == "running"


def test_one_that_comes_nearer_is_joining_until_it_is_there(two: tuple[Member, Member]) -> None:
    first, second = two
    for epoch in range(1, EPOCHS_MAX + 4):
        first.commit(epoch)
    for epoch in range(1, EPOCHS_MAX + 2):
        second.commit(epoch)
        assert second.phase == "joining"
    second.commit(EPOCHS_MAX + 2)
    assert second.phase == "running"


def test_one_that_stays_behind_at_the_pace_of_the_others_runs_after_some_epochs(
    two: tuple[Member, Member],
) -> None:
    first, second = two
    for epoch in (1, 2, 3):
        first.commit(epoch)
    for epoch in range(1, EPOCHS_MAX):
        first.commit(epoch + 3)
        second.commit(epoch)
        assert second.phase == "joining"
    first.commit(EPOCHS_MAX + 3)
    second.commit(EPOCHS_MAX)
    assert second.phase == "running"


def test_where_storage_does_not_say_how_far_the_others_are_the_next_epoch_tells(
    two: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = two[0]

    def away(*given: Any) -> Any:
        raise StorageError("storage is away; try again")

    with monkeypatch.context() as patched:
        patched.setattr(type(member.context.checkpoint.storage), "list", away)
        member.joining.ran(member.work.view)
    assert member.phase == "joining"
    member.joining.ran(member.work.view)
    assert member.phase == "running"


def test_that_storage_does_not_say_how_far_the_others_are_is_no_epoch_without_progress(
    two: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    for epoch in range(1, EPOCHS_MAX + 9):
        first.commit(epoch)
    with monkeypatch.context() as patched:
        patched.setattr(second.joining, "_commits_behind", lambda view: None)
        second.commit(1)
    for epoch in range(2, EPOCHS_MAX + 7):
        second.commit(epoch)
        assert second.phase == "joining"


def test_a_member_with_nothing_to_run_warms_up_and_runs_then(
    two: tuple[Member, Member], warm_ups: list[int]
) -> None:
    member = two[0]
    assert member.wait() == "joining"
    assert member.wait(IDLE_SECONDS / 2) == "joining"
    assert warm_ups == [], "rows may come any moment"
    assert member.wait(IDLE_SECONDS / 2) == "joining"
    assert warm_ups == [1], "what came meanwhile goes first"
    assert member.wait() == "running"
    member.wait()
    assert warm_ups == [1]


def test_a_member_that_an_epoch_has_warmed_needs_no_warm_up(
    two: tuple[Member, Member], warm_ups: list[int]
) -> None:
    first, second = two
    second.wait()
    for epoch in (1, 2, 3):
        first.commit(epoch)
    second.clock.advance(timedelta(seconds=IDLE_SECONDS))
    second.commit(1)
    assert second.wait() == "joining", "it has not waited since its epoch"
    assert second.wait(IDLE_SECONDS) == "running"
    assert warm_ups == []


def test_a_member_that_cannot_warm_up_is_joining_until_it_has_run_an_epoch(
    two: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise RuntimeError("no worker")

    monkeypatch.setattr(module, "warm_up", fail)
    member = two[0]
    for _ in range(3):
        assert member.wait(IDLE_SECONDS) == "joining"
    assert member.said == ["this member is joining until it has run an epoch: no worker"]
    member.commit(1)
    assert member.phase == "running"


@pytest.mark.parametrize("settled", [True, False])
def test_a_member_waits_only_once_all_that_it_ran_is_committed(settled: bool) -> None:
    waited: list[bool] = []
    wishes = Wishes()
    wishes.stopping.set()
    loop: Any = SimpleNamespace(
        _committer=SimpleNamespace(settled=settled), _context=SimpleNamespace(wishes=wishes),
        _joining=SimpleNamespace(waits=lambda: waited.append(True)),
    )  # fmt: skip
    EpochLoop._wait_for_work(loop)
    assert bool(waited) is settled
