"""What the nemesis chooses to damage."""

from __future__ import annotations

from pathlib import Path

from holdfast.chaos.nemesis import _needed_file
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store.records import CommitRecord, DeltaFile, Extent, OperatorSchema
from holdfast.state.contract import EMPTY_VERSION, Version
from holdfast.storage.local_directory import LocalStorage


def commit(chain: Chain, view: CheckpointView) -> CheckpointView:
    epoch = view.last_epoch + 1
    before = EMPTY_VERSION if epoch == 1 else Version(epoch - 1, 1, "r")
    record = CommitRecord(
        term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=0,
        parallelism=1, fingerprint="", positions={}, operators=(OperatorSchema(uid="op", key=(), states=()),),
        deltas=(
            DeltaFile(
                operator="op", first_group=0, end_group=4, version=Version(epoch, 1, "r"), parent=before,
                extent=Extent(object=f"data/{epoch:012d}/d", offset=0, length=8, checksum=""), entries=1,
            ),
        ),
    )  # fmt: skip
    done = chain.commit(view, record)
    assert isinstance(done, Committed)
    return done.view


def test_only_what_an_older_retained_commit_does_without_is_damaged(tmp_path: Path) -> None:
    chain = Chain(LocalStorage(tmp_path))
    first = commit(chain, EMPTY)
    assert _needed_file(tmp_path, 0) is None, "there would be nothing to go back to"
    commit(chain, first)
    assert _needed_file(tmp_path, 0) == (tmp_path / "data/000000000002/d", 4)
