"""Keeps a node's seats: looks at the cluster, takes what is free, gives away what is too much, gives back.

    a takeover:  look -> is the seat free, and are we next in rank? -> take (ZooKeeper elects)
                 -> JobSeat.won -> Run -> claim a term (storage decides) -> restore -> commit

Called by the node's one thread, but for `watch`.
Never here: safety. ZooKeeper elects, storage decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from holdfast.cluster.node_records import (
    HolderRecord,
    Lag,
    OverRecord,
    PulseRecord,
    Unfit,
    WishRecord,
    in_short,
)
from holdfast.cluster.ranking import (
    STEP_SECONDS,
    ClusterSeen,
    SeatSeen,
    failed_first,
    heir,
    hopeless,
    is_free,
    is_over,
    newest_holder,
    part_of,
    rank,
    to_give_away,
)
from holdfast.cluster.replica_seats import replica_seats, what_lacks
from holdfast.cluster.seat_lease import Contact, Event, Give, Lost, Stage, Won
from holdfast.errors import HoldfastError
from holdfast.nodes.job_seat import JobSeat
from holdfast.nodes.registration import NodeContext, refuse_other_code
from holdfast.nodes.run import Predecessor

BEATS_PER_SESSION = 10
BALANCE_SECONDS = 5.0
"""How long one node must have held too many seats before it gives one away."""
COOL_SECONDS = 5.0
"""How long a node leaves a seat to the others after its run of the job ended."""


class SeatKeeper:
    """The seats of a node's jobs, by job, in the cluster as the node sees it."""

    def __init__(self, context: NodeContext, seats: Mapping[str, JobSeat], survive: int = 0) -> None:
        """`survive`: how many nodes are to be spared, of each job."""
        self._survive, self._lacking = survive, dict.fromkeys(seats, "")
        self._context, self._seats = context, seats
        self._registration, self._clock, self._say = context.registration, context.clock, context.say
        self._cluster = context.registration.cluster
        self._seen = ClusterSeen(nodes={}, seats={})
        self._free_since: dict[str, float] = {}
        self._cool_until: dict[str, float] = {}
        self._replicas_told: dict[str, str] = {}
        self._beaten = self._unbalanced_since = self._clock.monotonic()

    @property
    def all_over(self) -> bool:
        """Whether none of this node's jobs is to be run any more."""
        known = [self._seen.seats.get(job) for job in self._seats]
        return all(seat is not None and seat.over is not None for seat in known)

    @property
    def lags(self) -> dict[str, Lag]:
        return {job: lag for job, seat in self._seats.items() if (lag := seat.lag) is not None}

    def look(self, watch: Callable[[], None]) -> bool:
        """See the cluster as it is; `watch` is told of the next change. False: it does not know this node."""
        self._seen = self._cluster.look(watch)
        known = self._seen.seats
        if self._registration.name not in self._seen.nodes or any(job not in known for job in self._seats):
            return False
        for job, seat in self._seats.items():
            self._mind_holder(seat, known[job])
            self._mind_failures(seat, known[job])
            self._mind_spare(seat)
            self._mind_other_parts(seat, known[job])
            seat.job.nodes = tuple(self._seen.nodes.values())
            seat.job.before_run = any(not is_over(self._seen, name) for name in seat.job.before)
            self._tell_of_replicas(seat)
        if all(seat.job.superseded for seat in self._seats.values()):
            first = next(iter(self._seats.values())).job
            refuse_other_code(first, first.superseded)
        return True

    def _mind_holder(self, seat: JobSeat, seen: SeatSeen) -> None:
        """What the sight of a seat means for this node."""
        job, holder = seat.job, seen.holder
        if is_free(seen):
            self._free_since.setdefault(job.name, self._clock.monotonic())
        else:
            self._free_since.pop(job.name, None)
        newest = newest_holder(self._seen, job.name)
        if newest is not None and seat.stage is Stage.STANDING_BY and not seat.leads_fellow:
            # A member of a set of replicas goes on until those of other code have founded theirs.
            self._mind_code(seat, newest)
        if seat.holds and not self._is_ours(seen):
            seat.feed(Lost(f"node {holder.node} has it" if holder else "it was taken away in ZooKeeper"))
        elif seat.holds and seen.wish is not None and seen.wish.giver == self._registration.name:
            seat.feed(Give(f"hand-over to {seen.wish.to or 'whoever is readiest'}"))

    def _mind_spare(self, seat: JobSeat) -> None:
        """Say when the job survives the end of fewer nodes than it is to, what helps, and when of enough."""
        job, votes = seat.job.name, seat.job.votes
        lacks = what_lacks(self._seen, job, self._survive, votes=votes)
        if lacks == self._lacking[job] or self._seen.seats[job].over is not None:
            return
        self._lacking[job] = lacks
        self._say(f"{job}: {lacks or f'there are nodes enough: it survives the end of {self._survive}'}")

    def _tell_of_replicas(self, seat: JobSeat) -> None:
        """Say how the part that this node runs with others is protected, whenever that changes."""
        job = seat.job
        if not (seat.fellows and seat.holds):
            return
        now = str(replica_seats(self._seen, job.name, votes=job.votes))
        if now != self._replicas_told.get(job.name):
            self._replicas_told[job.name] = now
            self._say(f"{part_of(job.name)}: {now}")

    def _mind_code(self, seat: JobSeat, holder: HolderRecord) -> None:
        """Leave a job that is led with other code to nodes of that code, also when its leader is gone, and go
        on with the others; until it is led as this node would again.
        """
        job, other = seat.job, self._registration.other_code(seat.job, holder)
        if bool(other) == bool(job.superseded):
            return
        job.superseded = other
        self._registration.tell(self.lags)
        if other:
            seat.stop_standing_by()
            self._say(f"{job.name}: LEFT TO NODES OF OTHER CODE: it is {other}")
        else:
            self._say(f"{job.name}: node {holder.node} leads it as this one would; standing by for it again")
            if seat.stage is Stage.STANDING_BY and not job.left_to_others:
                seat.stand_by()

    def _mind_failures(self, seat: JobSeat, seen: SeatSeen) -> None:
        """Try again once another node has brought the job further; end it where none can."""
        job, unfit, pulse = seat.job, seat.job.unfit, seen.pulse
        if unfit is not None and pulse is not None and pulse.commit > unfit.commit:
            job.unfit = job.failure = None
            self._registration.tell(self.lags)
            self._say(f"{job.name}: node {pulse.node} has brought it further; standing by for it again")
            if not job.superseded:
                seat.stand_by()
        elif (why := hopeless(self._seen, job.name)) is not None:
            self.end(job.name, "failed", why[:2_000])
            self._say(f"{job.name}: FAILED: {why}")

    def _mind_other_parts(self, seat: JobSeat, seen: SeatSeen) -> None:
        """End a part, in good order, whose job can never come to its end because another part has failed: it
        would wait for rows, or for room in a channel, for good."""
        why = failed_first(self._seen, seat.job.other_parts)
        if why is None or seen.over is not None:
            return
        if is_free(seen):
            self.end(seat.job.name, "failed", why[:2_000])
            self._say(f"{seat.job.name}: FAILED: {why}")
        elif seat.holds:
            seat.job.failure = HoldfastError(f"{why}; see to that part, then start the nodes again")
            seat.feed(Give(why))

    def fail_here(self, seat: JobSeat, failure: BaseException) -> None:
        """Leave the job to the others: what it failed of may be this node's own. The seat is given back after
        this, so that a node that sees it free sees why.
        """
        seen = self._seen.seats.get(seat.job.name)
        commit = max(seat.progress.commit, seen.pulse.commit if seen and seen.pulse else 0)
        seat.job.failure = failure
        seat.job.unfit = Unfit(error=in_short(failure), at_ms=self._clock.now_ms(), commit=commit)
        self._registration.tell(self.lags)

    def goes_on_elsewhere(self, seat: JobSeat) -> bool:
        """Whether other nodes run the same part: what failed here may be this node's own."""
        seen = [self._seen.seats.get(fellow.job.name) for fellow in seat.fellows]
        return any(
            each is not None and each.over is None and each.holder is not None and not self._is_ours(each)
            for each in seen
        )

    def failed(self, job: str) -> bool:
        """Whether the job is over because it failed."""
        seen = self._seen.seats.get(job)
        return seen is not None and seen.over is not None and seen.over.state == "failed"

    @property
    def _beat_seconds(self) -> float:
        return self._context.limits().session_seconds / BEATS_PER_SESSION

    def beat(self) -> None:
        """Give a sign of life for every seat that is held, now and then. Its answer extends the lease."""
        now = self._clock.monotonic()
        if now - self._beaten < self._beat_seconds:
            return
        self._beaten = now
        for job, seat in self._seats.items():
            if seat.holds:
                self._cluster.seat(job).beat(self._pulse_of(seat), partial(seat.feed, Contact(now)))

    def seek(self) -> bool:
        """Take what is free and give away what is too much; whether anything may have changed."""
        now, tried = self._clock.monotonic(), False
        for seat in self._seats.values():
            # One after the other: whether a seat is wanted depends on those that this node has just taken.
            if self._is_wanted(seat, now):
                self._take(seat, self._seen.seats[seat.job.name])
                tried = True
        return self._balance(now) or tried

    def _is_wanted(self, seat: JobSeat, now: float) -> bool:
        """Whether this node should try to take the job's seat now."""
        job, seen = seat.job.name, self._seen.seats.get(seat.job.name)
        if seen is None or seat.stage is not Stage.STANDING_BY or now < self._cool_until.get(job, 0):
            return False
        here = self._seen.nodes.get(self._registration.name)
        if seat.job.left_to_others or here is None or job not in here.code:
            return False
        if any(fellow.job.unfit is not None for fellow in seat.fellows):
            # What failed here in one seat of a part fails in the others as well.
            return False
        if seat.leads_fellow or self._seen.holds_fellow(self._registration.name, job):
            # The replicas of a part are on different nodes, or the end of one would be the end of several.
            return False
        if failed_first(self._seen, seat.job.other_parts) is not None:
            return False
        patience = rank(self._seen, job, self._registration.name) * STEP_SECONDS
        return self._is_ours(seen) or (is_free(seen) and now - self._free_since[job] >= patience)

    def _is_ours(self, seen: SeatSeen) -> bool:
        return seen.holder is not None and seen.holder.instance == self._registration.instance

    def _take(self, seat: JobSeat, seen: SeatSeen) -> None:
        job, there = seat.job, self._cluster.seat(seat.job.name)
        # The lease counts from before the message is sent, so it ends before ZooKeeper's own count does.
        sent_at = self._clock.monotonic()
        holder = HolderRecord(
            node=self._registration.name, instance=self._registration.instance,
            since_ms=self._clock.now_ms(), checkpoint=job.checkpoint, code=job.code,
        )  # fmt: skip
        won_ms = there.take(holder)
        if won_ms is None:
            return
        before = _predecessor(seen, won_ms)
        there.set_pulse(self._pulse_of(seat))
        there.unwish()
        who = f"{before.node} had it and {before.reason}" if before.node else before.reason
        heard = (
            f", last heard of {before.detect_ms / 1_000:.1f} s ago" if before.detect_ms is not None else ""
        )
        self._say(f"{job.name}: TAKING THE SEAT: {who}{heard}; claiming a term in storage")
        seat.won(Won(sent_at), before)

    def _balance(self, now: float) -> bool:
        """Wish a seat away where another node holds two fewer, once that has lasted; whether one was."""
        name, job = self._registration.name, to_give_away(self._seen, self._registration.name)
        if job is None or job not in self._seats or self._seats[job].stage is not Stage.LEADING:
            self._unbalanced_since = now
            return False
        if now - self._unbalanced_since < BALANCE_SECONDS:
            return False
        self._unbalanced_since = now
        by, to = f"node {name}, to hold no more seats than others", heir(self._seen, job) or ""
        self._cluster.seat(job).wish(WishRecord(giver=name, to=to, by=by, at_ms=self._clock.now_ms()))
        return True

    def feed(self, seat: JobSeat, event: Event) -> None:
        """Tell a seat of an event, and give it back if that follows. Where ZooKeeper cannot be told, the end
        of the session gives it back.
        """
        job, why = seat.job.name, seat.feed(event)
        if why is None:
            return
        try:
            self._cluster.seat(job).set_pulse(self._pulse_of(seat, ended=why))
            self._cluster.seat(job).release()
        except HoldfastError as problem:
            self._say(f"{job}: the seat is given up, but ZooKeeper was not told: {problem}")
        self.cool(job)

    def cool(self, job: str) -> None:
        """Leave a seat to the others for a while."""
        self._cool_until[job] = self._clock.monotonic() + COOL_SECONDS

    def end(self, job: str, state: str, error: str = "") -> None:
        """Say that a job is not to be run any more. What has come to its end has done so in all seats; what
        failed in one may go on in the others."""
        over = OverRecord(state=state, node=self._registration.name, at_ms=self._clock.now_ms(), error=error)
        for name in self._seats:
            if name == job or (state != "failed" and part_of(name) == part_of(job)):
                self._cluster.seat(name).end(over)

    def _pulse_of(self, seat: JobSeat, ended: str = "") -> PulseRecord:
        now = seat.progress
        return PulseRecord(
            node=self._registration.name, instance=self._registration.instance, term=now.term,
            phase=now.phase, epoch=now.committed_epoch, commit=now.commit, ended=ended,
            beat_ms=round(self._beat_seconds * 1_000),
        )  # fmt: skip


def _predecessor(seen: SeatSeen, won_ms: int) -> Predecessor:
    """Which node had the seat, from what it left behind."""
    if seen.pulse is None or seen.pulse_ms is None:
        return Predecessor()
    reason = f"gave it up ({seen.pulse.ended})" if seen.pulse.ended else "its session ended"
    return Predecessor(node=seen.pulse.node, reason=reason, detect_ms=max(0, won_ms - seen.pulse_ms))
