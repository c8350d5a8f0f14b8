"""A hot standby's working state goes where the committed records lead, and a takeover finds it there.

Real records, deltas, snapshots and LMDB files; only Spark is left out: its tasks are called here.
"""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.cluster.node_records import Lag
from holdfast.errors import RetryableError
from holdfast.graph.column_types import state_layout
from holdfast.ids import CommitNumber, shard_ranges
from holdfast.nodes import follower
from holdfast.nodes.follower import LIST_SECONDS, Follower
from holdfast.runtime.epoch.program import OperatorForm, Program
from holdfast.runtime.settings import check_settings
from holdfast.state.contract import Arrival
from holdfast.state.files.schema_conversion import Lineage
from holdfast.tasks.follow import FollowTask
from holdfast.tasks.messages import TaskResult, Workspace
from holdfast.tasks.working_state import Kept, open_shard
from holdfast.testing.clocks import ManualClock
from tests.unit.inspect.stored import MadeCheckpoint

OWNER = "here-2"
INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64())])


class Totals(hf.KeyedFunction):
    output = "user string, total long"
    total = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.user, self.total.value


LAYOUT = state_layout("totals", Totals(), INPUT, ("user",))


def program() -> Program:
    job = hf.Job("job")
    rows = job.source(hf.MemorySource([], schema="user string, amount long"), uid="rows")
    rows.key_by("user").process(Totals(), uid="totals").sink(hf.MemorySink(), uid="out")
    form = OperatorForm(INPUT, LAYOUT, "", Lineage.begin(LAYOUT))
    return Program(job.graph(), (), {}, {}, {"totals": form}, {})


class Standby:
    """A follower of a made checkpoint, on this machine's disk."""

    def __init__(self, made: MadeCheckpoint, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.clock = made, ManualClock()
        self.arrivals: list[str] = []
        settings = check_settings(made.url, {"key_groups": made.key_groups, "working_dir": root / "w"})
        self.workspace = Workspace("i", made.url, str(root / "w"), made.backend, OWNER)
        monkeypatch.setattr(follower, "Placement", lambda spark: None)
        monkeypatch.setattr(follower, "workspace_of", lambda *args: self.workspace)
        no_spark = cast(Any, None)
        self.follower = Follower(no_spark, program(), settings, made.storage, OWNER, self.clock)
        monkeypatch.setattr(self.follower, "_run", self.run)

    def run(self, task: FollowTask, shards: int) -> list[TaskResult]:
        wanted = sorted({shard for operator in task.operators for shard in operator.shards})
        results = [task.follow(shard) for shard in wanted]
        self.arrivals = [result.arrival for result in results]
        return results

    def step(self) -> None:
        self.follower.step()

    def takeover(self, view: CheckpointView | None = None) -> set[Arrival]:
        """How a leader would find the shards, going on from the newest commit."""
        view = view or History(self.made.storage).load()
        found = set()
        for groups in shard_ranges(self.made.key_groups, view.parallelism):
            plan = line_of(view, "totals", groups)
            lineage = Lineage.begin(LAYOUT)
            with closing(
                open_shard(self.workspace, "totals", lineage, plan, view.last_epoch, Kept.IN_CHECKPOINT)
            ) as state:
                found.add(state.arrival)
        return found


@pytest.fixture(params=["lmdb", "rocksdb"])
def made(tmp_path: Path, request: pytest.FixtureRequest) -> MadeCheckpoint:
    return MadeCheckpoint(tmp_path, LAYOUT, backend=request.param)


@pytest.fixture
def standby(made: MadeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standby:
    return Standby(made, tmp_path, monkeypatch)


def some(number: int) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Keys of every shard, with states that differ by `number`."""
    return {(f"u{i}",): {"total": number + i} for i in range(40)}


def test_a_takeover_finds_the_followed_state_and_restores_nothing(
    made: MadeCheckpoint, standby: Standby
) -> None:
    assert standby.follower.lag is None, "nothing is known before the first look"
    standby.step()
    assert standby.follower.lag == Lag(epoch=0)
    for number in range(5):
        made.commit(some(number), snapshots=number == 2)
        standby.step()
        assert standby.takeover() == {Arrival.THERE}
    assert standby.follower.lag == Lag(epoch=5)
    assert standby.arrivals == [Arrival.MOVED, Arrival.MOVED], "one delta a shard, not a restore"


def test_what_was_committed_after_the_last_look_is_caught_up_by_the_takeover(
    made: MadeCheckpoint, standby: Standby
) -> None:
    made.commit(some(1))
    standby.step()
    made.commit(some(2))
    assert standby.takeover() == {Arrival.MOVED}


def test_a_standby_that_slept_through_a_snapshot_still_goes_by_the_deltas(
    made: MadeCheckpoint, standby: Standby
) -> None:
    made.commit(some(1))
    standby.step()
    for number in range(2, 6):
        made.commit(some(number), snapshots=number == 4)
    standby.step()
    assert standby.arrivals == [Arrival.MOVED, Arrival.MOVED]
    assert standby.takeover() == {Arrival.THERE}


def test_deltas_that_retention_removed_are_replaced_by_the_snapshots(
    made: MadeCheckpoint, standby: Standby
) -> None:
    made.commit(some(1))
    standby.step()
    for number in range(2, 6):
        made.commit(some(number), snapshots=number in (3, 4))
    made.storage.delete([entry.name for entry in made.storage.list(names.data_of(2))])
    standby.step()
    assert standby.arrivals == [Arrival.REBUILT, Arrival.REBUILT]
    assert standby.takeover() == {Arrival.THERE}
    assert standby.follower.lag == Lag(epoch=5)


def test_a_file_that_no_other_stands_in_for_is_told_and_looked_for_again(
    made: MadeCheckpoint, standby: Standby
) -> None:
    made.commit(some(1))
    (lost,) = {entry.name for entry in made.storage.list(names.data_of(1)) if "0-3" in entry.name}
    data = made.storage.get(lost)
    made.storage.delete([lost])
    with pytest.raises(RetryableError, match="shard 0: "):
        standby.step()
    assert standby.follower.lag is not None
    assert lost in standby.follower.lag.problem
    made.storage.put(lost, data)
    standby.step()
    assert standby.takeover() == {Arrival.THERE}


def test_a_rewind_takes_the_working_state_back(made: MadeCheckpoint, standby: Standby) -> None:
    for number in range(1, 4):
        made.commit(some(number))
        standby.step()
    done = made.chain.rewind(made.view.head, CommitNumber(2), term=1, run="r")
    assert isinstance(done, Committed)
    standby.step()
    assert standby.takeover() == {Arrival.THERE}
    assert standby.follower.lag == Lag(epoch=2)


def test_another_number_of_shards_is_followed(made: MadeCheckpoint, standby: Standby) -> None:
    made.commit(some(1))
    standby.step()
    made.rescale(4)
    made.commit(some(2))
    standby.step()
    assert standby.takeover() == {Arrival.THERE}
    made.commit(some(3))
    standby.step()
    assert standby.arrivals == [Arrival.MOVED] * 4


def test_leader_and_standby_with_one_working_directory_do_not_share_a_shard(
    made: MadeCheckpoint, standby: Standby, tmp_path: Path
) -> None:
    made.commit(some(1))
    standby.step()
    leader = replace(standby.workspace, owner="here-1")
    for groups in made.shards:
        plan = line_of(made.view, "totals", groups)
        with closing(
            open_shard(leader, "totals", Lineage.begin(LAYOUT), plan, 1, Kept.IN_CHECKPOINT)
        ) as state:
            assert state.arrival is Arrival.REBUILT, "it took what the standby has built"
    assert standby.takeover() == {Arrival.THERE}


def contents(workspace: Workspace, view: CheckpointView, key_groups: int) -> list[tuple[bytes, bytes]]:
    """All that a leader would find in the shards."""
    found: list[tuple[bytes, bytes]] = []
    for groups in shard_ranges(key_groups, view.parallelism):
        plan = line_of(view, "totals", groups)
        opened = open_shard(
            workspace, "totals", Lineage.begin(LAYOUT), plan, view.last_epoch, Kept.IN_CHECKPOINT
        )
        with closing(opened) as state:
            found += state.scan(b"")
    return found


@pytest.mark.parametrize("made", ["lmdb"], indirect=True)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_followed_state_is_what_a_restore_would_give(
    made: MadeCheckpoint, standby: Standby, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(12):
        if number and chance.random() < 0.2:
            made.rescale(chance.choice([shards for shards in (1, 2, 4) if shards != len(made.shards)]))
        changed = {key: state for key, state in some(number).items() if chance.random() < 0.3}
        changed |= {key: {} for key in made.model if chance.random() < 0.1}
        made.commit(changed, snapshots=chance.random() < 0.3)
        if chance.random() < 0.6:
            standby.step()
            assert standby.takeover() == {Arrival.THERE}
            elsewhere = replace(standby.workspace, owner=f"fresh-{number}")
            followed, restored = (
                contents(workspace, made.view, made.key_groups)
                for workspace in (standby.workspace, elsewhere)
            )
            assert followed == restored


def uncommitted(made: MadeCheckpoint) -> CheckpointView:
    """An epoch that was run and whose commit never came about: its files are there, its record is not."""
    before, versions, steps = made.view, dict(made.versions), {g: list(s) for g, s in made.steps.items()}
    ahead = made.commit(some(99))
    made.storage.delete([names.commit(ahead.number)])
    made.chain = type(made.chain)(made.storage, retain=100)
    made.view, made.versions, made.steps = before, versions, steps
    return ahead


def take_over_after_an_epoch_that_was_never_committed(made: MadeCheckpoint, standby: Standby) -> set[Arrival]:
    made.commit(some(1))
    standby.step()
    uncommitted(made)
    standby.clock.advance(timedelta(seconds=LIST_SECONDS))
    standby.step()
    return standby.takeover(made.view)


def test_an_epoch_that_is_not_committed_is_not_followed(made: MadeCheckpoint, standby: Standby) -> None:
    assert take_over_after_an_epoch_that_was_never_committed(made, standby) == {Arrival.THERE}


def test_control_following_what_is_not_committed_costs_the_takeover_a_restore(
    made: MadeCheckpoint, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the safeguard taken away: the working state cannot be undone, so it is thrown away."""
    made.commit(some(1))
    standby.step()
    ahead = uncommitted(made)
    monkeypatch.setattr(standby.follower, "_newest", lambda: ahead)
    monkeypatch.setattr(standby.follower, "_records_until", lambda view: [])
    standby.step()
    assert standby.takeover(made.view) == {Arrival.REBUILT}


def test_a_step_with_nothing_new_lists_nothing(
    made: MadeCheckpoint, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.commit(some(1))
    standby.step()
    listed: list[str] = []
    monkeypatch.setattr(made.storage, "list", lambda prefix: listed.append(prefix) or [])
    standby.step()
    assert listed == []


def test_a_standby_whose_next_commit_came_and_went_sees_that_at_once(
    made: MadeCheckpoint, standby: Standby
) -> None:
    for number in range(1, 6):
        made.commit(some(number))
        if number == 1:
            standby.step()
    made.storage.delete([names.commit(1), names.commit(2), names.commit(3)])
    assert not standby.follower._history.is_newest(1)


def test_storage_that_fails_is_told_and_followed_again(
    made: MadeCheckpoint, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.commit(some(1))
    with monkeypatch.context() as broken:
        broken.setattr(made.storage, "list", lambda prefix: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            standby.step()
        assert standby.follower.lag is not None
        assert standby.follower.lag.problem == "division by zero"
    standby.step()
    assert standby.follower.lag == Lag(epoch=1)
