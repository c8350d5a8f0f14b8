"""Leaders, copiers and storage under seeded storms. One seed replays a whole simulation.

`HOLDFAST_SIM_SEEDS=10000` runs more seeds; `python -m tests.sim --seeds 10000` does so with progress.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.sim.controls import CONTROLS
from tests.sim.event_time import Violation
from tests.sim.runs import SIMULATION, simulate
from tests.sim.scheduler import Process, Scheduler, on_one_core
from tests.sim.seeds import Found, command

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", "600"))
CONTROL_SEEDS_MAX = 1_000

HAPPENINGS = {
    "commit",
    "commit by a superseded leader",
    "commit of several epochs",
    "crash",
    "delete that failed halfway",
    "end without room",
    "end of the input",
    "epoch judged as before",
    "epoch offered to the sink again",
    "epoch that closes",
    "epoch whose output was settled",
    "epoch without rows",
    "floor raised",
    "late write",
    "newest commit lost",
    "leader fenced out",
    "object retired",
    "pause",
    "pin refused",
    "pinned commit copied",
    "plan attempt after the first",
    "plan of another followed",
    "quiet end",
    "record adopted",
    "retired number used again",
    "rows after the input had ended",
    "sink ahead of the chain",
    "sink not there",
    "sink that refuses",
    "stop before the sink has shown all",
    "turn without room",
    "rewind",
    "snapshot",
    "state of another parallelism",
    "takeover",
    "unknown outcome",
}


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    with on_one_core():
        yield


def test_every_seed_keeps_every_promise_and_the_seeds_get_everywhere() -> None:
    seen = SIMULATION.seen_over(range(SEEDS))
    assert not HAPPENINGS - seen.keys(), "these never happened: the simulation no longer tests them"
    assert seen["commit"] > 2 * SEEDS
    assert seen["takeover"] > SEEDS


@pytest.mark.parametrize("control", CONTROLS)
def test_a_missing_safeguard_is_found_out(control: str) -> None:
    found = SIMULATION.hunt(control, CONTROL_SEEDS_MAX)
    assert command(found.seed, control) in str(found)
    with pytest.raises(Found) as again:
        simulate(found.seed, control)
    assert again.value.story == found.story, "the printed command would tell another story"


def test_what_a_checker_finds_stands_though_its_process_is_killed_on_the_way_out() -> None:
    scheduler = Scheduler(random.Random(0), crash_chance=1.0)

    def found_out() -> None:
        try:
            raise Violation("a promise is broken")
        finally:
            scheduler.step()

    scheduler.spawn(Process("a"), found_out)
    with pytest.raises(Violation, match="a promise is broken"):
        scheduler.run()


def test_the_checker_of_epochs_is_content_with_the_real_chain() -> None:
    for seed in range(30):
        assert simulate(seed, "epochs-once").story


def test_the_same_seed_gives_the_same_story_in_every_process() -> None:
    script = "from tests.sim.test_simulation import stories; print(stories())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == stories(), done.stderr


def stories() -> str:
    told = "\n".join(line for seed in range(40) for line in simulate(seed).told())
    return hashlib.sha256(told.encode()).hexdigest()
