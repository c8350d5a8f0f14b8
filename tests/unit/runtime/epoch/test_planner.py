"""What is planned."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store.records import PlannedSlice
from holdfast.connectors.contract import Slice as Given
from holdfast.connectors.contract import Waiting
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.generator import GeneratorSource
from holdfast.connectors.memory import MemoryReader, MemorySource
from holdfast.errors import FencedOut, InputVanished
from holdfast.ids import EpochId, PlanAttempt
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.recorded_plans import Recorded
from holdfast.runtime.leader_context import AdoptedOther
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.kept import commit
from tests.unit.runtime.epoch.test_recorded_plans import plan
from tests.unit.runtime.leader_kit import planner_of

UID = "rows"
NUMBERS = {"rows": MemorySource(list(range(100)))}


def test_a_source_that_fills_every_epoch_does_not_keep_the_other_waiting(tmp_path: Path) -> None:
    planner = planner_of(tmp_path, {uid: MemorySource(list(range(100))) for uid in "ab"})
    plans = [planner.next(10, 0) for _ in range(4)]
    read = [uid for found in plans if found is not None for uid in found.slices]
    assert read == ["a", "b", "a", "b"]


def test_what_waits_is_not_known_before_a_source_has_looked(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / name).write_text("{}\n")
    files = {UID: FileSource(tmp_path / "in", format="json", schema="n long")}
    planner_of(tmp_path / "ck", files).next(1, 0)
    again = planner_of(tmp_path / "ck", files, term=2, run="s")
    assert again.next(1, 0) is not None
    assert again.waiting() is None, "a recorded plan was followed: no source was asked"
    again.next(1, 0)
    assert again.waiting() == Waiting(0, 0)


def test_a_plan_says_which_operators_combine_their_rows_and_a_recorded_one_is_followed_in_that(
    tmp_path: Path,
) -> None:
    first = planner_of(tmp_path, NUMBERS).next(10, 0, combined=("op",))
    assert first is not None
    assert first.combined == ("op",)
    again = planner_of(tmp_path, NUMBERS, term=2, run="s")
    followed, fresh = again.next(10, 0, combined=()), again.next(10, 0, ())
    assert followed == first
    assert fresh is not None
    assert fresh.combined == ()


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
    recorded = [
        Recorded(replace(plan(epoch, 1, 0), slices={"rows": part}), None)
        for epoch, part in enumerate(parts, 1)
    ]
    view = CheckpointView(notes={"rows": SharedList(["a"])})
    planner_of(tmp_path, {"rows": Noting(list(range(40)))}, view=view, recorded=recorded)
    assert given == ["c", "d", "e"]


def hours(count: float) -> ManualClock:
    return ManualClock(int(count * 3_600_000))


def times_of(planner: Planner, epochs: int) -> list[int]:
    found = [planner.next(10, 0) for _ in range(epochs)]
    return [plan.clock_ms // 3_600_000 for plan in found if plan is not None]


def test_the_time_of_plans_does_not_go_back_when_a_leader_with_a_slow_clock_follows(tmp_path: Path) -> None:
    assert times_of(planner_of(tmp_path, NUMBERS, hours(12)), 2) == [12, 12]
    assert times_of(planner_of(tmp_path, NUMBERS, hours(5), term=2, run="s"), 4) == [12, 12, 12, 12]


def test_the_time_of_plans_does_not_go_back_behind_the_last_commit(tmp_path: Path) -> None:
    committed = CheckpointView(number=7, last_epoch=7, clock_ms=12 * 3_600_000)
    assert times_of(planner_of(tmp_path, NUMBERS, hours(5), view=committed), 2) == [12, 12]
    assert times_of(planner_of(tmp_path / "later", NUMBERS, hours(13), view=committed), 2) == [13, 13]


def test_the_time_of_plans_goes_on_after_a_leader_whose_clock_was_far_ahead(tmp_path: Path) -> None:
    committed = CheckpointView(number=7, last_epoch=7, clock_ms=90_000 * 3_600_000)
    clock = hours(5)
    planner = planner_of(tmp_path, NUMBERS, clock, view=committed)
    found = []
    for _ in range(3):
        clock.advance(timedelta(hours=2))
        found += times_of(planner, 1)
    assert found == [90_002, 90_004, 90_006]


def test_a_late_plan_of_a_leader_with_a_slow_clock_is_not_followed_after_one_with_a_fast_clock(
    tmp_path: Path,
) -> None:
    """Neither epoch was committed. The old leader planned both, the new one the first of them again."""
    old = planner_of(tmp_path, NUMBERS, hours(5))
    assert times_of(old, 2) == [5, 5]
    new = replace(plan(1, 2, 10), clock_ms=12 * 3_600_000, term=2, run="s")
    first = Plans(LocalStorage(tmp_path)).read(EpochId(1), PlanAttempt(1))
    Plans(LocalStorage(tmp_path)).write(replace(new, slices=first.slices))
    assert times_of(planner_of(tmp_path, NUMBERS, hours(6), term=3, run="t"), 3) == [12, 12, 12]


def test_sources_are_asked_at_times_that_do_not_go_back(tmp_path: Path) -> None:
    asked = list[int]()

    class Asked(MemoryReader):
        def next(self, after: Any, max_rows: int, now_ms: int) -> Any:
            asked.append(now_ms)
            return super().next(after, max_rows, now_ms)

    committed = CheckpointView(number=7, last_epoch=7, clock_ms=12 * 3_600_000)
    planner = planner_of(tmp_path, NUMBERS, hours(5), view=committed)
    planner.readers["rows"].__class__ = Asked
    planner.next(10, 0)
    assert asked == [12 * 3_600_000]


def test_a_superseded_leader_is_told_by_the_plan_that_its_successor_wrote(tmp_path: Path) -> None:
    """It would write the attempt after its successor's, which a recovery takes for the newest."""
    old, new = (
        planner_of(tmp_path, NUMBERS, hours(5)),
        planner_of(tmp_path, NUMBERS, hours(5), term=2, run="s"),
    )
    assert new.next(10, 0) is not None
    with pytest.raises(FencedOut, match=r"superseded by term 2 \(plan 1/1 is its\)"):
        old.next(10, 0)
    assert Plans(LocalStorage(tmp_path)).next_attempt(EpochId(1)) == 2


class Live:
    """A source of a user's: it has more whenever it is asked, and cannot fix its end."""

    schema, replayable = "n long", True

    def __init__(self, lag: int | None, counts: bool) -> None:
        self._lag, self._counts = lag, counts

    def reader(self, notes: Any) -> Any:
        return self

    def next(self, after: int | None, max_rows: int | None, now_ms: int) -> Given | None:
        first, rows = after or 0, max_rows or 100
        return Given(after, first + rows, rows=rows if self._counts else None)

    def exhausted(self, after: Any) -> bool:
        return False

    def frame(self, spark: Any, slice: Given) -> Any:
        raise NotImplementedError

    def lag(self, after: Any) -> int | None:
        return self._lag


def drained(planner: Planner, ends: dict[str, Any], most: int = 100) -> list[Any]:
    planner.end_here(ends)
    read = []
    while (plan := planner.next(10, 0)) is not None:
        read.append(plan.slices[UID].end)
        assert len(read) < most, "the drain goes on and on"
        planner.end_here(ends)
    return read


@pytest.mark.parametrize(
    ("lag", "counts", "read"),
    [(25, True, [10, 20, 25]), (0, True, []), (None, True, [10]), (None, False, [10]), (25, False, [10])],
)
def test_of_a_source_that_cannot_fix_its_end_what_it_counts_or_one_slice_is_read(
    tmp_path: Path, lag: int | None, counts: bool, read: list[int]
) -> None:
    assert drained(planner_of(tmp_path, {UID: Live(lag, counts)}, ManualClock(0)), {}) == read


def test_a_generator_ends_at_what_was_due_when_the_drain_was_asked_for(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    source = GeneratorSource(["id"], schema="n long", rows_per_second=10)
    planner = planner_of(tmp_path / "1", {UID: source}, clock)
    assert planner.next(10, 0) is None
    clock.sleep(2.5)
    ends: dict[str, Any] = {}
    planner.end_here(ends)
    clock.sleep(60)
    assert [end for end, _ in drained(planner, ends)] == [10, 20, 25]
    # The run failed after the first of these was committed.
    view = CheckpointView(number=1, last_epoch=1, positions={UID: [10, 1_000]}, clock_ms=clock.now_ms())
    assert [end for end, _ in drained(planner_of(tmp_path / "2", {UID: source}, clock, view=view), ends)] == [
        20,
        25,
    ]
    # Or before.
    assert [end for end, _ in drained(planner_of(tmp_path / "3", {UID: source}, clock), ends)] == [10, 20, 25]


def test_a_generator_without_rate_and_total_has_nothing_at_hand(tmp_path: Path) -> None:
    source = GeneratorSource(["id"], schema="n long")
    planner = planner_of(tmp_path, {UID: source}, ManualClock(0))
    assert planner.next(10, 0) is not None
    assert drained(planner, {}) == []


def test_what_a_source_no_longer_has_the_leader_before_may_have_read(tmp_path: Path) -> None:
    class Gone(MemorySource):
        def reader(self, notes: Any) -> Any:
            return self

        def next(self, after: Any, max_rows: int | None, now_ms: int) -> Given | None:
            raise InputVanished("it was let go of; restore a newer copy")

    planner = planner_of(tmp_path, {"rows": Gone([1])})
    with pytest.raises(InputVanished):
        planner.next(10, 0)
    commit(Chain(LocalStorage(tmp_path)), EMPTY)
    with pytest.raises(AdoptedOther, match="commit 1 came first; going on from it"):
        planner.next(10, 0)
    with pytest.raises(InputVanished):
        planner.next(10, 1)
