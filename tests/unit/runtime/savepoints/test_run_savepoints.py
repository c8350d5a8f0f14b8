"""Savepoints that a run takes: of which commit, and where; and the end of a claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.store import names
from holdfast.clock import SystemClock
from holdfast.errors import StorageError
from holdfast.runtime.savepoints import run_savepoints
from holdfast.runtime.savepoints.run_savepoints import ClaimEnd, save, sibling
from holdfast.runtime.settings import check_settings
from holdfast.storage.urls import open_storage
from tests.unit.inspect.stored import MadeCheckpoint

CLOCK = SystemClock()
NO_SPARK: Any = None


def test_a_job_that_stopped_saves_what_it_stopped_with(tmp_path: Path) -> None:
    made = MadeCheckpoint(tmp_path)
    for number in range(3):
        made.commit({("anna", 1): {"total": number}})
    checkpoint = open_checkpoint(made.storage, "job", made.key_groups, CLOCK, identity="i")
    # Another leader has committed once more since: that is not what this run has published.
    taken = save(
        checkpoint, NO_SPARK, str(tmp_path / "sp"), format="native", stopped_with=2, run="r", clock=CLOCK
    )
    assert (taken.commit, taken.manifest.last_epoch, taken.stopped) == (2, 2, True)
    taken = save(
        checkpoint, NO_SPARK, str(tmp_path / "on"), format="native", stopped_with=None, run="r", clock=CLOCK
    )
    assert (taken.commit, taken.stopped) == (3, False)


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("/sp/a", "/sp/a.native"),
        ("/sp/what?/", "/sp/what?.native"),
        ("file:///sp/a?fsync=off", "file:///sp/a.native?fsync=off"),
        ("s3://bucket/a/?region=eu", "s3://bucket/a.native?region=eu"),
    ],
)
def test_the_place_beside_has_the_same_settings(url: str, beside: str) -> None:
    assert sibling(url, ".native") == beside


def claim_end(tmp_path: Path, said: list[str]) -> ClaimEnd:
    made = MadeCheckpoint(tmp_path)
    checkpoint = open_checkpoint(made.storage, "job", made.key_groups, CLOCK, identity="i")
    for number in range(2):
        made.commit({("anna", 1): {"total": number}})
    settings = check_settings(made.url, {"from_savepoint": tmp_path / "sp", "claim": True})
    return ClaimEnd(checkpoint, settings, said.append)


def test_a_claimed_savepoint_that_is_damaged_by_now_is_left_and_told_of_once(tmp_path: Path) -> None:
    said: list[str] = []
    end = claim_end(tmp_path, said)
    open_storage(str(tmp_path / "sp")).put(names.CLAIMED, b"damaged")
    end.step(2, 0)
    end.step(3, 0)
    assert len(said) == 1
    assert "stays where it is" in said[0]


def test_storage_that_fails_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    end = claim_end(tmp_path, said)
    answers = [StorageError("away"), None]

    def finish(*args: Any) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(run_savepoints, "finish_claim", finish)
    end.step(1, 0)
    for commit in range(2, 6):
        end.step(commit, 0)
    assert answers == []
    assert said == []
