"""The received log under failing storage and sleeping writers; and that each of its rules is needed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoint.log.received import FLOOR_KIND, ReceivedLog, _number
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal_bytes
from holdfast.checkpoint.store.write_once import write_once
from tests.sim.logs.log_world import run

SEEDS = range(40)
CONTROL_SEEDS = range(400)


def test_what_was_acknowledged_is_read_and_no_batch_twice() -> None:
    trimmed = read = 0
    for seed in SEEDS:
        wrong, world = run(seed)
        assert not wrong, f"seed {seed}: {wrong}"
        trimmed += world.seen["trimmed"]
        read += len(world.read)
    assert trimmed > 20, "logs that are never trimmed prove little"
    assert read > 200


class FloorAfterTrimming(ReceivedLog):
    def trim(self, through: int) -> None:
        if self._floor < through <= self._end:
            found = [entry.name for entry in self._storage.list(names.log_of(SOURCE))]
            self._storage.delete([name for name in found if _number(name) <= through])
            write_once(self._storage, names.log_floor(SOURCE, through), seal_bytes(FLOOR_KIND, b""))
            self._raise_floor(through)


class FloorNotLookedAt(ReceivedLog):
    def _read_floor(self) -> int:
        return 0


class LeavesGaps(ReceivedLog):
    """Begins behind the last number that it has seen, and one more."""

    def append(self, rows: Any) -> Any:
        if self._turn % 4 == 3:
            self._end += 1
        return super().append(rows)


SOURCE = "queue"
CONTROLS: dict[str, dict[str, Any]] = {
    "acknowledged before it is durable": {"acks_early": True},
    "floor raised after trimming": {"log": FloorAfterTrimming},
    "floor not looked at": {"log": FloorNotLookedAt},
    "a repeated turn counts": {"counts_repeats": True},
    "a gap in the numbers": {"log": LeavesGaps},
}


@pytest.mark.parametrize("rule", CONTROLS)
def test_each_rule_is_needed(rule: str) -> None:
    assert any(run(seed, **CONTROLS[rule])[0] for seed in CONTROL_SEEDS), "the simulation does not notice"
