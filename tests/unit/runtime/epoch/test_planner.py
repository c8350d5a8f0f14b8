"""What is planned, and which recorded plans are followed."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.chain.plans import Plans, input_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord, PlannedSlice, PlanRecord
from holdfast.clock import Clock, SystemClock
from holdfast.connectors.contract import Mark
from holdfast.connectors.memory import MemoryReader, MemorySource
from holdfast.errors import FencedOut, RestoreError
from holdfast.graph.job_graph import Place, SourceNode
from holdfast.ids import CommitNumber, EpochId, PlanAttempt
from holdfast.runtime.epoch.planner import Planner, Recorded, recorded_plans
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock


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
        found = recorded_plans(self.plans, self.chain, self.view, ["rows"], "f", 2)
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
        found = recorded_plans(
            self.plans, self.chain, view, ["rows"], "f", 2, max_rows, lambda text: None, marks
        )
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
        (found,) = recorded_plans(plans, chain, chain.load(), ["rows"], code, shards, max_rows=1)
        assert found.plan.slices == slices
        assert (found.obstacle is None) == ((code, shards) == ("f", 2))


def test_a_source_that_fills_every_epoch_does_not_keep_the_other_waiting(tmp_path: Path) -> None:
    here = Place(__file__, 1)
    sources = tuple(SourceNode(uid=uid, source=MemorySource(list(range(100))), place=here) for uid in "ab")
    planner = Planner(
        Plans(LocalStorage(tmp_path)), sources, CheckpointView(), deque(), SystemClock(), 1, "r", "f", 2
    )
    plans = [planner.next(10, 0) for _ in range(4)]
    read = [uid for found in plans if found is not None for uid in found.slices]
    assert read == ["a", "b", "a", "b"]


def test_a_source_gets_the_notes_that_stand_after_the_recorded_plans(tmp_path: Path) -> None:
    given = list[Any]()

    class Noting(MemorySource):
        def reader(self, notes: Any) -> MemoryReader:
            given.extend(notes)
            return super().reader(notes)

    parts = [
        PlannedSlice(start=None, end=10, notes=("b",)),
        PlannedSlice(start=10, end=20, notes=("c", "d"), replaces_notes=True),
        PlannedSlice(start=20, end=30, notes=("e",)),
    ]
    recorded = deque(
        Recorded(replace(plan(epoch, 1, 0), slices={"rows": part}), None)
        for epoch, part in enumerate(parts, 1)
    )
    node = SourceNode(uid="rows", source=Noting(list(range(40))), place=Place(__file__, 1))
    view = CheckpointView(notes={"rows": SharedList(["a"])})
    Planner(Plans(LocalStorage(tmp_path)), (node,), view, recorded, SystemClock(), 1, "r", "f", 2)
    assert given == ["c", "d", "e"]


def planner_of(
    root: Path, clock: Clock, *, view: CheckpointView | None = None, term: int = 1, run: str = "r"
) -> Planner:
    """A leader's planner over the plans that are there, with one source of a hundred numbers."""
    storage, view = LocalStorage(root), view or CheckpointView()
    plans, source = Plans(storage), MemorySource(list(range(100)))
    recorded = recorded_plans(plans, Chain(storage), view, ["rows"], "f", 2)
    node = SourceNode(uid="rows", source=source, place=Place(__file__, 1))
    return Planner(plans, (node,), view, recorded, clock, term, run, "f", 2)


def hours(count: float) -> ManualClock:
    return ManualClock(int(count * 3_600_000))


def times_of(planner: Planner, epochs: int) -> list[int]:
    found = [planner.next(10, 0) for _ in range(epochs)]
    return [plan.clock_ms // 3_600_000 for plan in found if plan is not None]


def test_the_time_of_plans_does_not_go_back_when_a_leader_with_a_slow_clock_follows(tmp_path: Path) -> None:
    assert times_of(planner_of(tmp_path, hours(12)), 2) == [12, 12]
    assert times_of(planner_of(tmp_path, hours(5), term=2, run="s"), 4) == [12, 12, 12, 12]


def test_the_time_of_plans_does_not_go_back_behind_the_last_commit(tmp_path: Path) -> None:
    committed = CheckpointView(number=7, last_epoch=7, clock_ms=12 * 3_600_000)
    assert times_of(planner_of(tmp_path, hours(5), view=committed), 2) == [12, 12]
    assert times_of(planner_of(tmp_path / "later", hours(13), view=committed), 2) == [13, 13]


def test_the_time_of_plans_goes_on_after_a_leader_whose_clock_was_far_ahead(tmp_path: Path) -> None:
    committed = CheckpointView(number=7, last_epoch=7, clock_ms=90_000 * 3_600_000)
    clock = hours(5)
    planner = planner_of(tmp_path, clock, view=committed)
    found = []
    for _ in range(3):
        clock.advance(timedelta(hours=2))
        found += times_of(planner, 1)
    assert found == [90_002, 90_004, 90_006]


def test_a_late_plan_of_a_leader_with_a_slow_clock_is_not_followed_after_one_with_a_fast_clock(
    tmp_path: Path,
) -> None:
    """Neither epoch was committed. The old leader planned both, the new one the first of them again."""
    old = planner_of(tmp_path, hours(5))
    assert times_of(old, 2) == [5, 5]
    new = replace(plan(1, 2, 10), clock_ms=12 * 3_600_000, term=2, run="s")
    first = Plans(LocalStorage(tmp_path)).read(EpochId(1), PlanAttempt(1))
    Plans(LocalStorage(tmp_path)).write(replace(new, slices=first.slices))
    assert times_of(planner_of(tmp_path, hours(6), term=3, run="t"), 3) == [12, 12, 12]


def test_sources_are_asked_at_times_that_do_not_go_back(tmp_path: Path) -> None:
    asked = list[int]()

    class Asked(MemoryReader):
        def next(self, after: Any, max_rows: int, now_ms: int) -> Any:
            asked.append(now_ms)
            return super().next(after, max_rows, now_ms)

    committed = CheckpointView(number=7, last_epoch=7, clock_ms=12 * 3_600_000)
    planner = planner_of(tmp_path, hours(5), view=committed)
    planner.readers["rows"].__class__ = Asked
    planner.next(10, 0)
    assert asked == [12 * 3_600_000]


def test_a_superseded_leader_is_told_by_the_plan_that_its_successor_wrote(tmp_path: Path) -> None:
    """It would write the attempt after its successor's, which a recovery takes for the newest."""
    old, new = planner_of(tmp_path, hours(5)), planner_of(tmp_path, hours(5), term=2, run="s")
    assert new.next(10, 0) is not None
    with pytest.raises(FencedOut, match=r"superseded by term 2 \(plan 1/1 is its\)"):
        old.next(10, 0)
    assert Plans(LocalStorage(tmp_path)).next_attempt(EpochId(1)) == 2
