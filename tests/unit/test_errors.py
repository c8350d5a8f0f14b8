"""Errors told in one line."""

from __future__ import annotations

import pickle

from holdfast.errors import Unpublished, first_line, one_line
from holdfast.ids import epochs_told
from holdfast.runtime.savepoints.run_savepoints import waiting_in_words


def test_the_first_line_is_the_first_that_says_something() -> None:
    assert first_line(ValueError("\n   no such column\n  at line 3")) == "no such column"


def test_one_line_holds_all_that_an_error_says() -> None:
    assert one_line(ValueError("no such\n  column\n")) == "no such column"


def test_an_error_that_says_nothing_is_told_by_its_type() -> None:
    assert (first_line(KeyError()), one_line(EOFError(" \n"))) == ("KeyError", "EOFError")


def test_a_stop_says_what_is_committed_and_what_the_next_start_does() -> None:
    told = str(Unpublished({"out": 3, "b": 1}))
    assert told == (
        "the run has stopped, with 3 epochs unpublished in sink 'out', 1 epoch unpublished in sink 'b', "
        "though all is committed; the next start publishes them"
    )
    told = str(Unpublished({"out": 1}, no_savepoint=True, uncommitted=2))
    assert told == (
        "the run has stopped, with 1 epoch unpublished in sink 'out', 2 epochs run and not committed, "
        "because a sink that is written before the commit has not shown them (at least once); the next start "
        "reads their rows again, and shows them in every sink; no savepoint was left, because they would not "
        "be in it"
    )
    assert str(pickle.loads(pickle.dumps(Unpublished({}, uncommitted=2)))).startswith(
        "the run has stopped, with 2 epochs run and not committed, because"
    )


def test_one_epoch_is_told_as_one() -> None:
    told = str(Unpublished({"a": 1, "b": 3}))
    assert "with 1 epoch unpublished in sink 'a', 3 epochs unpublished in sink 'b'" in told
    assert waiting_in_words({"a": 1, "b": 0}).startswith(
        "1 epoch for sink 'a' is still to be shown and is not"
    )
    assert waiting_in_words({"a": 2}).startswith(
        "2 epochs for sink 'a' are still to be shown and are not in it"
    )
    assert (epochs_told(15, 15), epochs_told(15, 17)) == ("epoch 15", "epochs 15 to 17")
