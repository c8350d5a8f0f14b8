"""A savepoint that is made, from its draft to its seal.

Always true: the location is taken before the first file is written; after any error nothing is left there
that could be taken for a savepoint.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.checkpoint.chain.checkpoint import written_by
from holdfast.checkpoint.savepoints.copy import copy_all, repacked
from holdfast.checkpoint.savepoints.copy_logs import copy_unread
from holdfast.checkpoint.savepoints.take import seal_savepoint, unfinished_savepoint
from holdfast.checkpoint.store.records import DeltaFile, Json, Manifest, OperatorSchema, Parent
from holdfast.checkpoint.store.savepoint_records import SavepointRecord, UnfinishedRecord
from holdfast.clock import SystemClock
from holdfast.storage.contract import Storage

FIRST_EPOCH = 1
"""The epoch that state from nowhere is after: a job that starts with it goes on with the next."""


def drafted(
    *,
    job: str,
    key_groups: int,
    positions: dict[str, Any],
    parallelism: int,
    operators: tuple[OperatorSchema, ...],
) -> SavepointRecord:
    """A savepoint of state from nowhere, as if it were the first commit of the job."""
    id, now = uuid.uuid4().hex, SystemClock().now_ms()
    manifest = Manifest(
        number=2,
        parent=Parent(number=1, checksum=""),
        term=0,
        run="",
        positions=positions,
        notes={},
        last_epoch=FIRST_EPOCH,
        clock_ms=now,
        parallelism=parallelism,
        fingerprint="",
        rows=0,
        operators=operators,
        deltas=(),
        snapshots=(),
        staged=(),
        published_through={},
        retained_from=1,
    )
    return SavepointRecord(
        id=id,
        job=job,
        identity=id,
        key_groups=key_groups,
        commit=1,
        created_ms=now,
        written_by=written_by(),
        format="canonical",
        stopped=False,
        manifest=manifest,
    )


def renewed(record: SavepointRecord) -> SavepointRecord:
    """The draft of a savepoint made from another. A changed one is not the job's own any more: a job that
    starts from it gets an identity of its own.
    """
    return replace(
        record,
        id=uuid.uuid4().hex,
        created_ms=SystemClock().now_ms(),
        written_by=written_by(),
        stopped=False,
        manifest=replace(record.manifest, last_epoch=max(record.manifest.last_epoch, FIRST_EPOCH)),
    )


def without(manifest: Manifest, uids: Iterable[str]) -> Manifest:
    """A manifest without the files of some operators."""
    out = set(uids)
    return replace(
        manifest,
        deltas=tuple(file for file in manifest.deltas if file.operator not in out),
        snapshots=tuple(file for file in manifest.snapshots if file.operator not in out),
        lists=tuple(file for file in manifest.lists if file.operator not in out),
    )


def reading_from(manifest: Manifest, positions: Mapping[str, Json]) -> Manifest:
    """A manifest whose sources go on elsewhere. Event time is then not known until they have been read: rows
    that are read again would all be late."""
    if not positions:
        return manifest
    return replace(
        manifest,
        positions={**manifest.positions, **positions},
        event_times={uid: times for uid, times in manifest.event_times.items() if uid not in positions},
        watermarks={},
    )


def make_savepoint(
    target: Storage, draft: SavepointRecord, kept_in: Storage | None, written: Iterable[list[DeltaFile]]
) -> SavepointRecord:
    """Take the location, copy the files that the draft names from `kept_in`, let `written` put more there,
    and seal it all. What nothing names, such as files of tasks that Spark ran more than once, is removed.
    """
    holder = f"{socket.gethostname()}, process {os.getpid()}"
    mark = UnfinishedRecord(id=draft.id, job=draft.job, holder=holder, since_ms=draft.created_ms)
    with unfinished_savepoint(target, mark):
        manifest, copies = repacked(draft.manifest, draft.id)
        if kept_in is not None:
            copy_all(kept_in, target, copies)
            copy_unread(kept_in, target, manifest.positions)
        # Not before the location is taken: an iterator writes when it is asked.
        deltas = [delta for some in written for delta in some]
        manifest = replace(manifest, deltas=(*manifest.deltas, *deltas))
        form: Literal["native", "canonical"] = "native" if manifest.snapshots else "canonical"
        return seal_savepoint(target, replace(draft, format=form, manifest=manifest))
