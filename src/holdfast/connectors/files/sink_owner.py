"""Whose files are in the directory of a FileSink, and how its rows are cut: a record that is written once.

    out/_holdfast-<uid>     {"job": ..., "uid": ..., "cut": null | {...}}

Always true: one job and one way to cut rows for each uid of a directory, for good: the name of a file says
which rows are in it only as long as that holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.errors import DefinitionError, ObjectMissing, RestoreError
from holdfast.storage.contract import Put

if TYPE_CHECKING:
    from holdfast.storage.contract import Storage

MARKS = "_holdfast"

Cut = dict[str, Any] | None
"""How the rows of an epoch become files, as settings of the sink; None: they are one file."""


def owner_name(uid: str) -> str:
    return f"{MARKS}-{uid}"


def own(storage: Storage, job: str, uid: str, cut: Cut) -> None:
    """Take the directory for this job and uid, or find that it is ours already."""
    record = {"job": job, "uid": uid} | ({} if cut is None else {"cut": cut})
    if storage.put_new(owner_name(uid), json.dumps(record).encode()) is Put.EXISTS:
        cut_of(storage, job, uid, cut)


def cut_of(storage: Storage, job: str, uid: str, cut: Cut) -> None:
    """Refuse a directory of another job, or one that was begun with another cut."""
    try:
        record = json.loads(storage.get(owner_name(uid)))
        owner, stored = record["job"], record.get("cut")
    except ObjectMissing:
        return
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise damaged(storage, owner_name(uid), uid) from cause
    if owner != job:
        raise DefinitionError(
            f"sink {uid!r}: {storage.url} holds output of job {owner!r} under this uid, not of {job!r}; "
            "give the sink another uid or another directory"
        )
    if stored != cut:
        raise DefinitionError(
            f"sink {uid!r}: {storage.url} was begun with {_told(stored)}, not with {_told(cut)}, and that "
            "counts there for good; set the sink to it, or give it another uid or another directory"
        )


def _told(cut: Cut) -> str:
    return "one file per epoch" if cut is None else ", ".join(f"{name}={cut[name]}" for name in sorted(cut))


def damaged(storage: Storage, name: str, uid: str) -> RestoreError:
    return RestoreError(
        f"sink {uid!r}: {name} in {storage.url} is damaged; restore it from a copy, or give the sink another "
        "directory"
    )
