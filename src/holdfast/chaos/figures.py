"""What a campaign comes to, in numbers. Pure: from a history to figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.chaos.checker import Tally, Verdict
from holdfast.chaos.faults import ENDS_DRIVER
from holdfast.chaos.history import Event


@dataclass(frozen=True)
class Recoveries:
    """Seconds from a fault that ended the driver to the next commit."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    longest: float = 0.0

    @staticmethod
    def of(seconds: Sequence[float]) -> Recoveries:
        if not seconds:
            return Recoveries()
        ordered = sorted(seconds)
        return Recoveries(len(ordered), _quantile(ordered, 0.5), _quantile(ordered, 0.95), ordered[-1])


@dataclass(frozen=True, kw_only=True)
class Figures:
    """`faults`: those that took effect, by kind; `missed`: those that found nothing to strike."""

    rounds: int
    seconds: float
    faults: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    epochs: int = 0
    source_rows: int = 0
    tally: Tally = field(default_factory=Tally)
    recoveries: Recoveries = field(default_factory=Recoveries)

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())


def figures_of(events: Sequence[Event], *, epochs: int, source_rows: int, tally: Tally) -> Figures:
    """`epochs`, `source_rows` and `tally` are those of the rounds under faults, together."""
    faults = Counter(event.facts["fault"] for event in events if event.kind == "fault")
    missed = Counter(event.facts["fault"] for event in events if event.kind == "missed")
    ended = [event for event in events if event.kind == "round-end" and event.facts.get("round", 0) > 0]
    took = [
        event.facts["took"]
        for event in events
        if event.kind == "recovered" and event.facts["fault"] in ENDS_DRIVER
    ]
    return Figures(
        rounds=len(ended),
        seconds=round(events[-1].seconds, 1) if events else 0.0,
        faults=dict(sorted(faults.items())),
        missed=dict(sorted(missed.items())),
        restarts=sum(event.facts.get("restarts", 0) for event in ended),
        epochs=epochs,
        source_rows=source_rows,
        tally=tally,
        recoveries=Recoveries.of(took),
    )


def bound(verdict: Verdict, trials: int) -> float | None:
    """Without a failure in `trials` independent trials, the chance of one is below this with 95 % confidence.

    None where there was a failure, or where it is not known.
    """
    return min(1.0, 3 / trials) if verdict is Verdict.TRUE and trials else None


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]
