"""The page of benchmarks is written section by section."""

from __future__ import annotations

from bench import report
from bench.turns import over_turns

FORMER = "# Benchmarks\n\nAbout.\n\n## First\n\nold\n\n## Kept\n\nas it was\n\n### within\n\nmore\n"


def test_sections_without_new_figures_stay() -> None:
    found = report.page(FORMER, [["## First", "", "new"], ["## Third", "", "x"]])
    assert found == FORMER.replace("old", "new") + "\n## Third\n\nx\n"
    assert report.page(found, []) == found


def test_turns_come_to_their_medians_with_the_least_and_the_most() -> None:
    turns = [{"name": "a", "ms": ms, "rate": 1_000 / ms} for ms in (50, 10, 20)]
    assert over_turns(turns, "ms", "rate") == {
        "name": "a", "turns": 3, "ms": 20, "ms_min": 10, "ms_max": 50,
        "rate": 50, "rate_min": 20, "rate_max": 100,
    }  # fmt: skip
