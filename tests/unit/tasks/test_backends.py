"""Tasks of one backend after those of another: what a snapshot's record says is enough to open it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.checkpoint.store.records import SnapshotFile
from holdfast.checkpoint.store.schemas import file_schema, record_of
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.contract import EMPTY_VERSION, Entries, Version
from holdfast.state.files.schema_conversion import Lineage
from holdfast.tasks.messages import Workspace, decode_result
from holdfast.tasks.working_state import Kept, open_shard, snapshot_shard
from tests.unit.inspect.stored import LAYOUT

GROUPS = KeyGroupRange(KeyGroup(0), KeyGroup(4))
LINEAGE = Lineage.begin(LAYOUT)
ENTRIES: Entries = [(bytes([0, group]) + b"key", b"%d" % group) for group in range(4)]


def workspace(root: Path, disk: str, backend: str) -> Workspace:
    return Workspace("identity", (root / "ck").as_uri(), str(root / disk), backend)


def written(root: Path, backend: str) -> SnapshotFile:
    """A shard's snapshot, as its task writes it."""
    here = workspace(root, "disk", backend)
    plan = Line(GROUPS, EMPTY_VERSION, (), ())
    state = open_shard(here, "totals", LINEAGE, plan, committed=0, kept=Kept.IN_CHECKPOINT)
    state.apply(EMPTY_VERSION, Version(1, 1, "r"), ENTRIES, 1)
    state.close()
    schema = file_schema(record_of(LINEAGE))
    batch = snapshot_shard(here, LINEAGE, schema, shard=0, groups=GROUPS, epoch=1)
    file = decode_result(batch.column("result")[0].as_py()).snapshot
    assert file is not None
    return file


@pytest.mark.parametrize("after", ["lmdb", "memory", "rocksdb"])
@pytest.mark.parametrize("before", ["lmdb", "memory", "rocksdb"])
def test_the_state_of_a_shard_comes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("HOLDFAST_MEMORY_DIR", str(tmp_path / "memory"))
    file = written(tmp_path, before)
    assert file.backend == ("rocksdb" if before == "rocksdb" else "lmdb")
    assert file.object.endswith(f".{file.backend}")
    # Another machine: nothing but the checkpoint is there.
    monkeypatch.setenv("HOLDFAST_MEMORY_DIR", str(tmp_path))
    here = workspace(tmp_path, "another disk", after)
    plan = Line(GROUPS, Version(epoch=1, attempt=1, result="r"), (file,), ())
    state = open_shard(here, "totals", LINEAGE, plan, committed=1, kept=Kept.IN_CHECKPOINT)
    state.verify_base()
    assert list(state.scan(b"")) == ENTRIES
    state.close()
    narrow = KeyGroupRange(KeyGroup(1), KeyGroup(3))
    plan = Line(narrow, plan.version, (file,), ())
    state = open_shard(here, "totals", LINEAGE, plan, committed=1, kept=Kept.IN_CHECKPOINT)
    assert list(state.scan(b"")) == ENTRIES[1:3]
    state.close()


def test_only_working_state_goes_to_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("HOLDFAST_MEMORY_DIR", str(tmp_path / "memory"))
    written(tmp_path, "memory")
    assert list((tmp_path / "memory").glob("holdfast-*/identity/totals/0-3/g*/data.mdb"))
    assert not list((tmp_path / "disk").rglob("data.mdb"))
