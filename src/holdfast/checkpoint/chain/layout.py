"""Of which parts a job consists: what its checkpoint says at its root, above the checkpoints of the parts.

Always true: a place holds the checkpoint of one job, in parts or not. The newest record counts; a start with
other parts adds one.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.chain.checkpoint import (
    find_job,
    layouts,
    other_job,
    read_layout,
    refuse_if_occupied,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import RestoreError
from holdfast.storage.contract import Storage


def keep_layout(
    storage: Storage,
    layout: LayoutRecord,
    allow_dropped_state: bool,
    refuse: Callable[[], None] = lambda: None,
) -> None:
    """Write down of which parts the job consists now. `refuse`: called before other parts than those so far
    are written down; what it raises leaves everything as it is. RestoreError: the checkpoint is another's,
    has a channel of the same uid between other parts, or has a part that the job has no more, and what it
    remembers may not be dropped."""
    for _ in range(100):
        newest = names.highest(storage, names.LAYOUTS)
        before = read_layout(storage)
        if before == layout:
            return
        try:
            refuse_layout(storage, layout, allow_dropped_state)
        except RestoreError:
            if names.highest(storage, names.LAYOUTS) == newest:
                raise
            # Another run has just begun the checkpoint, perhaps of this very job.
            continue
        refuse()
        data = seal("layout", layout)
        if write_once(storage, names.layout(newest + 1), data) == data:
            return
    raise RestoreError(f"several jobs claim {storage.url} at once; stop all but one")


def refuse_layout(storage: Storage, now: LayoutRecord, allow_dropped_state: bool) -> None:
    """Refuse parts that a checkpoint cannot have next. RestoreError, as in `keep_layout`."""
    before = read_layout(storage)
    if before is None:
        if (job := find_job(storage)) is not None:
            raise RestoreError(
                f"{storage.url} holds the checkpoint of job {job.job!r} without parts, and {now.job!r} has "
                f"parts {', '.join(now.parts)}; choose another place for it"
            )
        refuse_if_occupied(storage)
        return
    if before.job != now.job:
        raise RestoreError(other_job(storage, before.job, now.job))
    for uid, ends in now.channels.items():
        former = next((each.channels[uid] for each in layouts(storage) if uid in each.channels), ends)
        if former != ends:
            raise RestoreError(
                f"channel {uid!r} led from part {former[0]!r} to part {former[1]!r}, and leads from "
                f"{ends[0]!r} to {ends[1]!r} now: how far it was read says nothing of that one; give it "
                "another uid"
            )
    gone = [part for part in before.parts if part not in now.parts]
    if gone and not allow_dropped_state:
        raise RestoreError(
            f"the checkpoint in {storage.url} has part {gone[0]!r}, which the job has no more: what it "
            "remembers would be dropped; keep the part (where nodes are being upgraded to code that adds it, "
            "start that code here, too), or give that up with --allow-dropped-state (rows that wait there "
            "are not dropped with it)"
        )
