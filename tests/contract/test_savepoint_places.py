"""A savepoint goes from any storage to any storage, and back into a checkpoint."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.view import to_manifest
from holdfast.checkpoint.savepoints.start_from import open_seeded, seed_checkpoint
from holdfast.checkpoint.savepoints.stored_savepoint import (
    dispose_savepoint,
    list_savepoints,
    verify_savepoint,
)
from holdfast.storage.contract import Storage
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.object_store import ObjectStorage
from holdfast.storage.urls import open_storage
from holdfast.testing.clocks import ManualClock
from tests.contract.test_storage import bucket  # noqa: F401
from tests.unit.checkpoint.kept import GROUPS
from tests.unit.checkpoint.saved import contents, grown, new_checkpoint, take


@pytest.mark.parametrize("kinds", ["local-s3-local", "s3-local-s3", "s3-s3-s3"])
def test_a_savepoint_travels(kinds: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = f"{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}"

    def place(index: int, kind: str) -> Storage:
        if kind == "local":
            return LocalStorage(tmp_path / f"{index}")
        return ObjectStorage(f"{root}/{index}")

    old, savepoint, new = (place(index, kind) for index, kind in enumerate(kinds.split("-")))
    checkpoint = new_checkpoint(old)
    expected = contents(old, to_manifest(grown(checkpoint)))
    record = take(checkpoint, savepoint)
    assert verify_savepoint(savepoint) == []
    [found] = list_savepoints(open_storage(savepoint.url))
    assert (found.url, found.record, found.problem) == (savepoint.url, record, "")
    seeded = open_seeded(new, savepoint, "sums", GROUPS, ManualClock(1), identity="x", claim=False)
    seed_checkpoint(seeded, savepoint, term=1, run="r")
    assert contents(new, to_manifest(Chain(new).load())) == expected
    dispose_savepoint(savepoint, 0)
    assert savepoint.list("") == []
