from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.plans import Plans, PlanTaken, PlanWritten, may_follow
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import PlannedSlice, PlanRecord
from holdfast.errors import CorruptionError
from holdfast.ids import EpochId, PlanAttempt
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage


def plan(epoch: int = 3, attempt: int = 1, run: str = "a") -> PlanRecord:
    slices = {"in": PlannedSlice(start=[7, 1], end=[9, 0])}
    return PlanRecord(
        epoch=epoch, attempt=attempt, term=1, run=run, parent=2, fingerprint="f", parallelism=2,
        clock_ms=0, slices=slices,
    )  # fmt: skip


def test_the_newest_attempt_is_found() -> None:
    plans = Plans(MemoryStorage())
    assert plans.newest(EpochId(3)) is None
    assert plans.next_attempt(EpochId(3)) == 1
    for attempt in (1, 2):
        assert plans.write(plan(attempt=attempt)) == PlanWritten(plan(attempt=attempt))
    assert plans.newest(EpochId(3)) == plan(attempt=2)
    assert plans.read(EpochId(3), PlanAttempt(1)) == plan()


def test_a_plan_is_never_overwritten() -> None:
    plans = Plans(MemoryStorage())
    plans.write(plan(run="first"))
    assert plans.write(plan(run="second")) == PlanTaken(plan(run="first"))


def test_a_superseded_leader_plans_nothing_after_its_successor() -> None:
    """Else its late attempt would be the newest, and be followed after damage."""
    storage = MemoryStorage()
    plans = Plans(storage)
    first = plan(run="old")
    successor = replace(plan(attempt=2, run="new"), term=2)
    assert plans.write(first) == PlanWritten(first)
    assert plans.write(successor) == PlanWritten(successor)
    assert plans.write(plan(attempt=3, run="old")) == PlanTaken(successor)
    assert plans.newest(EpochId(3)) == successor
    # One that cannot be read says nothing; the one before it does.
    storage.objects[names.plan(3, 2)] = b"damaged"
    later = replace(plan(attempt=3, run="old"), term=1)
    assert plans.write(later) == PlanWritten(later)


def test_a_damaged_attempt_does_not_hide_the_successor_before_it() -> None:
    storage = MemoryStorage()
    plans, successor = Plans(storage), replace(plan(run="new"), term=2)
    plans.write(successor)
    storage.objects[names.plan(3, 2)] = b"damaged"
    assert plans.write(plan(attempt=3, run="old")) == PlanTaken(successor)
    assert names.plan(3, 3) not in storage.objects


@pytest.mark.parametrize("kind", [FaultKind.LOSE_ANSWER, FaultKind.LOSE_REQUEST])
def test_an_unanswered_plan_is_ours_once_read_back(kind: FaultKind) -> None:
    storage = FaultyStorage(MemoryStorage(), [Fault(kind=kind, operation="put_new")])
    assert Plans(storage).write(plan()) == PlanWritten(plan())


def test_a_damaged_plan_is_named_and_can_be_gone_past() -> None:
    storage = MemoryStorage()
    Plans(storage).write(plan())
    storage.flip(names.plan(3, 1))
    with pytest.raises(CorruptionError, match="plans/000000000003/000001"):
        Plans(storage).newest(EpochId(3))
    assert Plans(storage).next_attempt(EpochId(3)) == 2


def test_a_plan_under_another_name_is_refused() -> None:
    storage = MemoryStorage()
    Plans(storage).write(plan())
    storage.put(names.plan(4, 1), storage.get(names.plan(3, 1)))
    with pytest.raises(CorruptionError, match="epoch 3"):
        Plans(storage).newest(EpochId(4))


@pytest.mark.parametrize(
    ("position", "fingerprint", "parallelism", "reason"),
    [
        ((7, 1), "f", 2, None),
        ([7, 1], "g", 2, "other code"),
        ([7, 1], "f", 4, "2 shards, not 4"),
        ([8, 0], "f", 2, "'in' from"),
        (None, "f", 2, "'in' from"),
    ],
)
def test_a_plan_is_followed_only_if_everything_it_depends_on_is_the_same(
    position: object, fingerprint: str, parallelism: int, reason: str | None
) -> None:
    found = may_follow(
        plan(), start_positions={"in": position}, fingerprint=fingerprint, parallelism=parallelism
    )
    assert found is None if reason is None else reason in (found or "")
