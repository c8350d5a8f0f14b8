from __future__ import annotations

import pytest

from holdfast.checkpoint.chain import terms
from holdfast.checkpoint.chain.terms import (
    claim,
    claim_after,
    newest_ending,
    newest_term,
    outdated_terms,
    record_ending,
    refuse_if_superseded,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import EndedRecord
from holdfast.errors import FencedOut
from holdfast.storage.contract import Entry, Put
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage


def test_terms_grow_with_every_claim() -> None:
    storage = MemoryStorage()
    assert newest_term(storage) is None
    assert [claim(storage, run, "host", 1, 7) for run in "abc"] == [1, 2, 3]
    newest = newest_term(storage)
    assert newest is not None
    assert (newest.term, newest.run, newest.claimed_ms) == (3, "c", 7)


def test_a_term_taken_meanwhile_is_not_claimed_twice() -> None:
    class Racing(MemoryStorage):
        def put_new(self, name: str, data: bytes) -> Put:
            if name == names.term(1) and not self.objects:
                self.objects[name] = b"the rival's"
            return super().put_new(name, data)

    assert claim(Racing(), "late", "host", 1, 0) == 2


def test_an_unanswered_claim_is_read_back() -> None:
    storage = FaultyStorage(MemoryStorage(), [Fault(kind=FaultKind.LOSE_ANSWER, operation="put_new")])
    assert claim(storage, "a", "host", 1, 0) == 1


def test_a_lost_claim_is_made_again() -> None:
    storage = FaultyStorage(MemoryStorage(), [Fault(kind=FaultKind.LOSE_REQUEST, operation="put_new")])
    assert claim(storage, "a", "host", 1, 0) == 1


def test_a_claim_of_a_cleaned_name_is_not_believed() -> None:
    """Paused between listing and put, while five terms came and the first ones were cleaned."""

    class Paused(MemoryStorage):
        def list(self, prefix: str) -> list[Entry]:
            found = super().list(prefix)
            if prefix == names.TERMS and not found:
                for run in "abcde":
                    self.objects[names.term(len(self.objects) + 1)] = run.encode()
                super().delete(outdated_terms(self))
            return found

    assert claim(Paused(), "late", "host", 1, 0) == 6


def test_a_claim_after_a_term_takes_none_from_who_was_quicker() -> None:
    storage = MemoryStorage()
    assert claim_after(storage, 0, "a", "host", 1, 0) == 1
    assert claim_after(storage, 0, "b", "host", 1, 0) is None
    assert claim(storage, "c", "host", 1, 0) == 2
    assert claim_after(storage, 1, "d", "host", 1, 0) is None
    assert newest_term(storage).run == "c"  # type: ignore[union-attr]


def test_cleaning_never_touches_the_newest() -> None:
    storage = MemoryStorage()
    for run in "abcde":
        claim(storage, run, "host", 1, 0)
        storage.delete(outdated_terms(storage))
        assert len(storage.list(names.TERMS)) <= terms.TERMS_KEPT
    assert newest_term(storage).term == 5  # type: ignore[union-attr]


def test_a_newer_term_supersedes_also_if_it_cannot_be_read_who_claimed_it() -> None:
    storage = MemoryStorage()
    for run in "ab":
        claim(storage, run, "host", 1, 0)
    refuse_if_superseded(storage, 2)
    with pytest.raises(FencedOut, match=r"term 1 was superseded by term 2 .claimed by host, process 1"):
        refuse_if_superseded(storage, 1)
    storage.flip(names.term(2))
    refuse_if_superseded(storage, 2)
    with pytest.raises(FencedOut, match=f"term 1 was superseded by term 2 .{names.term(2)} is its"):
        refuse_if_superseded(storage, 1)


def test_how_the_newest_leader_ended_is_known_though_its_term_is_damaged() -> None:
    storage = MemoryStorage()
    claim(storage, "a", "host", 1, 0)
    storage.flip(names.term(1))
    assert newest_ending(storage) is None
    ended = EndedRecord(term=1, run="a", at_ms=0, ending="stopped", commit=1, last_epoch=1, published=True)
    record_ending(storage, ended)
    assert newest_ending(storage) == ended


def test_a_term_is_above_that_of_the_newest_commit_though_its_record_is_lost() -> None:
    storage = MemoryStorage()
    assert claim(storage, "a", "host", 1, 0, above=7) == 8
    assert claim(storage, "b", "host", 1, 0, above=7) == 9
