"""A line's version names one state only: working state found under that name is trusted."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.chain.shard_lines import Line, line_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import DeltaFile, Extent, SnapshotFile
from holdfast.checkpoint.store.schemas import file_schema, record_of
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.contract import EMPTY_VERSION, Version
from holdfast.tasks import working_state
from holdfast.tasks.messages import Workspace, decode_result
from holdfast.tasks.working_state import Kept, open_shard, snapshot_shard
from tests.unit.inspect.stored import MadeCheckpoint

ALL = KeyGroupRange(KeyGroup(0), KeyGroup(4))
OWN = Version(epoch=10, attempt=1, result="own")
DELTA = DeltaFile(
    operator="op",
    first_group=0,
    end_group=4,
    version=OWN,
    parent=EMPTY_VERSION,
    extent=Extent(object="d10", offset=0, length=1, checksum=""),
    entries=1,
)
LATER = SnapshotFile(
    operator="op",
    first_group=0,
    end_group=2,
    version=Version(epoch=30, attempt=1, result="half"),
    object="s30",
    length=1,
    chunk_bytes=1,
    chunks=("",),
    backend="lmdb",
)


def scaled_out_and_back(delta: DeltaFile = DELTA, later: SnapshotFile = LATER) -> CheckpointView:
    """One shard until epoch 10; then two, of which only the first had rows, and a snapshot; now one again."""
    return CheckpointView(
        number=30,
        checksum="sum",
        last_epoch=30,
        deltas={"op": {(0, 4): (delta,)}},  # type: ignore[dict-item]
        snapshots={"op": (later,)},
    )


def test_state_that_a_newer_snapshot_is_part_of_does_not_have_the_version_of_an_old_delta() -> None:
    line = line_of(scaled_out_and_back(), "op", ALL)
    assert [(d.first_group, d.end_group) for d in line.deltas] == [(2, 4)]
    assert line.version != OWN
    assert line.version.epoch == 30


def test_another_history_of_the_same_number_gives_another_version() -> None:
    """As after the checkpoint was restored from a copy."""
    extent = msgspec.structs.replace(DELTA.extent, checksum="other bytes")
    histories = [
        scaled_out_and_back(),
        scaled_out_and_back(msgspec.structs.replace(DELTA, version=replace_result(OWN))),
        scaled_out_and_back(msgspec.structs.replace(DELTA, extent=extent)),
        scaled_out_and_back(later=msgspec.structs.replace(LATER, version=replace_result(LATER.version))),
        scaled_out_and_back(later=msgspec.structs.replace(LATER, chunks=("other bytes",))),
    ]
    assert len({line_of(view, "op", ALL).version for view in histories}) == len(histories)


def replace_result(version: Version) -> Version:
    return msgspec.structs.replace(version, result="another")


def test_a_commit_without_an_epoch_leaves_the_version_as_it_is() -> None:
    """Replicas that began before and after it come to the same results."""
    view = scaled_out_and_back()
    later = replace(view, number=31, checksum="news")
    assert line_of(later, "op", ALL) == line_of(view, "op", ALL)


def test_a_line_that_was_not_rescaled_keeps_its_own_version() -> None:
    view = replace(scaled_out_and_back(), snapshots={})
    assert line_of(view, "op", ALL).version == OWN


def test_a_snapshot_of_state_on_its_way_through_the_deltas_of_other_shards_is_not_taken_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeCheckpoint(tmp_path, parallelism=2)
    workspace = Workspace("i", made.url, str(tmp_path / "disk"), "lmdb")
    whole = KeyGroupRange(KeyGroup(0), KeyGroup(made.key_groups))
    # With one shard a task opened the state and its function failed; then there were two; now one again.
    open_shard(
        workspace, "totals", made.lineage, Line(whole, EMPTY_VERSION, (), ()), 0, Kept.IN_CHECKPOINT
    ).close()
    for number in range(3):
        made.commit({(f"u{number}", number): {"total": number}})
    line = line_of(made.view, "totals", whole)
    read = iter([working_state.delta_entries] * 3)

    def until_killed(*args: Any) -> Any:
        return next(read)(*args)

    monkeypatch.setattr(working_state, "delta_entries", until_killed)
    with pytest.raises(StopIteration):
        open_shard(workspace, "totals", made.lineage, line, 3, Kept.IN_CHECKPOINT)
    schema = file_schema(record_of(made.lineage))
    batch = snapshot_shard(workspace, made.lineage, schema, shard=0, groups=whole, epoch=4)
    half = decode_result(batch.column("result")[0].as_py()).snapshot
    assert half is not None
    assert half.version in [delta.version for delta in line.deltas]
    assert not line.went_through(half.version)
    assert line.went_through(line.version)


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("other", [Kept.NOWHERE, Kept.UNCOORDINATED])
def test_state_that_no_checkpoint_holds_is_not_taken_for_what_one_does(
    tmp_path: Path, other: Kept, snapshots: bool
) -> None:
    made = MadeCheckpoint(tmp_path, parallelism=1)
    made.commit({("anna", 1): {"total": 7}}, snapshots=snapshots)
    made.commit({("otto", 1): {"total": 8}})
    plan = line_of(made.view, "totals", made.shards[0])
    # Another machine, whose working state is begun by such a run; it fails before its first result.
    workspace = Workspace("i", made.url, str(tmp_path / "elsewhere"), "lmdb")
    with closing(open_shard(workspace, "totals", made.lineage, plan, 2, other)) as state:
        assert len(list(state.scan(b""))) == 0
    with closing(open_shard(workspace, "totals", made.lineage, plan, 2, Kept.IN_CHECKPOINT)) as state:
        assert len(list(state.scan(b""))) == 2
    with closing(open_shard(workspace, "totals", made.lineage, plan, 2, other)) as state:
        assert len(list(state.scan(b""))) == 0
