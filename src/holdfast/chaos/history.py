"""What happened, in order: who did what, when, which fault took effect; and what that comes to in figures.

Failures are told from the history, and the timeline is drawn from it. It is kept as JSON lines, one event
each, so that a history that was cut short can still be read.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from holdfast.chaos.checker import Verdict
from holdfast.chaos.faults import ENDS_DRIVER
from holdfast.chaos.shown_rows import Tally


@dataclass(frozen=True)
class Event:
    """`seconds` since the history began. `kind` is for programs, `what` for people."""

    seconds: float
    who: str
    what: str
    kind: str = "note"
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.seconds:7.2f} s  {self.who:<10} {self.what}"

    def as_json(self) -> str:
        shown = {"seconds": round(self.seconds, 3), "who": self.who, "kind": self.kind, "what": self.what}
        return json.dumps({**shown, **self.facts})


@dataclass
class History:
    """Events are only ever added. `file`: each is written there at once, so that a kill loses none."""

    events: list[Event] = field(default_factory=list)
    file: Path | None = None
    listener: Callable[[Event], None] = lambda event: None
    _began: float = field(default_factory=time.monotonic)
    _open: TextIO | None = None

    def add(self, who: str, what: str, kind: str = "note", **facts: Any) -> Event:
        event = Event(self.now(), who, what, kind, facts)
        self.events.append(event)
        if self.file is not None:
            if self._open is None:
                self._open = self.file.open("a", buffering=1)
            self._open.write(event.as_json() + "\n")
        self.listener(event)
        return event

    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def story(self) -> str:
        """One line per event."""
        return "\n" + "\n".join(str(event) for event in self.events)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


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
