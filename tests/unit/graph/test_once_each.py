from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import DefinitionError
from holdfast.graph.validate import check
from holdfast.testing import Harness


def harness() -> Harness:
    job = hf.Job("once")
    rows = job.source(hf.MemorySource([], schema="id string, n long"), uid="in")
    rows.drop_duplicates(by="id", ttl="1d", uid="once").sink(hf.MemorySink(), uid="out")
    return Harness.of(job, "once")


def test_the_first_row_of_each_key_passes_in_its_epoch_and_after_a_crash() -> None:
    once = harness()
    assert once.send(("a", 1), ("a", 2), ("b", 3)) == [("a", 1), ("b", 3)]
    once.crash()
    assert once.send(("a", 4), ("c", 5)) == [("c", 5)]


def test_rows_without_a_key_cannot_be_told_apart_and_all_pass() -> None:
    once = harness()
    assert once.send((None, 1), (None, 2)) == [(None, 1), (None, 2)]
    assert once.send((None, 1)) == [(None, 1)]


def test_columns_that_are_not_known_and_a_wrong_ttl_are_refused() -> None:
    job = hf.Job("once")
    rows = job.source(hf.MemorySource([], schema="id string, n long"), uid="in")
    rows.transform(lambda frame: frame).drop_duplicates(by="id", uid="a").sink(hf.MemorySink(), uid="x")
    rows.drop_duplicates(by="id", ttl="soon", uid="b").sink(hf.MemorySink(), uid="y")
    with pytest.raises(DefinitionError) as refused:
        check(job.graph())
    assert "not known here" in str(refused.value)
    assert "soon" in str(refused.value)
