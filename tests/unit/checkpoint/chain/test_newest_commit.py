"""When the newest commit is told by one name, and when all names are listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.checkpoint.chain.history import History, NewestCommit
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.errors import RetryableError
from holdfast.ids import CommitNumber
from holdfast.storage.urls import open_storage
from holdfast.testing.clocks import ManualClock

FIRST = replace(EMPTY, number=CommitNumber(1))


class SlowHistory(History):
    """A listing takes four seconds, and fails while `down`."""

    down = False

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(open_storage(str(root)))
        self.storage.put(names.commit(FIRST.number), b"")
        self._clock = clock

    def load(self) -> CheckpointView:
        self._clock.sleep(4)
        if self.down:
            raise RetryableError("storage does not answer")
        return FIRST


def test_a_commit_is_the_newest_until_the_next_name_is_there(tmp_path: Path) -> None:
    clock = ManualClock()
    history = SlowHistory(tmp_path, clock)
    newest = NewestCommit(history, clock, list_seconds=5)
    assert not newest.is_still(EMPTY)
    assert newest.is_still(FIRST)
    history.storage.put(names.commit(2), b"")
    assert not newest.is_still(FIRST)


def test_a_commit_that_was_retired_is_not_the_newest(tmp_path: Path) -> None:
    """The next one may have come and gone, too."""
    clock = ManualClock()
    history = SlowHistory(tmp_path, clock)
    newest = NewestCommit(history, clock, list_seconds=5)
    history.storage.delete([names.commit(FIRST.number)])
    assert not newest.is_still(FIRST)


def test_a_listing_counts_from_its_beginning_and_only_if_it_succeeded(tmp_path: Path) -> None:
    clock = ManualClock()
    history = SlowHistory(tmp_path, clock)
    newest = NewestCommit(history, clock, list_seconds=5)
    clock.sleep(5)
    history.down = True
    with pytest.raises(RetryableError):
        newest.load()
    assert not newest.is_still(FIRST), "nothing was listed"
    history.down = False
    assert newest.load() == FIRST
    assert newest.is_still(FIRST)
    clock.sleep(1)
    assert not newest.is_still(FIRST), "five seconds after the listing began"
