"""What is refused, and what is known, before a leader plans anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace as replace_record

from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import BarrierPlace, CommitRecord, NextDue
from holdfast.connectors.contract import Mark
from holdfast.errors import DefinitionError, RestoreError, StorageError
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch_loop import Ending, EpochLoop, _lines_of, _refuse_gone_on
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.settings import Until
from holdfast.state.contract import Version
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.inspect.stored import MadeCheckpoint
from tests.unit.runtime.leader_kit import leader_of


def committed(context: LeaderContext, epoch: int) -> CheckpointView:
    record = CommitRecord(
        term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={}, clock_ms=0, parallelism=1,
        fingerprint="", positions={},
    )  # fmt: skip
    done = context.checkpoint.chain.commit(context.checkpoint.chain.load(), record)
    assert isinstance(done, Committed)
    return done.view


@pytest.fixture
def seeded(tmp_path: Path) -> LeaderContext:
    """A checkpoint that began with a savepoint."""
    context = leader_of(LocalStorage(tmp_path))
    job = replace_record(context.checkpoint.job, seeded_from="savepoint")
    return replace(context, checkpoint=replace(context.checkpoint, job=job))


def test_a_savepoint_whose_job_went_on_elsewhere_is_refused(seeded: LeaderContext) -> None:
    view = committed(seeded, 1)
    _refuse_gone_on(seeded, view, {"out": Mark(1)})
    with pytest.raises(RestoreError, match="ends with epoch 1 and its job went on since: sink 'out' shows"):
        _refuse_gone_on(seeded, view, {"out": Mark(2)})


def test_what_the_leader_before_us_showed_after_we_had_read_the_chain_is_not_held_against_the_savepoint(
    seeded: LeaderContext,
) -> None:
    """A failover: the old leader committed and published its first epoch until we took its place."""
    view = committed(seeded, 1)
    committed(seeded, 2)
    _refuse_gone_on(seeded, view, {"out": Mark(2)})


@pytest.mark.parametrize(("generation", "known"), [(0, True), (1, False)], ids=["same code", "other code"])
def test_when_something_is_due_is_not_known_after_an_upgrade(
    tmp_path: Path, generation: int, known: bool
) -> None:
    """A ttl that has changed may have made due what was not; an idle shard would never find out."""
    made = MadeCheckpoint(tmp_path, parallelism=1)
    made.commit({("ann", 1): {"total": 1}})
    (delta,) = made.view.live_deltas("totals")
    record = replace_record(delta, parent=delta.version, version=Version(2, 1, "r"), next_due=NextDue())
    view = made._commit([record], [], None)
    form = SimpleNamespace(layout=replace(made.layout, generation=generation))
    program = SimpleNamespace(uncoordinated={}, keyed_uids=["totals"], forms={"totals": form})
    context: Any = SimpleNamespace(
        program=program,
        settings=SimpleNamespace(key_groups=made.key_groups),
        recovery=SimpleNamespace(damaged=frozenset()),
    )
    ledger: Any = None
    (line,) = _lines_of(context, view, 1, ledger).values()
    assert line.next_due == (NextDue() if known else None)


@pytest.mark.parametrize(
    ("until", "draining", "before_runs", "looks"),
    [
        (Until.EXHAUSTED, False, False, True),
        (Until.EXHAUSTED, False, True, False),
        (Until.STOPPED, True, False, True),
        (Until.STOPPED, False, False, False),
    ],
)
def test_a_part_that_is_to_end_does_not_wait_for_what_no_part_computes_again(
    until: Until, draining: bool, before_runs: bool, looks: bool
) -> None:
    """One that goes on for as long as it is not stopped waits for the part before to be started."""
    looked: list[object] = []
    wishes = Wishes()
    wishes.parts_before_run = lambda: before_runs
    if draining:
        wishes.draining.set()
    loop: Any = SimpleNamespace(
        _context=SimpleNamespace(settings=SimpleNamespace(until=until), wishes=wishes),
        _edges=SimpleNamespace(refuse_abandoned=looked.append), _planner=SimpleNamespace(positions={}),
    )  # fmt: skip
    EpochLoop._refuse_abandoned(loop)
    assert bool(looked) == looks


@pytest.mark.parametrize("last", [0, 7])
def test_a_leader_ends_where_one_before_it_has_carried_the_barrier_that_stops_the_job(last: int) -> None:
    said: list[str] = []
    edges = SimpleNamespace(barrier=lambda positions, epoch: 0, last_barrier=last)
    wishes, planner = Wishes(), SimpleNamespace(positions={}, epoch=3)
    context = SimpleNamespace(wishes=wishes, monitor=SimpleNamespace(say=said.append))
    loop: Any = SimpleNamespace(_edges=edges, _planner=planner, _context=context)
    EpochLoop._meet_barrier(loop)
    assert (wishes.stopping.is_set(), wishes.job_stops.is_set()) == (bool(last), bool(last))
    assert said == ["ENDING at barrier 7: the job stops with a savepoint"][: bool(last)]


class CarriesLater:
    """Commits that fail are told of when they are waited for."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure, self.carried = failure, 0

    def submit(self, outcomes: list[Any], barrier: int) -> None:
        self.carried = barrier

    def check(self, allowed: int) -> None:
        assert not allowed
        if self.failure is not None:
            raise self.failure


def stopping_at(barrier: int, committer: Any, carried: int) -> tuple[Any, list[int]]:
    """A loop that comes to the barrier at which the job stops; and which it was told that it has missed."""
    missed: list[int] = []
    edges = SimpleNamespace(
        barrier=lambda positions, epoch: barrier, last_barrier=barrier, missed=missed.append
    )
    context = SimpleNamespace(
        wishes=Wishes(), monitor=SimpleNamespace(say=lambda text: None), clock=ManualClock(), replica=None
    )
    view = CheckpointView(number=4, barriers=(BarrierPlace(number=carried, commit=4, epoch=3),))
    loop: Any = SimpleNamespace(
        _edges=edges, _planner=SimpleNamespace(positions={}, epoch=3), _context=context, _pending=[],
        _committer=committer, view=view,
    )  # fmt: skip
    return loop, missed


@pytest.mark.parametrize("failure", [StorageError("away; try again"), AdoptedOther("commit 4 came first")])
def test_a_run_that_fails_to_commit_the_barrier_where_the_job_stops_is_tried_again(
    failure: Exception,
) -> None:
    """One that is told to stop is not."""
    loop, _ = stopping_at(7, CarriesLater(failure), carried=6)
    with pytest.raises(type(failure)):
        EpochLoop._meet_barrier(loop)
    assert not loop._context.wishes.stopping.is_set()


@pytest.mark.parametrize("carried", [6, 7])
def test_a_run_ends_where_the_job_stops_once_the_barrier_is_committed_and_carries_it_again_else(
    carried: int,
) -> None:
    loop, missed = stopping_at(7, CarriesLater(None), carried)
    EpochLoop._meet_barrier(loop)
    assert loop._context.wishes.stopping.is_set() is (carried == 7)
    assert missed == ([] if carried == 7 else [7])


def test_what_is_kept_for_barriers_is_known_before_the_first_commit() -> None:
    """A run that is told to stop before its first turn commits, too: what it has shown."""
    kept: Any = object()
    asked: list[object] = []
    committer = MagicMock(keep_from=None, refused={})
    for name in ("publish_recovered", "begin_upstream", "record_published"):
        getattr(committer, name).side_effect = lambda *given: asked.append(committer.keep_from)
    loop: Any = MagicMock(
        _committer=committer, _edges=SimpleNamespace(keep_from=kept), _begins_upstream=True,
        _loop=lambda: Ending.STOPPED,
    )  # fmt: skip
    EpochLoop.run(loop)
    assert asked == [kept] * 3


def test_a_run_that_a_refusal_has_cut_short_has_failed_and_one_that_was_at_its_end_has_not() -> None:
    """Parts that read from the one come to their end without it, and from the other do not."""
    committer = MagicMock(refused={"out": "sink 'out' refuses"}, is_cut_short=False)
    loop: Any = MagicMock(_committer=committer, _loop=lambda: Ending.EXHAUSTED)
    assert EpochLoop.run(loop) is Ending.EXHAUSTED
    assert loop.refused == {"out": "sink 'out' refuses"}
    committer.is_cut_short = True
    with pytest.raises(DefinitionError, match="sink 'out' refuses"):
        EpochLoop.run(loop)


def test_no_turn_follows_where_the_run_was_cut_short() -> None:
    committer = MagicMock(is_cut_short=True)
    loop: Any = MagicMock(_committer=committer)
    loop._context.wishes = Wishes()
    assert EpochLoop._loop(loop) is Ending.STOPPED
    committer.check.assert_not_called()
    loop._commit_pending.assert_called_once()


@pytest.mark.parametrize(
    ("replica", "planned_ms", "elapsed"),
    [(None, 1_000, 2.0), ("member", 9_000, 2.0), ("member", 1_000, 9.0), ("member", 12_000, 2.0)],
    ids=["alone", "planned by itself", "planned by another before", "by a clock that is ahead"],
)
def test_members_of_a_set_keep_step(replica: Any, planned_ms: int, elapsed: float) -> None:
    """The interval between epochs is counted from where the epoch was first planned: one that is behind waits
    for nothing, and one that is level for no longer than the others do."""
    clock = SimpleNamespace(monotonic=lambda: 102.0, now_ms=lambda: 10_000)
    loop: Any = SimpleNamespace(_context=SimpleNamespace(clock=clock, replica=replica))
    plan: Any = SimpleNamespace(clock_ms=planned_ms)
    assert EpochLoop._elapsed(loop, plan, 100.0) == elapsed
