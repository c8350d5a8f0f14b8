"""The functions of the examples, each in the harness. Whole examples run in tests/spark/test_examples.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli.load_job import load_job
from holdfast.testing import Harness

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")


def job_of(name: str) -> hf.Job:
    return load_job(EXAMPLES / name)


def test_total_length() -> None:
    totals = Harness.of(job_of("total_length.py"), "totals", schema="user string, word string")
    assert totals.send(("anna", "holdfast"), ("ben", "")) == [("anna", 8), ("ben", 0)]
    totals.crash()
    assert totals.send(("anna", "kelp")) == [("anna", 12)]


def test_page_views() -> None:
    pages = Harness.of(job_of("page_views.py"), "pages")
    pages.send(("/a", 100), ("/a", 300), ("/b", 500))
    pages.crash()
    (row,) = pages.send(("/a", 200))
    assert row._asdict() == {"page": "/a", "views": 3, "slowest": 300, "average": 200.0, "last": 200}


def test_dead_letters() -> None:
    balances = Harness.of(job_of("dead_letters.py"), "balances")
    assert balances.send(("anna", "10"), ("anna", ""), ("anna", "5")) == [("anna", 10), ("anna", 15)]
    (letter,) = balances.dead_letters
    assert letter.row == '{"account":"anna","amount":""}'
    assert "ValueError" in letter.error


def test_two_operators() -> None:
    job = job_of("two_operators.py")
    levels = Harness.of(job, "levels", checkpoint_every=3)
    for _ in range(10):
        levels.send({"user": 7})
    assert levels.outputs == [(1, 7)], "the tenth visit is not checkpointed"
    levels.crash()
    assert levels.replay() == [(10, 7)]
    assert Harness.of(job, "users-per-level").send(*[(1, 7), (1, 8), (10, 7)]) == [(1, 2), (10, 1)]


def test_saved_keys() -> None:
    (visits,) = job_of("saved_keys.py").graph().operators
    visitors = Harness(visits.function, key=visits.key)
    assert visitors.send({"visitor": 3}, {"visitor": 3}) == [(3, 1), (3, 2)]


def test_outliers() -> None:
    outliers = Harness.of(job_of("outliers.py"), "outliers")
    assert outliers.send(*[(1, 20.0 + n % 2) for n in range(30)], (2, 500.0)) == []
    outliers.crash()
    (row,) = outliers.send((1, 500.0), (1, 20.0), (2, 0.0))
    assert (row.sensor, row.reading, row.mean) == (1, 500.0, 20.5)
