"""A shard of the frozen checkpoint, restored by later code: its snapshots and deltas are converted."""

from __future__ import annotations

import shutil
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import SnapshotFile
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch.program import state_layouts
from holdfast.runtime.epoch.schemas_in_force import InForce, declaration, examine
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import StateKind
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import Workspace, decode_result
from holdfast.tasks.working_state import Kept, open_shard, snapshot_shard
from tests.fixtures.everything import FROZEN_EPOCHS, USERS, expected
from tests.fixtures.evolved import Second, Third, job

FROZEN = Path(__file__).parents[2] / "fixtures" / "v1"
UID = "everything"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    shutil.copytree(FROZEN, tmp_path / "ck")
    return tmp_path / "ck"


def upgraded(view: CheckpointView, *functions: Any) -> InForce:
    """The schemas after these functions came to be, one after the other."""
    stored = view.operators
    for function in functions:
        graph = job(1, function, None, None).graph()
        layouts = state_layouts(graph, lambda: pytest.fail("Spark was started"))
        declared = {node.uid: declaration(node, layouts[node.uid]) for node in graph.operators}
        in_force, problems = examine(declared, stored, allow_dropped_state=True)
        assert not problems
        stored = in_force.records
    return in_force


def workspace(checkpoint: Path, working: Path, backend: str = "lmdb") -> Workspace:
    return Workspace("job", str(checkpoint), str(working), backend)


def open_all(
    checkpoint: Path, working: Path, lineage: Lineage, shards: int, backend: str = "lmdb"
) -> list[ShardState]:
    view = Chain(open_storage(str(checkpoint))).load()
    return [
        open_shard(
            workspace(checkpoint, working, backend),
            UID,
            lineage,
            line_of(view, UID, groups),
            0,
            Kept.IN_CHECKPOINT,
        )
        for groups in shard_ranges(128, shards)
    ]


def contents(states: list[ShardState], lineage: Lineage) -> dict[str, dict[str, Any]]:
    """Every state of every key, decoded by the layout in force."""
    layout, found = lineage.layout, {}
    by_id = {field.id: field for field in layout.fields}
    for state in states:
        for key, value in state.scan(b""):
            end = layout.keys.base_length(key)
            user = layout.keys.decode([key[:end]])[0][0].as_py()
            field, tail = by_id[key[end]], key[end + 1 :]
            kept = found.setdefault(user, {})
            if field.kind is StateKind.VALUE:
                kept[field.name] = field.codec.decode_one(value)
            elif tail:
                kept.setdefault(field.name, []).append(field.codec.decode_one(value))
    return found


def check(found: dict[str, dict[str, Any]]) -> None:
    last = {row[0]: row for row in expected(FROZEN_EPOCHS)}
    assert len(found) == USERS
    for user, row in last.items():
        kept = found[user]
        assert kept["count"] == Decimal(row[2])
        assert isinstance(kept["count"], Decimal)
        assert kept["note"] == {"rank": 7, "tags": [str(row[1])], "name": user}
        assert (len(kept["items"]), kept["items"][-1]) == (row[3], row[4])
        assert kept["mean"] == {"count": Decimal(row[2]), "total": row[7] * row[2]}
        kinds = [int(pair.partition(":")[2]) for pair in row[5].split(",") if pair]
        assert sorted(kept.get("kinds", [])) == sorted(kinds)
        assert "top" not in kept
        assert "fresh" not in kept


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("functions", [(Second(),), (Second(), Third())], ids=["once", "twice"])
def test_state_of_the_first_code_becomes_state_of_the_last(
    checkpoint: Path, tmp_path: Path, shards: int, functions: tuple[Any, ...]
) -> None:
    view = Chain(open_storage(str(checkpoint))).load()
    assert view.snapshots[UID]
    assert view.live_deltas(UID)
    lineage = upgraded(view, *functions).lineages[UID]
    states = open_all(checkpoint, tmp_path / "working", lineage, shards)
    check(contents(states, lineage))
    for state in states:
        state.close()


def test_working_state_of_other_code_is_rebuilt(checkpoint: Path, tmp_path: Path) -> None:
    """The very same version of the state, in the same directory: only the declaration differs."""
    view = Chain(open_storage(str(checkpoint))).load()
    first = Lineage(upgraded(view, Second()).lineages[UID].generations[:1])
    for lineage in (
        first,
        upgraded(view, Second()).lineages[UID],
        upgraded(view, Second(), Third()).lineages[UID],
    ):
        states = open_all(checkpoint, tmp_path / "working", lineage, 2)
        if lineage is not first:
            check(contents(states, lineage))
        for state in states:
            state.close()


def test_a_snapshot_says_which_schema_it_was_written_under(checkpoint: Path, tmp_path: Path) -> None:
    view = Chain(open_storage(str(checkpoint))).load()
    in_force = upgraded(view, Second())
    lineage, schema = in_force.lineages[UID], in_force.written_as(UID)
    groups = shard_ranges(128, 2)[0]
    working = workspace(checkpoint, tmp_path / "working")
    line = line_of(view, UID, groups)
    with closing(open_shard(working, UID, lineage, line, 0, Kept.IN_CHECKPOINT)) as state:
        before = contents([state], lineage)

    def snapshot(lineage: Lineage) -> SnapshotFile | None:
        batch = snapshot_shard(working, lineage, schema, 0, groups, 99)
        return decode_result(batch.column(0)[0].as_py()).snapshot

    # Working state of another lineage is not there to be snapshotted.
    assert snapshot(Lineage(lineage.generations[:1])) is None
    file = snapshot(lineage)
    assert file is not None
    assert file.schema == schema
    assert (file.schema.generation, file.schema.before) == (1, None)
    elsewhere = workspace(checkpoint, tmp_path / "elsewhere")
    plan = line.rebased(file)
    with closing(open_shard(elsewhere, UID, lineage, plan, 0, Kept.IN_CHECKPOINT)) as state:
        assert contents([state], lineage) == before
