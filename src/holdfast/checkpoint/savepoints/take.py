"""Taking savepoints of a job's checkpoint.

The job goes on meanwhile: what it takes is one pin, which keeps the commit's files until they are copied.
Always true: the `savepoint` record is written after everything that it names is durable; a savepoint that
failed leaves nothing that could be taken for one, and what it wrote is removed.
Never here: which commit to take, stopping the job, making one of other state (see runtime.savepoints).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from holdfast.checkpoint.chain.checkpoint import Checkpoint, written_by
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.live_files import kept_snapshots
from holdfast.checkpoint.chain.pins import pin, unpin
from holdfast.checkpoint.chain.view import CheckpointView, to_manifest
from holdfast.checkpoint.savepoints.copy import copy_all, repacked
from holdfast.checkpoint.savepoints.copy_logs import copy_unread
from holdfast.checkpoint.savepoints.stored_savepoint import (
    find_savepoint,
    is_ours,
    lacking_in,
    objects_of,
    remove_all,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import (
    ChannelState,
    DeltaFile,
    Json,
    Manifest,
    SnapshotFile,
)
from holdfast.checkpoint.store.savepoint_records import SavepointRecord, UnfinishedRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.clock import Clock
from holdfast.errors import DefinitionError, HoldfastError, RestoreError, UnknownOutcome
from holdfast.storage.contract import Storage

PIN_TRIES = 20
PIN_PREFIX = "savepoint-"
"""Pins of savepoints being taken are named by this and the savepoint's id (see pins.release)."""


def take_savepoint(
    checkpoint: Checkpoint,
    number: int | None,
    target: Storage,
    *,
    id: str,
    stopped: bool,
    clock: Clock,
    holder: str,
    positions: Mapping[str, Json] | None = None,
    held: bool = False,
) -> SavepointRecord:
    """Copy commit `number`, or the newest, to `target`, which must be empty, as a native savepoint. From any
    thread; the job may go on.

    `id` is a fresh random name; called again with the same id (by one at a time) it goes on with what it
    began, or returns what it finished. `stopped`: the job has ended with this commit and has published
    everything. `holder` is the run, by which a pin left behind is known. `positions`: of some sources, those
    to go on from instead of the commit's. `held`: a pin of the caller's keeps commit `number` already.
    RestoreError: the target holds something, or the commit is no longer retained. CorruptionError names a
    damaged file of the checkpoint.
    """
    done = _finished_before(target, id)
    if done is not None:
        return done
    job = checkpoint.job
    history = History(checkpoint.storage)
    pinned = _pinned(history, f"{PIN_PREFIX}{id}", number, holder, clock)
    with contextlib.nullcontext(number) if held and number is not None else pinned as number:
        view = history.view_at(number)
        refuse_without_state(view, checkpoint.storage.url)
        whole = savepoint_manifest(view)
        whole = replace(whole, positions={**whole.positions, **(positions or {})})
        manifest, copies = repacked(whole, id)
        mark = UnfinishedRecord(id=id, job=job.job, holder=holder, since_ms=clock.now_ms())
        with unfinished_savepoint(target, mark):
            copy_all(checkpoint.storage, target, copies)
            copy_unread(checkpoint.storage, target, manifest.positions)
            return seal_savepoint(
                target,
                SavepointRecord(
                    id=id,
                    job=job.job,
                    identity=job.identity,
                    key_groups=job.key_groups,
                    commit=number,
                    created_ms=clock.now_ms(),
                    written_by=written_by(),
                    format="native",
                    stopped=stopped,
                    manifest=manifest,
                ),
            )


def refuse_without_state(view: CheckpointView, url: str) -> None:
    """Refuse to save what is in no file. RestoreError."""
    if view.needs_from:
        raise RestoreError(
            f"no savepoint can be taken of {url}: with hf.UpstreamBackup() its state is in no checkpoint; "
            "start the job with hf.Rollback() for this part, which saves it, and take one then"
        )


@contextlib.contextmanager
def unfinished_savepoint(target: Storage, mark: UnfinishedRecord) -> Iterator[None]:
    """Take an empty location for a savepoint. Within it objects are put there, last comes `seal_savepoint`; a
    failure removes what was put there and leaves the location empty.

    RestoreError: something is there, or another savepoint was begun.
    """
    _begin(target, mark)
    try:
        yield
    except UnknownOutcome:
        # What was not answered may still appear: only `unfinished` keeps it from being taken for more.
        raise
    except BaseException:
        with contextlib.suppress(HoldfastError):
            found = [entry.name for entry in target.list("")]
            if names.SAVEPOINT not in found and names.UNFINISHED in found:
                remove_all(target, found)
        raise


def _begin(target: Storage, mark: UnfinishedRecord) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", mark.id):
        raise DefinitionError(
            f"{mark.id!r} cannot be a savepoint's id; use letters, digits, '.', '_' and '-', at most 64"
        )
    found = [entry.name for entry in target.list("")]
    if found and names.UNFINISHED not in found:
        what = "a checkpoint" if names.JOB in found else f"something already ({found[0]})"
        what = "a savepoint already" if names.SAVEPOINT in found else what
        raise RestoreError(
            f"no savepoint can be written to {target.url}: it holds {what}; choose an empty place"
        )
    data = write_once(target, names.UNFINISHED, seal("unfinished", mark))
    begun = unseal("unfinished", UnfinishedRecord, data, names.UNFINISHED)
    if begun.id != mark.id:
        raise RestoreError(
            f"no savepoint can be written to {target.url}: an unfinished one of job {begun.job!r} is there; "
            "choose an empty place, or remove that one with `holdfast savepoints dispose`"
        )


def seal_savepoint(target: Storage, record: SavepointRecord) -> SavepointRecord:
    """Make a savepoint of the objects at the location of an unfinished one.

    Objects that the record does not name, of an earlier try say, are removed. RestoreError: some that it
    names are not there.
    """
    found = target.list("")
    lacking = lacking_in(record.manifest, found)
    if lacking:
        raise RestoreError(f"the savepoint in {target.url} cannot be finished: {lacking[0]}; take it again")
    needed = objects_of(record.manifest)
    target.delete([entry.name for entry in found if is_ours(entry.name) and entry.name not in needed])
    data = write_once(target, names.SAVEPOINT, seal("savepoint", record))
    written = unseal("savepoint", SavepointRecord, data, names.SAVEPOINT)
    if written.id != record.id:
        raise RestoreError(f"another savepoint was written to {target.url} meanwhile; choose another place")
    with contextlib.suppress(HoldfastError):
        # Beside the record it means nothing.
        target.delete([names.UNFINISHED])
    return written


def savepoint_manifest(view: CheckpointView) -> Manifest:
    """What a savepoint holds of a view: no output, no sinks, and of the state what restoring needs. Pure.

    That is the newest snapshot of each key group, and the deltas since the oldest of these that has it.
    """
    manifest = to_manifest(view)
    snapshots: list[SnapshotFile] = []
    deltas: list[DeltaFile] = []
    for operator in dict.fromkeys([*view.snapshots, *view.deltas]):
        kept, _ = kept_snapshots([file for file in manifest.snapshots if file.operator == operator], 1)
        snapshots += [replace(file, sole=True) for file in kept]
        deltas += [delta for delta in manifest.deltas if delta.operator == operator and _adds_to(kept, delta)]
    return replace(
        manifest,
        snapshots=tuple(snapshots),
        deltas=tuple(deltas),
        staged=(),
        staged_through={},
        lost_output={},
        asked={},
        published_through={},
        rows_through={},
        lanes_through={},
        retained_from=1,
        sent=(),
        # What is in channels is output, too: a reader that has not read it is told that it is gone.
        channels={uid: _emptied(state, view.last_epoch) for uid, state in manifest.channels.items()},
        barriers=(),
    )


def _emptied(channel: ChannelState, epoch: int) -> ChannelState:
    """A channel of which all is read up to `epoch`, as it is at a barrier: only its time goes on."""
    return ChannelState(through=epoch, released=epoch, times=channel.times[-1:], kept=channel.kept)


def _adds_to(snapshots: Sequence[SnapshotFile], delta: DeltaFile) -> bool:
    """Whether a delta changes some key group after the oldest snapshot of it, or it has none."""
    for group in range(delta.first_group, delta.end_group):
        epochs = [file.version.epoch for file in snapshots if file.first_group <= group < file.end_group]
        if delta.version.epoch > min(epochs, default=0):
            return True
    return False


def _finished_before(target: Storage, id: str) -> SavepointRecord | None:
    record = find_savepoint(target)
    return record if record is not None and record.id == id else None


@contextlib.contextmanager
def _pinned(history: History, name: str, number: int | None, holder: str, clock: Clock) -> Iterator[int]:
    """Within it, a commit stays; gives its number."""
    try:
        if number is None:
            number = _pin_newest(history, name, holder, clock)
        else:
            # One of this name is from an earlier try under the same id.
            unpin(history.storage, [name])
            pin(history, name, number, holder, clock.now_ms())
        yield number
    finally:
        with contextlib.suppress(HoldfastError):
            # One that stays holds up retention, no more; the next leader releases it.
            unpin(history.storage, [name])


def _pin_newest(history: History, name: str, holder: str, clock: Clock) -> int:
    for tries_left in reversed(range(PIN_TRIES)):
        newest = history.load().number
        if newest == 0:
            raise RestoreError(
                f"{history.storage.url} has no commit to take a savepoint of; wait for the first one"
            )
        unpin(history.storage, [name])
        try:
            pin(history, name, newest, holder, clock.now_ms())
            return newest
        except RestoreError:
            # A job that retains one commit only may have given it up meanwhile.
            if not tries_left:
                raise
    raise AssertionError("every try returns or raises")
