"""From which commit state is had again that is in no file, and which commits are kept for that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.low_water import base_of, lacks_state, refuse_without_base
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, from_manifest, news, to_manifest
from holdfast.errors import RestoreError
from holdfast.ids import CommitNumber
from tests.unit.checkpoint.kept import MemoryStorage, draft


def begun(chain: Chain) -> CheckpointView:
    """After the commit that says that nothing is open."""
    record = replace(news(EMPTY, term=1, run="run-1", published_through={}), needs_from=1)
    return committed(chain, EMPTY, record)


def committed(chain: Chain, view: CheckpointView, record: object) -> CheckpointView:
    done = chain.commit(view, record)  # type: ignore[arg-type]
    assert isinstance(done, Committed)
    return done.view


def epochs(chain: Chain, view: CheckpointView, *needs: int) -> CheckpointView:
    """One commit after another, each of an epoch after which these are the first whose rows are needed."""
    for needs_from in needs:
        record = replace(draft(view, deltas=()), staged=(), needs_from=needs_from)
        view = committed(chain, view, record)
    return view


def test_the_newest_commit_before_the_first_epoch_that_is_needed_is_gone_back_to() -> None:
    chain = Chain(MemoryStorage(), retain=2)
    view = epochs(chain, begun(chain), 1, 1, 2, 4)
    assert (view.number, view.last_epoch, view.needs_from) == (5, 4, 4)
    assert lacks_state(view)
    assert base_of(chain, view, view.number, view.retained_from) == 4
    assert Chain(chain.storage).load().needs_from == 4
    assert from_manifest(to_manifest(view), "m").needs_from == 4


def test_where_nothing_is_open_nothing_is_read_again() -> None:
    chain = Chain(MemoryStorage())
    assert not lacks_state(epochs(chain, begun(chain), 1, 3))
    assert not lacks_state(EMPTY)


def test_commits_are_kept_from_which_the_oldest_retained_state_can_be_had() -> None:
    chain = Chain(MemoryStorage(), retain=2)
    view = epochs(chain, begun(chain), 1, 1, 1, 1, 1)
    assert view.retained_from == 1, "windows are open since the first epoch"
    view = epochs(chain, view, 5, 6)
    assert (view.number, view.last_epoch) == (8, 7)
    # One can go back to commit 7, of epoch 6, whose state is made of epochs 5 and 6: from commit 5 on.
    assert view.retained_from <= 5
    assert base_of(chain, chain.view_at(7), view.number, view.retained_from) == 5
    view = epochs(chain, view, 7, 8, 9)
    assert view.retained_from > 5


def test_going_back_begins_with_no_state_and_says_when_it_is_whole_again() -> None:
    chain = Chain(MemoryStorage())
    view = epochs(chain, begun(chain), 1, 1, 2, 3)
    base = base_of(chain, view, view.number, view.retained_from)
    assert base == 3
    done = chain.rewind(view.head, CommitNumber(base), term=1, run="run-1", whole_after=view.last_epoch)
    gone = done.view
    assert (gone.last_epoch, gone.needs_from, gone.whole_after) == (2, 3, 4)
    assert not lacks_state(gone)
    assert Chain(chain.storage).load() == gone
    # Ended on the way there, it begins at the same place, and is whole at the same place.
    part = epochs(chain, gone, 3)
    assert (part.last_epoch, part.needs_from, part.whole_after) == (3, 3, 4)
    assert base_of(chain, part, part.number, part.retained_from) == gone.number
    # Saved state is state again.
    saved = committed(chain, part, draft(part))
    assert (saved.needs_from, saved.whole_after) == (0, 4)


def test_a_commit_whose_rows_were_let_go_is_refused() -> None:
    chain = Chain(MemoryStorage())
    view = epochs(chain, begun(chain), 1, 1, 1)
    with pytest.raises(
        RestoreError, match=r"rows that it is made of \(from epoch 1 on\) were let go; choose"
    ):
        refuse_without_base(chain, view, view.number, 2)
