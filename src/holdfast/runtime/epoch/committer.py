"""Turns finished epochs into commit records, beside the next epoch's run.

Always true: one thread attempts commits, in order; after the first that does not succeed it attempts none. An
epoch goes to the queues of its sinks once it is committed, never before, but for sinks that cannot recognise
one: with at-least-once they have shown it by then.
Never here: choosing results (see runner), what a commit means (see checkpoint.chain.commits), or when a sink
shows what it was given (see sink_queues).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from msgspec.structs import replace

from holdfast.checkpoint.chain.barriers import begun_barrier, ending_of_barrier
from holdfast.checkpoint.chain.commits import Adopted, Committed, Preceded
from holdfast.checkpoint.chain.fellows import Met, met
from holdfast.checkpoint.chain.live_files import is_outdated, with_lists
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import (
    CommitRecord,
    OperatorSchema,
    SnapshotFile,
    StagedFile,
    UncoordinatedShard,
)
from holdfast.errors import CorruptionError, HoldfastError, ObjectMissing
from holdfast.graph.guarantees import Guarantee
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.publisher import Publishing, Recipients
from holdfast.runtime.epoch.sink_queues import SinkQueues
from holdfast.runtime.epoch.sink_thread import LeftBehind
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.parts.outlets import Outlets

COMMITS_IN_FLIGHT = 2
"""How many commits may be under way while the next epoch runs. More would only put off the waiting."""


class Committer:
    """Commits and publishes in the background, in order. When the sinks are written:

    exactly-once     after the commit
    at-least-once    before it; but sinks that recognise repeats after it: one that took an epoch whose
                     commit was lost would refuse the rows that took its place
    at-most-once     after the run, which comes after the commit: the leader calls `publish`
    """

    def __init__(
        self,
        context: LeaderContext,
        publishing: Publishing,
        view: CheckpointView,
        operators: tuple[OperatorSchema, ...],
        outlets: Outlets,
        shards: int = 1,
    ) -> None:
        """`operators`: the schemas in force, and `shards`: how many there are, for the first commit."""
        self._context, self._checkpoint, self._publishing = context, context.checkpoint, publishing
        self._permit, self._guarantee = context.wishes.permit, context.settings.guarantee
        self._operators: tuple[OperatorSchema, ...] | None = operators
        early = self._guarantee is Guarantee.AT_LEAST_ONCE
        self._late = Recipients.DEDUPING if early else Recipients.ALL
        self._held_back, self._outlets, self._shards = "", outlets, shards
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._queues = SinkQueues(context, publishing)
        self._pending: deque[Future[None]] = deque()
        self._snapshots: list[SnapshotFile] = []
        self._snapshots_lock = threading.Lock()
        self._failed = False
        self._newest = view.last_epoch
        """The newest epoch that was given to be committed."""
        self.refused: dict[str, str] = {}
        """After the end: sink -> why it refuses what the run has ended without, told by nobody to stop."""
        self._replica = context.replica
        self._fellows: deque[CommitRecord] = deque()
        self._ahead: dict[int, tuple[CommitRecord, CheckpointView]] = {}
        """Epoch -> the record of another member, and what it followed, that came before news of ours: what
        has been run here, or is to be, has to come to the same."""
        self.has_lead = self._replica is None
        """Whether the newest commit is this process's own. Of a set of replicas, the member whose commit it
        was does what one alone has to do: the fastest is the one that has the time."""
        self._harmless = 0
        """The newest barrier that is known not to end this run."""
        self._kept = [file for file in view.staged if file.epoch > view.last_epoch]
        """What was committed of epochs that are computed again after a rewind: this is shown."""
        self.view = view
        self.keep_from: Callable[[CheckpointView], int | None] = lambda view: None
        """Asked before each commit, with the one before it: from which commit on none is given up. None: as
        many are kept as the settings say."""
        self.on_epoch: Callable[[CheckpointView], None] = lambda view: None
        """Told of each commit of epochs that were run here, whichever process wrote it."""

    def submit(self, outcomes: list[EpochOutcome], barrier: int = 0) -> None:
        """Commit these epochs as one. Waits while too many are in flight; raises what an earlier one failed
        with. `barrier`: of the whole job, that falls after them; there may be none of them then.
        """
        self.check(COMMITS_IN_FLIGHT - 1)
        if outcomes:
            self._newest = outcomes[-1].plan.epoch
            self._pending.append(self._commits.submit(self._commit, outcomes, barrier))
        else:
            self._pending.append(self._commits.submit(self._commit_news, [], barrier=barrier))

    def publish(self, outcomes: list[EpochOutcome]) -> None:
        """Let the sinks show these epochs, after those given before."""
        self._put(outcomes, self._late)

    @property
    def room(self) -> float:
        """How much of an epoch the queues of the sinks have room for; 0: nothing more is to be planned."""
        return self._queues.room()

    @property
    def unpublished(self) -> dict[str, int]:
        """Of each sink that has not shown all that it was given: how many epochs."""
        return self._queues.behind()

    @property
    def uncommitted(self) -> int:
        """How many epochs are not committed because a sink has not shown them that is to do so before."""
        return max(0, self._newest - self.view.last_epoch)

    @property
    def is_cut_short(self) -> bool:
        """Whether the run ends now, before it is at its end: it cannot go on without a sink that it waits for
        in vain."""
        return self._queues.is_cut_short

    def ends_without_room(self) -> bool:
        """Whether that is so because there is no room, and no hope of any."""
        return self._queues.ends_without_room()

    def submit_uncoordinated(self, shards: list[UncoordinatedShard]) -> None:
        """Commit news of shards whose keys are saved on their own, without an epoch."""
        self.check(COMMITS_IN_FLIGHT - 1)
        self._pending.append(self._commits.submit(self._commit_news, shards))

    def record_published(self, ended: bool = False, look: Callable[[], None] = lambda: None) -> None:
        """Once everything given before is published, commit that it is, so that the next run has nothing to
        publish, whatever becomes of the sinks until then. A run that was told to stop waits for that as long
        as its settings say, and then commits how far they are: `unpublished` tells the rest. `ended`: and, of
        a part, that it has come to its end, also where nothing was ever in its channels: what it has read
        then is where every barrier falls. `look`: called now and then while waiting; may raise.
        """
        self.check(0)
        self._queues.await_end(look)
        in_parts = bool(self._outlets.nodes) or self._context.root is not None
        recorded, ended = self.view.published_through, ended and in_parts and not self.is_cut_short
        if ended or any(epoch > recorded.get(uid, 0) for uid, epoch in self._publishing.through.items()):
            self._pending.append(self._commits.submit(self._commit_news, [], ended))

    def begin_upstream(self) -> None:
        """Commit, before the first epoch, that no state is open: what comes later goes back to here. For
        state that is had again from its rows."""
        self._pending.append(self._commits.submit(self._commit_news, [], begins=True))
        self.check(0)

    def _commit_news(
        self,
        shards: list[UncoordinatedShard],
        ended: bool = False,
        barrier: int = 0,
        begins: bool = False,
    ) -> None:
        """Commit what there is to say without an epoch."""
        if self._failed or not (self.view.number or barrier or ended or begins):
            return
        with self._ending_with_a_failure():
            self._permit.await_commit()
            self._append(lambda: self._news(shards, ended, barrier, begins))
            self._tell()

    def _news(
        self, shards: list[UncoordinatedShard], ended: bool, barrier: int, begins: bool
    ) -> CommitRecord | None:
        """What there is to say without an epoch. None: another member of the set has said it, or has ended
        the run."""
        if self._is_over():
            return None
        carried = any(place.number >= barrier for place in self.view.barriers)
        if self._replica is not None and barrier and carried:
            return None
        record = news(
            self.view,
            term=self._context.term,
            run=self._context.run,
            published_through=self._publishing.through,
            rows_through=self._publishing.rows_through,
            lanes_through=self._publishing.lanes_through,
            uncoordinated=tuple(shards),
            channels=self._outlets.states(self.view.channels, since=self.view.last_epoch),
            ended=ended,
            barrier=barrier,
        )
        if begins:
            record = replace(record, needs_from=self.view.last_epoch + 1, operators=self._operators)
        # Before the first epoch no commit says it, and whatever follows the chain goes by it.
        return replace(record, parallelism=self.view.parallelism or self._shards)

    def add_snapshots(self, files: list[SnapshotFile]) -> None:
        """Name these snapshots in a coming commit record."""
        with self._snapshots_lock:
            self._snapshots = [*self._snapshots, *files]

    def check(self, allowed: int) -> None:
        """Wait until at most `allowed` commits are unfinished; raise what one, or a sink, has failed with."""
        self._queues.check()
        while len(self._pending) > allowed or (self._pending and self._pending[0].done()):
            try:
                self._pending.popleft().result()
            except LeftBehind:
                # It was not committed because a sink that comes before the commit had failed.
                self._queues.check()
                raise

    @property
    def settled(self) -> bool:
        """Whether everything submitted is committed, as of the last `check`."""
        return not self._pending

    def close(self, wait: bool) -> None:
        """End the threads. `wait`: everything submitted is committed first, and shown by the sinks, unless
        there is no time for that, or they refuse it; or raises."""
        try:
            if wait:
                self.check(0)
                self._queues.await_end(lambda: None)
                self.refused = self._queues.refused()
        finally:
            self._failed = True
            # First, because the committing thread may wait for a sink.
            self._queues.close()
            self._commits.shutdown(wait=True, cancel_futures=True)

    def publish_recovered(self) -> None:
        """Let each sink show, in order and before anything else, every committed epoch that it has not shown
        yet: also those that a rewind went back behind, up to the first that has to be computed again."""
        staged, last, through = list(self.view.staged), self.view.last_epoch, self._publishing.through
        first = min(through.values(), default=last) + 1
        beyond = {uid: self.view.settled.ready_through(uid) for uid in through}
        self._queues.put(first, last, staged, Recipients.ALL, beyond)

    def _commit(self, outcomes: list[EpochOutcome], barrier: int = 0) -> None:
        if self._failed:
            return
        with self._ending_with_a_failure():
            if not self._shown_early(outcomes):
                # The next start reads their rows again. Nothing may be committed after them.
                self._failed = True
                return
            self._permit.await_commit()
            if outcomes[-1].plan.epoch in self._ahead:
                self._compare(outcomes)
            else:
                self._append(lambda: replace(self._of_epochs(outcomes), barrier=barrier))
            if self._guarantee is not Guarantee.AT_MOST_ONCE:
                self.publish(outcomes)
            self._tell()
            self.on_epoch(self.view)
        if self.has_lead:
            self._retire()
        else:
            self._checkpoint.chain.forget_below(self.view.given_up_below)

    def _shown_early(self, outcomes: list[EpochOutcome]) -> bool:
        """Let the sinks show these epochs that are to do so before the commit. False: the run ends without
        that."""
        if self._guarantee is not Guarantee.AT_LEAST_ONCE:
            return True
        return self._queues.await_early(self._put(outcomes, Recipients.REPEATING))

    @contextmanager
    def _ending_with_a_failure(self) -> Iterator[None]:
        """Nothing is committed after what fails in here."""
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def _append(self, drafted: Callable[[], CommitRecord | None]) -> None:
        """Commit what is drafted for the view as it is then. `drafted`: None: there is nothing more to
        commit."""
        while True:
            record = drafted()
            if record is None:
                return
            if record.ended and self._ahead:
                # It was the end of what was read here: whether it still is has to be seen again.
                raise AdoptedOther(
                    f"commit {self.view.number} of another member has read on; going on from it"
                )
            if self._replica is not None:
                record = replace(record, seat=self._replica.seat)
                if not self._replica.vote(record, self.view, lambda: self._failed):
                    raise AdoptedOther(f"epoch {record.last_epoch} was planned again; going on by that")
            before = self.view
            done = self._checkpoint.chain.commit(before, record, self._kept_from(before))
            if isinstance(done, Adopted):
                raise self._adopted(done)
            self._go_on_from(done.view)
            if isinstance(done, Preceded) and done.record.attempts:
                self._ahead[done.record.last_epoch] = (done.record, before)
                self.has_lead = False
            else:
                self._take(done.record, is_ours=isinstance(done, Committed) and not done.is_fellows)
            if isinstance(done, Committed):
                return

    def _kept_from(self, view: CheckpointView) -> int | None:
        """The oldest commit that is kept for barriers, or for what a sink has to show again."""
        wanted = (self.keep_from(view), self._publishing.keep_from)
        return min((number for number in wanted if number is not None), default=None)

    def _of_epochs(self, outcomes: list[EpochOutcome]) -> CommitRecord:
        if self._is_over() or self._ended_at_barrier():
            raise AdoptedOther(
                "another member has ended the run; what this one has run since then is not committed"
            )
        return self._record(outcomes)

    def _ended_at_barrier(self) -> bool:
        """Whether a member of the set has carried a barrier at which the runs of all parts end, and which is
        under way: then this one ends there, too, and sinks show nothing that comes after it. A stop that was
        given up ends no run that begins after it."""
        root, barriers = self._context.root, self.view.barriers
        if self._replica is None or root is None or not barriers or barriers[-1].number <= self._harmless:
            return False
        number = barriers[-1].number
        try:
            ours = self._checkpoint.chain.record(barriers[-1].commit).run == self._context.run
            ends = ours and begun_barrier(root, number).ends
            over = ends and ending_of_barrier(root, number) is None
        except (CorruptionError, ObjectMissing):
            over = False
        if over:
            self._context.wishes.stopping.set()
        else:
            self._harmless = number
        return over

    def _is_over(self) -> bool:
        """Whether another member of the set has ended the run of all: then this one ends, too."""
        over = self._replica is not None and self._replica.is_over(self.view)
        if over:
            self._context.wishes.stopping.set()
        return over

    def _compare(self, outcomes: list[EpochOutcome]) -> None:
        """See that these epochs came to what another member has committed of them, before news of ours."""
        theirs, before = self._ahead.pop(outcomes[-1].plan.epoch)
        ends = {uid: part.end for outcome in outcomes for uid, part in outcome.plan.slices.items()}
        ours = replace(self._record(outcomes), positions={**before.positions, **ends})
        if met(ours, theirs) is not Met.SAME:
            raise self._adopted(self._checkpoint.chain.parted(ours, theirs))
        self._take(theirs, is_ours=False)

    def _take(self, record: CommitRecord, *, is_ours: bool) -> None:
        """A record counts: ours, or one of another process of the set with the same content. Of another one
        it may be that had our own seat before us."""
        self.has_lead = is_ours
        if is_ours:
            if record.operators is not None:
                self._operators = None
            with self._snapshots_lock:
                self._snapshots = [file for file in self._snapshots if file not in record.snapshots]
        else:
            self._fellows.append(record)
        self._permit.satisfied()

    def _go_on_from(self, view: CheckpointView) -> None:
        self.view = view
        if self._replica is not None:
            self._publishing.learn(view.published_through, view.rows_through)

    def _adopted(self, done: Adopted) -> AdoptedOther:
        other = f"commit {done.view.number} of term {done.view.term} came first; going on from it"
        if self._replica is not None and done.differences:
            other = self._replica.diverged(done)
        return AdoptedOther(other)

    @property
    def has_ended(self) -> bool:
        """Whether a member of our set of replicas has committed that the part has come to its end: that is
        the end of all of them, and nothing of the set may follow it."""
        return self._replica is not None and self.view.ended and self.view.run == self._context.run

    def taken_fellows(self) -> list[CommitRecord]:
        """The records of other members of the set that counted since this was last asked."""
        return [self._fellows.popleft() for _ in range(len(self._fellows))]

    def _tell(self) -> None:
        self._context.monitor.update(
            committed_epoch=self.view.last_epoch,
            commit=self.view.number,
            committed_ms=self._context.clock.now_ms(),
            published_through=self.view.published_through,
        )

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
            self._context.monitor.say(
                f"old checkpoint files could not be removed and will be tried again: {held_back}"
            )
        self._held_back = held_back

    def _put(self, outcomes: list[EpochOutcome], to: Recipients) -> dict[str, Future[None]]:
        first, last = outcomes[0].plan.epoch, outcomes[-1].plan.epoch
        return self._queues.put(first, last, self._to_show(outcomes), to)

    def _to_show(self, outcomes: list[EpochOutcome]) -> list[StagedFile]:
        """The rows of these epochs. Where a commit has named rows of an epoch for a sink before a rewind it
        shows those alone: an at-most-once run stages them again, because it knows of no commit that did."""
        staged = [file for outcome in outcomes for file in outcome.staged]
        if not self._kept:
            return staged
        kept = {(sink, file.epoch) for file in self._kept for sink in file.sinks}
        again = (
            replace(file, sinks=tuple(sink for sink in file.sinks if (sink, file.epoch) not in kept))
            for file in staged
        )
        return [*self._kept, *(file for file in again if file.sinks)]

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
        ready = self._ready_snapshots(last.epoch)
        lists = with_lists({}, [file for outcome in outcomes for file in outcome.lists.files])
        return CommitRecord(
            term=self._context.term,
            run=self._context.run,
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
            staged_through=self._staged_through(),
            needs_from=outcomes[-1].needs_from,
            rows=sum(outcome.rows for outcome in outcomes),
            published_through=self._publishing.through,
            rows_through=self._publishing.rows_through,
            lanes_through=self._publishing.lanes_through,
            operators=self._operators,
            lists=tuple(file for files in lists.values() for file in files),
            own_keys=tuple(shard for outcome in outcomes for shard in outcome.uncoordinated_shards),
            event_times=outcomes[-1].event_times,
            watermarks={uid: mark.now_us for uid, mark in last.watermarks.items() if mark.now_us is not None},
            closed_through=max(outcome.plan.epoch if outcome.plan.closing else 0 for outcome in outcomes),
            tables=None if last.tables == self.view.tables else last.tables,
            sent=tuple(file for outcome in outcomes for file in outcome.sent),
            channels=self._outlets.states(
                self.view.channels, outcomes, last.epoch, since=self.view.last_epoch
            ),
        )

    def _ready_snapshots(self, epoch: int) -> list[SnapshotFile]:
        """The snapshots that a commit which ends with `epoch` is to name. A member of a set of replicas drops
        those that newer ones of other members have made needless: retention may have removed them."""
        with self._snapshots_lock:
            if self._replica is not None:
                known = self.view.snapshots
                self._snapshots = [
                    file
                    for file in self._snapshots
                    if not is_outdated(file.object, known.get(file.operator, ()))
                ]
            return [file for file in self._snapshots if file.version.epoch <= epoch]

    def _staged_through(self) -> dict[str, int]:
        """How far the rows for sinks are settled, where a commit does not settle those of its own epochs."""
        if self._guarantee is not Guarantee.AT_MOST_ONCE:
            return {}
        # Its commits come before the rows.
        return {uid: self.view.settled.through.get(uid, 0) for uid in self._publishing.through}
