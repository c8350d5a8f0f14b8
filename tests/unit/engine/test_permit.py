"""A permit to commit: it ends by itself, is extended, or is revoked for good."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from holdfast.engine.permit import Permit
from holdfast.errors import SeatLost
from holdfast.testing.clocks import ManualClock


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
