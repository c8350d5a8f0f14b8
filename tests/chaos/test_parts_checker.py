"""The checker of the job in parts finds what is wrong in doctored evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.apps import Shape
from tests.chaos.parts_app import RENUMBERED
from tests.chaos.parts_checker import Evidence, judge, judge_repeated

SHAPE = Shape(keys=1)
GOOD = Evidence(
    events=[(0,), (1,)],
    numbers=[(0, 1), (0, 2)],
    met=[(0, "short", 1, 0), (0, "long", 1, 1), (0, "short", 2, 1), (0, "long", 2, 3)],
    number={0: {"n": 2}},
    meet={0: {"short": 2, "long": 2, "total": 3}},
)


def test_what_a_run_without_faults_leaves_is_right() -> None:
    assert judge(GOOD, SHAPE, 2) == []
    assert GOOD.renumbered == 0


def test_rows_of_newer_code_may_follow_those_of_older() -> None:
    new = replace(
        GOOD,
        numbers=[(0, 1), (0, RENUMBERED + 2)],
        met=[*GOOD.met[:3], (0, "long", 2, RENUMBERED + 3)],
        meet={0: {"short": 2, "long": 2, "total": RENUMBERED + 3}},
    )
    assert judge(new, SHAPE, 2) == []
    assert new.renumbered == 1
    mixed = replace(new, numbers=[(0, RENUMBERED + 1), (0, 2)])
    assert judge(mixed, SHAPE, 2) == ["key 0 has number 2 of old code after 1000001 of new code"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (replace(GOOD, events=GOOD.events[:1]), "sink events: 1 are missing, such as (1,)"),
        (replace(GOOD, events=[*GOOD.events, (1,)]), "sink events: 1 are too many, such as (1,)"),
        (replace(GOOD, numbers=[(0, 1), (0, 1)]), "sink numbers: 1 are missing, such as (0, 2)"),
        (replace(GOOD, met=GOOD.met[1:]), "sink met: 1 are missing, such as (0, 'short', 1)"),
        (replace(GOOD, met=[*GOOD.met, GOOD.met[-1]]), "sink met: 1 are too many, such as (0, 'long', 2)"),
        (replace(GOOD, number={0: {"n": 3}}), "the state of part 'numbered' is {0: {'n': 3}}"),
        (replace(GOOD, meet={}), "the state of part 'joined' is {}"),
        (replace(GOOD, met=[*GOOD.met[:3], (0, "long", 2, 4)]), "totals in sink met: 1 are too many"),
    ],
)
def test_what_is_lost_doubled_or_forgotten_is_found(wrong: Evidence, told: str) -> None:
    assert any(reason.startswith(told) for reason in judge(wrong, SHAPE, 2)), judge(wrong, SHAPE, 2)


REST = replace(GOOD, events=GOOD.events[1:], numbers=GOOD.numbers[1:], met=GOOD.met[2:])
"""Of a job that began with what a savepoint knew of the first event."""
REPEATED = replace(
    REST,
    events=[(1,), (1,)],
    met=[(0, "short", 3, 1), (0, "long", 2, 3), (0, "long", 2, 3)],
    meet={0: {"short": 3, "long": 2, "total": 3}},
)
"""The same at least once: the short way had brought the second event before the savepoint, too."""
ONE = {"short": 1, "long": 0}


def test_a_job_that_began_with_a_savepoint_shows_what_came_after_it_and_knows_all() -> None:
    assert judge(REST, SHAPE, 2, after=1) == []
    assert judge(GOOD, SHAPE, 2, after=1)[0] == "sink events: 1 are too many, such as (0,)"
    assert judge(REST, SHAPE, 2)[0] == "sink events: 1 are missing, such as (0,)"
    assert judge(REPEATED, SHAPE, 2, after=1) != []


def test_at_least_once_rows_may_be_repeated_as_often_as_is_known_and_none_may_be_lost() -> None:
    assert judge_repeated(REPEATED, SHAPE, 2, after=1, repeated=ONE) == []
    assert judge_repeated(REST, SHAPE, 2, after=1, repeated={"short": 0, "long": 0}) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (replace(REPEATED, events=[]), "sink events: 1 are missing, such as (1,)"),
        (replace(REPEATED, numbers=[]), "sink numbers: 1 are missing, such as (0, 2)"),
        (replace(REPEATED, met=REPEATED.met[:1]), "sink met, long way: keys: 1 are missing, such as 0"),
        (replace(REPEATED, met=REPEATED.met[1:]), "sink met, short way: keys: 1 are missing, such as 0"),
        (replace(REPEATED, number={}), "the state of part 'numbered' is {}"),
        (replace(REPEATED, meet={0: {"short": 3, "long": 3}}), "the long way has brought 3 rows: not 2"),
        (replace(REPEATED, meet={0: {"short": 2, "long": 2}}), "the short way has brought 2 rows: not 2"),
        (replace(REPEATED, meet={0: {"short": 4, "long": 2}}), "the short way has brought 4 rows: not 2"),
    ],
)
def test_what_is_lost_or_repeated_too_often_is_found(wrong: Evidence, told: str) -> None:
    found = judge_repeated(wrong, SHAPE, 2, after=1, repeated=ONE)
    assert any(reason.startswith(told) for reason in found), found
