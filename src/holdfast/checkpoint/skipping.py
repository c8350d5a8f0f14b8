"""Giving up planned input on purpose, when it has vanished and cannot be brought back.

Always true: what is skipped is written down as a new attempt of the plan, so the loss is on record; positions
go on as
planned, and nothing else of the epoch changes.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.checkpoint.commits import Chain
from holdfast.checkpoint.plans import Plans, PlanTaken
from holdfast.checkpoint.records import PlanRecord
from holdfast.errors import RestoreError
from holdfast.ids import EpochId
from holdfast.storage.contract import Storage


def skip(storage: Storage, source: str, epoch: int | None = None) -> PlanRecord:
    """Let an epoch, the next one if none is named, read nothing of `source` where it was to read a planned
    range. For a job that is not running.
    """
    committed = Chain(storage).load().last_epoch
    if epoch is not None and epoch <= committed:
        raise RestoreError(
            f"epoch {epoch} is committed, it can no longer be skipped; choose one from {committed + 1} on"
        )
    epoch = EpochId(committed + 1 if epoch is None else epoch)
    plans = Plans(storage)
    plan = plans.newest(epoch)
    if plan is None:
        raise RestoreError(
            f"epoch {epoch} has no plan yet, so there is nothing to skip; start the job instead"
        )
    if source not in plan.slices:
        raise RestoreError(
            f"the plan of epoch {epoch} reads nothing of source {source!r}; "
            f"it reads {', '.join(sorted(plan.slices))}"
        )
    given_up = replace(plan.slices[source], skipped=True, rows=0)
    written = plans.write(
        replace(plan, attempt=plans.next_attempt(epoch), slices={**plan.slices, source: given_up})
    )
    if isinstance(written, PlanTaken):
        raise RestoreError(
            f"somebody else planned epoch {epoch} meanwhile; stop the running job, then skip again"
        )
    return written.plan
