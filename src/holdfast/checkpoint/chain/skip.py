"""Giving up planned input on purpose: it has vanished and cannot be brought back, or cannot be processed.

Always true: what is given up is written down as a new attempt of the plan, so the loss is on record;
positions and notes go on as planned, so that nothing of it is planned again, and nothing else of the epoch
changes.
Never here: asking whether it is meant (see cli.skip).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.plans import Plans, PlanTaken, committed_attempts, gives_up
from holdfast.checkpoint.store.records import Json, PlannedSlice, PlanRecord
from holdfast.connectors.files.planned_files import PlannedFile, planned_files, without
from holdfast.errors import RestoreError
from holdfast.ids import EpochId, PlanAttempt
from holdfast.storage.contract import Storage

NAMED_MAX = 20
"""How many files an error names."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What an epoch was to read of one source, and reads no more."""

    source: str
    start: Json
    """Of the planned range, which this is a part of unless it is `whole`."""
    end: Json
    rows: int | None
    """None: not known before they are read."""
    files: tuple[PlannedFile, ...]
    """Empty: the source reads no files."""
    whole: bool
    """Whether the epoch reads nothing else of the source."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan, what would be given up of it, and its slices then."""

    plan: PlanRecord
    parts: tuple[GivenUp, ...]
    slices: dict[str, PlannedSlice]
    newest: int
    """The newest attempt at the epoch then; the plan itself may be an older one, which was committed."""

    @property
    def left(self) -> tuple[str, ...]:
        """The sources that the epoch still reads."""
        return tuple(uid for uid, part in self.slices.items() if not part.skipped)


def choose(
    storage: Storage, *, epoch: int | None = None, source: str | None = None, files: Sequence[str] = ()
) -> Choice:
    """What would be given up: files of an epoch, or all that it reads of a source, or all that it reads.

    Of the epoch asked for; else of the one that reads the files, or of the next. Touches nothing.
    RestoreError: there is no such thing to give up.
    """
    chain = Chain(storage)
    view = chain.load()
    if epoch is not None and epoch <= view.last_epoch:
        raise RestoreError(
            f"epoch {epoch} is committed, it can no longer be skipped; choose one from "
            f"{view.last_epoch + 1} on"
        )
    plan = _plan(_InForce(Plans(storage), view.last_epoch, committed_attempts(chain, view)), epoch, files)
    chosen = dict(_chosen(plan, source, files))
    return Choice(
        plan,
        tuple(_given_up(uid, plan.slices[uid], part) for uid, part in chosen.items()),
        {**plan.slices, **chosen},
        Plans(storage).next_attempt(EpochId(plan.epoch)) - 1,
    )


def give_up(storage: Storage, choice: Choice) -> PlanRecord:
    """Write the choice down, for a job that is not running. RestoreError: the plan is another one by now."""
    plans, plan = Plans(storage), choice.plan
    attempt = plans.next_attempt(EpochId(plan.epoch))
    taken = attempt != choice.newest + 1
    written = None if taken else plans.write(replace(plan, attempt=attempt, slices=choice.slices))
    if written is None or isinstance(written, PlanTaken):
        raise RestoreError(
            f"epoch {plan.epoch} was planned again meanwhile; stop the job if it runs, then skip again"
        )
    return written.plan


@dataclass(frozen=True, slots=True)
class _InForce:
    """The plans after the committed epochs that a start would follow.

    `committed`: the attempts that were committed before history went back. Sinks may show what came of them.
    """

    plans: Plans
    last_epoch: int
    committed: Mapping[int, PlanAttempt]

    def plan(self, epoch: int) -> PlanRecord | None:
        """What a user has given up of a plan before stays given up."""
        newest = self.plans.newest(EpochId(epoch))
        if newest is None or gives_up(newest) or epoch not in self.committed:
            return newest
        return self.plans.read(EpochId(epoch), self.committed[epoch])

    def __iter__(self) -> Iterator[PlanRecord]:
        epoch = self.last_epoch + 1
        while (plan := self.plan(epoch)) is not None:
            yield plan
            epoch += 1


def _plan(in_force: _InForce, epoch: int | None, files: Sequence[str]) -> PlanRecord:
    if epoch is None and files:
        planned = list(in_force)
        for plan in planned:
            if any(_matching(part, files) for part in plan.slices.values()):
                return plan
        if planned:
            last = f"{planned[0].epoch} to {planned[-1].epoch}" if planned[1:] else f"{planned[0].epoch}"
            raise RestoreError(
                f"no planned epoch (there is {last}) reads a file {files[0]!r}; name one of: "
                f"{', '.join(_file_names(planned)) or 'none, no source reads files'}"
            )
    epoch = in_force.last_epoch + 1 if epoch is None else epoch
    found = in_force.plan(epoch)
    if found is None:
        raise RestoreError(
            f"epoch {epoch} has no plan yet, so there is nothing to skip; start the job instead"
        )
    return found


def _chosen(plan: PlanRecord, source: str | None, files: Sequence[str]) -> Iterator[tuple[str, PlannedSlice]]:
    """The slices that change, as they would be."""
    reads = {uid: part for uid, part in plan.slices.items() if not part.skipped}
    if source is not None and source not in reads:
        known = ", ".join(sorted(reads)) or "nothing any more"
        raise RestoreError(
            f"the plan of epoch {plan.epoch} reads nothing of source {source!r}; it reads {known}"
        )
    if not plan.slices:
        raise RestoreError(
            f"epoch {plan.epoch} reads nothing: it runs what was due; change what on_timer does, or set what "
            "fails aside with on_error='dead-letter'"
        )
    if not reads:
        raise RestoreError(f"epoch {plan.epoch} reads nothing any more; start the job")
    asked = {uid: part for uid, part in reads.items() if source in (None, uid)}
    if not files:
        yield from ((uid, replace(part, skipped=True, rows=0)) for uid, part in asked.items())
        return
    there = {name for part in asked.values() for name in _matching(part, files)}
    if absent := [name for name in files if not _is_in(name, there)]:
        raise RestoreError(
            f"epoch {plan.epoch} reads no file {absent[0]!r}"
            + (f" of source {source!r}" if source else "")
            + f"; name one of: {', '.join(_file_names([plan])) or 'none, no source reads files'}"
        )
    for uid, part in asked.items():
        names = _matching(part, files)
        if names and len(names) == len(planned_files(part.detail, part.notes)):
            yield uid, replace(part, skipped=True, rows=0)
        elif names:
            left = without(part.detail, names)
            yield uid, replace(part, detail=left, rows=None, given_up=(*part.given_up, *sorted(names)))


def _given_up(uid: str, before: PlannedSlice, after: PlannedSlice) -> GivenUp:
    files = planned_files(before.detail, before.notes)
    if after.skipped:
        return GivenUp(uid, before.start, before.end, before.rows, files, whole=True)
    gone = tuple(file for file in files if file.name in after.given_up)
    return GivenUp(uid, before.start, before.end, None, gone, whole=False)


def _matching(part: PlannedSlice, files: Sequence[str]) -> set[str]:
    """Those of the files that a slice reads. A path stands for the file of that name."""
    if part.skipped:
        return set()
    known = {file.name for file in planned_files(part.detail, part.notes)}
    return {name for name in known if any(_is_in(asked, {name}) for asked in files)}


def _is_in(asked: str, names: set[str]) -> bool:
    return asked in names or PurePosixPath(asked).name in names


def _file_names(plans: Sequence[PlanRecord]) -> list[str]:
    names = [
        file.name
        for plan in plans
        for part in plan.slices.values()
        if not part.skipped
        for file in planned_files(part.detail, part.notes)
    ]
    return [*names[:NAMED_MAX], "..."] if len(names) > NAMED_MAX else names
