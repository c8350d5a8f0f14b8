"""Barriers of a whole job: records at the root of its checkpoint, above those of its parts.

A barrier begins with a record; every part carries its number in the commit where it falls; its end, complete
or aborted, is decided once, by put-if-absent. Between complete barriers the commits that carry one number are
a consistent cut: what a part has read of a channel there is what the part before had sent.
Always true: numbers are used once; a barrier begins when the one before it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import Record
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import RetryableError
from holdfast.storage.contract import Storage

Outcome = Literal["complete", "aborted"]


class BarrierRecord(Record, frozen=True, kw_only=True):
    """`barriers/N/begun`: a barrier was asked for. Void from `expires_ms` on: then anyone may abort it."""

    number: int
    by: str
    begun_ms: int
    expires_ms: int


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


def begin_barrier(root: Storage, by: str, now_ms: int, lasts_ms: int) -> int:
    """Begin the next barrier; gives its number. RetryableError: another one is under way."""
    standing = newest_barrier(root)
    if standing.under_way:
        name = names.barrier(standing.number)
        before = unseal("barrier", BarrierRecord, root.get(name), name)
        if now_ms < before.expires_ms:
            raise RetryableError(
                f"barrier {before.number} of {before.by} is under way; try again when it has ended"
            )
        end_barrier(root, before.number, "aborted", now_ms, reason="it was left behind")
    record = BarrierRecord(number=standing.number + 1, by=by, begun_ms=now_ms, expires_ms=now_ms + lasts_ms)
    data = seal("barrier", record)
    if write_once(root, names.barrier(record.number), data) != data:
        raise RetryableError(f"barrier {record.number} was begun by another at the same time; try again")
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


def barrier_ends(root: Storage) -> list[BarrierEndRecord]:
    """What became of every barrier that has ended, oldest first."""
    ended = [entry.name for entry in root.list(names.BARRIERS) if entry.name.endswith("/ended")]
    return [unseal("barrier", BarrierEndRecord, root.get(name), name) for name in ended]
