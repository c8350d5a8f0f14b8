"""Barriers of a whole job: records at the root of its checkpoint, above those of its parts.

A barrier begins with a record; every part carries its number in the commit where it falls; its end, complete
or aborted, is decided once, by put-if-absent. Between complete barriers the commits that carry one number are
a consistent cut: what a part has read of a channel there is what the part before had sent.
Always true: numbers are used once; a barrier begins when the one before it has ended.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import Record
from holdfast.checkpoint.store.write_once import write_once
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, ObjectMissing, RetryableError
from holdfast.storage.contract import Storage

BARRIERS_KEPT = 64
"""Records of this many barriers stay, so that numbers are never used again."""
BARRIERS_RETAINED = 2
"""How many complete barriers of the whole job can be gone back to, where they come at an interval."""
LIST_SECONDS = 30.0
"""How often all names are listed though what comes next is not there."""
Outcome = Literal["complete", "aborted"]


class BarrierUnderWay(RetryableError):
    """Another barrier has not ended yet: one is on its way at a time."""


class BarrierRecord(Record, frozen=True, kw_only=True):
    """`barriers/N/begun`: a barrier was asked for. It is to take until `expires_ms` at most: then any process
    may abort it. `ends`: the run of every part ends with the commit that carries it."""

    number: int
    by: str
    begun_ms: int
    expires_ms: int
    ends: bool = False

    @property
    def lasts_seconds(self) -> float:
        """How long it may take."""
        return (self.expires_ms - self.begun_ms) / 1_000


class BarrierEndRecord(Record, frozen=True, kw_only=True):
    """`barriers/N/ended`: what became of it. `commits`: of each part, the one that carries it."""

    number: int
    outcome: Outcome
    at_ms: int
    commits: dict[str, int]
    reason: str = ""


@dataclass(frozen=True)
class Standing:
    """The newest barrier of a job; 0: there never was one."""

    number: int
    under_way: bool


def newest_barrier(root: Storage) -> Standing:
    """From names alone."""
    found = [entry.name for entry in root.list(names.BARRIERS)]
    number = max((names.number_of(name) or 0 for name in found), default=0)
    return Standing(number, number > 0 and names.barrier_end(number) not in found)


class NewestBarrier:
    """Finds the newest barrier again and again, mostly by a look at one name: that of what comes next.

    All names are listed when that is there, and every `LIST_SECONDS` all the same: numbers may be passed
    over.
    """

    def __init__(self, root: Storage, clock: Clock) -> None:
        self.root, self._clock = root, clock
        self._known = Standing(0, False)
        self._listed: float | None = None

    def look(self) -> Standing:
        """The newest barrier now; raises what storage does."""
        now = self._clock.monotonic()
        if self._listed is None or now - self._listed >= LIST_SECONDS or self._has_next():
            self._known, self._listed = newest_barrier(self.root), now
        return self._known

    def _has_next(self) -> bool:
        number = self._known.number
        following = names.barrier_end(number) if self._known.under_way else names.barrier(number + 1)
        return self.root.size(following) is not None


def begun_barrier(root: Storage, number: int) -> BarrierRecord:
    """How a barrier began."""
    name = names.barrier(number)
    return unseal("barrier", BarrierRecord, root.get(name), name)


def begin_barrier(
    root: Storage, by: str, now_ms: int, lasts_ms: int, *, ends: bool = False, above: int = 0
) -> int:
    """Begin the next barrier; gives its number. `ends`: runs end with it. `above`: the newest that a part
    carries; records of barriers may have been lost since. BarrierUnderWay: another one is."""
    standing = newest_barrier(root)
    if standing.under_way:
        before = begun_barrier(root, standing.number)
        if now_ms < before.expires_ms:
            raise BarrierUnderWay(
                f"barrier {before.number} of {before.by} is under way; try again when it has ended"
            )
        end_barrier(root, before.number, "aborted", now_ms, reason="it was left behind")
    number = max(standing.number, above) + 1
    record = BarrierRecord(number=number, by=by, begun_ms=now_ms, expires_ms=now_ms + lasts_ms, ends=ends)
    data = seal("barrier", record)
    if write_once(root, names.barrier(record.number), data) != data:
        raise BarrierUnderWay(f"barrier {record.number} was begun by another at the same time; try again")
    return record.number


def end_barrier(
    root: Storage,
    number: int,
    outcome: Outcome,
    now_ms: int,
    commits: dict[str, int] | None = None,
    reason: str = "",
) -> BarrierEndRecord:
    """Decide what became of a barrier; gives what was decided, which may be another's word."""
    record = BarrierEndRecord(
        number=number, outcome=outcome, at_ms=now_ms, commits=commits or {}, reason=reason
    )
    name = names.barrier_end(number)
    return unseal("barrier", BarrierEndRecord, write_once(root, name, seal("barrier", record)), name)


def ending_of_barrier(root: Storage, number: int) -> BarrierEndRecord | None:
    """What became of a barrier; None: it is under way, or there is none of this number any more."""
    name = names.barrier_end(number)
    try:
        return unseal("barrier", BarrierEndRecord, root.get(name), name)
    except ObjectMissing:
        return None


def complete_barriers(root: Storage, count: int) -> list[BarrierEndRecord]:
    """The newest barriers that are complete, newest first. One whose end cannot be read is none of them."""
    ended = [entry.name for entry in root.list(names.BARRIERS) if entry.name.endswith("/ended")]
    found: list[BarrierEndRecord] = []
    for name in reversed(ended):
        if len(found) == count:
            break
        with suppress(CorruptionError):
            record = unseal("barrier", BarrierEndRecord, root.get(name), name)
            if record.outcome == "complete":
                found.append(record)
    return found


def forget_barriers(root: Storage) -> None:
    """Remove the records of barriers that no part can be asked to go back to any more."""
    complete = (record.number for record in complete_barriers(root, BARRIERS_RETAINED))
    oldest = min([newest_barrier(root).number - BARRIERS_KEPT + 1, *complete])
    found = [(entry.name, names.number_of(entry.name) or 0) for entry in root.list(names.BARRIERS)]
    root.delete([name for name, number in found if number < oldest])
