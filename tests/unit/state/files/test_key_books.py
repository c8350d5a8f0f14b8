"""When a key is saved, and when it is clean again. Time is a number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.state.files.key_books import (
    BOOKS,
    CLEAN,
    NEVER,
    Book,
    Schedule,
    ShardBook,
    books_after_events,
    books_after_saves,
    index_base,
    index_keys,
    index_time,
    pack_books,
    unpack_books,
    unsaved,
)

EVERY = Schedule(every_ms=20_000)
TEN = Schedule(events=10)


def after_events(
    book: Book, events: int, schedule: Schedule, now_ms: int, *, dirties: bool = True, at_once: bool = False
) -> Book:
    packed, _ = unpack_books([book.pack()])
    flags = np.array([dirties]), np.array([at_once])
    return Book.unpack(books_after_events(packed, np.array([events]), schedule, now_ms, *flags).tobytes())


def after_save(book: Book, saved: int, schedule: Schedule, taken_ms: int) -> Book:
    packed, _ = unpack_books([book.pack()])
    after = books_after_saves(packed, np.array([saved]), schedule, np.array([taken_ms]))
    return Book.unpack(after.tobytes())


def test_by_time_a_key_is_due_so_long_after_it_became_dirty_however_often_it_is_seen() -> None:
    book = after_events(Book(), 1, EVERY, 1_000)
    assert book.due_ms == 21_000
    assert after_events(book, 5, EVERY, 20_999).due_ms == 21_000


def test_by_count_a_key_is_due_at_every_nth_event_of_its_life() -> None:
    book = after_events(Book(), 9, TEN, 1_000)
    assert book.due_ms == NEVER
    book = after_events(book, 1, TEN, 2_000)
    assert book.due_ms == 2_000
    book = after_save(book, 10, TEN, 2_500)
    assert not book.dirty
    book = after_events(book, 9, TEN, 3_000)
    assert book.due_ms == NEVER
    assert after_events(book, 3, TEN, 4_000).due_ms == 4_000


def test_the_count_goes_on_where_the_save_left_it() -> None:
    recovered = Book(events=17, saved=17)
    assert after_events(recovered, 2, TEN, 1_000).due_ms == NEVER
    assert after_events(recovered, 3, TEN, 1_000).due_ms == 1_000


def test_clean_only_if_the_save_has_all_events() -> None:
    book = after_events(Book(), 5, EVERY, 1_000)
    more = after_events(book, 2, EVERY, 2_000)
    after = after_save(more, 5, EVERY, 1_500)
    assert (after.saved, after.unsaved, after.due_ms) == (5, 2, 21_500)
    assert after_save(more, 7, EVERY, 2_000).due_ms == CLEAN


@pytest.mark.parametrize("saved", [3, 8])
def test_news_of_an_older_save_or_of_another_way_changes_nothing(saved: int) -> None:
    book = Book(events=7, saved=5, due_ms=9)
    assert after_save(book, saved, EVERY, 1) == book


def test_what_leaves_nothing_to_save_leaves_a_clean_key_clean_and_a_dirty_one_dirty() -> None:
    clean = after_events(Book(), 3, EVERY, 1_000, dirties=False)
    assert (clean.dirty, clean.unsaved) == (False, 0)
    dirty = after_events(Book(), 1, EVERY, 1_000)
    assert after_events(dirty, 1, EVERY, 2_000, dirties=False).due_ms == 21_000


def test_the_user_may_ask_for_a_save_at_once() -> None:
    assert after_events(Book(), 1, EVERY, 1_000, at_once=True).due_ms == 1_000
    assert after_events(Book(), 1, TEN, 1_000, at_once=True).due_ms == 1_000


# The rules once more, for one key, in plain words.


def _due_ms(schedule: Schedule, book: Book, now_ms: int) -> int:
    if schedule.events is None:
        assert schedule.every_ms is not None
        return max(1, now_ms + schedule.every_ms)
    reached = book.events // schedule.events > book.saved // schedule.events
    return max(1, now_ms) if reached else NEVER


def _after_events(
    book: Book, events: int, schedule: Schedule, now_ms: int, *, dirties: bool = True, at_once: bool = False
) -> Book:
    """The book of a key that has just seen some events.

    `dirties`: whether they leave anything to save. `at_once`: the user's code asks for a save now.
    """
    book = replace(book, events=book.events + events, seen_ms=now_ms)
    if not dirties and not book.dirty:
        # Nothing of these events is worth saving, so nothing of them can be lost.
        return replace(book, saved=book.events)
    due = book.due_ms
    if not book.dirty or due == NEVER:
        due = _due_ms(schedule, book, now_ms)
    if at_once:
        due = min(due, max(1, now_ms))
    return replace(book, due_ms=due)


def _after_save(book: Book, saved: int, schedule: Schedule, now_ms: int) -> Book:
    """The book of a key of which a save is durable that has its first `saved` events.

    Clean only if that is all of them: what came while the save was under way is dirty still.
    """
    if saved < book.saved or saved > book.events:
        return book
    book = replace(book, saved=saved, unfetched=False)
    if saved == book.events:
        return replace(book, due_ms=CLEAN)
    return replace(book, due_ms=_due_ms(schedule, book, now_ms))


numbers = st.integers(0, 50)
books = st.builds(
    Book,
    events=st.integers(20, 60),
    saved=st.integers(0, 20),
    due_ms=st.sampled_from([CLEAN, 5, 5_000, NEVER]),
    seen_ms=numbers,
    unfetched=st.booleans(),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(books, st.integers(1, 30), st.booleans(), st.booleans()), min_size=1, max_size=20),
    st.sampled_from([EVERY, TEN]),
    st.integers(0, 10_000),
)
def test_many_books_change_as_each_of_them_would(
    rows: list[tuple[Book, int, bool, bool]], schedule: Schedule, now_ms: int
) -> None:
    packed, known = unpack_books([book.pack() for book, *_ in rows])
    assert known.all()
    events = np.array([count for _, count, _, _ in rows])
    flags = [np.array([row[place] for row in rows]) for place in (2, 3)]
    after = books_after_events(packed, events, schedule, now_ms, flags[0], flags[1])
    expected = [
        _after_events(
            book, count, schedule, now_ms, dirties=dirties, at_once=at_once and (dirties or book.dirty)
        )
        for book, count, dirties, at_once in rows
    ]
    assert [Book.unpack(each) for each in pack_books(after)] == expected
    assert unsaved(after) == sum(book.unsaved for book in expected)
    every = books_after_events(packed, events, schedule, now_ms)
    assert [Book.unpack(each) for each in pack_books(every)] == [
        _after_events(book, count, schedule, now_ms) for book, count, _, _ in rows
    ]


@given(
    st.lists(st.tuples(books, st.integers(0, 70), st.integers(0, 9_000)), min_size=1, max_size=20),
    st.sampled_from([EVERY, TEN]),
)
def test_many_books_are_saved_as_each_of_them_would_be(
    rows: list[tuple[Book, int, int]], schedule: Schedule
) -> None:
    packed, _ = unpack_books([book.pack() for book, _, _ in rows])
    columns = [np.array([row[place] for row in rows]) for place in (1, 2)]
    after = books_after_saves(packed, columns[0], schedule, columns[1])
    expected = [_after_save(book, saved, schedule, taken_ms) for book, saved, taken_ms in rows]
    assert [Book.unpack(each) for each in pack_books(after)] == expected


def test_the_bytes_of_books_and_indexes() -> None:
    book = Book(1, 2, 3, 4, True)
    assert book.pack().hex() == "0000000000000001000000000000000200000000000000030000000000000004" + "01"
    assert len(book.pack()) == BOOKS.itemsize
    blank, known = unpack_books([None])
    assert not known[0]
    assert Book.unpack(blank.tobytes()) == Book()
    (key,) = index_keys(b"\xff\xff\x02", np.array([3]), [b"base"])
    assert key == book.due_key(b"base") == b"\xff\xff\x02" + (3).to_bytes(8, "big") + b"base"
    assert (index_time(key), index_base(key)) == (3, b"base")
    shard = ShardBook(b"i" * 16, 1, 2, 3, 4)
    assert ShardBook.unpack(shard.pack()) == shard
