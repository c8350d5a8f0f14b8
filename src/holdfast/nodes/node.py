"""A node of a cluster: joins, takes a free seat or stands by, runs the jobs whose seats it holds.

    connect -> ( join -> ( look -> take | give | stand by )* )*        a new `join` for every session

Calls go one way: node -> seat_keeper -> job_seat -> run, standby -> registration -> job_on_node. One thread,
the caller's, talks to ZooKeeper; kazoo's threads only say that something changed. A seat is looked at when a
watch says so, and now and then.
When the session is lost: the runs are told to stop, the node registers under its next session and stands by.
When the connection is suspended: see cluster.seat_lease. When ZooKeeper has lost its data: the cluster is
registered again under its id, and the seats are taken again.
Never here: safety. ZooKeeper elects, storage decides: a node that takes a seat claims a term and commits to
the chain, where an older leader is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from holdfast.clock import Clock, SystemClock
from holdfast.cluster.node_records import in_short
from holdfast.cluster.ranking import part_of
from holdfast.cluster.seat_lease import Give, Limits, Lost, RunEnded, Stage, Suspended, Tick
from holdfast.cluster.zookeeper import Connection, ZooKeeper
from holdfast.errors import RetryableError, SessionLost, SinkRefused, StopUnfinished, Unpublished
from holdfast.nodes.job_on_node import check_jobs, enter_checkpoints, jobs_on_node
from holdfast.nodes.job_seat import JobSeat
from holdfast.nodes.registration import NodeContext, NodeSettings, Registration
from holdfast.nodes.run import Run, is_of_the_job, is_replaced
from holdfast.nodes.seat_allocation import SeatKeeper
from holdfast.nodes.working_dir_lock import Owner, take_owner
from holdfast.runtime.job import Job
from holdfast.runtime.progress import Listener, Message
from holdfast.runtime.settings import RunOptions, Until, check_settings

TICK_SECONDS = 0.1
LOOK_SECONDS = 15.0
"""How often a node looks at the cluster though nothing told it to."""


class Node:
    """One process of a cluster. `run` once."""

    def __init__(
        self,
        jobs: Sequence[Job],
        checkpoint: str,
        settings: NodeSettings,
        options: RunOptions,
        say: Message,
        on_progress: Listener,
        clock: Clock | None = None,
    ) -> None:
        self._run_settings, self._settings = check_settings(checkpoint, options), settings
        check_jobs(jobs, checkpoint, options)
        self._enter_checkpoints = partial(enter_checkpoints, jobs, checkpoint, options)
        self._say, self._on_progress, self._clock = say, on_progress, clock or SystemClock()
        self._zookeeper = ZooKeeper(settings.zookeeper, self._connection_changed, self._clock)
        self.jobs = jobs_on_node(jobs, checkpoint, options)
        """Every job by its name, as the control API shows it."""
        self._registration = Registration(settings, self._zookeeper, self.jobs, say, self._clock)
        self._owner: Owner | None = None
        self._seats: dict[str, JobSeat] = {}
        self._keeper: SeatKeeper
        self._wake, self._leaving = threading.Event(), threading.Event()
        self.told_to_leave = False
        """Whether the node was told to end, and does not end because it can do no more."""
        self._joined = self._dirty = False
        self._silent_since: float | None = None
        self._looked = self._clock.monotonic()
        self._failure: BaseException | None = None
        self._problem = ""

    def leave(self) -> None:
        """End in good order: every seat is given up after its epoch. From a signal handler or any thread."""
        self.told_to_leave = True
        self._leaving.set()
        self._wake.set()

    def run(self) -> None:
        """Be a node until told to leave or until every job is over. Raises what makes going on pointless."""
        self._zookeeper.connect()
        try:
            self._registration.enter(self._enter_checkpoints)
            self._make_seats()
            self._make_ready()
            self._join()
            name, cluster = self._registration.name, self._settings.cluster
            self._say(f"node {name} is in cluster {cluster!r}, {self._settings.standby}")
            while not self._done():
                self._wake.wait(TICK_SECONDS)
                self._wake.clear()
                self._turn()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure
        for job in self.jobs.values():
            if job.failure is not None and self._keeper.failed(job.name):
                raise job.failure

    def _make_seats(self) -> None:
        run = self._run_settings
        self._owner = take_owner(run.working_dir, private=run.private_working_dir)
        context = NodeContext(
            registration=self._registration, owner=self._owner.name, limits=self._limits, clock=self._clock,
            say=self._say, on_progress=self._on_progress,
        )  # fmt: skip
        self._seats = {name: JobSeat(job, context) for name, job in self.jobs.items()}
        for name, seat in self._seats.items():
            seat.fellows = tuple(
                other
                for each, other in self._seats.items()
                if each != name and part_of(each) == part_of(name)
            )
        self._keeper = SeatKeeper(context, self._seats, self._run_settings.survive)

    def _make_ready(self) -> None:
        """Stand by as this kind of node does, before others count on it. Raises what prevents that."""
        if all(job.standby(self._settings.standby) == "cold" for job in self.jobs.values()):
            return
        self._say("WARMING UP: starting Spark, compiling the jobs and running an epoch without rows")
        for seat in self._seats.values():
            seat.stand_by()
        standbys = [seat.standby for seat in self._seats.values() if seat.standby is not None]
        while any(each.preparing for each in standbys) and not self._leaving.is_set():
            self._leaving.wait(TICK_SECONDS)
        for each in standbys:
            if each.failure is not None:
                raise each.failure
        self._say("WARM: Spark is started, the jobs are compiled and have run without rows")

    def _join(self) -> None:
        self._registration.join(self._keeper.lags)
        self._joined = self._dirty = True

    def _done(self) -> bool:
        if any(seat.stage is not Stage.STANDING_BY for seat in self._seats.values()):
            return False
        return self._leaving.is_set() or self._keeper.all_over

    def _close(self) -> None:
        """However it came to that: end the runs, and the session with its seats."""
        for seat in self._seats.values():
            seat.feed(Lost("the node ends"))
            if seat.standby is not None:
                seat.standby.close()
        self._zookeeper.close()
        if self._owner is not None:
            self._owner.release()

    # Every turn.

    def _turn(self) -> None:
        problems = []
        for mind in (self._mind_runs, self._mind_session, self._mind_cluster):
            try:
                mind()
            except RetryableError as problem:
                problems.append(str(problem))
        if problems and not self._problem:
            self._say(f"ZooKeeper cannot be used for now: {problems[0]}")
        self._problem = problems[0] if problems else ""
        if problems:
            self._dirty = True

    def _mind_runs(self) -> None:
        for seat in self._seats.values():
            self._keeper.feed(seat, Tick(seat.stuck_since, seat.has_claimed))
            if self._leaving.is_set():
                seat.feed(Give("the node was told to end"))
        for seat in self._seats.values():
            if seat.run is not None and seat.run.over:
                self._ended(seat, seat.run)
            if seat.standby is not None and seat.standby.lost is not None:
                self._fail(seat.standby.lost)

    def _ended(self, seat: JobSeat, run: Run) -> None:
        """A run is over: whether the seat is free for the others, or the job is over too."""
        failure, job = run.failure, seat.job.name
        left_to_others = isinstance(failure, RetryableError) or is_replaced(failure)
        # The job has ended as well when it was told to, and only a sink has not shown all.
        if (failure is None or isinstance(failure, Unpublished)) and not run.is_handed_on:
            if failure is not None:
                self._say(f"{job}: {failure}")
            self._keeper.end(job, "finished" if self._run_settings.until == Until.EXHAUSTED else "stopped")
        elif isinstance(failure, SinkRefused):
            # The other parts of its job come to their end, too.
            self._failure = self._failure or failure
            self._say(f"{job}: {failure}")
            self._keeper.end(job, "finished", in_short(failure, 2_000))
        elif isinstance(failure, SessionLost):
            self._fail(failure)
        elif left_to_others:
            if self.told_to_leave and isinstance(failure, StopUnfinished):
                self._failure = self._failure or failure
            self._keeper.cool(job)
            self._say(f"{job}: the run ended: {failure}")
        elif failure is not None and is_of_the_job(failure) and not self._keeper.goes_on_elsewhere(seat):
            self._failure = failure
            self._keeper.end(job, "failed", in_short(failure, 2_000))
            if len(self._seats) > 1:
                # The others go on for who knows how long; with one job its error ends the process right now.
                self._say(f"{job}: FAILED: {failure}")
        elif failure is not None:
            self._keeper.fail_here(seat, failure)
            self._say(f"{job}: FAILED HERE, left to the other nodes: {in_short(failure, 2_000)}")
        else:
            self._say(f"{job}: the run ended in good order")
        self._keeper.feed(seat, RunEnded())
        seat.forget_run()
        standing_by = (run.is_handed_on or left_to_others) and not seat.job.left_to_others
        if standing_by and not self._leaving.is_set():
            seat.stand_by()
        self._dirty = True

    def _fail(self, failure: BaseException) -> None:
        """This process can do no more: it ends, and says why."""
        self._failure = failure
        self._leaving.set()

    def _mind_session(self) -> None:
        """After a new session began, register again; after a long silence, ask for a new session."""
        now = self._clock.monotonic()
        if self._zookeeper.connected:
            self._silent_since = None
            if not self._joined:
                self._register_again()
            return
        self._silent_since = self._silent_since or now
        if now - self._silent_since >= self._zookeeper.session_seconds:
            if self._zookeeper.replace_session():
                self._say(
                    "ZooKeeper refuses the session it once gave (it lost its data); a new one was begun"
                )
            self._silent_since = self._clock.monotonic()

    def _register_again(self) -> None:
        self._registration.enter()
        self._join()

    def _mind_cluster(self) -> None:
        # One that has given its seats up and ends has no use for what others do, whatever code they have.
        if not self._zookeeper.connected or not self._joined or self._done():
            return
        self._keeper.beat()
        self._registration.tell_lag(self._keeper.lags)
        if self._dirty or self._clock.monotonic() - self._looked >= LOOK_SECONDS:
            self._dirty, self._looked = False, self._clock.monotonic()
            if not self._keeper.look(self._changed):
                self._say("ZooKeeper does not know this node any more; registering again")
                self._register_again()
        if not self._leaving.is_set() and self._keeper.seek():
            self._dirty = True

    # What kazoo's threads call.

    def _connection_changed(self, change: Connection) -> None:
        if change is Connection.LOST:
            self._joined = False
            for seat in self._seats.values():
                seat.feed(Lost("the ZooKeeper session has ended"))
            self._say("the ZooKeeper session has ended; registering again as soon as ZooKeeper answers")
        elif change is Connection.SUSPENDED:
            for seat in self._seats.values():
                seat.feed(Suspended())
        else:
            self._dirty = True
        self._wake.set()

    def _changed(self) -> None:
        self._dirty = True
        self._wake.set()

    def _limits(self) -> Limits:
        return Limits(
            session_seconds=self._zookeeper.session_seconds, resign_seconds=self._settings.resign_seconds
        )
