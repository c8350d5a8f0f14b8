"""Giving up old commits on request."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.admin import brief_term
from holdfast.admin.prune import prune
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.low_water import base_of
from holdfast.checkpoint.chain.pins import pin, read_pins
from holdfast.checkpoint.chain.terms import claim, newest_term, record_ending
from holdfast.checkpoint.chain.view import EMPTY, news
from holdfast.checkpoint.store.records import EndedRecord
from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError, RetryableError
from holdfast.storage.local_directory import LocalStorage
from tests.unit.inspect.stored import MadeCheckpoint
from tests.unit.inspect.test_stored_state import read
from tests.unit.runtime.parts.channel_kit import Consumer, Producer, outlet

CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)


def grown(tmp_path: Path, commits: int = 12, *, ended: bool = True) -> MadeCheckpoint:
    made = MadeCheckpoint(tmp_path)
    for number in range(commits):
        made.commit({(f"u{i}", i): {"total": number} for i in range(20)}, snapshots=number % 3 == 2)
    if ended:
        record_ending(
            made.storage,
            EndedRecord(term=1, run="r", at_ms=0, ending="stopped", commit=1, last_epoch=1, published=True),
        )
    return made


def test_all_but_the_newest_are_given_up_and_their_files_deleted(tmp_path: Path) -> None:
    made = grown(tmp_path)
    before = {entry.name for entry in made.storage.list("data/")}
    done = prune(made.storage, 3, CLOCK)
    assert done.given_up == tuple(range(1, 10))
    assert done.deleted > 0
    assert len(made.storage.list("data/")) < len(before)
    view = Chain(made.storage).load()
    assert view.number == 14
    assert view.retained_from == 10
    assert read(made) == made.model
    assert read(made, commit=10) != made.model


def test_a_commit_stays_from_which_state_in_no_file_can_be_had_again(tmp_path: Path) -> None:
    storage, view = LocalStorage(tmp_path), EMPTY
    claim(storage, "r", "host", 1, 0)
    chain = Chain(storage)
    for needs_from in (1, 1, 1, 2, 2, 3, 3, 3):
        record = news(view, term=1, run="r", published_through={})
        if view.number:
            epoch = view.last_epoch + 1
            record = replace(record, first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1})
        done = chain.commit(view, replace(record, needs_from=needs_from))
        assert isinstance(done, Committed)
        view = done.view
    would = prune(storage, 2, CLOCK, dry_run=True, not_running=True)
    assert would.given_up == (1, 2), "commit 3 is before epoch 3, the first that is needed"
    done_so = prune(storage, 2, CLOCK, not_running=True)
    assert (done_so.given_up, done_so.retained_from) == ((1, 2), 3)
    newest = Chain(storage).load()
    assert base_of(Chain(storage), newest, newest.number, newest.retained_from) == 3


def test_a_dry_run_touches_nothing(tmp_path: Path) -> None:
    made = grown(tmp_path)
    before = made.storage.list("")
    done = prune(made.storage, 3, CLOCK, dry_run=True)
    assert done.given_up == tuple(range(1, 10))
    assert made.storage.list("") == before


def test_a_leader_that_is_only_silent_keeps_its_lead(tmp_path: Path) -> None:
    """However long it is paused: nothing but its own word, or the user's, says that it is gone."""
    made = grown(tmp_path, ended=False)
    before = made.storage.list("")
    with pytest.raises(RetryableError, match=r"term 1 .* nothing was touched; .* --not-running"):
        prune(made.storage, 3, CLOCK)
    assert made.storage.list("") == before
    made.commit({("u1", 1): {"total": 99}})


def test_a_leader_known_to_be_gone_is_not_waited_for(tmp_path: Path) -> None:
    made = grown(tmp_path, ended=False)
    assert prune(made.storage, 3, CLOCK, not_running=True).given_up == tuple(range(1, 10))
    # It has said that it ended itself: the next one needs no word.
    assert prune(made.storage, 2, CLOCK).newest == 16


def test_a_prune_that_was_killed_does_not_count_as_a_leader(tmp_path: Path) -> None:
    made = grown(tmp_path)
    claim(made.storage, "command-abc", "here", 1, 0)
    assert prune(made.storage, 3, CLOCK).given_up == tuple(range(1, 10))


def test_a_leader_that_comes_while_it_is_asked_keeps_its_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grown(tmp_path)

    def coming(*args: object, **options: object) -> None:
        claim(made.storage, "new", "here", 1, 0)

    monkeypatch.setattr(brief_term, "status_of_leader", coming)
    with pytest.raises(RetryableError, match="a leader came meanwhile"):
        prune(made.storage, 3, CLOCK)
    newest = newest_term(made.storage)
    assert newest is not None
    assert newest.run == "new"
    assert History(made.storage).load().number == made.view.number


def test_beside_a_leader_nothing_is_given_up_and_no_term_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grown(tmp_path)
    monkeypatch.setattr(brief_term, "status_of_leader", lambda *args, **options: {"phase": "running"})
    done = prune(made.storage, 3, CLOCK)
    assert done.led
    assert done.given_up == ()
    term = newest_term(made.storage)
    assert term is not None
    assert term.term == 1
    assert History(made.storage).load().number == made.view.number


def test_beside_a_leader_a_snapshot_that_it_is_about_to_commit_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeCheckpoint(tmp_path, retain=3)
    changed = {(f"u{i}", i): {"total": i} for i in range(20)}
    for number in range(9):
        made.commit(changed, snapshots=number in (0, 1, 2))
    # Begun at epoch 4 and slow: by now its epoch is no longer retained.
    files = [made.snapshot(groups, 4) for groups in made.shards]
    monkeypatch.setattr(brief_term, "status_of_leader", lambda *args, **options: {"phase": "running"})
    done = prune(made.storage, 3, CLOCK)
    assert done.deleted > 0
    assert [made.storage.size(file.object) for file in files] == [file.length for file in files]
    assert made.storage.list("snapshots/000000000001/") == []


def test_a_pinned_commit_outlives_pruning_until_its_pin_is_dropped(tmp_path: Path) -> None:
    made = grown(tmp_path)
    pin(History(made.storage), "reader", 2, "somebody", CLOCK.now_ms() - 86_400_000)
    prune(made.storage, 3, CLOCK)
    assert History(made.storage).view_at(2).number == 2
    assert [p.name for p in read_pins(made.storage).records] == ["reader"]
    done = prune(made.storage, 3, CLOCK, pins_older_than_ms=3_600_000)
    assert done.pins_dropped == ("reader",)
    assert read_pins(made.storage).records == ()


def test_a_void_pin_holds_nothing_back(tmp_path: Path) -> None:
    made = grown(tmp_path)
    now = CLOCK.now_ms()
    pin(History(made.storage), "dead", 1, "somebody", now - 10_000, expires_ms=now - 5_000)
    done = prune(made.storage, 3, CLOCK)
    assert done.pins_dropped == ("dead",)
    assert done.deleted > 0


def test_keeping_too_little_is_refused(tmp_path: Path) -> None:
    made = grown(tmp_path, 2)
    with pytest.raises(DefinitionError, match="from 2 on"):
        prune(made.storage, 1, CLOCK)


def test_a_part_that_has_come_to_its_end_is_at_it_still(tmp_path: Path) -> None:
    """Else the part that reads its channel would wait for ever."""
    producer = Producer(LocalStorage(tmp_path / "a"), outlet(str(tmp_path / "b")), retain=9)
    consumer = Consumer(LocalStorage(tmp_path / "b"), producer.storage.url)
    for _ in range(5):
        producer.commit([b"a"])
    producer.end()
    while consumer.take() is not None:
        consumer.commit()
    assert consumer.new_reader().exhausted(consumer.position)
    assert prune(producer.storage, 2, CLOCK).given_up
    assert consumer.new_reader().exhausted(consumer.position)
