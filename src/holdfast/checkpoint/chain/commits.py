"""The commit chain: the only commit point.

Always true: commits are numbered densely, each names its parent and the parent's checksum, and a number
is decided once, by put-if-absent. A name once used is never free again (see history.read_floor). No leader
builds on a record of a higher term.
Never here: deciding when to commit, showing anything outside (see runtime.epoch), deleting (see retention).
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.checkpoint.chain.fellows import Met, differences, is_same_work, met
from holdfast.checkpoint.chain.history import History, read_floor
from holdfast.checkpoint.chain.low_water import keep_for
from holdfast.checkpoint.chain.view import CheckpointView, Head, fold, news, rewound, to_manifest
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import ChannelState, CommitRecord, Parent, StagedFile
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, FencedOut, RestoreError, StorageError, UnknownOutcome
from holdfast.ids import CommitNumber
from holdfast.steps import Step, reached
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Storage

MANIFEST_EVERY = 64
"""Commits between full manifests: reading walks at most this many records."""

RETAIN = 10
"""Commits that can be gone back to, the newest included."""

RETAIN_ALL = sys.maxsize
"""For commits of others than the job: they give up nothing, since how much to keep is for the job to say."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The record is in the chain and no newer leader has come: publish what it names, go on from `view`."""

    view: CheckpointView
    record: CommitRecord
    is_fellows: bool = False
    """Whether it is the record of another process of our set of replicas, of the same content."""


@dataclass(frozen=True, slots=True)
class Preceded:
    """Of a set of replicas: a fellow's record has the number, and ours can follow it: try again on `view`."""

    view: CheckpointView
    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Adopted:
    """Another record, of a lower term or our own of an earlier try, has the number. It counts, ours does not.

    Throw away everything in flight and go on from `view`, which includes that record.
    """

    view: CheckpointView
    differences: tuple[str, ...] = ()
    """Of a set of replicas: in what a fellow has come to other results than ours."""


class Chain(History):
    """The chain of one checkpoint. One committing thread at a time."""

    def __init__(
        self, storage: Storage, *, retain: int = RETAIN, manifest_every: int = MANIFEST_EVERY
    ) -> None:
        assert retain >= 1
        assert manifest_every >= 1
        super().__init__(storage)
        self._retain = retain
        self._manifest_every = manifest_every

    def commit(
        self, view: CheckpointView, record: CommitRecord, keep_from: int | None = None
    ) -> Committed | Preceded | Adopted:
        """Append `record` to the chain whose end is `view`. Number, parent, manifest and retention are
        filled in here. `keep_from`: from this commit on none is given up, however many there are; where
        state is in no file, one before its rows is kept besides. A record that names a `seat` is of a set of
        replicas: one of a fellow is no rival's.

        FencedOut: a newer leader exists; stop. UnknownOutcome: load again, the record may or may not be
        there. StorageError: nothing was written; try again.
        """
        _refuse_if_superseded(view.head, record.term, record.run)
        manifest = view.manifest
        if view.number + 1 - (names.number_of(manifest) or 0) >= self._manifest_every:
            manifest = self._write_manifest(view)
        return self._append(view, replace(record, manifest=manifest), self._kept_from(view, keep_from))

    def rewind(
        self,
        head: Head,
        to: CommitNumber,
        *,
        term: int,
        run: str,
        damaged: Collection[StagedFile] = (),
        channels: dict[str, ChannelState] | None = None,
        whole_after: int = 0,
    ) -> Committed | Adopted:
        """Append a record that makes the state and positions of commit `to` hold again.

        `head` is that of a view, or of a DamagedChain. What was published stays published, and what was
        committed for sinks is kept for them, but for the files of later epochs than `to` that are `damaged`.
        `channels`: news of all of them, where an epoch after `to` is lost; None: nothing of them changes.
        `whole_after`: the state of that commit is not wanted: epochs are run again from there on with none,
        and up to this epoch only for the state that they lead to.
        RestoreError: `to` is not retained. CorruptionError: `to` itself cannot be read.
        """
        _refuse_if_superseded(head, term, run)
        if not head.retained_from <= to <= head.number:
            raise RestoreError(
                f"commit {to} cannot be gone back to; choose one from {head.retained_from} to {head.number}"
            )
        try:
            base = rewound(head, self.view_at(to), damaged)
        except CorruptionError:
            if self._overtaken(head.number):
                return self._give_way(term, run)
            raise
        record = news(base, term=term, run=run, published_through=base.published_through)
        record = replace(
            record,
            manifest=self._write_manifest(base),
            rewind_to=to,
            staged_through=dict(base.settled.through),
            lost_output=dict(base.settled.lost),
            channels=channels,
            needs_from=base.last_epoch + 1 if whole_after else 0,
            whole_after=whole_after,
        )
        # It gives up nothing: which commits are kept beyond the newest is for the next one to say.
        done = self._append(base, record, keep_from=base.retained_from)
        assert not isinstance(done, Preceded), "a rewind follows no record but the head that it was made for"
        return done

    def _kept_from(self, view: CheckpointView, keep_from: int | None) -> int | None:
        """From which commit on none is given up. Where state is in no file, some commit has to be there from
        which on the rows lead to it."""
        if not view.needs_from:
            return keep_from
        newest = view.number + 2 - self._retain
        return keep_for(self, view, newest if keep_from is None else min(keep_from, newest))

    def _append(
        self, base: CheckpointView, draft: CommitRecord, keep_from: int | None = None
    ) -> Committed | Preceded | Adopted:
        number = base.number + 1
        oldest = number - self._retain + 1
        record = replace(
            draft,
            number=number,
            parent=Parent(number=base.number, checksum=base.checksum),
            retained_from=max(base.retained_from, draft.retained_from, min(oldest, keep_from or oldest)),
        )
        data = seal("commit", record)
        view = fold(base, record, checksum(data))
        reached(Step.BEFORE_COMMIT)
        found = write_once(self.storage, names.commit(number), data)
        if found == data:
            reached(Step.COMMIT_WRITTEN)
        try:
            if found != data and record.seat and (settled := self._met_fellow(base, record, found)):
                return settled
            if found != data or self._overtaken(number, record.run if record.seat else ""):
                return self._give_way(record.term, record.run)
        except StorageError as cause:
            raise UnknownOutcome(
                f"commit {number} may be written, but not whether it counts; "
                "load the checkpoint again and go on from there"
            ) from cause
        self.remember(view, record)
        return Committed(view, record)

    def _met_fellow(
        self, base: CheckpointView, ours: CommitRecord, found: bytes
    ) -> Committed | Preceded | Adopted | None:
        """What follows from the record of another member of our set that has the number. None: it is of no
        member, or the chain has gone on too far to tell."""
        theirs = unseal("commit", CommitRecord, found, names.commit(ours.number))
        if theirs.run != ours.run or ours.number <= read_floor(self.storage):
            return None
        meeting = met(ours, theirs)
        if meeting is Met.OTHER:
            return self.parted(ours, theirs)
        view = fold(base, theirs, checksum(found))
        self.remember(view, theirs)
        same = meeting is Met.SAME
        return Committed(view, theirs, is_fellows=True) if same else Preceded(view, theirs)

    def parted(self, ours: CommitRecord, theirs: CommitRecord) -> Adopted:
        """What follows from a fellow's record in the chain, of which ours says something else."""
        newest = self.load()
        # The plans of a commit go as soon as it is the oldest that is retained.
        is_same = is_same_work(ours, theirs, plans_kept=newest.given_up_below < theirs.number)
        return Adopted(newest, tuple(differences(ours, theirs)) if is_same else ())

    def _overtaken(self, number: int, run: str = "") -> bool:
        """Whether the chain went on without us: a name that we created is then one that retention had freed.
        `run`: of a set of replicas, whose members go on from our record as we do.

        Looked at after every put and before anyone is told of a commit.
        """
        if number <= read_floor(self.storage):
            return True
        newest = max(self.numbers(), default=number)
        return newest > number and (not run or self.record(newest).run != run)

    def _give_way(self, term: int, run: str) -> Adopted:
        """Stop for a newer leader; go on from the record of an older one, which has lost its lead to us."""
        theirs = self.load()
        _refuse_if_superseded(theirs.head, term, run)
        return Adopted(theirs)

    def _write_manifest(self, base: CheckpointView) -> str:
        data = seal("manifest", to_manifest(base))
        name = names.manifest(base.number + 1, checksum(data))
        write_once(self.storage, name, data)
        reached(Step.MANIFEST_WRITTEN)
        return name


def _refuse_if_superseded(head: Head, term: int, run: str) -> None:
    if head.term > term or (head.term == term and head.run != run):
        raise FencedOut(term, head.term, f"it wrote {names.commit(head.number)}")
