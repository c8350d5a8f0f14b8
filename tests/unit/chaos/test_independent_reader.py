"""State folded out of a checkpoint without the engine: what has expired is not there, removed or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.chaos.evidence import checkpoint_left
from holdfast.state.encoding.ttl import Ttl
from tests.unit.inspect.stored import LAYOUT, MadeCheckpoint

SHORT = replace(LAYOUT, fields=tuple(replace(field, ttl=Ttl(3)) for field in LAYOUT.fields))
ANN, BEN = ("ann", 1), ("ben", 2)
FULL = {"total": 1, "tags": ["a"], "seen": {"x": 1}, "user": {"name": "n", "age": 2}}


@pytest.mark.parametrize("snapshots", [False, True])
def test_what_has_expired_is_left_out(tmp_path: Path, snapshots: bool) -> None:
    made = MadeCheckpoint(tmp_path, SHORT)
    made.commit({ANN: FULL}, snapshots=snapshots)
    made.commit({BEN: FULL}, snapshots=snapshots)
    last, states = checkpoint_left(tmp_path / "checkpoint")
    assert (last, sorted(states["totals"])) == (2, [ANN, BEN])
    made.commit({}, snapshots=snapshots)
    made.commit({BEN: {**FULL, "tags": ["b"]}}, snapshots=snapshots)
    last, states = checkpoint_left(tmp_path / "checkpoint")
    assert last == 4
    (left,) = states["totals"].items()
    assert (left[0], left[1]["tags"], left[1]["total"]) == (BEN, ["b"], 1)
