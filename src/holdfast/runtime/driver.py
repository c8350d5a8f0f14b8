"""The driver: leads a job, one stretch after the other, until told to stop.

    see that the state fits -> claim a term -> load the checkpoint -> ( lead for a stretch -> load again )*

A stretch ends because the run is over, because the job goes on with another number of shards, or because
something failed. After a failure the restart strategy decides; after damage history goes back to the newest
checkpoint that verifies.
Never here: what happens within a stretch (see stretch).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.history import DamagedChain
from holdfast.checkpoint.chain.pins import release
from holdfast.checkpoint.chain.terms import claim, newest_term, record_ending
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.savepoints.take import PIN_PREFIX
from holdfast.checkpoint.store.records import EndedRecord, SavepointRecord
from holdfast.clock import Clock
from holdfast.errors import (
    CorruptionError,
    FencedOut,
    HoldfastError,
    ObjectMissing,
    RestoreError,
    RetryableError,
    SeatLost,
    StorageError,
)
from holdfast.graph.job_graph import Graph
from holdfast.runtime.control.request_server import Control
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.control.verbs import Controls
from holdfast.runtime.control.watched_storage import WatchedStorage
from holdfast.runtime.epoch.committer import AdoptedOther
from holdfast.runtime.epoch.program import Program, compile_graph
from holdfast.runtime.epoch.publisher import left_behind
from holdfast.runtime.epoch.schemas_in_force import operator_schemas, refuse_unsaved
from holdfast.runtime.leadership import Ending, Seat, Stretch
from holdfast.runtime.progress import Monitor
from holdfast.runtime.recovery import Inspector, load_view, rewind_past_damage
from holdfast.runtime.restarts import NO_EPOCH, Restarts
from holdfast.runtime.savepoints.run_savepoints import ClaimEnd, open_run, save, seed, stored_view
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import default_parallelism, revived
from holdfast.runtime.warm_start import NOTHING, Prepared
from holdfast.steps import Step, reached
from holdfast.storage.contract import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TERM_CHECK_SECONDS = 1.0
"""How often a leader looks whether it was replaced. Only to stop early: safety does not depend on it."""
SCALE_CHECK_SECONDS = 5.0
"""How long the number of cores must have been another one before the job follows it by itself."""


class Driver:
    """One run of a job by one process."""

    def __init__(
        self,
        graph: Graph,
        settings: RunSettings,
        spark: SparkSession,
        own_session: bool,
        storage: Storage,
        run: str,
        clock: Clock,
        monitor: Monitor,
        wishes: Wishes,
        prepared: Prepared = NOTHING,
    ) -> None:
        self._graph, self._settings = graph, settings
        self._storage = WatchedStorage(storage, wishes.permit)
        self._spark, self._own_session = spark, own_session
        self._run, self._clock, self._monitor, self._wishes = run, clock, monitor, wishes
        self._term_checked = self._scale_changed = clock.monotonic()
        self._shards: int | None = settings.parallelism
        self._prepared = prepared
        self._program = prepared.program
        self._led: Stretch | None = None
        self.leading = False
        """Whether the checkpoint was loaded and the first stretch begun."""

    def run(self, controls: Controls) -> None:
        """Run until stopped or exhausted. Raises what ended the run otherwise. `controls`: does what others
        ask of the run through storage.
        """
        self._program = self._program or compile_graph(self._graph, self._spark)
        if self._prepared.view is None:
            self._refuse_misfit(self._program)
        self._checkpoint = open_run(self._storage, self._graph.name, self._settings, self._run, self._clock)
        if self._prepared.view is not None:
            self._checkpoint.chain.recall(self._prepared.view)
        # A node that lost its seat while Spark was starting must not take the lead from its successor.
        self._wishes.permit.await_valid()
        self._term = claim(self._storage, self._run, socket.gethostname(), os.getpid(), self._clock.now_ms())
        try:
            self._run_term(controls)
        except (FencedOut, SeatLost):
            # Whoever leads now has a term of its own.
            raise
        except BaseException:
            # Others must not have to guess that nobody leads.
            self._write_ending("failed", self._led.view if self._led is not None else EMPTY)
            raise
        self._monitor.update(phase="stopped")

    def _run_term(self, controls: Controls) -> None:
        """The run, from the claimed term to its end."""
        reached(Step.TERM_CLAIMED)
        release(self._storage, PIN_PREFIX, but_of=self._run)
        self._inspector = Inspector(self._storage, self._settings.key_groups, self._monitor.say)
        self._restarts = Restarts(
            self._settings.restart, self._storage, self._clock, random.random, self._monitor.say,
            term=self._term, run=self._run, host=socket.gethostname(),
        )  # fmt: skip
        self._restarts.recall()
        self._monitor.update(term=self._term, restarts=self._restarted, phase="restoring")
        self._claim_end = ClaimEnd(self._checkpoint, self._settings, self._monitor.say)
        with Control(self._storage, self._term, controls, self._clock, self._monitor.say):
            ending, last = self._lead()
            self._restarts.stopped()
            savepoint = self._wishes.taken_savepoint()
            if savepoint is not None:
                # The next leader's commits are not those that this one has stopped with.
                self._refuse_if_superseded()
                _refuse_if_replaying(last)
                self.save(savepoint, "native", stopped_with=last.number)
            self._write_ending(ending.value, last)

    def save(self, url: str, format: str, *, stopped_with: int | None = None) -> SavepointRecord:
        """Take a savepoint of what is committed. From any thread. `stopped_with`: the run has ended with this
        commit, and has published everything.
        """
        if not self.leading:
            raise RetryableError("the job is still starting, there is nothing to save yet; try again")
        return save(
            self._checkpoint,
            self._spark,
            url,
            format=format,
            stopped_with=stopped_with,
            run=self._run,
            clock=self._clock,
        )

    def _refuse_misfit(self, program: Program) -> None:
        """Refuse code that what is stored does not fit, while a leader that it does fit can still go on."""
        stored = stored_view(self._storage, self._graph.name, self._settings)
        operator_schemas(program, stored.operators, self._settings.allow_dropped_state)
        for refusal in left_behind(stored, program.sinks, self._storage.url):
            raise RestoreError(refusal)
        refuse_unsaved(stored, self._settings)

    def _write_ending(self, ending: str, last: CheckpointView) -> None:
        """Before a stop is answered, so that who waited for it finds the job stopped."""
        shown = self._monitor.progress.published_through
        record = EndedRecord(
            term=self._term,
            run=self._run,
            at_ms=self._clock.now_ms(),
            ending=ending,
            commit=last.number,
            last_epoch=last.last_epoch,
            published=all(shown.get(node.uid, 0) >= last.last_epoch for node in self._graph.sinks),
        )
        try:
            record_ending(self._storage, record)
        except HoldfastError as refused:
            self._monitor.say(f"the end of the run could not be written down: {refused}")

    def _lead(self) -> tuple[Ending, CheckpointView]:
        """One stretch after the other, until one ends the run; gives how, and the view then."""
        view: CheckpointView | None = None
        while True:
            try:
                seed(self._checkpoint, self._settings, self._term, self._run, self._monitor)
                view = view or self._load()
                reached(Step.RECOVERY_READ)
                ending, view = self._stretch(view)
                if ending is not Ending.RESCALING:
                    return ending, view
            except AdoptedOther as other:
                self._monitor.say(str(other))
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

    def _load(self) -> CheckpointView:
        chain = self._checkpoint.chain
        return load_view(chain, self._inspector, self._term, self._run, self._monitor.say)

    def _stretch(self, view: CheckpointView) -> tuple[Ending, CheckpointView]:
        """Lead from `view` until a stretch ends; gives the view then."""
        program = self._program = self._program or compile_graph(self._graph, self._spark)
        seat = Seat(
            program, self._settings, self._spark, self._checkpoint, self._term, self._run, self._clock,
            self._monitor, self._inspector, self._wishes, self._look_around, self._prepared.owner,
        )  # fmt: skip
        wished = self._wishes.taken_parallelism()
        self._shards = wished or self._shards or view.parallelism or self._cores()
        self._led = None
        stretch = self._led = Stretch(seat, view, self._shards)
        self.leading = True
        return stretch.run(), stretch.view

    def _past(
        self, damage: CorruptionError | ObjectMissing, led_from: CheckpointView | None
    ) -> CheckpointView:
        """After damage was found: the view to go on from. Raises it when going back is no help."""
        # What a newer leader has retired is gone, not damaged.
        self._refuse_if_superseded()
        newest = self._load()
        if not newest.number:
            # Nothing to go back to: it is the savepoint that is damaged, and the error says what of it.
            raise damage
        if led_from is not None and newest.number > led_from.number and newest.run != self._run:
            # Nor is what an older one has, which committed until we took its place.
            self._monitor.say(f"commit {newest.number} of term {newest.term} came first; going on from it")
            return newest
        found_before = self._inspector.damaged
        self._monitor.say(f"DAMAGE: {damage}")
        view = rewind_past_damage(
            self._checkpoint.chain, newest, self._inspector, self._term, self._run, self._monitor.say
        )
        if self._inspector.damaged == found_before and not isinstance(damage, DamagedChain):
            raise damage
        return view

    def _recover(self, failure: BaseException) -> None:
        """Wait as the restart strategy says, and see to it that there is a Spark session. Raises if not, and
        when told to stop meanwhile.
        """
        self._monitor.update(phase="restarting", error=str(failure))
        self._wishes.permit.want()
        # Not the one after the last commit: several may wait for theirs, and sinks fail on no epoch's jobs.
        epoch = self._led.running if self._led is not None else NO_EPOCH
        self._restarts.after(failure, epoch, self._wishes.stopping)
        self._wishes.permit.refuse_if_revoked()
        self._monitor.update(restarts=self._restarted, error=None)
        session = revived(self._spark, self._graph.name, self._own_session)
        if session is not self._spark:
            self._monitor.say("the Spark session had ended; a new one was started")
            self._spark, self._program = session, None
        if self._wishes.stopping.is_set():
            # Told to stop while something is not committed or not shown: that is no good order.
            raise failure

    @property
    def _restarted(self) -> int:
        """Starts before this one, each of which claimed a term, and tries within them."""
        return self._term - 1 + self._restarts.count

    def _cores(self) -> int:
        return min(default_parallelism(self._spark), self._settings.key_groups)

    def _look_around(self) -> None:
        """Between two epochs: whether somebody else leads by now, and whether there are as many cores as
        shards.
        """
        self._wishes.permit.refuse_if_revoked()
        now = self._clock.monotonic()
        if now - self._term_checked < TERM_CHECK_SECONDS:
            return
        self._term_checked = now
        # Safety does not depend on this look: storage that cannot be reached now may be by the next commit.
        with contextlib.suppress(StorageError):
            self._refuse_if_superseded()
        self._claim_end.step(self._monitor.progress.commit, self._clock.now_ms())
        if not self._settings.autoscale or self._cores() == self._shards:
            self._scale_changed = now
        elif now - self._scale_changed >= SCALE_CHECK_SECONDS:
            cores = self._cores()
            self._monitor.say(
                f"RESCALING from {self._shards} to {cores} shards: that many cores are there now"
            )
            self._wishes.parallelism = cores

    def _refuse_if_superseded(self) -> None:
        newest = newest_term(self._storage)
        if newest is not None and newest.term > self._term:
            raise FencedOut(self._term, newest.term, f"claimed by {newest.host}, process {newest.pid}")


def _refuse_if_replaying(view: CheckpointView) -> None:
    """Refuse to stop with a savepoint between a rewind and what sinks show: which slices those epochs had is
    not in a savepoint, and whoever goes on from it as this job would show others under the same numbers.
    """
    shown = max(view.published_through.values(), default=0)
    if shown > view.last_epoch:
        raise RestoreError(
            f"no savepoint was left: sinks show epoch {shown}, and after a rewind the job has come to epoch "
            f"{view.last_epoch} again; start it, and stop it with a savepoint once it is past that"
        )
