"""The checker of the job in parts finds what is wrong in doctored evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.apps import Shape
from tests.chaos.parts_app import RENUMBERED
from tests.chaos.parts_checker import Evidence, judge

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
