from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.plans import Plans
from holdfast.checkpoint.records import PlanRecord, Slice
from holdfast.checkpoint.skipping import skip
from holdfast.errors import RestoreError
from holdfast.ids import EpochId
from holdfast.storage.local import LocalStorage


def planned(storage: LocalStorage) -> PlanRecord:
    plan = PlanRecord(
        epoch=1,
        attempt=1,
        term=1,
        run="r",
        parent=0,
        fingerprint="f",
        parallelism=2,
        clock_ms=5,
        slices={"files": Slice(start=None, end=3, detail=["a"]), "ids": Slice(start=None, end=9)},
    )
    Plans(storage).write(plan)
    return plan


def test_a_skipped_range_is_a_new_attempt_that_reads_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    before = planned(storage)
    skip(storage, "files")
    newest = Plans(storage).newest(EpochId(1))
    assert newest is not None
    assert newest.attempt == 2
    assert newest.slices["files"].skipped
    assert newest.slices["files"].end == 3
    assert newest.slices["ids"] == before.slices["ids"]
    assert Plans(storage).read(EpochId(1), before.attempt) == before


def test_a_later_epoch_is_skipped_by_its_number(tmp_path: Path) -> None:
    # Several epochs may wait for one commit: the one that fails need not be the next.
    storage = LocalStorage(tmp_path)
    before = planned(storage)
    Plans(storage).write(replace(before, epoch=2, slices={"files": Slice(start=3, end=5)}))
    assert skip(storage, "files", 2).slices["files"] == Slice(start=3, end=5, rows=0, skipped=True)
    assert Plans(storage).newest(EpochId(1)) == before
    with pytest.raises(RestoreError, match="epoch 0 is committed"):
        skip(storage, "files", 0)


def test_skipping_what_was_not_planned_is_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(RestoreError, match="no plan"):
        skip(storage, "files")
    planned(storage)
    with pytest.raises(RestoreError, match="'other'"):
        skip(storage, "other")
