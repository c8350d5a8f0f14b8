"""Members of a set of replicas follow the plan that is there, and none waits for one that cannot be."""

from __future__ import annotations

from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import PlannedSlice, PlanRecord
from holdfast.connectors.contract import Slice
from holdfast.connectors.memory import MemoryReader, MemorySource
from holdfast.errors import DefinitionError, FencedOut
from holdfast.ids import PlanAttempt
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.recorded_plans import Recorded, recorded_plans
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.leader_kit import SHAPE, leader_of, no_tables

RUN = "set"


class Rows(MemorySource):
    """Its readers remember what they were told to follow."""

    def __init__(self) -> None:
        super().__init__(list(range(100)))
        self.readers: list[Remembering] = []

    def reader(self, notes: Any) -> Remembering:
        self.readers.append(Remembering(self, super().reader(notes)))
        return self.readers[-1]


class Remembering:
    def __init__(self, source: Rows, reader: MemoryReader) -> None:
        self._reader, self.followed = reader, list[Slice]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def next(self, after: Any, max_rows: int | None, now_ms: int) -> Slice | None:
        return self._reader.next(after, max_rows, now_ms)

    def exhausted(self, after: Any) -> bool:
        return self._reader.exhausted(after)

    def follow(self, slice: Slice) -> None:
        self.followed.append(slice)


def member(
    root: Path, source: Any = None, *, recorded: list[Recorded] | None = None, view: CheckpointView = EMPTY,
    run: str = RUN, term: int = 1, said: list[str] | None = None,
) -> Planner:  # fmt: skip
    said = [] if said is None else said
    context = leader_of(
        LocalStorage(root), sources={"rows": source or Rows()}, run=run, term=term, say=said.append
    )
    replica: Any = object()
    found = recorded_plans(context.checkpoint.chain, view, SHAPE, {})
    found = found if recorded is None else type(found)(recorded)
    return Planner(with_(context, replica=replica), view, SHAPE, found, no_tables())


def planned(planner: Planner, rows: int) -> PlanRecord:
    plan = planner.next(rows, 0)
    assert plan is not None
    return plan


def test_the_first_plan_is_followed_by_all_whatever_they_would_have_read(tmp_path: Path) -> None:
    source = Rows()
    first, second = member(tmp_path), member(tmp_path, source)
    plan = planned(first, 5)
    assert planned(second, 9) == plan
    assert second.positions == first.positions
    assert [(part.start, part.end) for part in source.readers[0].followed] == [(None, 5)]
    assert planned(second, 3) == planned(first, 9)


def test_one_that_drafted_at_the_same_time_follows_what_came_first(tmp_path: Path) -> None:
    first, second = member(tmp_path), member(tmp_path)
    look = second._plans.next_attempt
    plan: list[PlanRecord] = []

    def late(epoch: Any) -> PlanAttempt:
        found = look(epoch)
        plan.append(planned(first, 5))
        return found

    second._plans.next_attempt = late  # type: ignore[method-assign]
    assert planned(second, 9) == plan[0]
    assert second.positions == {"rows": 5}


def test_a_plan_that_does_not_follow_what_was_read_here_is_planned_again(tmp_path: Path) -> None:
    second = member(tmp_path)
    strange = replace(planned(member(tmp_path), 5), slices={"rows": PlannedSlice(start=3, end=7)})
    (tmp_path / names.plan(1, 1)).write_bytes(seal("plan", strange))
    plan = planned(second, 9)
    assert (plan.attempt, plan.slices["rows"].start) == (2, None)


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "g"},
        {"parallelism": 7},
        {"run": "another set"},
        {"closed_through": 1},
        {"after": "what was not read here"},
        {"clock_ms": -1},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_plan_of_another_kind_is_not_followed(tmp_path: Path, other: dict[str, Any]) -> None:
    second = member(tmp_path)
    strange = replace(planned(member(tmp_path), 5), **other)
    (tmp_path / names.plan(1, 1)).write_bytes(seal("plan", strange))
    assert planned(second, 9).attempt == 2


def test_a_damaged_plan_is_planned_again_and_the_others_follow_that(tmp_path: Path) -> None:
    said: list[str] = []
    second, third = member(tmp_path, said=said), member(tmp_path)
    planned(member(tmp_path), 5)
    (tmp_path / names.plan(1, 1)).write_bytes(b"damaged")
    plan = planned(second, 9)
    assert plan.attempt == 2
    assert [text for text in said if "DAMAGE" in text and "plans/" in text]
    assert planned(third, 3) == plan


def test_a_plan_that_was_damaged_while_one_drafted_is_planned_again(tmp_path: Path) -> None:
    second = member(tmp_path)
    look = second._plans.next_attempt

    def late(epoch: Any) -> PlanAttempt:
        found = look(epoch)
        if found == 1:
            planned(member(tmp_path), 5)
            (tmp_path / names.plan(1, 1)).write_bytes(b"damaged")
        return found

    second._plans.next_attempt = late  # type: ignore[method-assign]
    assert planned(second, 9).attempt == 2


def test_a_plan_of_a_newer_set_ends_this_one(tmp_path: Path) -> None:
    old = member(tmp_path, run="old")
    plan = planned(member(tmp_path, term=2), 5)
    (tmp_path / names.plan(1, 1)).write_bytes(seal("plan", plan))
    with pytest.raises(FencedOut):
        planned(old, 5)


class Noting(MemorySource):
    """A source of a user, whose reader remembers more than a position and cannot follow."""

    def reader(self, notes: Any) -> Any:
        inner = super().reader(notes)

        class Reader:
            def next(self, after: Any, max_rows: int | None, now_ms: int) -> Slice | None:
                part = inner.next(after, max_rows, now_ms)
                return part and with_(part, notes=("a",))

        return Reader()


def test_a_reader_that_remembers_and_cannot_follow_is_refused_with_the_remedy(tmp_path: Path) -> None:
    first, second = member(tmp_path, Noting([1, 2])), member(tmp_path, Noting([1, 2]))
    planned(first, 1)
    with pytest.raises(DefinitionError, match=r"'rows' remembers.*give it `follow`, or read it in a part"):
        planned(second, 1)


def test_slices_that_are_read_again_are_those_of_the_plan_that_another_member_has_written_again(
    tmp_path: Path,
) -> None:
    """The readers were given the slices of all recorded plans at once: they are not told again."""
    source = Rows()
    one = replace(planned(member(tmp_path, run="before"), 5), fingerprint="g")
    two = replace(one, epoch=2, slices={"rows": PlannedSlice(start=5, end=8)}, fingerprint="f")
    recorded = [Recorded(one, "it was made by other code"), Recorded(two, None)]
    first, second = (member(tmp_path, source, recorded=recorded) for _ in range(2))
    again = planned(first, 9)
    assert (again.attempt, again.slices) == (2, one.slices)
    assert planned(second, 9) == again
    assert planned(second, 9) == two
    assert source.readers[1].followed == []
    assert planned(first, 9) == two
    new = planned(first, 3)
    assert planned(second, 9) == new
    assert [part.start for part in source.readers[1].followed] == [8]


def test_other_slices_than_are_to_be_read_again_are_not_followed(tmp_path: Path) -> None:
    one = replace(planned(member(tmp_path, run="before"), 5), fingerprint="g")
    second = member(tmp_path, recorded=[Recorded(one, "it was made by other code")])
    wrong = replace(
        one, attempt=2, run=RUN, fingerprint="f", slices={"rows": PlannedSlice(start=None, end=9)}
    )
    (tmp_path / names.plan(1, 2)).write_bytes(seal("plan", wrong))
    plan = planned(second, 9)
    assert (plan.attempt, plan.slices["rows"].end) == (3, 5)


def test_one_that_leads_alone_takes_no_plan_of_its_own_run_for_anothers(tmp_path: Path) -> None:
    alone = member(tmp_path)
    alone._context = with_(alone._context, replica=None)
    planned(member(tmp_path), 5)
    assert planned(alone, 9).attempt == 2
