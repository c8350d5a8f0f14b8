"""Giving up old checkpoints and deleting what only they needed.

Always true: a commit is first given up in a commit record, and deleted only after a later commit; the
floor is raised durably before commit records are deleted; nothing that a retained or pinned commit needs
is deleted, and no output that is not yet published. Epochs in hand write above the retired ones, so their
files are never taken for leftovers. A leader that was superseded meanwhile does no harm: it deletes only
what its successors gave up too.

Data goes as soon as its commits are given up. Commit records go in strides: the floor is always just
below a commit that brought a full manifest, since the records after it must still fold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import History, read_floor
from holdfast.checkpoint.chain.live_files import is_outdated
from holdfast.checkpoint.chain.pins import read_pins
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.replica_sets import outdated_members
from holdfast.checkpoint.chain.terms import outdated_terms
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import CommitRecord, FloorRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.steps import Step, reached
from holdfast.storage.contract import Storage

FLOORS_KEPT = 2
"""Two, so that a listing that races with a raise never shows none."""

SWEEP_EVERY = 8
"""Commits given up between sweeps, so that the price of a sweep is shared."""

SWEEP_COMMITS_MAX = 64
"""Commits retired in one sweep at most: a long pin that ends is worked off in steps."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What the retained commits need: these objects, and all that attempts after `through_epoch` write."""

    objects: frozenset[str]
    through_epoch: int


@dataclass(frozen=True, slots=True)
class Retired:
    """What one sweep did. `held_back` says why nothing could be retired, or is empty."""

    oldest: int
    floor: int
    deleted: int
    held_back: str = ""


def needed_by(oldest: CheckpointView, later: Iterable[tuple[CommitRecord, CheckpointView | None]]) -> Needed:
    """What `oldest` and all commits after it need. Pure.

    `later`: every record after `oldest`, with its view where it is a rewind. An ordinary record needs
    nothing old that the commit before it did not need; a rewind brings back what an older commit needed.
    """
    objects = oldest.objects()
    through = oldest.last_epoch
    for record, view in later:
        objects |= record_objects(record) if view is None else view.objects()
        through = min(through, record.last_epoch)
    return Needed(frozenset(objects), through)


def record_objects(record: CommitRecord) -> set[str]:
    """The objects that a record is the first to name."""
    named = {file.object for file in record.snapshots}
    named.update(file.extent.object for file in record.deltas)
    named.update(file.extent.object for file in record.staged)
    named.update(file.extent.object for file in record.sent)
    named.update(file.extent.object for file in record.lists)
    named.update(name for copy in (record.tables or {}).values() for name in copy.objects)
    return named


def retire(needed: Needed, known: Iterable[str], found: Iterable[str]) -> list[str]:
    """Which data objects to delete. Pure.

    `known`: objects that some commit named and that are now given up. `found`: objects seen in storage,
    leftovers of lost attempts among them; a snapshot of the very last retired epoch may be on its way
    into a commit record.
    """
    doomed = {name for name in known if name.startswith((names.DATA, names.SNAPSHOTS))}
    for name in found:
        epoch = names.number_of(name)
        if epoch is None:
            continue
        if name.startswith(names.DATA) and epoch <= needed.through_epoch:
            doomed.add(name)
        if name.startswith(names.SNAPSHOTS) and epoch < needed.through_epoch:
            doomed.add(name)
    return sorted(doomed - needed.objects)


class Retention:
    """Retires the commits of one chain, a little after each commit. `led_by_other`: used beside a leader, of
    which it is not known what it is about to commit. `by_member`: used by a member of a set of replicas, all
    of which take snapshots and name none that is outdated.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        sweep_every: int = SWEEP_EVERY,
        led_by_other: bool = False,
        by_member: bool = False,
    ) -> None:
        self._chain, self._led_by_other, self._by_member = chain, led_by_other, by_member
        self._storage: Storage = chain.storage
        self._sweep_every = sweep_every
        self._swept: tuple[CheckpointView, Needed] | None = None
        self._first_epoch: int | None = None

    def after_commit(self, head: CheckpointView) -> Retired | None:
        """Retire what `head`, just committed by us, allows. None: nothing to do this time.

        The first sweep of a run looks at everything, to find what a crash left; later ones only at what
        is retired.
        """
        first_epoch = self._chain.record(head.number).first_epoch
        self._first_epoch = min(first_epoch, self._first_epoch or first_epoch)
        done = self._swept[0].number if self._swept else 0
        if self._swept and head.given_up_below < done + self._sweep_every:
            return None
        pins = read_pins(self._storage)
        if pins.damaged:
            return Retired(
                done, 0, 0, f"{', '.join(pins.damaged)} is damaged; remove it once nobody needs it"
            )
        floor = read_floor(self._storage)
        pinned = [record.commit for record in pins.held_at(head.clock_ms) if record.commit > floor]
        target = min([head.given_up_below, *pinned])
        if self._swept:
            target = min(target, done + SWEEP_COMMITS_MAX)
        # At or below the floor: a newer leader has retired more than we know of.
        if target <= max(done, floor):
            return None
        try:
            return self._sweep(head, target, floor)
        except CorruptionError as damage:
            if read_floor(self._storage) != floor:
                return None
            return Retired(done, floor, 0, str(damage))

    def _sweep(self, head: CheckpointView, target: int, floor: int) -> Retired:
        oldest = self._chain.view_at(target)
        later = [self._later(number) for number in range(target + 1, head.number + 1)]
        needed = needed_by(oldest, later)
        views = [oldest, *(view for _, view in later if view is not None)]
        doomed = retire(needed, self._given_up(oldest), self._found(needed, head.number, views))
        doomed = self._not_planned(doomed, needed.through_epoch)
        doomed += [
            entry.name
            for prefix in (names.PLANS, names.VOTES)
            for entry in self._storage.list(prefix)
            if (names.number_of(entry.name) or 0) <= needed.through_epoch
        ]
        new_floor = self._raise_floor(oldest, head, floor)
        if new_floor > floor:
            doomed += self._below(new_floor)
        self._storage.delete(doomed)
        reached(Step.RETIRED)
        self._swept = (oldest, needed)
        self._chain.forget_below(target)
        return Retired(target, new_floor, len(doomed))

    def _not_planned(self, doomed: list[str], through_epoch: int) -> list[str]:
        """Without the copies of tables that the plans of later epochs name: after a rewind those plans may be
        followed again, though no retained commit uses the copies any more.

        Only a rewind dooms what a later epoch wrote: otherwise no plan is read.
        """
        if all((names.number_of(name) or 0) <= through_epoch for name in doomed):
            return doomed
        planned: set[str] = set()
        plans = Plans(self._storage)
        for entry in self._storage.list(names.PLANS):
            if (names.number_of(entry.name) or 0) > through_epoch:
                # One that is damaged, or was removed meanwhile, is not followed.
                with contextlib.suppress(CorruptionError, ObjectMissing):
                    planned.update(*(copy.objects for copy in plans.named(entry.name).tables.values()))
        return [name for name in doomed if name not in planned]

    def _later(self, number: int) -> tuple[CommitRecord, CheckpointView | None]:
        record = self._chain.record(number)
        return record, None if record.rewind_to is None else self._chain.view_at(number)

    def _given_up(self, oldest: CheckpointView) -> set[str]:
        """What the commits from the last sweep's oldest to the new one needed or named."""
        if self._swept is None:
            return set()
        before = self._swept[0]
        known = before.objects()
        for number in range(before.number + 1, oldest.number + 1):
            try:
                record, view = self._later(number)
            except CorruptionError:
                # Gone past by a rewind. What only it named is found by the next run's first sweep.
                continue
            known |= record_objects(record) if view is None else view.objects()
        return known

    def _found(self, needed: Needed, head: int, views: list[CheckpointView]) -> list[str]:
        """Objects in the epoch directories that are being retired. `views`: from which all that are retained
        follow, without going back."""
        if self._swept is None:
            prefixes = [names.DATA, names.SNAPSHOTS]
        else:
            epochs = range(self._swept[1].through_epoch + 1, needed.through_epoch + 1)
            prefixes = [names.data_of(epoch) for epoch in epochs]
            if len(prefixes) > SWEEP_COMMITS_MAX:
                prefixes = [names.DATA]
            # Those that a member leaves behind are of no use when a newer one is named, however late.
            prefixes += [names.SNAPSHOTS] if self._by_member else []
        found = [entry.name for prefix in prefixes for entry in self._storage.list(prefix)]
        if self._led_by_other or self._by_member:
            named = self._snapshots_named(head)
            return [
                name
                for name in found
                if not name.startswith(names.SNAPSHOTS) or name in named or self._is_left_behind(name, views)
            ]
        return [name for name in found if not self._may_be_ours(name)]

    def _is_left_behind(self, name: str, views: list[CheckpointView]) -> bool:
        """Whether a snapshot of a member, which no commit up to the newest has named, is outdated in all that
        commits can be gone back to: then it is in every commit that follows, and none names it."""
        if not self._by_member:
            return False
        shard = names.shard_of_snapshot(name)
        return shard is not None and all(
            is_outdated(name, view.snapshots.get(shard[0], ())) for view in views
        )

    def _may_be_ours(self, name: str) -> bool:
        """Whether this run may have written a snapshot that a commit of its own is still to name."""
        return name.startswith(names.SNAPSHOTS) and (names.number_of(name) or 0) >= (self._first_epoch or 0)

    def _snapshots_named(self, head: int) -> set[str]:
        """The snapshots that some record up to `head` brought: no later commit is still to name them. What
        commits after it need is not known here."""
        named: set[str] = set()
        for number in [each for each in self._chain.numbers() if each <= head]:
            with contextlib.suppress(CorruptionError):
                named.update(file.object for file in self._chain.record(number).snapshots)
        return named

    def _raise_floor(self, oldest: CheckpointView, head: CheckpointView, floor: int) -> int:
        """Raise the floor to just below the manifest that `oldest` rests on, if that still reads."""
        first_kept = names.number_of(oldest.manifest) or 0
        if first_kept - 1 <= floor or self._replays(floor + 1, first_kept, head):
            return floor
        stored = History(self._storage)
        stored.read_manifest(stored.record(first_kept))
        raised = FloorRecord(floor=first_kept - 1, term=head.term, run=head.run)
        # Another leader's record under the same name says the same.
        write_once(self._storage, names.floor(raised.floor), seal("floor", raised))
        reached(Step.FLOOR_RAISED)
        return first_kept - 1

    def _replays(self, first: int, end: int, head: CheckpointView) -> bool:
        """Whether history went back and one of these commits still says which plans are to be followed."""
        for number in range(first, end):
            try:
                if self._chain.record(number).last_epoch > head.last_epoch:
                    return True
            except CorruptionError:
                # Gone past by a rewind: it says nothing any more.
                continue
        return False

    def _below(self, floor: int) -> list[str]:
        """Records that the raised floor has made meaningless."""
        old = [
            entry.name
            for prefix in (names.COMMITS, names.MANIFESTS)
            for entry in self._storage.list(prefix)
            if (names.number_of(entry.name) or floor + 1) <= floor
        ]
        old += outdated_terms(self._storage) + outdated_members(self._storage)
        return old + outdated_floors(self._storage)


def outdated_floors(storage: Storage) -> list[str]:
    """Names of floor records that may be deleted; never the highest."""
    return names.all_but_newest(storage, names.FLOORS, FLOORS_KEPT)
