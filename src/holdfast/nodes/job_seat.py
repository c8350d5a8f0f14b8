"""One node and the seat of one job: obeys the lease, and runs the job while the seat is held.

Always true: one run at a time; a seat is held only while a run is under way or being ended. What happens to
the connection is told to `feed` from any thread; the job itself is run by a thread of its own.
Never here: ZooKeeper (see seat_keeper), what an event means (see cluster.seat_lease).
"""

from __future__ import annotations

import threading

from holdfast.cluster.node_records import Lag, in_short
from holdfast.cluster.seat_lease import (
    Action,
    Begin,
    Event,
    Extend,
    Finish,
    Lease,
    Pause,
    Release,
    Resume,
    Revoke,
    Say,
    Stage,
    Won,
    step,
)
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.nodes.registration import NodeContext
from holdfast.nodes.run import Predecessor, Run
from holdfast.nodes.standby import Standby
from holdfast.runtime.progress import Progress


class JobSeat:
    """A node has one for each of its jobs, for as long as it is a node."""

    def __init__(self, job: JobOnNode, context: NodeContext) -> None:
        self.job, self._context = job, context
        self._say = context.saying(job)
        self._lease, self._lock = Lease(), threading.RLock()
        self._before = Predecessor()
        self._until = 0.0
        """Until when the seat is safe, from the newest contact."""
        self._why = ""
        self.run: Run | None = None
        self.standby: Standby | None = None
        """What keeps this node ready; None: nothing does, it is cold or leads."""
        self.fellows: tuple[JobSeat, ...] = ()
        """This node and the other seats of the same replicas. It holds one of them at most, and stands by for
        all of them at once, with the first."""

    @property
    def stage(self) -> Stage:
        return self._lease.stage

    @property
    def holds(self) -> bool:
        """Whether the seat is ours, as far as we know."""
        return self._lease.held

    @property
    def progress(self) -> Progress:
        return (self.run.progress if self.run else None) or Progress(job=self.job.name)

    @property
    def has_claimed(self) -> bool:
        """Whether the run has claimed a term. Until then it starts Spark, compiles the job, and writes
        nothing: the seat may be another's at once."""
        return self.progress.term > 0

    @property
    def stuck_since(self) -> float | None:
        return self.run.permit.wanted_since if self.run else None

    @property
    def lag(self) -> Lag | None:
        """How far behind the leader this node's working state is; None: it does not follow."""
        standby = self.standby
        return standby.lag if standby is not None else None

    @property
    def leads_fellow(self) -> bool:
        """Whether this node runs another of the same replicas."""
        return any(seat.stage is not Stage.STANDING_BY for seat in self.fellows)

    def stand_by(self) -> None:
        """Begin to stand by as the node's kind of standby does."""
        if self.fellows and self.fellows[0].job.seat < self.job.seat:
            self.fellows[0].stand_by()
            return
        kind = self.job.standby(self._context.registration.standby)
        if kind != "cold" and self.standby is None and not self.leads_fellow:
            self.standby = Standby(self.job, self._context)

    def stop_standing_by(self) -> None:
        """Keep nothing ready any more."""
        standby, self.standby = self.standby, None
        if standby is not None:
            standby.stop()

    def won(self, event: Won, before: Predecessor) -> None:
        """The seat is ours: begin."""
        self._before = before
        self.feed(event)

    def feed(self, event: Event) -> str | None:
        """Tell of an event, and do what follows. Gives why the seat is to be given back, if it is: only after
        a Tick or a RunEnded. The caller does that, without our lock: it talks to ZooKeeper, whose threads
        wait for the lock to tell of changes.
        """
        with self._lock:
            now = self._context.clock.monotonic()
            self._lease, actions = step(self._lease, event, now, self._context.limits())
            for action in actions:
                self._do(action)
            return self._why or _ending(self.run) if Release() in actions else None

    def forget_run(self) -> None:
        """The run has been seen to: another may begin."""
        with self._lock:
            self.run = None
        self.job.ended()

    def _do(self, action: Action) -> None:
        run, say = self.run, self._say
        match action:
            case Begin():
                self._begin()
            case Extend(until):
                self._until = until
                if run is not None:
                    run.permit.extend(until)
            case Pause(why):
                say(f"PAUSED: {why}; nothing is committed until ZooKeeper answers")
            case Resume(seconds):
                say(f"RESUMED after {seconds:.1f} s: ZooKeeper answers, and the seat is still ours")
            case Finish(why):
                say(f"ENDING in good order: {why}")
                self._why = why
                if run is not None:
                    run.finish()
            case Revoke(why):
                say(f"ENDING: {why}; nothing more is committed by this node")
                self._why = why
                if run is not None:
                    run.revoke(why)
            case Release():
                pass  # by the caller of feed
            case Say(text):
                say(text)

    def _begin(self) -> None:
        self._why = ""
        standby = next((seat.standby for seat in (self, *self.fellows) if seat.standby is not None), None)
        for seat in (self, *self.fellows):
            seat.stop_standing_by()
        self.run = Run(self.job, self._context, self._until, self._before, standby)


def _ending(run: Run | None) -> str:
    if run is None or run.failure is None:
        return "its run ended"
    return f"its run ended: {in_short(run.failure)}"
