"""A checkpoint to go back in: committed epochs with their plans, shown by a sink, and a run that ended."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.terms import record_ending
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.store.records import EndedRecord, PlannedSlice, PlanRecord, TableCopy
from tests.unit.inspect.stored import Keys, MadeCheckpoint

COMMITS = 6
"""One epoch each. Another one, of no epoch, says that the sink has shown all of them."""


def state(epoch: int) -> Keys:
    """What the checkpoint holds after an epoch."""
    return {(f"u{i}", i): {"total": epoch} for i in range(10)}


def plan(epoch: int, tables: dict[str, TableCopy] | None = None) -> PlanRecord:
    return PlanRecord(
        epoch=epoch, attempt=1, term=1, run="r", parent=epoch - 1, fingerprint="f", parallelism=2, clock_ms=5,
        slices={"in": PlannedSlice(start=epoch - 1 or None, end=epoch)}, tables=tables or {},
    )  # fmt: skip


def say_shown(made: MadeCheckpoint, through: int) -> None:
    """Commit that sink `out` has shown the epochs up to this one."""
    record = news(made.view, term=1, run="r", published_through={"out": through})
    done = made.chain.commit(made.view, record)
    assert isinstance(done, Committed)
    made.view = done.view


def end(made: MadeCheckpoint) -> None:
    ended = EndedRecord(term=1, run="r", at_ms=0, ending="stopped", commit=1, last_epoch=1, published=True)
    record_ending(made.storage, ended)


def grown(root: Path, *, commits: int = COMMITS, ended: bool = True) -> MadeCheckpoint:
    made = MadeCheckpoint(root)
    for epoch in range(1, commits + 1):
        Plans(made.storage).write(plan(epoch))
        made.commit(state(epoch))
    say_shown(made, commits)
    if ended:
        end(made)
    return made


def spoil(made: MadeCheckpoint, name: str) -> None:
    """Change a byte in the middle of a stored object."""
    path = made.storage.local_path(name)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
