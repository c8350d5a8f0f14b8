"""One node and one job: obeys the tenure, and runs the job while the seat is held.

Always true: one run at a time; a seat is held only while a run is under way or being ended. What happens to
the connection is told to `feed` from any thread; the job itself is run by a thread of its own.
Never here: ZooKeeper (see node), what an event means (see cluster.seat_lease).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.chain.checkpoint import find_job, refuse_if_occupied
from holdfast.checkpoint.log.failovers import hold_by_cluster, record_failover
from holdfast.checkpoint.store.records import ClusterRecord
from holdfast.clock import Clock
from holdfast.cluster.seat_lease import (
    Action,
    Begin,
    Event,
    Extend,
    Finish,
    Limits,
    Pause,
    Release,
    Resume,
    Revoke,
    Say,
    Stage,
    Tenure,
    Won,
    step,
)
from holdfast.errors import HoldfastError
from holdfast.graph.fingerprint import fingerprint_parts
from holdfast.nodes.blame import Unfit, in_short
from holdfast.nodes.failover_timing import Predecessor, Takeover
from holdfast.nodes.follow_plan import Lag
from holdfast.nodes.job_on_node import Sighting
from holdfast.nodes.standby import Attendant
from holdfast.runtime.control.commit_permit import Permit
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import Prepared
from holdfast.runtime.job import Job, JobHandle
from holdfast.runtime.progress import Listener, Message, Progress
from holdfast.runtime.settings import RunOptions, check_settings
from holdfast.storage.urls import open_storage

LOOK_SECONDS = 0.2
FINISH_SECONDS = 2.0
"""How long a takeover waits for the last step of following. More is not worth it: tasks that race for a shard
do each other no harm.
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a tenant needs to know of its node. `cluster` gives the record that marks the checkpoint."""

    node: str
    standby: str
    clock: Clock
    say: Message
    on_progress: Listener
    limits: Callable[[], Limits]
    cluster: Callable[[], ClusterRecord]
    owner: Callable[[], str]
    """Under which name the node keeps its working state."""


@dataclass
class Run:
    """One run, from the seat being won to the end of the run's thread."""

    wishes: Wishes
    takeover: Takeover
    thread: threading.Thread | None = None
    handle: JobHandle | None = None
    failure: BaseException | None = None
    asked_to_end: bool = False


class Tenant:
    """See above. `on_release` is called from the thread that feeds ticks, to give the seat back."""

    def __init__(
        self, job: Job, checkpoint: str, options: RunOptions, place: Place, on_release: Callable[[str], None]
    ) -> None:
        self.name, self.checkpoint = job.name, checkpoint
        self.code = fingerprint_parts(job.graph())
        self._job, self._options, self._place, self._on_release = job, options, place, on_release
        self._tenure, self._lock = Tenure(), threading.RLock()
        self._before = Predecessor()
        self._until = 0.0
        """Until when the seat is safe, from the newest contact."""
        self._why = ""
        self._run: Run | None = None
        self.unfit: Unfit | None = None
        """Why this node leaves the job to the others; None: it does not."""
        self._attendant: Attendant | None = None
        self.sighting = Sighting(self.name, checkpoint)
        """What the control API shows of the job here."""

    @property
    def stage(self) -> Stage:
        return self._tenure.stage

    @property
    def holds(self) -> bool:
        """Whether the seat is ours, as far as we know."""
        return self._tenure.held

    @property
    def progress(self) -> Progress:
        return (self._run.takeover.last if self._run else None) or Progress(job=self.name)

    @property
    def stuck_since(self) -> float | None:
        return self._run.wishes.permit.wanted_since if self._run else None

    @property
    def run_over(self) -> Run | None:
        """The run, when its thread has ended."""
        run = self._run
        return run if run is not None and run.thread is not None and not run.thread.is_alive() else None

    @property
    def attendant(self) -> Attendant | None:
        """Who keeps this node ready while it stands by; None: nobody does, it is cold or leads."""
        return self._attendant

    @property
    def lag(self) -> Lag | None:
        """How far behind the leader this node's working state is; None: it follows nobody."""
        attendant = self._attendant
        return attendant.lag if attendant is not None else None

    def attend(self) -> None:
        """Begin to stand by as the node's kind of standby does."""
        place = self._place
        if place.standby == "cold":
            return
        settings = check_settings(self.checkpoint, self._options)
        self._attendant = Attendant(
            self._job.graph(), settings, place.owner(), place.clock, self._say, hot=place.standby == "hot"
        )
        self._attendant.start()

    def leave(self) -> None:
        """The node ends: so does what it does while it stands by."""
        if (attendant := self._attendant) is not None:
            attendant.stop()
            attendant.join(FINISH_SECONDS)

    def won(self, event: Won, before: Predecessor) -> None:
        """The seat is ours: begin."""
        self._before = before
        self.feed(event)

    def feed(self, event: Event) -> None:
        """Tell of an event, and do what follows."""
        with self._lock:
            now = self._place.clock.monotonic()
            self._tenure, actions = step(self._tenure, event, now, self._place.limits())
            for action in actions:
                self._do(action)
            why = self._why or _ending(self._run)
        if Release() in actions:
            # Not under the lock: it talks to ZooKeeper, whose threads wait for the lock to tell of changes.
            self._on_release(why)

    def forget_run(self) -> None:
        """The run has been seen to: another may begin."""
        with self._lock:
            self._run = None
        self.sighting.ended()

    def _do(self, action: Action) -> None:
        run, say = self._run, self._say
        match action:
            case Begin():
                self._begin()
            case Extend(until):
                self._until = until
                if run is not None:
                    run.wishes.permit.extend(until)
            case Pause(why):
                say(f"PAUSED: {why}; nothing is committed until ZooKeeper answers")
            case Resume(seconds):
                say(f"RESUMED after {seconds:.1f} s: ZooKeeper answers, and the seat is still ours")
            case Finish(why):
                say(f"ENDING in good order: {why}")
                self._why = why
                if run is not None:
                    run.asked_to_end = True
                    run.wishes.stopping.set()
            case Revoke(why):
                say(f"ENDING: {why}; nothing more is committed by this node")
                self._why = why
                if run is not None:
                    run.asked_to_end = True
                    run.wishes.permit.revoke(why)
                    run.wishes.stopping.set()
            case Release():
                pass  # by feed
            case Say(text):
                say(text)

    def _begin(self) -> None:
        clock = self._place.clock
        permit = Permit(clock, self._until)
        run = self._run = Run(Wishes(permit), Takeover(clock.monotonic(), self._before))
        self._why = ""
        if self._attendant is not None:
            self._attendant.stop()
        run.thread = threading.Thread(target=self._lead, args=(run,), name="holdfast-tenant", daemon=True)
        run.thread.start()

    def _lead(self, run: Run) -> None:
        """The run's own thread."""
        try:
            self.mark_checkpoint(move=False)
            run.wishes.permit.refuse_if_revoked()
            run.handle = self._job.start_as(
                run.wishes, self.checkpoint, None, lambda progress: self._note(run, progress),
                self._say, self._options, self._prepared(),
            )  # fmt: skip
            while run.handle.running:
                with suppress(TimeoutError):
                    run.handle.wait(LOOK_SECONDS)
                if run.takeover.committed is not None:
                    self._tell_takeover(run)
            run.handle.wait()
        except BaseException as failure:
            run.failure = failure
        if run.takeover.running is not None:
            self._tell_takeover(run)

    def _prepared(self) -> Prepared:
        """What standing by has made ready. Nothing is followed any more: a shard would be moved back."""
        attendant, self._attendant = self._attendant, None
        if attendant is None:
            return Prepared(owner=self._place.owner())
        attendant.join(FINISH_SECONDS)
        return attendant.prepared

    def mark_checkpoint(self, *, move: bool) -> None:
        """See to it that the checkpoint is this cluster's. RestoreError: it is another's."""
        storage = open_storage(self.checkpoint)
        if find_job(storage) is None:
            refuse_if_occupied(storage)
        hold_by_cluster(storage, self._place.cluster(), move=move)

    def _note(self, run: Run, progress: Progress) -> None:
        run.takeover.note(progress, self._place.clock.monotonic())
        self.sighting.note(progress)
        self._place.on_progress(progress)

    def _tell_takeover(self, run: Run) -> None:
        """Write the phases down, once. History is worth less than the run: what fails is left out."""
        if run.takeover.told:
            return
        run.takeover.told = True
        record = run.takeover.record(self._place.node, self._place.standby, self._place.clock.now_ms())
        parts = [("detected in", record.detect_ms), ("took over in", record.take_over_ms)]
        parts += [("restored in", record.restore_ms), ("first new commit after", record.replay_ms)]
        self._say(
            f"TAKEOVER by term {record.term}: "
            + ", ".join(f"{what} {ms / 1_000:.1f} s" for what, ms in parts if ms is not None)
        )
        with suppress(HoldfastError):
            record_failover(open_storage(self.checkpoint), record)

    def _say(self, text: str) -> None:
        self._place.say(f"{self.name}: {text}")


def _ending(run: Run | None) -> str:
    if run is None or run.failure is None:
        return "its run ended"
    return f"its run ended: {in_short(run.failure, 500)}"
