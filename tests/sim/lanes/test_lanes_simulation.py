"""Lanes under seeded storms: every committed row is shown once, in its order; and a safeguard that
is taken away is found out."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from holdfast.connectors.lanes import LaneMark, LaneRows, Outcome, continues
from holdfast.runtime.epoch.lane_marks import LaneQuestion, LaneStanding, standing
from tests.sim.lanes.lane_world import Habits, Violation, simulate

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", "200"))
CONTROL_SEEDS_MAX = 400
HAPPENINGS = {"crash", "half of a lane", "late twin", "lost answer", "refused", "shown again", "went back"}


def no_fingerprint(mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
    """Marks are not compared: whatever comes is written."""
    found = continues(mark, rows)
    return 0 if found is Outcome.ALREADY or isinstance(found, int) else found


def without_rows(mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
    """A lane that is half written is begun again."""
    found = continues(mark, rows)
    return 0 if isinstance(found, int) else found


def absent_is_new(mark: LaneMark | None, rows: LaneRows) -> int | Outcome:
    """A lane without a mark is taken for one that has not begun."""
    return continues(mark or rows.before, rows)


def by_any_lane(asked: LaneQuestion) -> LaneStanding:
    """An epoch counts as shown when one of its lanes is."""
    found = standing(asked, lambda: None)
    return replace(found, through=max(found.through, found.newest.epoch))


def never_again(asked: LaneQuestion) -> LaneStanding:
    """What a sink has lost is passed over."""
    return replace(standing(asked, lambda: None), again=())


CONTROLS = {
    "marks-not-compared": (Habits(rule=no_fingerprint), "doubled"),
    "rows-not-counted": (Habits(rule=without_rows), "doubled"),
    "checked-apart-from-the-write": (Habits(checks_when_it_writes=False), "doubled"),
    "absence-taken-for-nothing": (Habits(rule=absent_is_new), "lost"),
    "before-not-compared": (Habits(before=lambda mark: LaneMark(0)), "lost"),
    "shown-by-any-lane": (Habits(standing=by_any_lane), "lost"),
    "lost-rows-passed-over": (Habits(standing=never_again), "lost"),
    "lanes-not-recorded": (Habits(records_lanes=False), "lost"),
}


def test_every_seed_keeps_every_promise_and_the_seeds_get_everywhere() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            happened += simulate(seed)
        except Violation as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
    assert set(happened) >= HAPPENINGS


@pytest.mark.parametrize("name", CONTROLS)
def test_a_missing_safeguard_is_found_out(name: str) -> None:
    habits, finds = CONTROLS[name]
    for seed in range(CONTROL_SEEDS_MAX):
        try:
            simulate(seed, habits)
        except Violation as found:
            if finds in str(found) and f"{finds} []" not in str(found):
                return
        except AssertionError:
            continue
    raise AssertionError(f"{CONTROL_SEEDS_MAX} seeds without {name} show nothing")
