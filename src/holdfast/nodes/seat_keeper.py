"""A node's part in who holds which seat: looks at the cluster, takes what is free, gives away, gives back.

Called by the node's one thread, but for `changed` and the releases of tenants.
Never here: safety. ZooKeeper elects, storage decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.clock import Clock
from holdfast.cluster.membership import Cluster
from holdfast.cluster.node_records import HolderRecord, OverRecord, PulseRecord, WishRecord
from holdfast.cluster.ranking import (
    STEP_SECONDS,
    ClusterSeen,
    SeatSeen,
    heir,
    hopeless,
    is_free,
    rank,
    to_give_away,
)
from holdfast.cluster.seat_lease import Contact, Give, Lost, Stage, Won
from holdfast.cluster.zookeeper import ZooKeeper
from holdfast.errors import HoldfastError
from holdfast.nodes.blame import Unfit
from holdfast.nodes.failover_timing import Predecessor
from holdfast.nodes.job_seat import Tenant
from holdfast.nodes.registration import Registration
from holdfast.runtime.progress import Message

BEATS_PER_SESSION = 10
BALANCE_SECONDS = 5.0
"""How long one node must have held too many seats before it gives one away."""
COOL_SECONDS = 5.0
"""How long a node leaves a seat to the others after its run of the job ended."""


class Seats:
    """The seats of one cluster, as one node sees them and sits on them."""

    def __init__(
        self,
        cluster: Cluster,
        zookeeper: ZooKeeper,
        registration: Registration,
        tenants: Mapping[str, Tenant],
        say: Message,
        clock: Clock,
    ) -> None:
        self._cluster, self._zookeeper, self._registration = cluster, zookeeper, registration
        self._tenants, self._say, self._clock = tenants, say, clock
        self._seen = ClusterSeen(nodes={}, seats={})
        self._free_since: dict[str, float] = {}
        self._cool_until: dict[str, float] = {}
        self._beaten = self._unbalanced_since = clock.monotonic()

    @property
    def all_over(self) -> bool:
        """Whether none of this node's jobs is to be run any more."""
        known = [self._seen.seats.get(job) for job in self._tenants]
        return all(seat is not None and seat.over is not None for seat in known)

    def look(self, watch: Callable[[], None]) -> bool:
        """See the cluster as it is; `watch` is told of the next change. False: it does not know this node."""
        self._seen = self._cluster.look(watch)
        known = self._seen.seats
        if self._registration.name not in self._seen.nodes or any(job not in known for job in self._tenants):
            return False
        for tenant in self._tenants.values():
            self._mind_holder(tenant, known[tenant.name])
            self._mind_failures(tenant, known[tenant.name])
        return True

    def _mind_failures(self, tenant: Tenant, seat: SeatSeen) -> None:
        """Try again once another node has brought the job further; end it where none can."""
        unfit, pulse = tenant.unfit, seat.pulse
        if unfit is not None and pulse is not None and pulse.commit > unfit.commit:
            tenant.unfit = None
            self._registration.tell()
            self._say(f"{tenant.name}: node {pulse.node} has brought it further; standing by for it again")
            tenant.attend()
        elif (why := hopeless(self._seen, tenant.name)) is not None:
            self.end(tenant.name, "failed", why[:2_000])
            self._say(f"{tenant.name}: FAILED: {why}")

    def fail_here(self, tenant: Tenant, failure: BaseException) -> None:
        """Leave the job to the others: what it failed of may be this node's own. The seat is given back after
        this, so that whoever sees it free sees why."""
        seat = self._seen.seats.get(tenant.name)
        commit = max(tenant.progress.commit, seat.pulse.commit if seat and seat.pulse else 0)
        tenant.unfit = Unfit(failure, commit, self._clock.now_ms())
        self._registration.tell()

    def failed(self, tenant: Tenant) -> bool:
        """Whether the job is over because it failed."""
        seat = self._seen.seats.get(tenant.name)
        return seat is not None and seat.over is not None and seat.over.state == "failed"

    def _mind_holder(self, tenant: Tenant, seat: SeatSeen) -> None:
        """What the sight of a seat means for this node."""
        holder = seat.holder
        if is_free(seat):
            self._free_since.setdefault(tenant.name, self._clock.monotonic())
        else:
            self._free_since.pop(tenant.name, None)
        if holder is not None:
            self._registration.refuse_other_code(tenant, holder)
        if tenant.holds and not self._is_ours(seat):
            who = f"node {holder.node} has it" if holder else "it was taken away in ZooKeeper"
            tenant.feed(Lost(who))
        elif tenant.holds and seat.wish is not None and seat.wish.giver == self._registration.name:
            tenant.feed(Give(f"hand-over to {seat.wish.to or 'whoever is readiest'}"))

    def beat(self) -> None:
        """Give a sign of life for every seat that is held, now and then."""
        now = self._clock.monotonic()
        if now - self._beaten < self._zookeeper.session_seconds / BEATS_PER_SESSION:
            return
        self._beaten = now
        for tenant in self._tenants.values():
            if tenant.holds:
                card, told = self._pulse_of(tenant), _contact(tenant, now)
                self._cluster.seat(tenant.name).beat(card, told)

    def seek(self) -> bool:
        """Take what is free and give away what is too much; whether anything may have changed."""
        now = self._clock.monotonic()
        wanted = [tenant for tenant in self._tenants.values() if self._is_wanted(tenant, now)]
        for tenant in wanted:
            self._take(tenant, self._seen.seats[tenant.name])
        return self._balance(now) or bool(wanted)

    def _is_wanted(self, tenant: Tenant, now: float) -> bool:
        """Whether this node should try to take the job's seat now."""
        job, seat = tenant.name, self._seen.seats.get(tenant.name)
        if seat is None or tenant.stage is not Stage.STANDING_BY or now < self._cool_until.get(job, 0):
            return False
        if tenant.unfit is not None:
            return False
        patience = rank(self._seen, job, self._registration.name) * STEP_SECONDS
        return self._is_ours(seat) or (is_free(seat) and now - self._free_since[job] >= patience)

    def _is_ours(self, seat: SeatSeen) -> bool:
        return seat.holder is not None and seat.holder.instance == self._registration.instance

    def _take(self, tenant: Tenant, seat: SeatSeen) -> None:
        job, place = tenant.name, self._cluster.seat(tenant.name)
        sent_at = self._clock.monotonic()
        card = HolderRecord(
            node=self._registration.name, instance=self._registration.instance,
            since_ms=self._clock.now_ms(), checkpoint=tenant.checkpoint, code=tenant.code,
        )  # fmt: skip
        won_ms = place.take(card)
        if won_ms is None:
            return
        before = _predecessor(seat, won_ms)
        place.set_pulse(self._pulse_of(tenant))
        place.unwish()
        who = f"{before.node} had it and {before.reason}" if before.node else before.reason
        heard = (
            f", last heard of {before.detect_ms / 1_000:.1f} s ago" if before.detect_ms is not None else ""
        )
        self._say(f"{job}: TAKING THE SEAT: {who}{heard}; claiming a term in storage")
        tenant.won(Won(sent_at), before)

    def _balance(self, now: float) -> bool:
        """Wish a seat away where another node holds two fewer, once that has lasted; whether one was."""
        name, job = self._registration.name, to_give_away(self._seen, self._registration.name)
        if job is None or job not in self._tenants or self._tenants[job].stage is not Stage.LEADING:
            self._unbalanced_since = now
            return False
        if now - self._unbalanced_since < BALANCE_SECONDS:
            return False
        self._unbalanced_since = now
        by, to = f"node {name}, to hold no more seats than others", heir(self._seen, job) or ""
        card = WishRecord(giver=name, to=to, by=by, at_ms=self._clock.now_ms())
        self._cluster.seat(job).wish(card)
        return True

    def release(self, job: str, why: str) -> None:
        """Give a seat back; where ZooKeeper cannot be told, the end of the session does it."""
        try:
            pulse = self._pulse_of(self._tenants[job], ended=why)
            self._cluster.seat(job).set_pulse(pulse)
            self._cluster.seat(job).release()
        except HoldfastError as problem:
            self._say(f"{job}: the seat is given up, but ZooKeeper was not told: {problem}")
        self.cool(job)

    def cool(self, job: str) -> None:
        """Leave a seat to the others for a while."""
        self._cool_until[job] = self._clock.monotonic() + COOL_SECONDS

    def end(self, job: str, state: str, error: str = "") -> None:
        """Say that a job is not to be run any more."""
        card = OverRecord(state=state, node=self._registration.name, at_ms=self._clock.now_ms(), error=error)
        self._cluster.seat(job).end(card)

    def _pulse_of(self, tenant: Tenant, ended: str = "") -> PulseRecord:
        now = tenant.progress
        return PulseRecord(
            node=self._registration.name, instance=self._registration.instance, term=now.term,
            phase=now.phase, epoch=now.committed_epoch, commit=now.commit, ended=ended,
        )  # fmt: skip


def _contact(tenant: Tenant, sent_at: float) -> Callable[[], None]:
    return lambda: tenant.feed(Contact(sent_at))


def _predecessor(seat: SeatSeen, won_ms: int) -> Predecessor:
    """Who had the seat, from what it left behind."""
    if seat.pulse is None or seat.pulse_ms is None:
        return Predecessor()
    reason = f"gave it up ({seat.pulse.ended})" if seat.pulse.ended else "its session ended"
    return Predecessor(node=seat.pulse.node, reason=reason, detect_ms=max(0, won_ms - seat.pulse_ms))
