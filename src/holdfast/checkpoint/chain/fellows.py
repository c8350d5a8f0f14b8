"""What a member of a set of replicas makes of a commit record that another member wrote first.

Always true: members that followed the same plans over the same rows come to records of the same content.
What they differ in otherwise, such as what is shown by now and where files lie, each knows to be true.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from holdfast.checkpoint.store.records import CommitRecord, Extent
from holdfast.storage.checksums import checksum


class Met(Enum):
    """What a fellow's record is to the one that a member wanted to write."""

    SAME = "same"
    """It says what ours says: it counts, and nothing has to be thrown away."""
    BETWEEN = "between"
    """One of the two covers no epoch: ours can follow theirs."""
    OTHER = "other"
    """It goes another way: history went back, or a member has come to other results."""


def met(ours: CommitRecord, theirs: CommitRecord) -> Met:
    """What to make of a fellow's record under the number that ours was to have."""
    if theirs.rewind_to is not None or ours.rewind_to is not None:
        return Met.OTHER
    if None not in (ours.operators, theirs.operators) and ours.operators != theirs.operators:
        return Met.OTHER
    if not (theirs.attempts and ours.attempts):
        return Met.BETWEEN
    return Met.OTHER if differences(ours, theirs) else Met.SAME


def is_same_work(ours: CommitRecord, theirs: CommitRecord, *, plans_kept: bool) -> bool:
    """Whether two records are of epochs that were run by the same plans, so that one of two members is wrong
    if they differ.

    `plans_kept`: these plans are kept since they were made. Otherwise one may have been made again, under the
    same name: then it was made at another time, or of other rows.
    """
    if not ours.attempts or ours.attempts != theirs.attempts or theirs.rewind_to is not None:
        return False
    return plans_kept or _planned(ours) == _planned(theirs)


def _planned(record: CommitRecord) -> tuple[Any, ...]:
    """What a record tells of its plans."""
    return record.clock_ms, record.positions, {(file.epoch, file.input) for file in record.staged}


def content_of(record: CommitRecord) -> dict[str, Any]:
    """What members have to agree on, by what it is of: text that a person can read."""
    found: dict[str, Any] = {
        "epochs": record.attempts,
        "positions": record.positions,
        "event times": (record.event_times, record.watermarks, record.closed_through),
        "rows": record.rows,
    }
    for delta in record.deltas:
        groups = f"key groups {delta.first_group} to {delta.end_group - 1}"
        found[f"state of operator {delta.operator!r}, {groups}"] = (
            delta.version,
            delta.parent,
            _bytes(delta.extent),
            delta.entries,
            delta.next_due,
        )
    for file in record.staged:
        place = f"epoch {file.epoch}: rows of {file.stream!r}, part {file.part}"
        found[place] = (_bytes(file.extent), file.rows, file.sinks, file.input)
    for sent in record.sent:
        place = f"epoch {sent.epoch}: rows in channel {sent.channel!r}, part {sent.part}"
        found[place] = (_bytes(sent.extent), sent.rows)
    return found


def differences(ours: CommitRecord, theirs: CommitRecord) -> list[str]:
    """In what two records differ that should not."""
    here, there = (msgspec.to_builtins(content_of(record)) for record in (ours, theirs))
    return [what for what in sorted({*here, *there}) if here.get(what) != there.get(what)]


def digest_of(record: CommitRecord) -> str:
    """Names the content of a record: equal contents have equal names."""
    return checksum(msgspec.json.encode(content_of(record), order="sorted"))


def _bytes(extent: Extent) -> tuple[int, str]:
    return extent.length, extent.checksum
