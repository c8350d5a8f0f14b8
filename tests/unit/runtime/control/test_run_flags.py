"""What is asked of a run is done once, or refused: it is never agreed to and forgotten."""

from __future__ import annotations

import pytest

from holdfast.errors import DefinitionError
from holdfast.runtime.control.run_flags import Wishes


def test_the_savepoint_that_was_wished_for_is_left() -> None:
    wishes = Wishes()
    wishes.leave_savepoint("/sp")
    wishes.leave_savepoint("/sp")
    assert wishes.taken_savepoint() == "/sp"


def test_a_second_savepoint_elsewhere_is_refused() -> None:
    wishes = Wishes()
    wishes.leave_savepoint("/sp")
    with pytest.raises(DefinitionError, match="leaves its savepoint in /sp"):
        wishes.leave_savepoint("/other")
    assert wishes.taken_savepoint() == "/sp"


def test_a_savepoint_that_comes_too_late_is_refused() -> None:
    wishes = Wishes()
    assert wishes.taken_savepoint() is None
    with pytest.raises(DefinitionError, match="the run is ending"):
        wishes.leave_savepoint("/sp")


def test_a_number_of_shards_is_taken_once() -> None:
    wishes = Wishes()
    wishes.parallelism = 3
    assert wishes.parallelism == 3
    assert wishes.taken_parallelism() == 3
    assert wishes.taken_parallelism() is None
