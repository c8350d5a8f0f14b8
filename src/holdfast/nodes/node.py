"""A node of a cluster: joins, takes a free seat or stands by, runs the jobs whose seats it holds.

    connect -> ( join -> ( look -> take | give | stand by )* )*        a new `join` for every session

One thread, the caller's, talks to ZooKeeper; kazoo's threads only say that something changed. A seat is
looked at when a watch says so, and now and then.
When the session is lost: the runs are told to stop, the node registers under its next session and stands by.
When the connection is suspended: see cluster.seat_lease. When ZooKeeper has lost its data: the cluster is
registered again under its id, and the seats are taken anew.
Never here: safety. ZooKeeper elects, storage decides: whoever takes a seat claims a term and commits to the
chain, where an older leader is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial

from holdfast.clock import Clock, SystemClock
from holdfast.cluster.membership import Cluster
from holdfast.cluster.node_records import checked_name
from holdfast.cluster.seat_lease import Give, Limits, Lost, RunEnded, Stage, Suspended, Tick
from holdfast.cluster.zookeeper import Connection, ZooKeeper
from holdfast.errors import RetryableError, SessionLost
from holdfast.graph.guarantees import check_guarantee
from holdfast.graph.validate import check
from holdfast.nodes.blame import in_short, is_of_the_job, is_replaced
from holdfast.nodes.job_on_node import Sighting
from holdfast.nodes.job_seat import Place, Run, Tenant
from holdfast.nodes.registration import Registration
from holdfast.nodes.seat_keeper import Seats
from holdfast.nodes.settings import NodeSettings
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
        run = check_settings(checkpoint, options)
        for job in jobs:
            check(job.graph())
            check_guarantee(job.graph(), run.guarantee)
        self._run_settings = run
        self._settings, self._say, self._clock = settings, say, clock or SystemClock()
        self._zookeeper = ZooKeeper(settings.zookeeper, self._connection_changed, self._clock)
        self._tenants: dict[str, Tenant] = {}
        cluster = Cluster(self._zookeeper, settings.cluster)
        self._registration = Registration(settings, cluster, self._tenants, say, self._clock)
        self._seats = Seats(cluster, self._zookeeper, self._registration, self._tenants, say, self._clock)
        self._owner: Owner | None = None
        place = Place(
            node=self._registration.name, standby=settings.standby, clock=self._clock, say=say,
            on_progress=on_progress, limits=self._limits, cluster=self._registration.cluster_record,
            owner=self._owner_name,
        )  # fmt: skip
        for job, url in zip(jobs, checkpoints_of(jobs, checkpoint), strict=True):
            name = checked_name("job", job.name)
            self._tenants[name] = Tenant(job, url, options, place, partial(self._seats.release, name))
        self._wake, self._leaving = threading.Event(), threading.Event()
        self._joined = self._dirty = False
        self._silent_since: float | None = None
        self._looked = self._clock.monotonic()
        self._failure: BaseException | None = None
        self._problem = ""

    @property
    def sightings(self) -> dict[str, Sighting]:
        """What the control API shows: every job by its name."""
        return {name: tenant.sighting for name, tenant in self._tenants.items()}

    def leave(self) -> None:
        """End in good order: every seat is given up after its epoch. From a signal handler or any thread."""
        self._leaving.set()
        self._wake.set()

    def run(self) -> None:
        """Be a node until told to leave or until every job is over. Raises what makes going on pointless."""
        self._zookeeper.connect()
        try:
            self._registration.enter()
            run = self._run_settings
            self._owner = take_owner(run.working_dir, private=run.private_working_dir)
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
        for tenant in self._tenants.values():
            if tenant.unfit is not None and self._seats.failed(tenant):
                raise tenant.unfit.failure

    def _make_ready(self) -> None:
        """Stand by as this kind of node does, before others count on it. Raises what prevents that."""
        if self._settings.standby == "cold":
            return
        self._say("WARMING UP: starting Spark, compiling the jobs and rehearsing an epoch")
        for tenant in self._tenants.values():
            tenant.attend()
        attendants = [tenant.attendant for tenant in self._tenants.values() if tenant.attendant is not None]
        while any(each.preparing for each in attendants) and not self._leaving.is_set():
            self._leaving.wait(TICK_SECONDS)
        for each in attendants:
            if each.failure is not None:
                raise each.failure
        self._say("WARM: Spark is started, the jobs are compiled and rehearsed")

    def _join(self) -> None:
        self._registration.join()
        self._joined = self._dirty = True

    def _done(self) -> bool:
        if any(tenant.stage is not Stage.STANDING_BY for tenant in self._tenants.values()):
            return False
        return self._leaving.is_set() or self._seats.all_over

    def _close(self) -> None:
        """Whatever happened: end the runs, and the session with its seats."""
        for tenant in self._tenants.values():
            tenant.feed(Lost("the node ends"))
            tenant.leave()
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
        for tenant in self._tenants.values():
            tenant.feed(Tick(tenant.stuck_since))
            if self._leaving.is_set():
                tenant.feed(Give("the node was told to end"))
        for tenant in self._tenants.values():
            if (run := tenant.run_over) is not None:
                self._ended(tenant, run)
            attendant = tenant.attendant
            if attendant is not None and attendant.lost is not None:
                self._fail(attendant.lost)

    def _ended(self, tenant: Tenant, run: Run) -> None:
        """A run is over: whether the seat is free for the others, or the job is over too."""
        failure, job = run.failure, tenant.name
        left_to_others = isinstance(failure, RetryableError) or is_replaced(failure)
        if failure is None and not run.asked_to_end:
            self._seats.end(job, "finished" if self._run_settings.until == Until.EXHAUSTED else "stopped")
        elif isinstance(failure, SessionLost):
            self._fail(failure)
        elif left_to_others:
            self._seats.cool(job)
            self._say(f"{job}: the run ended: {failure}")
        elif failure is not None and is_of_the_job(failure):
            self._failure = failure
            self._seats.end(job, "failed", in_short(failure, 2_000))
            if len(self._tenants) > 1:
                # The others go on for who knows how long; with one job its error ends the process right now.
                self._say(f"{job}: FAILED: {failure}")
        elif failure is not None:
            self._seats.fail_here(tenant, failure)
            self._say(f"{job}: FAILED HERE, left to the other nodes: {in_short(failure, 2_000)}")
        else:
            self._say(f"{job}: the run ended in good order")
        tenant.feed(RunEnded())
        tenant.forget_run()
        standing_by = (run.asked_to_end or left_to_others) and tenant.unfit is None
        if standing_by and not self._leaving.is_set():
            tenant.attend()
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
            if self._zookeeper.begin_anew():
                self._say(
                    "ZooKeeper refuses the session it once gave (it lost its data); a new one was begun"
                )
            self._silent_since = self._clock.monotonic()

    def _register_again(self) -> None:
        self._registration.enter()
        self._join()

    def _mind_cluster(self) -> None:
        if not self._zookeeper.connected or not self._joined:
            return
        self._seats.beat()
        self._registration.tell_lag()
        if self._dirty or self._clock.monotonic() - self._looked >= LOOK_SECONDS:
            self._dirty, self._looked = False, self._clock.monotonic()
            if not self._seats.look(self._changed):
                self._say("ZooKeeper does not know this node any more; registering again")
                self._register_again()
        if not self._leaving.is_set() and self._seats.seek():
            self._dirty = True

    # What the tenants and kazoo's threads call.

    def _connection_changed(self, change: Connection) -> None:
        if change is Connection.LOST:
            self._joined = False
            for tenant in self._tenants.values():
                tenant.feed(Lost("the ZooKeeper session has ended"))
            self._say("the ZooKeeper session has ended; registering again as soon as ZooKeeper answers")
        elif change is Connection.SUSPENDED:
            for tenant in self._tenants.values():
                tenant.feed(Suspended())
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

    def _owner_name(self) -> str:
        assert self._owner is not None, "a node has an owner's name before it leads"
        return self._owner.name


def checkpoints_of(jobs: Sequence[Job], checkpoint: str) -> list[str]:
    """Where each job's checkpoint is: below `checkpoint` by the job's name, where there are several."""
    place = checkpoint if "://" in checkpoint else os.path.abspath(os.path.expanduser(checkpoint))
    return [place] if len(jobs) == 1 else [f"{place.rstrip('/')}/{job.name}" for job in jobs]
