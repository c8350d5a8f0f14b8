"""The functions of the examples, each in the harness. Whole examples run in tests/spark/test_examples.py."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli.load_job import load_job
from holdfast.testing import Harness

DAY_MS = 86_400_000
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
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


def test_word_count() -> None:
    counts = Harness.of(job_of("word_count.py"), "counts")
    second = dt.timedelta(seconds=1)
    counts.send(("kelp", START), ("kelp", START + 3 * second), ("reef", START + 4 * second))
    counts.crash()
    shown = counts.watermark(START + 5 * second)
    assert [(row.word, row.n) for row in shown if row.window_start == START] == [("kelp", 2), ("reef", 1)]
    assert len([row for row in shown if row.word == "kelp"]) == 5, "windows from 4 s before it to itself"
    counts.send(("tide", START - 9 * second))
    assert [row.word for row in counts.late] == ["tide"]
    rest = counts.end_of_input()
    assert sum(row.n for row in (*shown, *rest)) == 3 * 5


def test_sessions() -> None:
    visits = Harness.of(job_of("sessions.py"), "visits")
    minute = dt.timedelta(minutes=1)
    visits.send((1, "/a", START), (1, "/b", START + 20 * minute), (2, "/c", START))
    visits.crash()
    shown = visits.watermark(START + 60 * minute)
    told = [(row.user, row.clicks, row.entered, row.left) for row in shown]
    assert sorted(told) == [(1, 2, "/a", "/b"), (2, 1, "/c", "/c")]
    (gone,) = visits.send((1, "/d", START + 40 * minute))
    assert (gone.deleted, gone.window_end) == (True, START + 50 * minute), "it goes on: taken back"
    (row,) = visits.watermark(START + 71 * minute)
    assert (row.clicks, row.entered, row.left, row.deleted) == (3, "/a", "/d", False)


def test_top_pages() -> None:
    job = job_of("top_pages.py")
    pages = Harness.of(job, "per-page")
    pages.send(("/a", START), ("/a", START), ("/b", START))
    assert [(row.page, row.views) for row in pages.end_of_input()] == [("/a", 2), ("/b", 1)]
    top = Harness.of(job, "top", schema="minute timestamp, page string, views long")
    top.send((START, "/a", 2), (START, "/b", 9), (START, "/c", 9), (START, "/d", 1))
    top.crash()
    ranked = [(row.place, row.page, row.views) for row in top.end_of_input()]
    assert ranked == [(1, "/b", 9), (2, "/c", 9), (3, "/a", 2)]


def test_deduplicate() -> None:
    once = Harness.of(job_of("deduplicate.py"), "once")
    once.clock(0)
    assert once.send((1, "a"), (1, "a"), (2, "b")) == [(1, "a"), (2, "b")]
    once.crash()
    assert once.send((1, "a")) == []
    once.clock(DAY_MS + 1_000)
    assert once.send((1, "a")) == [(1, "a")], "another one, a day later"


def test_trending() -> None:
    job = job_of("trending.py")
    assert Harness.of(job, "counter").send({"topic": "#a"}, {"topic": "#a"}) == [("#a", 2)]
    leaders = Harness.of(job, "leaders", schema="everyone string, topic string, n long")
    leaders.send(*[("all", f"#{n:02}", n) for n in range(1, 13)])
    leaders.crash()
    rows = leaders.send(("all", "#01", 9))
    assert [(row.place, row.topic) for row in rows][:4] == [(1, "#12"), (2, "#11"), (3, "#10"), (4, "#01")]
    assert len(rows) == 10
    assert leaders.send(("all", "#02", 2)) == [], "not among the leaders"


def test_fraud() -> None:
    cards = Harness.of(job_of("fraud.py"), "fraud")
    second = dt.timedelta(seconds=1)
    assert cards.send((3, "DE", 0.5, START), (3, "DE", 900.0, START + second)) == [], "no rule yet"
    cards.broadcast(("DE", 1.0, 500.0, 60))
    cards.send((3, "DE", 0.5, START), (4, "DE", 0.5, START))
    cards.crash()
    ((card, small, large, amount),) = cards.send((3, "DE", 900.0, START + 60 * second))
    assert (card, small, large, amount) == (3, START, START + 60 * second, 900.0)
    assert cards.send((4, "DE", 900.0, START + 61 * second)) == [], "too late to be suspicious"
    cards.broadcast(("DE", 1.0, 500.0, 90))
    cards.send((4, "DE", 0.5, START + 50 * second))
    cards.watermark(START + 100 * second)
    assert cards.keys == [4], "by the rule of then card 4 is remembered longer"
    assert len(cards.send((4, "DE", 900.0, START + 140 * second))) == 1
    cards.end_of_input()
    assert cards.keys == []
