"""What the matrix makes of the reports of its campaigns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.matrix import CELLS, FAULTS_MIN, Cell, counted, summarize, told

KINDS = [f"kind-{number}" for number in range(8)]
STRICT = Cell("strict", "ledger", 1)
AT_LEAST_ONCE = Cell("repeating", "plain", 1, ("--guarantee", "at-least-once"))


def report(verdict: str = "true", faults: int = 30, **tally: int) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "faults": dict.fromkeys(KINDS, faults),
        "tally": {"lost": 0, "doubled": 0, "changed": 0, **tally},
        "rounds": 3,
        "reasons": [],
    }


def test_a_matrix_passes_with_true_verdicts_and_enough_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize([STRICT, STRICT], [report(), report()], quick=False) == 0
    out = capsys.readouterr().out
    assert "480 faults of 8 kinds in 6 runs" in out
    assert "3/6 = 0.500" in out


@pytest.mark.parametrize(
    "bad", [report("false"), report("unknown"), report(faults=1), report(lost=1), report(doubled=1)]
)
def test_anything_else_fails_it(bad: dict[str, Any]) -> None:
    assert summarize([STRICT], [bad], quick=False) == 1


def test_what_the_guarantee_allows_is_told_and_not_counted() -> None:
    given = report(doubled=7)
    assert counted(AT_LEAST_ONCE, given, "doubled") == 0
    assert counted(STRICT, given, "doubled") == 7
    assert "doubled (7)" in told(AT_LEAST_ONCE, 3, given)
    assert "seed 3" in told(AT_LEAST_ONCE, 3, given)


def test_the_matrix_asks_for_every_guarantee_and_a_cluster() -> None:
    options = {option for cell in CELLS for option in cell.options}
    assert {"at-least-once", "at-most-once", "--cluster", "--real-sinks", "--check"} <= options
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert sum(cell.faults for cell in CELLS) >= FAULTS_MIN
