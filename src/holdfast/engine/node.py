"""A node of a cluster: joins, takes a free seat or stands by, runs the jobs whose seats it holds.

    connect -> ( join -> ( look -> take | give | stand by )* )*        a new `join` for every session

One thread, the caller's, talks to ZooKeeper; kazoo's threads only say that something changed. A seat is
looked at when a watch says so, and now and then.
When the session is lost: the runs are told to stop, the node registers under its next session and stands by.
When the connection is suspended: see cluster.tenure. When ZooKeeper has lost its data: the cluster is
registered again under its id, and the seats are taken anew.
Never here: safety. ZooKeeper elects, storage decides: whoever takes a seat claims a term and commits to the
chain, where an older leader is refused.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.failovers import cluster_of
from holdfast.checkpoint.records import ClusterRecord
from holdfast.clock import Clock, SystemClock
from holdfast.cluster import membership, seats
from holdfast.cluster.cards import ClusterCard, HolderCard, LagCard, NodeCard, OverCard, PulseCard, WishCard
from holdfast.cluster.membership import Founding
from holdfast.cluster.paths import checked_name
from holdfast.cluster.seating import (
    KINDS,
    STEP_SECONDS,
    ClusterSeen,
    SeatSeen,
    code_differences,
    heir,
    is_free,
    rank,
    to_give_away,
)
from holdfast.cluster.tenure import Contact, Give, Limits, Lost, RunEnded, Stage, Suspended, Tick, Won
from holdfast.cluster.zookeeper import Connection, ZooKeeper, ZooKeeperSettings
from holdfast.engine.following import Lag
from holdfast.engine.job import Job
from holdfast.engine.owners import Owner, take_owner
from holdfast.engine.progress import Listener, Message
from holdfast.engine.settings import RunOptions, Until, check_settings
from holdfast.engine.tenant import Place, Predecessor, Run, Tenant, is_replaced
from holdfast.errors import DefinitionError, HoldfastError, RetryableError, SessionLost
from holdfast.graph.guarantees import check_guarantee
from holdfast.graph.validate import check
from holdfast.storage.places import open_storage

TICK_SECONDS = 0.1
LOOK_SECONDS = 15.0
"""How often a node looks at the cluster though nothing told it to."""
BEATS_PER_SESSION = 10
LAG_SECONDS = 1.0
"""How often, at most, a node tells how far behind it is."""
BALANCE_SECONDS = 5.0
"""How long one node must have held too many seats before it gives one away."""
COOL_SECONDS = 5.0
"""How long a node leaves a seat to the others after its run of the job failed."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """How a node behaves. `standby`: one of KINDS. Warm: Spark is started and the jobs are compiled and
    rehearsed beforehand; hot: and the working state follows the leader's.
    """

    cluster: str
    zookeeper: ZooKeeperSettings
    name: str = ""
    standby: str = "cold"
    resign_seconds: float = 60.0
    allow_other_code: bool = False
    move_checkpoint: bool = False

    def __post_init__(self) -> None:
        checked_name("cluster", self.cluster)
        if self.name:
            checked_name("node", self.name)
        if self.standby not in KINDS:
            raise DefinitionError(f"standby={self.standby!r} is not known; choose one of {', '.join(KINDS)}")
        if self.resign_seconds <= 0:
            raise DefinitionError("a leader cannot resign after no time; choose --resign-after 60s or so")


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
        for job in jobs:
            check(job.graph())
            check_guarantee(job.graph(), check_settings(checkpoint, options).guarantee)
        self._working_dir = check_settings(checkpoint, options).working_dir
        self._jobs, self._settings, self._options = jobs, settings, options
        self._say, self._clock = say, clock or SystemClock()
        self.name = settings.name or f"{socket.gethostname()}-{os.getpid()}"
        self._instance = uuid.uuid4().hex
        self._since_ms = self._clock.now_ms()
        self._zookeeper = ZooKeeper(settings.zookeeper, self._connection_changed, self._clock)
        self._cluster: ClusterCard | None = None
        self._owner: Owner | None = None
        place = Place(
            node=self.name, standby=settings.standby, clock=self._clock, say=say, on_progress=on_progress,
            limits=self._limits, cluster=self._cluster_record, owner=self._owner_name,
        )  # fmt: skip
        self._tenants = {
            checked_name("job", job.name): Tenant(job, url, options, place, self._releasing(job.name))
            for job, url in zip(jobs, checkpoints_of(jobs, checkpoint), strict=True)
        }
        self._wake, self._leaving = threading.Event(), threading.Event()
        self._joined = self._dirty = False
        self._silent_since: float | None = None
        self._looked = self._beaten = self._unbalanced_since = self._lag_told = self._clock.monotonic()
        self._told: NodeCard | None = None
        self._seen = ClusterSeen(nodes={}, seats={})
        self._free_since: dict[str, float] = {}
        self._cool_until: dict[str, float] = {}
        self._failure: BaseException | None = None
        self._problem = ""

    def leave(self) -> None:
        """End in good order: every seat is given up after its epoch. From a signal handler or any thread."""
        self._leaving.set()
        self._wake.set()

    def run(self) -> None:
        """Be a node until told to leave or until every job is over. Raises what makes going on pointless."""
        self._zookeeper.connect()
        try:
            self._enter()
            self._owner = take_owner(self._working_dir)
            self._make_ready()
            self._join()
            self._say(f"node {self.name} is in cluster {self._settings.cluster!r}, {self._settings.standby}")
            while not self._done():
                self._wake.wait(TICK_SECONDS)
                self._wake.clear()
                self._turn()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure

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
        self._dirty = self._dirty or bool(problems)

    def _mind_cluster(self) -> None:
        if not self._zookeeper.connected or not self._joined:
            return
        self._beat()
        self._tell_lag()
        if self._dirty or self._clock.monotonic() - self._looked >= LOOK_SECONDS:
            self._look()
        self._mind_seats()

    def _mind_session(self) -> None:
        """After a new session began, register again; after a long silence, ask for a new session."""
        now = self._clock.monotonic()
        if self._zookeeper.connected:
            self._silent_since = None
            if not self._joined:
                self._enter()
                self._join()
            return
        self._silent_since = self._silent_since or now
        if now - self._silent_since >= self._zookeeper.session_seconds:
            if self._zookeeper.begin_anew():
                self._say(
                    "ZooKeeper refuses the session it once gave (it lost its data); a new one was begun"
                )
            self._silent_since = self._clock.monotonic()

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
                self._failure = attendant.lost
                self._leaving.set()

    def _ended(self, tenant: Tenant, run: Run) -> None:
        """A run is over: whether the seat is free for the others, or the job is over too."""
        failure = run.failure
        if failure is None and not run.asked_to_end:
            finished = self._options.get("until") == Until.EXHAUSTED
            self._end_job(tenant.name, "finished" if finished else "stopped", "")
        elif isinstance(failure, SessionLost):
            self._failure = failure
            self._leaving.set()
        elif isinstance(failure, RetryableError) or is_replaced(failure):
            self._cool_until[tenant.name] = self._clock.monotonic() + COOL_SECONDS
            self._say(f"{tenant.name}: the run ended: {failure}")
        elif failure is not None:
            self._failure = failure
            self._end_job(tenant.name, "failed", " ".join(str(failure).split())[:2_000])
            self._say(f"{tenant.name}: FAILED: {failure}")
        else:
            self._say(f"{tenant.name}: the run ended in good order")
        tenant.feed(RunEnded())
        tenant.forget_run()
        stays = run.asked_to_end or isinstance(failure, RetryableError) or is_replaced(failure)
        if stays and not self._leaving.is_set():
            tenant.attend()
        self._dirty = True

    def _end_job(self, job: str, state: str, error: str) -> None:
        card = OverCard(state=state, node=self.name, at_ms=self._clock.now_ms(), error=error)
        seats.end(self._zookeeper, self._settings.cluster, job, card)

    def _beat(self) -> None:
        now = self._clock.monotonic()
        if now - self._beaten < self._zookeeper.session_seconds / BEATS_PER_SESSION:
            return
        self._beaten = now
        for tenant in self._tenants.values():
            if tenant.holds:
                card, told = self._pulse_of(tenant), _contact(tenant, now)
                seats.beat(self._zookeeper, self._settings.cluster, tenant.name, card, told)

    def _tell_lag(self) -> None:
        """Let others see how far behind this node's working state is, while that changes."""
        now = self._clock.monotonic()
        if now - self._lag_told < LAG_SECONDS:
            return
        card = self._card()
        if card != self._told:
            membership.tell(self._zookeeper, self._settings.cluster, card)
        self._lag_told, self._told = now, card

    def _look(self) -> None:
        """See the cluster as it is, and be told of the next change."""
        self._dirty, self._looked = False, self._clock.monotonic()
        zookeeper, cluster, watch = self._zookeeper, self._settings.cluster, self._changed
        nodes = membership.members(zookeeper, cluster, watch)
        known = {
            job: seats.look(zookeeper, cluster, job, watch) for job in seats.jobs(zookeeper, cluster, watch)
        }
        self._seen = ClusterSeen(nodes=nodes, seats=known)
        if self.name not in nodes or any(job not in known for job in self._tenants):
            self._say("ZooKeeper does not know this node any more; registering again")
            self._enter()
            self._join()
            return
        for tenant in self._tenants.values():
            self._mind_holder(tenant, known[tenant.name])

    def _mind_holder(self, tenant: Tenant, seat: SeatSeen) -> None:
        """What the sight of a seat means for this node."""
        now, holder = self._clock.monotonic(), seat.holder
        if is_free(seat):
            self._free_since.setdefault(tenant.name, now)
        else:
            self._free_since.pop(tenant.name, None)
        if holder is not None and holder.instance != self._instance:
            self._refuse_other_code(tenant, holder)
        if tenant.holds and (holder is None or holder.instance != self._instance):
            who = f"node {holder.node} has it" if holder else "it was taken away in ZooKeeper"
            tenant.feed(Lost(who))
        elif tenant.holds and seat.wish is not None and seat.wish.giver == self.name:
            tenant.feed(Give(f"hand-over to {seat.wish.to or 'whoever is readiest'}"))

    def _mind_seats(self) -> None:
        if self._leaving.is_set():
            return
        now = self._clock.monotonic()
        for tenant in self._tenants.values():
            seat = self._seen.seats.get(tenant.name)
            if (
                seat is None
                or tenant.stage is not Stage.STANDING_BY
                or now < self._cool_until.get(tenant.name, 0)
            ):
                continue
            ours = seat.holder is not None and seat.holder.instance == self._instance
            if ours or (is_free(seat) and now - self._free_since[tenant.name] >= self._patience(tenant.name)):
                self._take(tenant, seat)
        self._balance(now)

    def _patience(self, job: str) -> float:
        return rank(self._seen, job, self.name) * STEP_SECONDS

    def _take(self, tenant: Tenant, seat: SeatSeen) -> None:
        zookeeper, cluster, job = self._zookeeper, self._settings.cluster, tenant.name
        self._dirty = True
        sent_at = self._clock.monotonic()
        card = HolderCard(
            node=self.name, instance=self._instance, since_ms=self._clock.now_ms(),
            checkpoint=tenant.checkpoint, code=tenant.code,
        )  # fmt: skip
        won_ms = seats.take(zookeeper, cluster, job, card)
        if won_ms is None:
            return
        before = _predecessor(seat, won_ms)
        seats.set_pulse(zookeeper, cluster, job, self._pulse_of(tenant))
        seats.unwish(zookeeper, cluster, job)
        who = f"{before.node} had it and {before.reason}" if before.node else before.reason
        heard = (
            f", last heard of {before.detect_ms / 1_000:.1f} s ago" if before.detect_ms is not None else ""
        )
        self._say(f"{job}: TAKING THE SEAT: {who}{heard}; claiming a term in storage")
        tenant.won(Won(sent_at), before)

    def _balance(self, now: float) -> None:
        """Give a seat away where another node holds two fewer, once that has lasted."""
        job = to_give_away(self._seen, self.name)
        if job is None or job not in self._tenants or self._tenants[job].stage is not Stage.LEADING:
            self._unbalanced_since = now
        elif now - self._unbalanced_since >= BALANCE_SECONDS:
            self._unbalanced_since = now
            by = f"node {self.name}, to hold no more seats than others"
            card = WishCard(
                giver=self.name, to=heir(self._seen, job) or "", by=by, at_ms=self._clock.now_ms()
            )
            seats.wish(self._zookeeper, self._settings.cluster, job, card)
            self._dirty = True

    # Coming and going.

    def _enter(self) -> None:
        """Find or found the cluster, and see that the jobs and checkpoints are its own."""
        zookeeper, cluster, first = self._zookeeper, self._settings.cluster, self._cluster is None
        fresh = self._cluster or ClusterCard(id=self._fresh_id(), since_ms=self._clock.now_ms())
        self._cluster, founding = membership.found(zookeeper, cluster, fresh)
        if founding is Founding.CREATED and not first:
            self._say(
                f"ZOOKEEPER LOST ITS DATA: it knew no cluster {cluster!r} any more; that is registered "
                "again under its id. What the jobs have done is in their checkpoints and is not touched"
            )
        for tenant in self._tenants.values():
            seats.prepare(zookeeper, cluster, tenant.name)
            if first:
                tenant.mark_checkpoint(move=self._settings.move_checkpoint)
                seats.reopen(zookeeper, cluster, tenant.name)
            seat = seats.look(zookeeper, cluster, tenant.name)
            if seat.holder is not None and seat.holder.instance != self._instance:
                self._refuse_other_code(tenant, seat.holder)

    def _join(self) -> None:
        self._told = self._card()
        membership.join(self._zookeeper, self._settings.cluster, self._told)
        self._joined = self._dirty = True

    def _card(self) -> NodeCard:
        lags = {job: tenant.lag for job, tenant in self._tenants.items()}
        return NodeCard(
            name=self.name, instance=self._instance, host=socket.gethostname(), pid=os.getpid(),
            since_ms=self._since_ms, standby=self._settings.standby,
            code={name: tenant.code for name, tenant in self._tenants.items()},
            lag={job: _lag_card(lag) for job, lag in lags.items() if lag is not None},
        )  # fmt: skip

    def _done(self) -> bool:
        if any(tenant.stage is not Stage.STANDING_BY for tenant in self._tenants.values()):
            return False
        known = [self._seen.seats.get(job) for job in self._tenants]
        return self._leaving.is_set() or all(seat is not None and seat.over is not None for seat in known)

    def _close(self) -> None:
        """Whatever happened: end the runs, and the session with its seats."""
        for tenant in self._tenants.values():
            tenant.feed(Lost("the node ends"))
            tenant.leave()
        self._zookeeper.close()
        if self._owner is not None:
            self._owner.release()

    def _refuse_other_code(self, tenant: Tenant, holder: HolderCard) -> None:
        differences = code_differences(tenant.code, holder.code)
        if differences and not self._settings.allow_other_code:
            raise DefinitionError(
                f"job {tenant.name!r} is not as node {holder.node} leads it: {'; '.join(differences)}; "
                "start the same code, or --allow-other-code to upgrade by taking over"
            )

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

    def _releasing(self, job: str) -> Callable[[str], None]:
        def release(why: str) -> None:
            """Give the seat back; where ZooKeeper cannot be told, the end of the session does it."""
            zookeeper, cluster = self._zookeeper, self._settings.cluster
            try:
                seats.set_pulse(zookeeper, cluster, job, self._pulse_of(self._tenants[job], ended=why))
                seats.release(zookeeper, cluster, job)
            except HoldfastError as problem:
                self._say(f"{job}: the seat is given up, but ZooKeeper was not told: {problem}")
            self._cool_until[job] = self._clock.monotonic() + COOL_SECONDS

        return release

    def _pulse_of(self, tenant: Tenant, ended: str = "") -> PulseCard:
        now = tenant.progress
        return PulseCard(
            node=self.name, instance=self._instance, term=now.term, phase=now.phase,
            epoch=now.committed_epoch, commit=now.commit, ended=ended,
        )  # fmt: skip

    def _limits(self) -> Limits:
        return Limits(
            session_seconds=self._zookeeper.session_seconds, resign_seconds=self._settings.resign_seconds
        )

    def _cluster_record(self) -> ClusterRecord:
        assert self._cluster is not None, "the cluster is known before a checkpoint is marked"
        return ClusterRecord(
            cluster=self._settings.cluster, id=self._cluster.id, zookeeper=self._settings.zookeeper.hosts,
            node=self.name, at_ms=self._clock.now_ms(),
        )  # fmt: skip

    def _owner_name(self) -> str:
        assert self._owner is not None, "a node has an owner's name before it leads"
        return self._owner.name

    def _fresh_id(self) -> str:
        """The id under which a checkpoint knows this cluster, if one does: then ZooKeeper has lost it."""
        for tenant in self._tenants.values():
            known = cluster_of(open_storage(tenant.checkpoint))
            same = known is not None and known.cluster == self._settings.cluster
            if known is not None and same and known.zookeeper == self._settings.zookeeper.hosts:
                return known.id
        return uuid.uuid4().hex


def checkpoints_of(jobs: Sequence[Job], checkpoint: str) -> list[str]:
    """Where each job's checkpoint is: below `checkpoint` by the job's name, where there are several."""
    place = checkpoint if "://" in checkpoint else os.path.abspath(os.path.expanduser(checkpoint))
    return [place] if len(jobs) == 1 else [f"{place.rstrip('/')}/{job.name}" for job in jobs]


def _lag_card(lag: Lag) -> LagCard:
    # A tenth of a second is fine enough to read, and changes less often.
    return LagCard(epoch=lag.epoch, epochs=lag.epochs, ms=round(lag.seconds * 10) * 100, problem=lag.problem)


def _contact(tenant: Tenant, sent_at: float) -> Callable[[], None]:
    return lambda: tenant.feed(Contact(sent_at))


def _predecessor(seat: SeatSeen, won_ms: int) -> Predecessor:
    """Who had the seat, from what it left behind."""
    if seat.pulse is None or seat.pulse_ms is None:
        return Predecessor()
    reason = f"gave it up ({seat.pulse.ended})" if seat.pulse.ended else "its session ended"
    return Predecessor(node=seat.pulse.node, reason=reason, detect_ms=max(0, won_ms - seat.pulse_ms))
