"""Turns finished epochs into commit records, beside the next epoch's run.

Always true: commits are attempted in order by one thread; after the first that does not succeed none is
attempted.
Never here: choosing results (see runner) or what a commit means (see checkpoint.chain.commits).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Adopted
from holdfast.checkpoint.chain.live_files import with_lists
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import CommitRecord, OperatorSchema, SnapshotFile, UncoordinatedShard
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.runtime.control.commit_permit import Permit
from holdfast.runtime.epoch.publisher import Publishing, Recipients
from holdfast.runtime.epoch.runner import EpochOutcome

COMMITS_IN_FLIGHT = 2
"""How many commits may be under way while the next epoch runs. More would only put off the waiting."""


class AdoptedOther(HoldfastError):
    """A record of an earlier leader took our number: go on from it, throwing away what was in flight."""


class PublishOrder(Enum):
    """When the sinks are written, by guarantee."""

    AFTER_COMMIT = "exactly-once"
    BEFORE_COMMIT = "at-least-once"
    """Sinks that recognise repeats are still written after the commit: one that took an epoch whose commit
    was lost
    would refuse the rows that took its place."""
    AFTER_RUN = "at-most-once"
    """The commit came before the run: the driver publishes what the run gave."""


class Committer:
    """Commits and publishes in the background, in order."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        publishing: Publishing,
        view: CheckpointView,
        term: int,
        run: str,
        operators: tuple[OperatorSchema, ...],
        order: PublishOrder,
        on_commit: Callable[[CheckpointView], None],
        say: Callable[[str], None],
        permit: Permit | None = None,
    ) -> None:
        self._permit = permit or Permit(SystemClock())
        self._checkpoint, self._publishing = checkpoint, publishing
        self._term, self._run = term, run
        self._operators: tuple[OperatorSchema, ...] | None = operators
        self._order = order
        self._late = Recipients.DEDUPING if order is PublishOrder.BEFORE_COMMIT else Recipients.ALL
        self._held_back = ""
        self._on_commit, self._say = on_commit, say
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._publishes = ThreadPoolExecutor(1, thread_name_prefix="holdfast-publish")
        self._pending: deque[Future[None]] = deque()
        self._snapshots: list[SnapshotFile] = []
        self._snapshots_lock = threading.Lock()
        self._failed = self._unpublished = False
        self.view = view

    def submit(self, outcomes: list[EpochOutcome]) -> None:
        """Commit these epochs as one. Waits while too many are in flight; raises what an earlier one failed
        with.
        """
        self.check(COMMITS_IN_FLIGHT - 1)
        self._pending.append(self._commits.submit(self._commit, outcomes))

    def publish(self, outcomes: list[EpochOutcome]) -> None:
        """Publish these epochs, after those given before."""
        self._pending.append(self._publishes.submit(self._publish, outcomes, self._late))

    def submit_uncoordinated(self, shards: list[UncoordinatedShard]) -> None:
        """Commit news of shards whose keys are saved on their own, without an epoch."""
        self.check(COMMITS_IN_FLIGHT - 1)
        self._pending.append(self._commits.submit(self._commit_news, shards))

    def record_published(self) -> None:
        """Once everything given before is published, commit that it is, so that the next run has nothing to
        publish, whatever becomes of the sinks until then."""
        self.check(0)
        recorded = self.view.published_through
        if any(epoch > recorded.get(uid, 0) for uid, epoch in self._publishing.through.items()):
            self._pending.append(self._commits.submit(self._commit_news, []))

    def _commit_news(self, shards: list[UncoordinatedShard]) -> None:
        """Commit what there is to say without an epoch."""
        if self._failed or not self.view.number:
            return
        record = news(
            self.view,
            term=self._term,
            run=self._run,
            published_through=self._publishing.through,
            rows_through=self._publishing.rows_through,
            uncoordinated=tuple(shards),
        )
        try:
            self._permit.await_commit()
            done = self._checkpoint.chain.commit(self.view, record)
            if isinstance(done, Adopted):
                raise AdoptedOther(f"commit {done.view.number} of term {done.view.term} came first")
            self.view = done.view
            self._permit.satisfied()
            self._on_commit(self.view)
        except BaseException:
            self._failed = True
            raise

    def add_snapshots(self, files: list[SnapshotFile]) -> None:
        """Name these snapshots in a coming commit record."""
        with self._snapshots_lock:
            self._snapshots = [*self._snapshots, *files]

    def check(self, allowed: int) -> None:
        """Wait until at most `allowed` pieces of work are unfinished; raise the first failure."""
        while len(self._pending) > allowed or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()

    @property
    def settled(self) -> bool:
        """Whether everything submitted is committed and published, as of the last `check`."""
        return not self._pending

    def close(self, wait: bool) -> None:
        """End the threads. `wait`: everything submitted is committed and published first, or raises."""
        try:
            if wait:
                while self._pending:
                    self.check(0)
        finally:
            self._failed = True
            self._commits.shutdown(wait=True, cancel_futures=True)
            self._publishes.shutdown(wait=True, cancel_futures=True)

    def publish_recovered(self) -> None:
        """Publish, in order, every committed epoch that a sink has not shown yet."""
        staged = list(self.view.staged)
        first = min(self._publishing.through.values(), default=self.view.last_epoch) + 1
        self._publishing.publish(first, self.view.last_epoch, staged, Recipients.ALL)

    def _commit(self, outcomes: list[EpochOutcome]) -> None:
        if self._failed:
            return
        try:
            if self._order is PublishOrder.BEFORE_COMMIT:
                self._publish(outcomes, Recipients.REPEATING)
            self._permit.await_commit()
            done = self._checkpoint.chain.commit(self.view, self._record(outcomes))
            if isinstance(done, Adopted):
                raise AdoptedOther(
                    f"commit {done.view.number} of term {done.view.term} came first; going on from it"
                )
            self.view = done.view
            self._permit.satisfied()
            if self._order is not PublishOrder.AFTER_RUN:
                self.publish(outcomes)
            self._on_commit(self.view)
        except BaseException:
            self._failed = True
            raise
        self._retire()

    def _retire(self) -> None:
        """Delete what nothing needs any more. The commit stands whether or not that works: the next one tries
        again.
        """
        try:
            retired = self._checkpoint.retention.after_commit(self.view)
            held_back = retired.held_back if retired else ""
        except HoldfastError as failure:
            held_back = str(failure)
        if held_back and held_back != self._held_back:
            self._say(f"old checkpoint files could not be removed and will be tried again: {held_back}")
        self._held_back = held_back

    def _publish(self, outcomes: list[EpochOutcome], to: Recipients) -> None:
        if self._unpublished:
            return
        staged = [file for outcome in outcomes for file in outcome.staged]
        try:
            self._publishing.publish(outcomes[0].plan.epoch, outcomes[-1].plan.epoch, staged, to)
        except BaseException:
            # Later epochs must not be shown before this one: a sink shows a prefix of the committed epochs.
            self._unpublished = True
            raise

    def _record(self, outcomes: list[EpochOutcome]) -> CommitRecord:
        last = outcomes[-1].plan
        notes: dict[str, tuple[object, ...]] = {}
        replaced: set[str] = set()
        positions = dict(self.view.positions)
        for outcome in outcomes:
            for uid, part in outcome.plan.slices.items():
                positions[uid] = part.end
                if part.replaces_notes:
                    replaced.add(uid)
                    notes.pop(uid, None)
                if part.notes:
                    notes[uid] = (*notes.get(uid, ()), *part.notes)
        with self._snapshots_lock:
            ready = [file for file in self._snapshots if file.version.epoch <= last.epoch]
            self._snapshots = [file for file in self._snapshots if file not in ready]
        operators, self._operators = self._operators, None
        lists = with_lists({}, [file for outcome in outcomes for file in outcome.lists.files])
        return CommitRecord(
            term=self._term,
            run=self._run,
            first_epoch=outcomes[0].plan.epoch,
            last_epoch=last.epoch,
            attempts={str(outcome.plan.epoch): outcome.plan.attempt for outcome in outcomes},
            clock_ms=last.clock_ms,
            parallelism=last.parallelism,
            fingerprint=last.fingerprint,
            positions=positions,
            notes=notes,
            notes_replaced=tuple(sorted(replaced)),
            deltas=tuple(delta for outcome in outcomes for delta in outcome.deltas),
            snapshots=tuple(ready),
            staged=tuple(file for outcome in outcomes for file in outcome.staged),
            rows=sum(outcome.rows for outcome in outcomes),
            published_through=self._publishing.through,
            rows_through=self._publishing.rows_through,
            operators=operators,
            lists=tuple(file for files in lists.values() for file in files),
            own_keys=tuple(shard for outcome in outcomes for shard in outcome.uncoordinated_shards),
        )
