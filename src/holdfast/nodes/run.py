"""One run of a job by this node: from the seat being won to the end of the run's thread, timed and judged.

Always true: a run begins to write only after it has claimed a term in storage, where an older leader is
refused. What is not certain to be the job's own failure is tried on every node before the job is given up.
Never here: what an event at the seat means (see cluster.seat_lease).
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.log.incidents import record_failover
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    FencedOut,
    HoldfastError,
    InputVanished,
    MachineError,
    PoisonEpoch,
    RestoreError,
    SeatLost,
    UserCodeError,
)
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.nodes.registration import NodeContext
from holdfast.nodes.standby import Standby
from holdfast.runtime.control.commit_permit import Permit
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import Prepared
from holdfast.runtime.progress import Progress

LOOK_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Predecessor:
    """Which node held the seat before, why it was free, and how long after its last sign of life it was
    won.
    """

    node: str = ""
    reason: str = "nobody held it"
    detect_ms: int | None = None


@dataclass
class Takeover:
    """When the phases of one takeover ended, in monotonic seconds."""

    won: float
    before: Predecessor
    claimed: float | None = None
    running: float | None = None
    committed: float | None = None
    first: Progress | None = None
    """The first progress after the checkpoint was loaded."""
    last: Progress | None = None
    arrivals: dict[str, int] | None = None

    def note(self, progress: Progress, now: float) -> None:
        """A change of the run."""
        self.last = progress
        if self.claimed is None and progress.term:
            self.claimed = now
        if self.running is None and progress.phase in ("joining", "running"):
            self.running, self.first = now, progress
        if self.arrivals is None and progress.epochs_run:
            self.arrivals = progress.arrivals
        if self.committed is None and self.first is not None and self._has_committed(progress, self.first):
            self.committed = now

    def _has_committed(self, progress: Progress, first: Progress) -> bool:
        """Commits that a member of a set of replicas only learns of while it joins are those of others."""
        return progress.phase == "running" and progress.commit > first.commit

    def record(self, node: str, standby: str, now_ms: int) -> FailoverRecord:
        """As it is written down. For one that got as far as running."""
        assert self.last is not None
        assert self.claimed is not None
        assert self.running is not None
        return FailoverRecord(
            at_ms=now_ms, node=node, host=socket.gethostname(), standby=standby, term=self.last.term,
            before=self.before.node, reason=self.before.reason, detect_ms=self.before.detect_ms,
            take_over_ms=_ms(self.claimed - self.won), restore_ms=_ms(self.running - self.claimed),
            replay_ms=_ms(self.committed - self.running) if self.committed is not None else None,
            commit=self.last.commit, arrivals=self.arrivals or {},
        )  # fmt: skip


class Run:
    """`until`: when its permit to commit ends unless it is extended. `standby`: what this node had ready."""

    def __init__(
        self,
        job: JobOnNode,
        context: NodeContext,
        until: float,
        before: Predecessor,
        standby: Standby | None,
    ) -> None:
        self._job, self._context, self._standby = job, context, standby
        self._say = context.saying(job)
        self._wishes = Wishes(Permit(context.clock, until))
        self._wishes.parts_before_run = lambda: job.before_run
        self._wishes.member_runs = job.member_runs
        self._takeover = Takeover(context.clock.monotonic(), before)
        self._told = False
        self.failure: BaseException | None = None
        self._asked_to_end = False
        self._thread = threading.Thread(target=self._lead, name="holdfast-run", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def permit(self) -> Permit:
        return self._wishes.permit

    @property
    def progress(self) -> Progress | None:
        """The newest; None: it has not come so far."""
        return self._takeover.last

    @property
    def is_handed_on(self) -> bool:
        """Whether it was told to end for another node to go on. Not where the job had stopped meanwhile, with
        the seat still ours: nobody goes on then."""
        return self._asked_to_end and not (self._wishes.job_stops.is_set() and not self.permit.is_revoked)

    def finish(self) -> None:
        """End after the epoch in hand is committed."""
        self._asked_to_end = True
        self._wishes.leaving.set()
        self._wishes.stopping.set()

    def revoke(self, why: str) -> None:
        """End now: nothing more may be committed."""
        self._asked_to_end = True
        self._wishes.leaving.set()
        self.permit.revoke(why)
        self._wishes.stopping.set()

    def _lead(self) -> None:
        """The run's own thread. ZooKeeper has elected this node; from here on storage decides."""
        try:
            self._context.registration.mark_checkpoint(self._job, move=False)
            self.permit.refuse_if_revoked()
            handle = self._job.job.start_as(
                self._wishes, self._job.checkpoint, None, self._note, self._say, self._job.options,
                self._prepared(),
            )  # fmt: skip
            while handle.running:
                with suppress(TimeoutError):
                    handle.wait(LOOK_SECONDS)
                if self._takeover.committed is not None:
                    self._tell_takeover()
            handle.wait()
        except BaseException as failure:
            self.failure = failure
        if self._takeover.running is not None:
            self._tell_takeover()

    def _prepared(self) -> Prepared:
        """What standing by has made ready. Following has ended by then: it would move a shard back."""
        if self._standby is None:
            return Prepared(owner=self._context.owner)
        self._standby.close()
        return self._standby.prepared

    def _note(self, progress: Progress) -> None:
        self._takeover.note(progress, self._context.clock.monotonic())
        self._job.note(progress)
        self._context.on_progress(progress)

    def _tell_takeover(self) -> None:
        """Write the phases down, once. A record that cannot be written is left out: the run matters more."""
        if self._told:
            return
        self._told = True
        registration = self._context.registration
        kind = self._job.standby(registration.standby)
        record = self._takeover.record(registration.name, kind, self._context.clock.now_ms())
        self._say(told_of(record))
        with suppress(HoldfastError):
            record_failover(self._job.storage, record)


def told_of(record: FailoverRecord) -> str:
    """How long it took to lead, for people. Where no node led before it is a start."""
    what, began = ("TAKEOVER", "took over in") if record.before else ("STARTED", "began in")
    parts = [("detected in", record.detect_ms), (began, record.take_over_ms)]
    parts += [("restored in", record.restore_ms), ("first new commit after", record.replay_ms)]
    times = ", ".join(f"{each} {ms / 1_000:.1f} s" for each, ms in parts if ms is not None)
    return f"{what} by term {record.term}: {times}"


def is_replaced(failure: BaseException | None) -> bool:
    """Whether a run ended because another node leads, or may."""
    return isinstance(failure, FencedOut | SeatLost)


def is_of_the_job(failure: BaseException) -> bool:
    """Whether a run would fail so on every node: then the job is over. What a machine lacks, and input that
    it does not see, may be there on another; an error that Holdfast has no name for may not happen there.
    """
    if isinstance(failure, MachineError | InputVanished):
        return False
    own = DefinitionError | UserCodeError | PoisonEpoch | RestoreError | CorruptionError
    return isinstance(failure, own)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
