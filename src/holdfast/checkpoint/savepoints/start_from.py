"""Starting a checkpoint from a savepoint.

    look at everything -> claim the savepoint, if asked (token here, claim there) -> job record
    -> (the caller claims a term) -> copy the objects -> commit 1

Commit 1 covers epochs 1 to N of the savepoint and holds what it holds; after it the checkpoint is like any
other, and needs the savepoint no more.

Always true: a step that failed or was interrupted is done again by starting again; before the job record
nothing was touched except the claim and its token. A checkpoint that was to begin with a savepoint never
begins without it. A savepoint that is not claimed is only read. Of several that claim it one succeeds, and
only that one removes it, after a commit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.chain.checkpoint import (
    Checkpoint,
    find_job,
    has_begun,
    open_checkpoint,
    refuse_if_occupied,
    refuse_if_seeded_otherwise,
)
from holdfast.checkpoint.chain.commits import RETAIN
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import EMPTY
from holdfast.checkpoint.savepoints.copy import copy_all, repacked
from holdfast.checkpoint.savepoints.copy_logs import take_over
from holdfast.checkpoint.savepoints.stored_savepoint import (
    find_claim,
    find_savepoint,
    find_unfinished,
    read_savepoint,
    refusal_of_claimed,
    remove_all,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import CommitRecord, JobRecord, Manifest
from holdfast.checkpoint.store.savepoint_records import ClaimedRecord, ClaimRecord, SavepointRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.clock import Clock
from holdfast.errors import ObjectMissing, RestoreError
from holdfast.storage.contract import Storage


def open_seeded(
    storage: Storage,
    savepoint: Storage,
    job: str,
    key_groups: int,
    clock: Clock,
    *,
    identity: str,
    claim: bool,
    retain: int = RETAIN,
) -> Checkpoint:
    """Open the checkpoint of `job` that begins with a savepoint, or create it. `seed_checkpoint` follows.

    `identity` is a fresh random name; a checkpoint that claims the savepoint of a stopped job gets that
    job's instead, so that its sinks go on where they were. One that has begun goes on from where it is,
    whether or not the savepoint still exists. Without a claim its job may have had another name.
    RestoreError: the checkpoint exists and began otherwise; the savepoint is missing, unfinished,
    half-copied, claimed by another or has another number of key groups. Then nothing was touched.
    """
    existing = find_job(storage)
    if existing is not None and has_begun(storage):
        _refuse_unless_begun_with(storage, existing, savepoint)
        seeded_from = existing.seeded_from
    else:
        record = read_savepoint(savepoint)
        _refuse_unfit(savepoint, record, job, key_groups, claim=claim)
        if existing is None:
            refuse_if_occupied(storage)
        else:
            refuse_if_seeded_otherwise(storage, existing, record.id)
        _Ownership(storage, job, savepoint, record.id).settle(identity if claim else None, clock.now_ms())
        seeded_from = record.id
        identity = record.identity if claim and record.stopped else identity
    return open_checkpoint(
        storage, job, key_groups, clock, identity=identity, retain=retain, seeded_from=seeded_from
    )


def seed_checkpoint(
    checkpoint: Checkpoint, savepoint: Storage, *, term: int, run: str
) -> SavepointRecord | None:
    """Copy the savepoint's objects into the checkpoint and commit them. None: that was done before.

    `term` was claimed in the checkpoint by `run`. Raises as `Chain.commit` does, and CorruptionError naming
    what of the savepoint is damaged; call again once that is restored.
    """
    if has_begun(checkpoint.storage):
        return None
    record = read_savepoint(savepoint)
    refuse_if_seeded_otherwise(checkpoint.storage, checkpoint.job, record.id)
    manifest, copies = repacked(record.manifest, record.id)
    copy_all(savepoint, checkpoint.storage, copies)
    take_over(savepoint, checkpoint.storage)
    # An earlier leader's commit 1, if one came first, says the same.
    checkpoint.chain.commit(EMPTY, _first_commit(manifest, term, run))
    return record


def finish_claim(checkpoint: Checkpoint, savepoint: Storage, now_ms: int) -> None:
    """Remove the savepoint, if this checkpoint has claimed it and has a commit of its own; else do nothing.

    Interrupted, it is called again.
    """
    if max(History(checkpoint.storage).numbers(), default=0) < 2:
        return
    seed = checkpoint.job.seeded_from
    found = [entry.name for entry in savepoint.list("")]
    claimed = find_claim(savepoint)
    unfinished = find_unfinished(savepoint)
    removing = names.SAVEPOINT not in found and unfinished is not None and unfinished.id == seed
    ownership = _Ownership(checkpoint.storage, checkpoint.job.job, savepoint, seed)
    if removing or (claimed is not None and ownership.is_ours(claimed)):
        remove_all(savepoint, found, seed, now_ms)


def _first_commit(manifest: Manifest, term: int, run: str) -> CommitRecord:
    return CommitRecord(
        term=term,
        run=run,
        first_epoch=1,
        last_epoch=manifest.last_epoch,
        attempts={},
        clock_ms=manifest.clock_ms,
        parallelism=manifest.parallelism,
        fingerprint=manifest.fingerprint,
        positions=manifest.positions,
        notes=manifest.notes,
        deltas=manifest.deltas,
        snapshots=manifest.snapshots,
        lists=manifest.lists,
        rows=manifest.rows,
        operators=manifest.operators or None,
        event_times=manifest.event_times,
        watermarks=manifest.watermarks,
        closed_through=manifest.closed_through,
        tables=manifest.tables or None,
        channels=manifest.channels or None,
    )


def _refuse_unless_begun_with(storage: Storage, existing: JobRecord, savepoint: Storage) -> None:
    found = find_savepoint(savepoint)
    if found is not None:
        refuse_if_seeded_otherwise(storage, existing, found.id)
    elif not existing.seeded_from:
        raise RestoreError(
            f"the checkpoint in {storage.url} exists and did not begin with a savepoint; "
            "choose an empty place, or leave out from_savepoint to go on from it"
        )


def refuse_unfit_savepoint(savepoint: Storage, job: str, key_groups: int, *, claim: bool) -> None:
    """RestoreError: `job` cannot begin with this savepoint."""
    _refuse_unfit(savepoint, read_savepoint(savepoint), job, key_groups, claim=claim)


def _refuse_unfit(
    savepoint: Storage, record: SavepointRecord, job: str, key_groups: int, *, claim: bool
) -> None:
    if record.key_groups != key_groups:
        raise RestoreError(
            f"the savepoint in {savepoint.url} has {record.key_groups} key groups, the job asks for "
            f"{key_groups}; start it with key_groups={record.key_groups}, or make a savepoint of "
            f"{key_groups} with `holdfast savepoints convert`"
        )
    if claim and record.stopped and record.job != job:
        raise RestoreError(
            f"the savepoint in {savepoint.url} is of job {record.job!r}; whoever claims it goes on as that "
            f"job, with its sinks; name the job {record.job!r}, or start {job!r} without a claim"
        )


@dataclass(frozen=True)
class _Ownership:
    """Whether savepoint `id` is that of the checkpoint of `job` in `storage`."""

    storage: Storage
    job: str
    savepoint: Storage
    id: str

    def settle(self, token: str | None, now_ms: int) -> None:
        """Claim the savepoint if there is a token to do it with; refuse if another checkpoint has."""
        claimed = find_claim(self.savepoint)
        if token is not None and claimed is None:
            claimed = self._claim(token, now_ms)
        if claimed is not None and not self.is_ours(claimed):
            self.storage.delete([names.claim(self.id)])
            alike = ", is another one than this," if claimed.checkpoint == self.storage.url else ""
            raise RestoreError(
                f"{refusal_of_claimed(self.savepoint, claimed)}{alike} and will remove it; start from a copy "
                "of it, or from another savepoint"
            )

    def _claim(self, token: str, now_ms: int) -> ClaimedRecord:
        """Claim the savepoint, unless another was quicker: the claim that it has now.

        The token is kept before it is used, so that a claim that was interrupted is known as this
        checkpoint's.
        """
        name = names.claim(self.id)
        ours = ClaimRecord(savepoint=self.id, token=token, at_ms=now_ms)
        kept = unseal("claim", ClaimRecord, write_once(self.storage, name, seal("claim", ours)), name)
        wanted = ClaimedRecord(job=self.job, checkpoint=self.storage.url, claimed_ms=now_ms, token=kept.token)
        data = write_once(self.savepoint, names.CLAIMED, seal("claimed", wanted))
        return unseal("claimed", ClaimedRecord, data, names.CLAIMED)

    def is_ours(self, claimed: ClaimedRecord) -> bool:
        """Whether this claim on the savepoint is the checkpoint's."""
        if not claimed.token:
            return (claimed.job, claimed.checkpoint) == (self.job, self.storage.url)
        name = names.claim(self.id)
        try:
            return unseal("claim", ClaimRecord, self.storage.get(name), name).token == claimed.token
        except ObjectMissing:
            return False
