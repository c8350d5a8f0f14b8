"""Sets of replicas under seeded storms. One seed replays a whole simulation.

`HOLDFAST_SIM_SEEDS=10000` runs more seeds; `python -m tests.sim --replicas --seeds 10000` does so with
progress.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.sim.replicas.controls import CONTROLS
from tests.sim.replicas.runs import SIMULATION, simulate
from tests.sim.scheduler import on_one_core
from tests.sim.seeds import Found, command

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", "150"))
CONTROL_SEEDS_MAX = 500

HAPPENINGS = {
    "barrier carried",
    "commit by a superseded leader",
    "commit of another taken",
    "crash",
    "damaged plan",
    "divergence",
    "end committed",
    "epoch that closes",
    "epoch without rows",
    "floor raised",
    "lie",
    "lie committed",
    "member fenced out",
    "member joined",
    "member that missed what was retired",
    "member that was far behind",
    "news between epochs",
    "object retired",
    "pause",
    "plan attempt after the first",
    "plan of another followed",
    "quiet end",
    "record adopted",
    "retired number used again",
    "rewind",
    "rows after the input had ended",
    "set ended by another member",
    "set founded",
    "snapshot",
    "snapshot left behind retired",
    "state of another parallelism",
    "unknown outcome",
    "working state had again",
}


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    with on_one_core():
        yield


def test_every_seed_keeps_every_promise_and_the_seeds_get_everywhere() -> None:
    seen = SIMULATION.seen_over(range(SEEDS))
    assert not HAPPENINGS - {what for what, count in seen.items() if count}, "these never happened"
    assert seen["commit of another taken"] > 2 * SEEDS
    assert seen["quiet end"] > SEEDS // 5


@pytest.mark.parametrize("control", CONTROLS)
def test_a_missing_safeguard_is_found_out(control: str) -> None:
    found = SIMULATION.hunt(control, CONTROL_SEEDS_MAX)
    assert command(found.seed, control, option="--replicas") in str(found)
    with pytest.raises(Found) as again:
        simulate(found.seed, control)
    assert again.value.story == found.story, "the printed command would tell another story"
