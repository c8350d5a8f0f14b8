"""What is planned, and which recorded plans are followed."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.checkpoint import names
from holdfast.checkpoint.commits import Chain, Committed
from holdfast.checkpoint.plans import Plans
from holdfast.checkpoint.records import CommitRecord, PlanRecord, Slice
from holdfast.checkpoint.view import CheckpointView
from holdfast.clock import SystemClock
from holdfast.engine.planning import Planner, recorded_plans
from holdfast.errors import RestoreError
from holdfast.graph.nodes import Place, SourceNode
from holdfast.ids import CommitNumber
from holdfast.io.memory import MemorySource
from holdfast.storage.local import LocalStorage


def plan(epoch: int, attempt: int, end: int) -> PlanRecord:
    return PlanRecord(
        epoch=epoch,
        attempt=attempt,
        term=1,
        run="r",
        parent=0,
        fingerprint="f",
        parallelism=2,
        clock_ms=5,
        slices={"rows": Slice(start=(epoch - 1) * 10 or None, end=end)},
    )


class Rewound:
    """Epochs 1 to 3 were committed by their first plans and shown; then history went back to epoch 1."""

    def __init__(self, root: Path) -> None:
        self.storage = LocalStorage(root)
        self.plans, self.chain = Plans(self.storage), Chain(self.storage)
        view = self.chain.load()
        for epoch in (1, 2, 3):
            self.plans.write(plan(epoch, 1, epoch * 10))
            record = CommitRecord(
                term=1,
                run="r",
                first_epoch=epoch,
                last_epoch=epoch,
                attempts={str(epoch): 1},
                clock_ms=5,
                parallelism=2,
                fingerprint="f",
                positions={"rows": epoch * 10},
                published_through={"sink": epoch},
            )
            done = self.chain.commit(view, record)
            assert isinstance(done, Committed)
            view = done.view
        done = self.chain.rewind(view.head, CommitNumber(1), term=1, run="r")
        assert isinstance(done, Committed)
        self.view = done.view

    def recorded(self) -> list[PlanRecord]:
        found = recorded_plans(self.plans, self.chain, self.view, ["rows"], "f", 2)
        return [recorded.plan for recorded in found]


def test_a_replay_follows_the_plans_that_were_committed_not_those_of_a_late_leader(tmp_path: Path) -> None:
    job = Rewound(tmp_path)
    job.plans.write(plan(2, 2, 17))
    assert [(found.epoch, found.attempt) for found in job.recorded()] == [(2, 1), (3, 1)]


def test_a_replay_without_the_committed_plan_is_refused(tmp_path: Path) -> None:
    job = Rewound(tmp_path)
    job.storage.delete([names.plan(3, 1)])
    with pytest.raises(RestoreError, match="epoch 3 has to be replayed"):
        job.recorded()


def test_a_part_skipped_on_purpose_is_skipped_in_a_replay_too(tmp_path: Path) -> None:
    job = Rewound(tmp_path)
    part = replace(plan(2, 1, 20).slices["rows"], skipped=True, rows=0)
    job.plans.write(replace(plan(2, 2, 20), slices={"rows": part}))
    assert [(found.epoch, found.attempt) for found in job.recorded()] == [(2, 2), (3, 1)]


def test_a_source_that_fills_every_epoch_does_not_keep_the_other_waiting(tmp_path: Path) -> None:
    here = Place(__file__, 1)
    sources = tuple(SourceNode(uid=uid, source=MemorySource(list(range(100))), place=here) for uid in "ab")
    planner = Planner(
        Plans(LocalStorage(tmp_path)), sources, CheckpointView(), deque(), SystemClock(), 1, "r", "f", 2
    )
    plans = [planner.next(10, 0) for _ in range(4)]
    read = [uid for found in plans if found is not None for uid in found.slices]
    assert read == ["a", "b", "a", "b"]
