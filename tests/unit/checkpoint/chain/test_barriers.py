"""Barriers of a whole job: one at a time, and each ends once."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.chain.barriers import (
    BARRIERS_KEPT,
    Standing,
    begin_barrier,
    complete_barriers,
    end_barrier,
    ending_of_barrier,
    forget_barriers,
    newest_barrier,
)
from holdfast.checkpoint.store import names
from holdfast.errors import RetryableError
from holdfast.storage.local_directory import LocalStorage


@pytest.fixture
def root(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def test_one_barrier_is_under_way_at_a_time(root: LocalStorage) -> None:
    assert newest_barrier(root) == Standing(0, False)
    assert begin_barrier(root, "ann", 10, 100) == 1
    assert newest_barrier(root) == Standing(1, True)
    with pytest.raises(RetryableError, match="barrier 1 of ann is under way"):
        begin_barrier(root, "ben", 20, 100)
    end_barrier(root, 1, "complete", 30, {"main": 7})
    assert newest_barrier(root) == Standing(1, False)
    assert begin_barrier(root, "ben", 40, 100) == 2


def test_a_barrier_that_was_left_behind_is_aborted_by_the_next(root: LocalStorage) -> None:
    begin_barrier(root, "ann", 10, 100)
    assert begin_barrier(root, "ben", 110, 100) == 2
    ended = ending_of_barrier(root, 1)
    assert ended is not None
    assert ended.outcome == "aborted"
    # The one that began it comes too late.
    assert end_barrier(root, 1, "complete", 120, {"main": 7}).outcome == "aborted"


def test_what_became_of_a_barrier_is_decided_once(root: LocalStorage) -> None:
    begin_barrier(root, "ann", 10, 100)
    assert end_barrier(root, 1, "complete", 20, {"main": 7}).commits == {"main": 7}
    assert end_barrier(root, 1, "aborted", 30, reason="late").outcome == "complete"


def test_the_newest_complete_barriers_are_found_and_old_ones_forgotten(root: LocalStorage) -> None:
    for number in range(1, BARRIERS_KEPT + 6):
        begin_barrier(root, "ann", number, 100)
        end_barrier(root, number, "aborted" if number % 3 == 0 else "complete", number, {})
    last = BARRIERS_KEPT + 5
    assert [record.number for record in complete_barriers(root, 2)] == [
        number for number in range(last, 0, -1) if number % 3
    ][:2]
    forget_barriers(root)
    assert ending_of_barrier(root, 5) is None
    assert ending_of_barrier(root, 6) is not None
    assert begin_barrier(root, "ann", 1_000, 100) == last + 1, "a number is used once"


def test_those_that_can_be_gone_back_to_are_not_forgotten_however_many_were_given_up_since(
    root: LocalStorage,
) -> None:
    for number in range(1, BARRIERS_KEPT + 6):
        begin_barrier(root, "ann", number, 100)
        end_barrier(root, number, "complete" if number in (1, 2, BARRIERS_KEPT + 5) else "aborted", number)
    forget_barriers(root)
    assert [record.number for record in complete_barriers(root, 3)] == [BARRIERS_KEPT + 5, 2]


def test_a_barrier_whose_end_cannot_be_read_is_none_to_go_back_to(root: LocalStorage) -> None:
    for number in (1, 2, 3):
        begin_barrier(root, "ann", number, 100)
        end_barrier(root, number, "complete", number, {"main": number})
    (root.root / names.barrier_end(2)).write_bytes(b"damaged")
    assert [record.number for record in complete_barriers(root, 2)] == [3, 1]
