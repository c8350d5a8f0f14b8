from __future__ import annotations

import pytest

from holdfast.checkpoint.chain.commits import Adopted, Chain, Committed
from holdfast.checkpoint.chain.view import EMPTY
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import FloorRecord
from holdfast.errors import FencedOut, RestoreError, StorageError, UnknownOutcome
from holdfast.ids import CommitNumber
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import SINK, MemoryStorage, commit, draft, grow


def test_a_new_checkpoint_is_empty() -> None:
    assert Chain(MemoryStorage()).load() == EMPTY


def test_what_is_committed_is_what_another_process_loads() -> None:
    storage = MemoryStorage()
    view = grow(Chain(storage, manifest_every=4), EMPTY, 11)
    assert Chain(storage).load() == view
    assert Chain(storage).view_at(6).last_epoch == 6


def test_loading_walks_no_further_than_the_newest_manifest() -> None:
    storage = MemoryStorage()
    grow(Chain(storage, manifest_every=8), EMPTY, 26)
    storage.log.clear()
    Chain(storage).load()
    read = [name for call, name in storage.log if call == "get" and name.startswith(names.COMMITS)]
    assert sorted(read) == [names.commit(24), names.commit(25), names.commit(26)]


def test_a_view_read_elsewhere_is_recalled_if_its_record_is_still_the_same() -> None:
    storage = MemoryStorage()
    view = grow(Chain(storage), EMPTY, 9)
    newest = grow(Chain(storage), view, 2)
    chain = Chain(storage)
    chain.recall(view)
    storage.log.clear()
    assert chain.load() == newest
    read = [name for call, name in storage.log if call == "get" and name.startswith(names.COMMITS)]
    assert sorted(read) == [names.commit(10), names.commit(11)]


def test_a_view_of_a_history_that_was_replaced_is_not_recalled() -> None:
    theirs = grow(Chain(MemoryStorage()), EMPTY, 3)
    storage = MemoryStorage()
    two = grow(Chain(storage), EMPTY, 2)
    ours = commit(Chain(storage), two, draft(two, term=2, run="another"))
    chain = Chain(storage)
    chain.recall(theirs)
    chain.recall(grow(Chain(MemoryStorage()), EMPTY, 7))
    assert chain.load() == ours


def test_an_unanswered_commit_is_read_back_and_counts() -> None:
    storage = FaultyStorage(MemoryStorage(), [Fault(kind=FaultKind.LOSE_ANSWER, name="commits/*")])
    assert isinstance(Chain(storage).commit(EMPTY, draft(EMPTY)), Committed)


def test_a_lost_commit_is_put_again() -> None:
    lost = Fault(kind=FaultKind.LOSE_REQUEST, operation="put_new", name="commits/*", times=2)
    assert isinstance(Chain(FaultyStorage(MemoryStorage(), [lost])).commit(EMPTY, draft(EMPTY)), Committed)


def test_a_commit_that_storage_never_answers_stays_unknown() -> None:
    lost = Fault(kind=FaultKind.LOSE_REQUEST, operation="put_new", name="commits/*", times=None)
    with pytest.raises(UnknownOutcome, match="commits/000000000001"):
        Chain(FaultyStorage(MemoryStorage(), [lost])).commit(EMPTY, draft(EMPTY))


def test_a_refused_commit_wrote_nothing() -> None:
    inner = MemoryStorage()
    storage = FaultyStorage(inner, [Fault(kind=FaultKind.FAIL, operation="put_new", name="commits/*")])
    with pytest.raises(StorageError):
        Chain(storage).commit(EMPTY, draft(EMPTY))
    assert inner.objects == {}


def test_a_commit_that_cannot_look_around_afterwards_is_unknown_and_then_found() -> None:
    storage = FaultyStorage(MemoryStorage(), [Fault(kind=FaultKind.FAIL, operation="list", name="floor/*")])
    chain = Chain(storage)
    with pytest.raises(UnknownOutcome, match="load the checkpoint again"):
        chain.commit(EMPTY, draft(EMPTY))
    assert chain.load().number == 1


def test_a_lower_terms_record_is_adopted() -> None:
    storage = MemoryStorage()
    theirs = commit(Chain(storage), EMPTY, draft(EMPTY, term=1, run="old", epochs=2))
    outcome = Chain(storage).commit(EMPTY, draft(EMPTY, term=2, run="new"))
    assert outcome == Adopted(theirs)


def test_a_higher_terms_record_fences() -> None:
    storage = MemoryStorage()
    commit(Chain(storage), EMPTY, draft(EMPTY, term=2, run="new"))
    with pytest.raises(FencedOut) as fenced:
        Chain(storage).commit(EMPTY, draft(EMPTY, term=1, run="old"))
    assert (fenced.value.ours, fenced.value.newest) == (1, 2)


def test_no_leader_builds_on_a_higher_term() -> None:
    storage = MemoryStorage()
    view = commit(Chain(storage), EMPTY, draft(EMPTY, term=2, run="new"))
    with pytest.raises(FencedOut):
        Chain(storage).commit(view, draft(view, term=1, run="old"))
    with pytest.raises(FencedOut):
        Chain(storage).rewind(view.head, CommitNumber(1), term=1, run="old")


def test_our_own_earlier_record_is_adopted_not_repeated() -> None:
    """An unknown outcome that was given up on, and landed after all."""
    storage = MemoryStorage()
    first = commit(Chain(storage), EMPTY, draft(EMPTY, epochs=3))
    assert Chain(storage).commit(EMPTY, draft(EMPTY)) == Adopted(first)


def test_a_retired_number_is_never_free_again() -> None:
    storage = MemoryStorage()
    chain = Chain(storage, manifest_every=3)
    stale = grow(chain, EMPTY, 2)
    head = grow(chain, stale, 5)
    head = commit(chain, head, draft(head, term=2, run="new"))
    storage.put(names.floor(5), seal("floor", FloorRecord(floor=5, term=2, run="new")))
    storage.delete([names.commit(number) for number in range(1, 6)])
    with pytest.raises(FencedOut, match="term 2"):
        Chain(storage).commit(stale, draft(stale))
    assert Chain(storage).load() == head


def test_a_rewind_is_a_new_record_with_the_old_state() -> None:
    storage = MemoryStorage()
    chain = Chain(storage)
    old = grow(chain, EMPTY, 3)
    head = grow(chain, old, 4)
    outcome = chain.rewind(head.head, CommitNumber(3), term=2, run="new")
    assert isinstance(outcome, Committed)
    view = outcome.view
    assert (view.number, view.last_epoch, view.positions, view.rows) == (8, 3, {"in": 3}, 30)
    assert view.deltas == old.deltas
    assert view.published_through == {SINK: 6}
    assert Chain(storage).load() == view
    assert Chain(storage).view_at(7) == head
    again = commit(chain, view, draft(view, term=2, run="new"))
    assert Chain(storage).load() == again


def test_a_rewind_to_what_was_given_up_is_refused() -> None:
    chain = Chain(MemoryStorage(), retain=3)
    head = grow(chain, EMPTY, 6)
    for to in (3, 7):
        with pytest.raises(RestoreError, match="from 4 to 6"):
            chain.rewind(head.head, CommitNumber(to), term=1, run="run-1")


def test_a_rival_rewind_under_the_same_number_does_not_mix_manifests() -> None:
    """Two leaders try different records under one number; each has its manifest, one record wins."""
    storage = MemoryStorage()
    head = grow(Chain(storage, manifest_every=4), EMPTY, 3)
    loser = Chain(storage, manifest_every=4)
    loser._write_manifest(head)
    winner = Chain(storage, manifest_every=4).rewind(head.head, CommitNumber(1), term=2, run="new")
    assert isinstance(winner, Committed)
    assert len(storage.list(names.MANIFESTS)) == 2
    assert Chain(storage).load() == winner.view


def test_a_rewind_gives_up_nothing() -> None:
    """What is kept for barriers of the whole job is for the next commit to say."""
    chain = Chain(MemoryStorage(), retain=2)
    view = EMPTY
    for _ in range(5):
        done = chain.commit(view, draft(view), keep_from=1)
        assert isinstance(done, Committed)
        view = done.view
    done = chain.rewind(view.head, CommitNumber(3), term=1, run="run-1")
    assert done.view.retained_from == 1
