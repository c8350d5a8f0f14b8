"""Parts, channels and barriers under seeded storms. One seed replays a whole simulation.

`HOLDFAST_SIM_SEEDS=10000` runs more seeds; `python -m tests.sim --parts --seeds 10000` does so with progress.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.sim.parts.controls import CONTROLS
from tests.sim.parts.runs import SIMULATION, simulate
from tests.sim.scheduler import on_one_core
from tests.sim.seeds import Found, command

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", "120"))
CONTROL_SEEDS_MAX = 500

HAPPENINGS = {
    "barrier aborted",
    "barrier carried",
    "barrier carried without an epoch",
    "barrier complete",
    "channel given up",
    "channel that has ended",
    "commit by a superseded leader",
    "commit of another member taken",
    "consistent cut with rows",
    "crash",
    "damage that a person has to see to",
    "epoch asked for again",
    "epoch computed again behind a channel",
    "epoch replaced",
    "epoch that closes windows",
    "epoch whose rows are let go of",
    "epoch with nothing for a channel",
    "epochs released",
    "floor raised",
    "job stopped with a savepoint",
    "late write",
    "leader fenced out",
    "leader that ends at a barrier of one before it",
    "newest commit lost",
    "object retired",
    "part of an epoch read",
    "part that begins behind a gap",
    "pause",
    "plan attempt after the first",
    "plan of another followed",
    "quiet end",
    "reader told of a gap",
    "record adopted",
    "released file looked for",
    "retired number used again",
    "rewind",
    "savepoint of the whole job",
    "saver that died",
    "state read again",
    "turn without room",
    "unknown outcome",
}


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    with on_one_core():
        yield


def test_every_seed_keeps_every_promise_and_the_seeds_get_everywhere() -> None:
    seen = SIMULATION.seen_over(range(SEEDS))
    assert not HAPPENINGS - seen.keys(), "these never happened: the simulation no longer tests them"
    assert seen["barrier complete"] > SEEDS // 4
    assert seen["commit"] > 10 * SEEDS


@pytest.mark.parametrize("control", CONTROLS)
def test_a_missing_safeguard_is_found_out(control: str) -> None:
    found = SIMULATION.hunt(control, CONTROL_SEEDS_MAX)
    assert command(found.seed, control, option="--parts") in str(found)
    with pytest.raises(Found) as again:
        simulate(found.seed, control)
    assert again.value.story == found.story, "the printed command would tell another story"
