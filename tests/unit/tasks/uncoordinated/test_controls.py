"""Each safeguard taken away makes a story fail; `s4` are those that Apache S4's code lacked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import duration_ms
from holdfast.state.files.key_books import BOOK_SUFFIX, SEEN_PREFIX, Book
from holdfast.state.files.saved_key import read_keys
from holdfast.storage.key_saves import contract, files
from holdfast.tasks.uncoordinated import due_saves, saver
from holdfast.tasks.uncoordinated import shard_run as shard_module
from holdfast.tasks.uncoordinated.circuit_breaker import Bypass, Standing
from holdfast.tasks.uncoordinated.due_saves import until
from holdfast.tasks.uncoordinated.fetcher import Fetcher, Unanswered
from holdfast.tasks.uncoordinated.saver import Flight, Saver
from holdfast.tasks.uncoordinated.shard_run import ShardRun
from tests.contract.test_state_storage import (
    test_a_file_is_complete_and_durable_before_it_takes_the_place_of_the_one_before as safe_files,
)
from tests.unit.tasks.uncoordinated import kit, test_circuit_breaker
from tests.unit.tasks.uncoordinated import test_shard_run as stories


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    saver._savers.clear()
    yield
    saver._savers.clear()


def fails(story: Callable[..., None], *arguments: Any) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        story(*arguments)


def test_s4_1_a_bypass_the_wrong_way_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def inverted(self: Bypass, now_ms: int) -> bool:
        return self.since_ms is None or self.standing(now_ms) is Standing.BYPASSED

    monkeypatch.setattr(Bypass, "may_ask", inverted)
    fails(stories.test_storage_down_is_bypassed_after_ten_failures_and_asked_again_after_the_window, tmp_path)
    fails(test_circuit_breaker.test_ten_failures_in_a_row_open_it_for_ten_minutes_and_no_longer)


def test_s4_2_clean_before_the_save_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serialize = Saver._serialize

    def hasty(self: Saver, flight: Flight, taken: Any, jobs: Any) -> None:
        flight.log.append([taken.ack(job) for job in jobs])
        serialize(self, flight, taken, jobs)

    monkeypatch.setattr(Saver, "_serialize", hasty)
    fails(stories.test_a_save_that_fails_leaves_the_key_dirty_and_is_tried_again, tmp_path)


def test_s4_3_delete_then_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(files: dict[str, bytes]) -> None:
        for path, stored in files.items():
            Path(path).unlink(missing_ok=True)
            Path(path).write_bytes(stored)

    monkeypatch.setattr(files, "_replace", careless)
    fails(safe_files, tmp_path, monkeypatch)


def test_s4_4_no_answer_taken_for_nothing_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Fetcher.fetch

    def trusting(self: Fetcher, bases: Any) -> list[Any]:
        return [None if isinstance(answer, Unanswered) else answer for answer in fetch(self, bases)]

    monkeypatch.setattr(Fetcher, "fetch", trusting)
    fails(stories.test_an_unanswered_fetch_never_overwrites_the_save, tmp_path)


def test_s4_8_a_count_that_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = shard_module.unpack
    monkeypatch.setattr(shard_module, "unpack", lambda data, id: replace(unpack(data, id), events=0))
    fails(stories.test_the_phase_of_a_count_survives_a_loss, tmp_path)


def test_s4_9_eviction_without_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(
        self: ShardRun, found: dict[bytes, bytes | None], seen: frozenset[bytes], after: str
    ) -> None:
        limit = self._clock_ms - duration_ms(after)
        for base in [base for base in until(self._state, SEEN_PREFIX, limit) if base not in seen]:
            stored = self._state.get(base + BOOK_SUFFIX)
            assert stored is not None
            book = Book.unpack(stored)
            (entries,) = read_keys(self._task.layout, [base], self._state)
            found.update((key, None) for key, _ in entries)
            found[base + BOOK_SUFFIX] = found[book.seen_key(base)] = found[book.due_key(base)] = None
            self._saver.count(evicted=1)

    monkeypatch.setattr(ShardRun, "_evict", careless)
    fails(stories.test_an_idle_key_is_saved_before_it_is_evicted_and_fetched_when_it_comes_back, tmp_path)


def test_acknowledgements_of_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_saves, "valid", lambda acks, state: {ack.base: ack for ack in acks})
    fails(stories.test_a_save_taken_on_a_way_that_was_given_up_does_not_make_a_key_clean, tmp_path)


def test_all_events_clean_with_any_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after = due_saves.books_after_saves

    def hasty(books: Any, saved: Any, schedule: Any, taken_ms: Any) -> Any:
        return after(books, books["events"].astype("int64"), schedule, taken_ms)

    monkeypatch.setattr(due_saves, "books_after_saves", hasty)
    fails(stories.test_events_that_come_while_a_save_is_under_way_stay_dirty, tmp_path)


def test_a_storage_that_takes_any_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "is_later", lambda data, than: False)
    assert contract.is_later(b"b", b"a"), "only the storage of the story is careless"
    fails(stories.test_a_superseded_copy_cannot_overwrite_later_saves, tmp_path)


def test_two_processes_that_save_one_shard(tmp_path: Path) -> None:
    """The right to save is one process's: a second one, here another saver, is refused and says so."""
    states = kit.MemoryStates()
    one = kit.Shard(tmp_path, kit.uncoordinated(states, every="1s"))
    one.epoch(["ann"])
    states.open.clear()
    one.epoch(["bob"], after_ms=2_000)  # the save of ann hangs, in the first process
    end = time.monotonic() + kit.DEADLINE
    while not states.calls["save"]:
        assert time.monotonic() < end, "the first process does not save"
        time.sleep(0.01)
    first = one.saver
    one.run_id = "second process"
    states.calls.clear()
    one.with_settings(fetch_timeout="10ms")
    one.epoch(["bob"], after_ms=1_000)
    assert one.saver is not first
    assert one.last is not None
    assert one.last.counts.rejected >= 1
    assert states.calls["save"] == 0
    states.open.set()
    for flight in first._flights.values():
        assert flight.wait(20)
    one.epoch(["bob"], after_ms=1_000)
    one.settle()
    assert states.events()["bob"] >= 1
