"""Which of the plans that earlier leaders left are followed."""

from __future__ import annotations

from dataclasses import replace as replace_shape
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.plans import Plans, input_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord, PlannedSlice, PlanRecord
from holdfast.connectors.contract import Mark
from holdfast.errors import RestoreError
from holdfast.ids import CommitNumber
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.leader_kit import SHAPE


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
        slices={"rows": PlannedSlice(start=(epoch - 1) * 10 or None, end=end)},
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
        found = recorded_plans(self.chain, self.view, SHAPE, {})
        return [recorded.plan for recorded in found]


def test_a_replay_follows_the_plans_that_were_committed_not_those_of_a_late_leader(tmp_path: Path) -> None:
    job = Rewound(tmp_path)
    job.plans.write(plan(2, 2, 17))
    assert [(found.epoch, found.attempt) for found in job.recorded()] == [(2, 1), (3, 1)]


def test_a_replay_without_the_committed_plan_is_refused(tmp_path: Path) -> None:
    job = Rewound(tmp_path)
    job.storage.delete([names.plan(3, 1)])
    with pytest.raises(RestoreError, match="epoch 3 has to be read again as it was"):
        job.recorded()


@pytest.mark.parametrize("given_up", [{"skipped": True, "rows": 0}, {"given_up": ("a.json",)}])
def test_a_part_skipped_on_purpose_is_skipped_in_a_replay_too(
    tmp_path: Path, given_up: dict[str, Any]
) -> None:
    job = Rewound(tmp_path)
    part = replace(plan(2, 1, 20).slices["rows"], **given_up)
    job.plans.write(replace(plan(2, 2, 20), slices={"rows": part}))
    assert [(found.epoch, found.attempt) for found in job.recorded()] == [(2, 2), (3, 1)]


def test_giving_up_a_part_of_another_plan_than_the_committed_one_is_refused(tmp_path: Path) -> None:
    """A late leader planned epoch 3 once more, in other steps, and a part of that was given up."""
    job = Rewound(tmp_path)
    part = replace(plan(3, 2, 27).slices["rows"], skipped=True, rows=0)
    job.plans.write(replace(plan(3, 2, 27), slices={"rows": part}))
    with pytest.raises(RestoreError, match="plans/000000000003/000002 gives up a part of another plan"):
        job.recorded()


class Lost:
    """Epoch 1 was committed. So was epoch 2, and sinks show it, but its commit record is lost."""

    def __init__(self, root: Path, *ends: int) -> None:
        """`ends`: of the attempts at epoch 2, where each stops reading."""
        self.plans, self.chain = Plans(LocalStorage(root)), Chain(LocalStorage(root))
        for attempt, end in enumerate(ends, 1):
            self.plans.write(plan(2, attempt, end))

    def recorded(self, *shown: Mark, max_rows: int | None = None) -> list[int]:
        """The attempts that are followed."""
        view = CheckpointView(number=1, last_epoch=1, positions={"rows": 10}, published_through={"s0": 1})
        marks = {f"s{number}": mark for number, mark in enumerate(shown)}
        found = recorded_plans(self.chain, view, replace_shape(SHAPE, max_rows=max_rows), marks)
        return [recorded.plan.attempt for recorded in found]


def test_what_a_sink_shows_and_the_chain_lost_is_read_again_as_it_was(tmp_path: Path) -> None:
    job = Lost(tmp_path)
    job.plans.write(replace(plan(2, 1, 20), slices={"rows": PlannedSlice(start=10, end=20, rows=10)}))
    assert job.recorded(Mark(1), max_rows=5) == [], "nothing of it is shown: other epoch sizes may be planned"
    assert job.recorded(Mark(2), max_rows=5) == [1]


def test_a_checkpoint_from_an_older_copy_is_refused_where_it_lacks_what_sinks_show(tmp_path: Path) -> None:
    job = Lost(tmp_path, 20)
    with pytest.raises(
        RestoreError, match=r"sink 's0' shows epochs up to 3, and .* ends with epoch 1: epoch 3"
    ):
        job.recorded(Mark(3))


def test_of_several_plans_the_one_is_followed_whose_rows_the_sink_shows(tmp_path: Path) -> None:
    job = Lost(tmp_path, 15, 18, 20)
    assert job.recorded(Mark(2, input_of(plan(2, 1, 18)))) == [2]
    assert job.recorded(Mark(2, input_of(plan(2, 1, 20))), Mark(1)) == [3]


def test_several_plans_of_which_any_may_have_been_committed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="planned 2 times and which of the plans was committed is lost"):
        Lost(tmp_path / "other rows", 15, 20).recorded(Mark(2))
    assert Lost(tmp_path / "same rows", 20, 20).recorded(Mark(2)) == [2]


def test_a_plan_that_is_not_the_one_whose_rows_a_sink_shows_is_refused(tmp_path: Path) -> None:
    """The copy was taken before epoch 2 was planned once more, by other code and with other rows."""
    job = Lost(tmp_path, 15)
    with pytest.raises(RestoreError, match="sink 's0' shows what came of a plan that is not here"):
        job.recorded(Mark(2, input_of(plan(2, 1, 20))))


def test_what_was_given_up_stays_so_under_other_code(tmp_path: Path) -> None:
    plans, chain = Plans(LocalStorage(tmp_path)), Chain(LocalStorage(tmp_path))
    slices = {"rows": PlannedSlice(start=None, end=10, given_up=("a.json",))}
    plans.write(replace(plan(1, 1, 10), slices=slices))
    for code, shards in (("f", 2), ("other", 2), ("f", 3)):
        (found,) = recorded_plans(chain, chain.load(), PlanShape(("rows",), code, shards, max_rows=1), {})
        assert found.plan.slices == slices
        assert (found.obstacle is None) == ((code, shards) == ("f", 2))
