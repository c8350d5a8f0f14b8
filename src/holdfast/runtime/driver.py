"""The driver: leads a job until told to stop.

    see that the state fits -> claim a term -> ( load the checkpoint -> lead )*

Leading ends because the run is over, because the job goes on with another number of shards, or because
something failed. After a failure the restart strategy decides; after damage history goes back to the newest
checkpoint that verifies.
Never here: what a leader does from one load to the next (see epoch_loop).
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.checkpoint import has_begun
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import DamagedChain
from holdfast.checkpoint.chain.pins import release
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.terms import claim, record_ending
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.savepoints.take import PIN_PREFIX, refuse_without_state
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import EndedRecord
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.clock import Clock
from holdfast.errors import (
    CorruptionError,
    FencedOut,
    HoldfastError,
    ObjectMissing,
    RestoreError,
    RetryableError,
    SeatLost,
    SinkRefused,
    StopUnfinished,
    StorageError,
    Unpublished,
    WorkingStateLost,
)
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.job_graph import Graph
from holdfast.ids import NO_EPOCH, Term
from holdfast.runtime.control.commit_permit import WatchedStorage
from holdfast.runtime.control.request_server import Control
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.control.verbs import Controls
from holdfast.runtime.epoch.program import Program, compile_graph
from holdfast.runtime.epoch_loop import Ending, EpochLoop
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext, ToldToStop
from holdfast.runtime.parts.damaged_epochs import EpochDamaged, EpochsAsked
from holdfast.runtime.parts.epochs_again import Asking, answer
from holdfast.runtime.progress import Monitor
from holdfast.runtime.recovery import Recovery
from holdfast.runtime.replica import Replica, join
from holdfast.runtime.restarts import Restarts
from holdfast.runtime.savepoints.run_savepoints import (
    ClaimEnd,
    open_run,
    refuse_target,
    save,
    seed,
    stored_view,
)
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import default_parallelism, refuse_if_lost, revived
from holdfast.runtime.stored_fit import is_of_same_code, refuse_misfit
from holdfast.runtime.upstream import gone_back
from holdfast.steps import Step, reached
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TERM_CHECK_SECONDS = 1.0
"""How often a leader looks whether it was replaced. Only to stop early: safety does not depend on it."""
BEHIND_MAX = 8
"""A member of a set of replicas that has so many commits to go does not run them: it takes their results."""
SCALE_CHECK_SECONDS = 5.0
"""How long the number of cores must have been another one before the job follows it by itself."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a standby has ready for the run that takes over. It decides nothing: what a run is not given it
    makes itself, and what it is given it checks.

    `owner`: whose working state is used. `program`: compiled with `spark`. `view`: a commit that was
    followed.
    """

    owner: str = ""
    spark: SparkSession | None = None
    program: Program | None = None
    view: CheckpointView | None = None


NOTHING = Prepared()


def takes_over(prepared: Prepared, graph: Graph, storage: Storage, settings: RunSettings) -> bool:
    """Whether a node goes on with what the same code has committed."""
    return prepared is not NOTHING and is_of_same_code(graph, storage, settings)


class Driver:
    """One run of a job by one process."""

    def __init__(
        self,
        graph: Graph,
        settings: RunSettings,
        storage: Storage,
        spark: SparkSession,
        *,
        own_session: bool,
        run: str,
        clock: Clock,
        monitor: Monitor,
        wishes: Wishes,
        prepared: Prepared = NOTHING,
    ) -> None:
        self.settings, self.storage, self.monitor, self.wishes = settings, storage, monitor, wishes
        self._graph = graph
        self._storage = WatchedStorage(storage, wishes.permit)
        self._spark, self._own_session = spark, own_session
        self._run, self._clock = run, clock
        self._process = run
        """Names this process, where `_run` is that of a set of replicas."""
        self._replica: Replica | None = None
        self._asking = Asking()
        self._term_checked = self._scale_changed = clock.monotonic()
        self._shards: int | None = settings.parallelism
        self._prepared = prepared
        self._program = prepared.program
        self._led: EpochLoop | None = None
        self._missed = ""
        """What could not be read the last time that something could not."""
        self._lost_after: int | None = None
        """The newest committed epoch when working state was last lost that is in no file."""
        self.leading = False
        """Whether the checkpoint was loaded and leading has begun."""
        self._committed = 0
        """The newest commit that this run has led to."""
        self._found_begun = False
        """Whether others have committed here before this run."""

    def run(self, controls: Controls) -> None:
        """Run until stopped or exhausted. Raises what ended the run otherwise. `controls`: does what others
        ask of the run through storage.
        """
        self._program = self._program or compile_graph(
            self._graph, self._spark, self._stored_columns,
            lambda: takes_over(self._prepared, self._graph, self._storage, self.settings),
        )  # fmt: skip
        known = self._prepared.view
        if known is None:
            layouts = {uid: form.layout for uid, form in self._program.forms.items()}
            known = refuse_misfit(self._graph, layouts, self._storage, self.settings)
        self._checkpoint = open_run(self._storage, self._graph.name, self.settings, self._run, self._clock)
        # After the claim the chain is read again, because the leader before us may commit until then: from
        # here on, and not from the beginning.
        self._checkpoint.chain.recall(known)
        # A node that lost its seat while Spark was starting must not take the lead from its successor.
        self.wishes.permit.await_valid()
        # What a savepoint says, before it is copied here, is of the terms of another checkpoint.
        self._found_begun = has_begun(self._storage)
        self._claim(known.parallelism, newest=known if self._found_begun else EMPTY)
        try:
            self._run_term(controls)
        except (FencedOut, SeatLost):
            # The leader by now has a term of its own, and writes its own ending.
            raise
        except (SinkRefused, Unpublished):
            # All else ended in good order, which is written down.
            if self._replica is not None:
                self._replica.leave()
            self.monitor.update(phase="stopped")
            raise
        except BaseException:
            # Others must not have to guess that the run is over. Of a set of replicas it is not.
            if self._replica is None:
                self._write_ending("failed", self._led.view if self._led is not None else EMPTY)
            else:
                self._replica.leave()
            raise
        if self._replica is not None:
            self._replica.leave()
        self.monitor.update(phase="stopped")

    def _claim(self, shards: int, *, newest: CheckpointView, founding: bool = False) -> None:
        """Claim the next term; of a part with replicas, be a member of the set that leads. `shards`: of a set
        that is founded, unless a number was asked for. `newest`: a commit, which is to be followed.
        `founding`: a set with another number than `shards` gives way."""
        replicas = self.settings.replicas
        if replicas is None:
            host, pid, now_ms = socket.gethostname(), os.getpid(), self._clock.now_ms()
            self._term = claim(self._storage, self._run, host, pid, now_ms, above=newest.term)
            return
        self._checkpoint = replace(
            self._checkpoint, retention=Retention(self._checkpoint.chain, by_member=True)
        )
        wanted = shards if founding else self._shards or shards or self._cores()
        asked = None if founding else self._shards
        joined = join(
            self._storage, replicas, self.settings.seat, self._process, fingerprint(self._graph),
            wanted, self._clock, founding=founding, asked_shards=asked, newest=newest,
            runs=self.wishes.member_runs,
        )  # fmt: skip
        self._replica = Replica(joined, self._storage, self._clock, self.monitor, self.wishes.stopping.is_set)
        self._term, self._run, self._shards = Term(joined.set.term), joined.set.run, joined.set.parallelism
        self.monitor.say(
            f"REPLICA: member {self.settings.seat} of {replicas.members} in the set of term {self._term}"
        )
        if asked not in (None, joined.set.parallelism):
            self.monitor.say(
                f"PARALLELISM {asked} IS NOT USED: other members of the set run with "
                f"{joined.set.parallelism} shards; change that for all with `holdfast rescale`"
            )

    def _run_term(self, controls: Controls) -> None:
        """The run, from the claimed term to its end."""
        reached(Step.TERM_CLAIMED)
        release(self._storage, PIN_PREFIX, but_of=self._run)
        assert self._program is not None
        self._context = LeaderContext(
            program=self._program, settings=self.settings, spark=self._spark, checkpoint=self._checkpoint,
            term=self._term, run=self._run, clock=self._clock, monitor=self.monitor, wishes=self.wishes,
            recovery=Recovery(self._checkpoint, self._term, self._run, self.monitor.say),
            look_around=self._look_around, owner=self._prepared.owner,
            root=open_storage(self.settings.root) if self.settings.root else None, replica=self._replica,
        )  # fmt: skip
        self._restarts = Restarts(self._context)
        self._restarts.recall()
        self.monitor.update(term=self._term, restarts=self._restarts.count, phase="restoring")
        self._claim_end = ClaimEnd(self._checkpoint, self.settings, self.monitor.say)
        with self._control(controls) as self._answering:
            ending, last = self._lead()
            self._restarts.stopped()
            if self._replica is not None and self.wishes.leaving.is_set():
                return
            savepoint = self.wishes.taken_savepoint()
            behind, uncommitted = self._unpublished(last), self._led.uncommitted if self._led else 0
            is_whole = not (behind or uncommitted)
            if savepoint is not None:
                # The next leader's commits are not those that this one has stopped with.
                self._context.refuse_if_superseded()
                _refuse_if_replaying(last)
                if is_whole:
                    self.save(savepoint, "native", stopped_with=last.number)
            self._write_ending(ending.value, last)
            if self._led is not None and self._led.refused:
                raise SinkRefused("; ".join(self._led.refused.values()))
            if not is_whole:
                lost = not self.settings.saves_state
                raise Unpublished(behind, lost, savepoint is not None, uncommitted)

    def _unpublished(self, last: CheckpointView) -> dict[str, int]:
        """Of each sink that has not shown all that is committed: how many epochs. By what it was given, or,
        where leading has not begun, by what the checkpoint says."""
        if self._led is not None:
            return self._led.unpublished
        if self._replica is not None:
            return {}
        return {
            uid: last.last_epoch - last.published_through[uid]
            for uid in (node.uid for node in self._graph.sinks)
            if last.published_through.get(uid, last.last_epoch) < last.last_epoch
        }

    def _control(self, controls: Controls) -> Control:
        """What answers requests. Of a set of replicas each member does, and leaves to the others what they
        have taken on, for as long as they are members."""
        if self._replica is None:
            return Control(self._storage, self._term, controls, self._clock, self.monitor.say)
        return Control(
            self._storage, self._term, controls, self._clock, self.monitor.say, process=self._process,
            is_gone=lambda process: self._replica is not None and not self._replica.is_member(process),
        )  # fmt: skip

    def save(self, url: str, format: str, *, stopped_with: int | None = None) -> SavepointRecord:
        """Take a savepoint of what is committed. From any thread. `stopped_with`: the run has ended with this
        commit, and has published everything.
        """
        if not self.leading:
            raise RetryableError("the job is still starting, there is nothing to save yet; try again")
        return save(
            self._checkpoint, self._spark, url, format=format, stopped_with=stopped_with, run=self._run,
            clock=self._clock,
        )  # fmt: skip

    def refuse_savepoint(self, url: str) -> None:
        """Refuse a savepoint that could not be left there, before anything stops for it. RestoreError."""
        refuse_target(url)
        if self.settings.replays_state:
            refuse_without_state(Chain(self._storage).load(), self._storage.url)

    def _stored_columns(self, lookup: str) -> str | None:
        """The columns of the copy of a lookup's table in use, if there is one."""
        copy = stored_view(Chain(self._storage), self._graph.name, self.settings).tables.get(lookup)
        return copy.columns if copy is not None else None

    def _goes_on(self, view: CheckpointView) -> bool:
        """Whether the sinks have taken this code before, from this run or from the leader before it."""
        if self.leading:
            return True
        on_node = self._prepared is not NOTHING and self._found_begun
        return on_node and view.fingerprint == fingerprint(self._graph)

    def _write_ending(self, ending: str, last: CheckpointView) -> None:
        """Before a stop is answered, so that who waited for it finds the job stopped."""
        shown = self.monitor.progress.published_through
        record = EndedRecord(
            term=self._term,
            run=self._run,
            at_ms=self._clock.now_ms(),
            ending=ending,
            commit=last.number,
            last_epoch=last.last_epoch,
            published=all(
                shown.get(node.uid, 0) >= max(last.last_epoch, last.settled.through.get(node.uid, 0))
                for node in self._graph.sinks
            ),
        )
        try:
            record_ending(self._storage, record)
        except HoldfastError as refused:
            self.monitor.say(f"the end of the run could not be written down: {refused}")

    def _lead(self) -> tuple[Ending, CheckpointView]:
        """Load and lead, again and again, until that ends the run; gives how, and the view then."""
        # What to go on from; None: what the chain ends with, to be loaded.
        view: CheckpointView | None = None
        while True:
            try:
                seed(self._checkpoint, self.settings, self._term, self._run, self.monitor)
                view = view or self._context.recovery.load()
                reached(Step.RECOVERY_READ)
                ending, view = self._lead_from(view)
                if ending is not Ending.RESCALING:
                    return ending, view
                if self._replica is not None:
                    self._refound()
            except ToldToStop as told:
                self.monitor.say(str(told))
                return Ending.STOPPED, view or EMPTY
            except AdoptedOther as other:
                self.monitor.say(str(other))
                view = None
            except (EpochDamaged, EpochsAsked) as damage:
                try:
                    view = self._again(damage)
                except Exception as failure:
                    self._recover(failure)
                    view = None
            except WorkingStateLost as lost:
                self._have_again(lost)
                view = None
            except (CorruptionError, ObjectMissing) as damage:
                try:
                    view = self._past(damage, view)
                except RetryableError as failure:
                    # Storage did not say what is damaged: if something is, it is found again.
                    self._recover(failure)
                    view = None
            except BaseException as failure:
                self._recover(failure)
                view = None

    def _refound(self) -> None:
        """Go on as the first member of a set with as many shards as is wished for: the others join it. The
        wish stands until that is done: under a set no member has other shards than the others."""
        self._process = uuid.uuid4().hex[:12]
        view = self._led.view if self._led is not None else EMPTY
        self._claim(self.wishes.parallelism or self._shards or self._cores(), newest=view, founding=True)
        self.wishes.taken_parallelism()
        recovery = Recovery(self._checkpoint, self._term, self._run, self.monitor.say)
        self._context = replace(
            self._context, term=self._term, run=self._run, replica=self._replica, recovery=recovery
        )
        self._answering.go_on_as(self._term, self._process)
        self._restarts = Restarts(self._context)
        self._restarts.recall()
        self.monitor.update(term=self._term)

    def _lead_from(self, view: CheckpointView) -> tuple[Ending, CheckpointView]:
        """Lead until something ends it in good order; gives the view then."""
        if self._program is None:
            # Here, and not where the session was started, so that a failure is one more to recover from.
            # A sink that refuses its columns by now stops alone.
            self._program = compile_graph(self._graph, self._spark, self._stored_columns, lambda: True)
            self._context = replace(self._context, spark=self._spark, program=self._program)
        if self._replica is None:
            self._shards = self.wishes.taken_parallelism() or self._shards
        self._shards = self._shards or view.parallelism or self._cores()
        if self._led is not None:
            self._committed = max(self._committed, self._led.view.number)
        self._led = None
        context = replace(
            self._context,
            goes_on=self._goes_on(view),
            asked=self.leading and view.number >= self._committed,
        )
        led = self._led = EpochLoop(context, gone_back(context, view), self._shards)
        self.leading = True
        return led.run(), led.view

    def _have_again(self, lost: WorkingStateLost) -> None:
        """Working state is gone that is in no file: it is had again from its rows. Where it is lost again
        before anything was committed that is a failure like any other."""
        committed = self._led.view.last_epoch if self._led is not None else NO_EPOCH
        if self._lost_after is not None and committed <= self._lost_after:
            self._recover(lost)
        self._lost_after = committed
        self.monitor.say(f"RESTORE: {lost}")

    def _past(
        self, damage: CorruptionError | ObjectMissing, led_from: CheckpointView | None
    ) -> CheckpointView:
        """After damage was found: the view to go on from. Raises it when going back does not help."""
        recovery = self._context.recovery
        # What a newer leader has retired is gone, not damaged.
        self._context.refuse_if_superseded()
        newest = recovery.load()
        if not newest.number:
            # Nothing to go back to: it is the savepoint that is damaged, and the error says what of it.
            raise damage
        again, self._missed = self._missed == str(damage), str(damage)
        if led_from is not None and newest.number > led_from.number and self._is_others(newest) and not again:
            # Nor is what an older one has, which committed until we took its place, or a fellow. But what is
            # missed once more, after going on from the newest commit, that commit needs: it is damaged.
            self.monitor.say(f"commit {newest.number} of term {newest.term} came first; going on from it")
            return newest
        found_before = recovery.damaged
        self.monitor.say(f"DAMAGE: {damage}")
        view = recovery.past_damage(newest)
        if recovery.damaged == found_before and not isinstance(damage, DamagedChain):
            raise damage
        return view

    def _again(self, damage: EpochDamaged | EpochsAsked) -> CheckpointView:
        """After damage was found in a channel: the view to go on from, where the part before is asked to
        compute the epoch again, or this part does so for the one after."""
        if isinstance(damage, EpochsAsked):
            return answer(self._context, damage)
        assert self._led is not None
        led, shards = self._led, self._shards or self._cores()
        return self._asking.ask(self._context, damage, led.view, led.replayed_through, shards)

    def _is_others(self, newest: CheckpointView) -> bool:
        return newest.run != self._run or self._replica is not None

    def _recover(self, failure: BaseException) -> None:
        """Wait as the restart strategy says, and see to it that there is a Spark session. Raises if not, and
        when told to stop: something is not committed or not shown then, which is not in good order.
        """
        # A leader that was replaced fails in many ways: its sinks may show what its successor did. Trying
        # again would take the lead back.
        with contextlib.suppress(StorageError):
            self._context.refuse_if_superseded()
        self.monitor.update(phase="restarting", error=str(failure))
        self.wishes.permit.want()
        # Not the one after the last commit: several may wait for theirs, and sinks fail on no epoch's jobs.
        epoch = self._led.running if self._led is not None else NO_EPOCH
        try:
            self._restarts.after(failure, epoch, self.wishes.stopping)
        except StopUnfinished:
            # A node that was not told to end goes on with other jobs, and needs Spark for them.
            refuse_if_lost(self._spark)
            raise
        self.wishes.permit.refuse_if_revoked()
        self.monitor.update(restarts=self._restarts.count, error=None)
        session = revived(self._spark, self._graph.name, self._own_session)
        if session is not self._spark:
            self.monitor.say("the Spark session had ended; a new one was started")
            self._spark, self._program = session, None

    def _cores(self) -> int:
        return min(default_parallelism(self._spark), self.settings.key_groups)

    def _look_around(self) -> None:
        """Between two epochs: whether another process leads by now, and whether there are as many cores as
        shards.
        """
        self.wishes.permit.refuse_if_revoked()
        now = self._clock.monotonic()
        if now - self._term_checked < TERM_CHECK_SECONDS:
            return
        self._term_checked = now
        # Safety does not depend on this look: storage that cannot be reached now may be by the next commit.
        with contextlib.suppress(StorageError):
            self._context.refuse_if_superseded()
        self._claim_end.step(self.monitor.progress.commit, self._clock.now_ms())
        if self._replica is not None:
            self._mind_set(self._replica)
            return
        if not self.settings.autoscale or self._cores() == self._shards:
            self._scale_changed = now
        elif now - self._scale_changed >= SCALE_CHECK_SECONDS:
            cores = self._cores()
            self.monitor.say(
                f"RESCALING from {self._shards} to {cores} shards: that many cores are there now"
            )
            self.wishes.parallelism = cores

    def _mind_set(self, replica: Replica) -> None:
        """Whether this process is still a member, where the others are, and whether all have ended."""
        replica.refuse_if_replaced()
        if replica.set_has_ended():
            self.wishes.leaving.set()
            self.wishes.stopping.set()
        replica.share_drain(self.wishes.draining)
        newest, here = names.highest(self._storage, names.COMMITS), self.monitor.progress.commit
        if newest > here + BEHIND_MAX:
            raise AdoptedOther(f"BEHIND: the other members have come to commit {newest}; going on from it")


def _refuse_if_replaying(view: CheckpointView) -> None:
    """Refuse to stop with a savepoint between a rewind and what sinks show, or have waiting: which slices
    those epochs had is not in a savepoint, and a job that goes on from it as this one would show others under
    the same numbers.
    """
    settled = view.settled.through.values()
    shown = max([*view.published_through.values(), *settled], default=0)
    if shown > view.last_epoch:
        raise RestoreError(
            f"no savepoint was left: what sinks show is settled up to epoch {shown}, and after a rewind the "
            f"job has come to epoch {view.last_epoch} again; start it, and stop it with a savepoint once it "
            "is past that"
        )
