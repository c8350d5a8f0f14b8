"""A takeover's phases, timed: who had the seat, and when the term was claimed, the job ran and committed."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from holdfast.checkpoint.store.records import FailoverRecord
from holdfast.runtime.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Predecessor:
    """Who held the seat before, why it was free, and how long after its last sign of life it was won."""

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
    """The first progress that had the job running."""
    last: Progress | None = None
    arrivals: dict[str, int] | None = None
    told: bool = False

    def note(self, progress: Progress, now: float) -> None:
        """A change of the run."""
        self.last = progress
        if self.claimed is None and progress.term:
            self.claimed = now
        if self.running is None and progress.phase == "running":
            self.running, self.first = now, progress
        if self.arrivals is None and progress.epochs_run:
            self.arrivals = progress.arrivals
        if self.committed is None and self.first is not None and progress.commit > self.first.commit:
            self.committed = now

    def record(self, node: str, standby: str, now_ms: int) -> FailoverRecord:
        """As it is written down. For one that got as far as running."""
        assert self.last is not None
        assert self.claimed is not None
        assert self.running is not None
        return FailoverRecord(
            at_ms=now_ms,
            node=node,
            host=socket.gethostname(),
            standby=standby,
            term=self.last.term,
            before=self.before.node,
            reason=self.before.reason,
            detect_ms=self.before.detect_ms,
            take_over_ms=_ms(self.claimed - self.won),
            restore_ms=_ms(self.running - self.claimed),
            replay_ms=_ms(self.committed - self.running) if self.committed is not None else None,
            commit=self.last.commit,
            arrivals=self.arrivals or {},
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
