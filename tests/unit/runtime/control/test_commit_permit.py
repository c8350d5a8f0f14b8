"""A permit to commit: it ends by itself, is extended, or is revoked for good."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast.checkpoint.chain.terms import newest_term
from holdfast.errors import SeatLost
from holdfast.runtime import driver as driver_module
from holdfast.runtime.control.commit_permit import Permit, WatchedStorage
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import Driver
from holdfast.runtime.progress import Monitor
from holdfast.runtime.settings import check_settings
from holdfast.storage.contract import Entry, Storage
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import FaultyStorage


def test_without_a_seat_commits_may_always_begin() -> None:
    Permit(ManualClock()).await_commit()


def test_a_commit_waits_until_the_permit_is_extended() -> None:
    clock = ManualClock()
    permit, began = Permit(clock, until=6.0), threading.Event()
    permit.await_commit()
    clock.advance(timedelta(seconds=6))
    thread = threading.Thread(target=lambda: (permit.await_commit(), began.set()), daemon=True)
    thread.start()
    assert not began.wait(0.3), "it began after its permit had ended"
    permit.extend(12.0)
    assert began.wait(10)
    thread.join()


def test_a_commit_that_waits_is_refused_when_the_seat_is_lost() -> None:
    permit, refused = Permit(ManualClock(), until=0.0), list[str]()

    def commit() -> None:
        try:
            permit.await_commit()
        except SeatLost as lost:
            refused.append(str(lost))

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    permit.revoke("node b has the seat")
    thread.join(10)
    assert refused == ["node b has the seat; this run ends and its node stands by"]
    permit.extend(1_000.0)
    with pytest.raises(SeatLost):
        permit.await_commit()


def test_how_long_a_commit_has_been_wanted_is_counted_from_the_first_try() -> None:
    clock = ManualClock()
    permit = Permit(clock)
    assert permit.wanted_since is None
    clock.advance(timedelta(seconds=3))
    permit.await_commit()
    clock.advance(timedelta(seconds=3))
    permit.want()
    assert permit.wanted_since == 3.0
    permit.satisfied()
    assert permit.wanted_since is None


class Hanging(FaultyStorage):
    """Does not answer until it is mended."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.asked, self.mended = threading.Event(), threading.Event()

    def list(self, prefix: str) -> list[Entry]:
        self.asked.set()
        assert self.mended.wait(10)
        return super().list(prefix)


def test_a_leader_that_storage_does_not_answer_counts_as_one_that_cannot_commit(tmp_path: Path) -> None:
    """It may hang in any call, long before it has a commit to want."""
    storage, clock = Hanging(LocalStorage(tmp_path)), ManualClock()
    permit = Permit(clock)
    watched = WatchedStorage(storage, permit)
    clock.advance(timedelta(seconds=3))
    asking = threading.Thread(target=lambda: watched.list("plans/"), daemon=True)
    asking.start()
    assert storage.asked.wait(10)
    clock.advance(timedelta(seconds=3))
    permit.want()
    permit.satisfied()
    assert permit.wanted_since == 3.0, "a commit that succeeded says nothing of a call that hangs"
    storage.mended.set()
    asking.join(10)
    assert permit.wanted_since is None


def test_a_run_tells_its_permit_when_it_waits_for_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = hf.Job("waiting")
    rows = job.source(hf.MemorySource([("a",)], schema="word string"), uid="in")
    rows.sink(hf.MemorySink(), uid="out")
    storage, clock = Hanging(LocalStorage(tmp_path / "ck")), ManualClock()
    wishes, settings = Wishes(Permit(clock)), check_settings(str(tmp_path / "ck"), {})
    monitor = Monitor("waiting", clock, [], [])
    compiled = SimpleNamespace(graph=job.graph(), forms={}, sinks={})
    monkeypatch.setattr(driver_module, "compile_graph", lambda *_: compiled)
    driver = Driver(
        job.graph(), settings, storage, cast(Any, None),
        own_session=True, run="run", clock=clock, monitor=monitor, wishes=wishes,
    )  # fmt: skip
    running = threading.Thread(target=lambda: swallowed(lambda: driver.run(cast(Any, None))), daemon=True)
    running.start()
    assert storage.asked.wait(10)
    assert wishes.permit.wanted_since == 0.0
    wishes.permit.revoke("the test is over")
    storage.mended.set()
    running.join(10)
    assert not running.is_alive()


def swallowed(act: Callable[[], None]) -> None:
    with suppress(SeatLost):
        act()


def test_a_run_whose_seat_was_lost_before_it_began_claims_no_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may take long to start: by then somebody else may lead, who must not be fenced out."""
    job = hf.Job("late")
    rows = job.source(hf.MemorySource([("a",)], schema="word string"), uid="in")
    rows.sink(hf.MemorySink(), uid="out")
    storage, clock = LocalStorage(tmp_path / "ck"), ManualClock()
    permit = Permit(clock)
    permit.revoke("node b has the seat")
    compiled = SimpleNamespace(graph=job.graph(), forms={}, sinks={})
    monkeypatch.setattr(driver_module, "compile_graph", lambda *_: compiled)
    settings, wishes = check_settings(str(tmp_path / "ck"), {}), Wishes(permit)
    monitor = Monitor("late", clock, [], [])
    driver = Driver(
        job.graph(), settings, storage, cast(Any, None),
        own_session=True, run="run", clock=clock, monitor=monitor, wishes=wishes,
    )  # fmt: skip
    with pytest.raises(SeatLost):
        driver.run(cast(Any, None))
    assert newest_term(storage) is None
