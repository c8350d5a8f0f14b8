"""Working state that is in no file: the very copy that is asked for, or none."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.errors import WorkingStateLost
from holdfast.state.contract import EMPTY_VERSION, ShardState, Version
from holdfast.tasks.messages import Workspace
from holdfast.tasks.working_state import Kept, open_shard
from tests.unit.tasks.test_backends import ENTRIES, GROUPS, LINEAGE, workspace

FIRST, OTHER, SECOND = Version(1, 1, "a"), Version(1, 1, "b"), Version(2, 1, "c")


@pytest.fixture
def here(tmp_path: Path) -> Workspace:
    return workspace(tmp_path, "disk", "lmdb")


def opened(here: Workspace, version: Version, committed: int = 0) -> ShardState:
    plan = Line(GROUPS, version, (), ())
    return open_shard(here, "totals", LINEAGE, plan, committed=committed, kept=Kept.UPSTREAM)


def test_a_copy_at_the_version_asked_for_is_used_and_an_epoch_is_taken_back(here: Workspace) -> None:
    with closing(opened(here, EMPTY_VERSION)) as state:
        state.apply(EMPTY_VERSION, FIRST, ENTRIES, 0)
    with closing(opened(here, FIRST)) as state:
        assert list(state.scan(b"")) == ENTRIES
        state.apply(FIRST, SECOND, [(ENTRIES[0][0], None)], 1)
    # The epoch runs again: a twin of its task, or after Spark has tried it once.
    with closing(opened(here, FIRST, committed=1)) as state:
        assert list(state.scan(b"")) == ENTRIES


def test_a_copy_that_is_lost_or_another_is_never_taken_for_an_empty_one(
    here: Workspace, tmp_path: Path
) -> None:
    with closing(opened(here, EMPTY_VERSION)) as state:
        state.apply(EMPTY_VERSION, OTHER, ENTRIES, 0)
    with pytest.raises(WorkingStateLost, match=r"operator 'totals'.* is not at epoch 1 any more"):
        opened(here, FIRST)
    shutil.rmtree(tmp_path / "disk")
    with pytest.raises(WorkingStateLost):
        opened(here, OTHER)
    # From the beginning there is nothing to find.
    with closing(opened(here, EMPTY_VERSION)) as state:
        assert list(state.scan(b"")) == []
