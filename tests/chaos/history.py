"""What happened in a scenario, in order, so that a failure tells its story."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """`seconds` since the scenario began."""

    seconds: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.seconds:7.2f} s  {self.who:<10} {self.what}"


@dataclass
class History:
    """Events are only ever added."""

    events: list[Event] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def add(self, who: str, what: str) -> None:
        self.events.append(Event(time.monotonic() - self._began, who, what))

    def story(self) -> str:
        """One line per event."""
        return "\n" + "\n".join(str(event) for event in self.events)
