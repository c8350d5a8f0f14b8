"""A channel whose readers are not known: its newest epochs are kept, and no reader is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.savepoints.take import savepoint_manifest
from holdfast.checkpoint.store import names
from holdfast.errors import RestoreError
from holdfast.runtime.parts.outlets import Outlets, refuse_unread
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.parts.channel_kit import CHANNEL, Producer, door


@pytest.fixture
def producer(tmp_path: Path) -> Producer:
    return Producer(LocalStorage(tmp_path), door(keep_epochs=4))


def held(producer: Producer) -> list[int]:
    return [file.epoch for file in producer.channel.files]


def stored(producer: Producer) -> set[int]:
    """The epochs whose rows are in storage."""
    return {names.number_of(entry.name) or 0 for entry in producer.storage.list(names.DATA)}


def test_the_newest_epochs_are_held_and_older_ones_are_deleted(producer: Producer) -> None:
    for _ in range(4):
        producer.commit([b"x"])
    assert (held(producer), producer.channel.released) == ([1, 2, 3, 4], 0)
    for _ in range(26):
        producer.commit([b"x"])
    assert held(producer) == [27, 28, 29, 30]
    assert History(producer.storage).load().channels == producer.view.channels
    # Deleted two steps later: a commit that can be gone back to may still name them.
    assert stored(producer) >= {27, 28, 29, 30}
    assert min(stored(producer)) > 15


def test_epochs_without_rows_count(producer: Producer) -> None:
    producer.commit([b"x"], [], [], [b"y"])
    assert held(producer) == [1, 4]
    producer.commit([])
    assert held(producer) == [4]


def test_no_reader_is_waited_for(producer: Producer) -> None:
    for _ in range(50):
        producer.commit([b"x" * 1_000])
    assert producer.outlets.waiting(producer.view.channels) == []
    assert producer.outlets.marks() == {}


def test_what_was_let_go_does_not_come_back_when_more_is_kept(producer: Producer) -> None:
    for _ in range(6):
        producer.commit([b"x"])
    producer.node = door(keep_epochs=100)
    producer.open()
    producer.commit([b"y"])
    assert (held(producer), producer.channel.released) == ([3, 4, 5, 6, 7], 2)


def test_a_rewind_changes_nothing_of_what_is_held(producer: Producer) -> None:
    for n in range(4):
        producer.commit([b"%d" % n])
    before = producer.channel
    producer.rewind(2)
    assert producer.channel == before
    producer.commit([b"again"])
    assert producer.channel == before, "epoch 3 is in the channel since the first time"
    producer.commit([b"again"])
    producer.commit([b"5"])
    assert held(producer) == [2, 3, 4, 5]


def test_a_manifest_knows_how_much_is_kept(producer: Producer) -> None:
    for _ in range(9):
        producer.commit([b"x"])
    assert any(entry.name for entry in producer.storage.list(names.MANIFESTS))
    assert History(producer.storage).load().channels[CHANNEL].kept == 4


def test_a_savepoint_has_none_of_its_rows(producer: Producer) -> None:
    producer.commit([b"x"], [b"y"])
    manifest = savepoint_manifest(producer.view)
    assert manifest.sent == ()
    state = manifest.channels[CHANNEL]
    assert (state.through, state.released, state.kept) == (2, 2, 4)


def test_a_door_that_the_job_has_no_more_is_dropped_only_where_that_is_allowed(producer: Producer) -> None:
    producer.commit([b"abc"])
    with pytest.raises(RestoreError, match=r"'clicks-in' holds 3 rows that other jobs may .*--allow-dropp"):
        refuse_unread(producer.view.channels, [], "url")
    refuse_unread(producer.view.channels, [], "url", allow_dropped_state=True)
    refuse_unread(producer.view.channels, [producer.node], "url")
    none = Outlets((), producer.clock)
    assert none.states(producer.view.channels) == {}, "the next commit lets go of it"
    assert none.states({}) is None


def test_a_door_that_comes_again_does_not_hide_what_is_missing(producer: Producer) -> None:
    """A reader of the former one would go on after a gap."""
    known = Outlets((producer.node,), producer.clock)
    for states in (known.states({}, since=7), known.states({}, (), 9, since=7)):
        assert states is not None
        assert states[CHANNEL].released == 7
    assert states[CHANNEL].through == 9
