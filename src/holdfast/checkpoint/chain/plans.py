"""Plans: what each epoch reads, fixed before it runs.

Always true: a plan is never changed; results belong to (epoch, attempt); a plan found is followed, or a
new attempt is written. The terms of an epoch's attempts never go down: a leader that was superseded plans
nothing after its successor has, so the newest attempt is always one that was to be followed.
Never here: making plans (see runtime.epoch.planner) or reading input (see connectors).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import Json, PlanRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.ids import EpochId, PlanAttempt
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class PlanWritten:
    """The plan is in storage and is ours."""

    plan: PlanRecord


@dataclass(frozen=True, slots=True)
class PlanTaken:
    """Another leader's plan has this epoch and attempt: follow it, or write the next attempt. Or the attempt
    before is of a higher term than ours: there is nothing more for us to plan.
    """

    plan: PlanRecord


class Plans:
    """The plans in one checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def newest(self, epoch: EpochId) -> PlanRecord | None:
        """The highest attempt planned for an epoch, or None. CorruptionError names a damaged plan."""
        attempt = self._newest_attempt(epoch)
        return self.read(epoch, PlanAttempt(attempt)) if attempt else None

    def next_attempt(self, epoch: EpochId) -> PlanAttempt:
        """The attempt number that a new plan for this epoch takes, from names alone: a damaged one counts."""
        return PlanAttempt(self._newest_attempt(epoch) + 1)

    def read(self, epoch: EpochId, attempt: PlanAttempt) -> PlanRecord:
        """One plan. ObjectMissing when it was never written or is retired."""
        name = names.plan(epoch, attempt)
        return _opened(self._storage.get(name), name, epoch, attempt)

    def named(self, name: str) -> PlanRecord:
        """The plan under a name that was listed. ObjectMissing, CorruptionError."""
        return unseal("plan", PlanRecord, self._storage.get(name), name)

    def write(self, plan: PlanRecord) -> PlanWritten | PlanTaken:
        """Put the plan under its epoch and attempt, unless one is there or one of a higher term before it.

        A successor that plans at the same time takes this name, or the next: either way terms do not go down.
        """
        before = self._before(plan)
        if before is not None and before.term > plan.term:
            return PlanTaken(before)
        name = names.plan(plan.epoch, plan.attempt)
        data = seal("plan", plan)
        found = write_once(self._storage, name, data)
        if found == data:
            return PlanWritten(plan)
        return PlanTaken(_opened(found, name, plan.epoch, plan.attempt))

    def _before(self, plan: PlanRecord) -> PlanRecord | None:
        """The nearest attempt before this one that can be read."""
        for attempt in range(plan.attempt - 1, 0, -1):
            with contextlib.suppress(ObjectMissing, CorruptionError):
                return self.read(EpochId(plan.epoch), PlanAttempt(attempt))
        return None

    def _newest_attempt(self, epoch: EpochId) -> int:
        prefix = names.plans_of(epoch)
        attempts = [entry.name.removeprefix(prefix) for entry in self._storage.list(prefix)]
        return max((int(attempt) for attempt in attempts if attempt.isdecimal()), default=0)


def committed_attempts(chain: History, view: CheckpointView) -> dict[int, PlanAttempt]:
    """Epoch -> attempt that was committed, for epochs after the view: there are some after a rewind."""
    attempts: dict[int, PlanAttempt] = {}
    for number in chain.numbers():
        if number > view.number:
            # A superseded leader has just committed it: no history went back, and our commit will meet it.
            break
        try:
            record = chain.record(number)
        except CorruptionError:
            continue
        for epoch, attempt in record.attempts.items():
            if int(epoch) > view.last_epoch:
                attempts[int(epoch)] = PlanAttempt(attempt)
    return attempts


def same_range(one: PlanRecord, other: PlanRecord) -> bool:
    """Whether two plans read from and up to the same positions, whatever each leaves out in between."""
    ranges = [
        {uid: (_plain(part.start), _plain(part.end)) for uid, part in plan.slices.items()}
        for plan in (one, other)
    ]
    return ranges[0] == ranges[1]


def gives_up(plan: PlanRecord) -> bool:
    """Whether a person has decided that a part of what was planned is not read."""
    return any(part.skipped or part.given_up for part in plan.slices.values())


def may_follow(
    plan: PlanRecord, *, start_positions: Mapping[str, Json], fingerprint: str, parallelism: int
) -> str | None:
    """Why a plan found in storage must not be followed; None: it may be. Pure.

    `start_positions`: source uid -> position after the epoch before, for every source of the job.
    """
    if plan.fingerprint != fingerprint:
        return "it was made by other code"
    if plan.parallelism != parallelism:
        return f"it was made for {plan.parallelism} shards, not {parallelism}"
    for uid, part in plan.slices.items():
        if uid not in start_positions and part.start is not None:
            return f"it reads source {uid!r} from {part.start}, and no position of that source is known"
        if _plain(part.start) != _plain(start_positions.get(uid)):
            return f"it reads source {uid!r} from {part.start}, not from {start_positions.get(uid)}"
    return None


def input_of(plan: PlanRecord) -> str:
    """Names what a plan reads: plans with the same slices, the same event time and the same copies of tables
    have the same name."""
    read: Json = {uid: (part.start, part.end, part.detail, part.skipped) for uid, part in plan.slices.items()}
    if plan.watermarks or plan.closing:
        read = (read, plan.watermarks, plan.closing)
    if plan.tables:
        copies = {uid: [each.checksum for each in copy.extents] for uid, copy in plan.tables.items()}
        read = (read, copies)
    return checksum(msgspec.json.encode(read, order="sorted"))


def place_of(positions: Mapping[str, Json]) -> str:
    """Names the positions that some sources have been read to. One that was never read is left out."""
    read = {uid: position for uid, position in positions.items() if position is not None}
    return checksum(msgspec.json.encode(read, order="sorted"))


def _plain(value: Json) -> Json:
    """JSON has no tuples: a position read back holds lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _opened(data: bytes, name: str, epoch: int, attempt: int) -> PlanRecord:
    plan = unseal("plan", PlanRecord, data, name)
    if (plan.epoch, plan.attempt) != (epoch, attempt):
        raise CorruptionError(
            f"{name} holds the plan of epoch {plan.epoch}, attempt {plan.attempt}; "
            "restore the storage from a copy"
        )
    return plan
