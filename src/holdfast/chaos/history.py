"""What happened, in order: who did what, when, and which fault took effect.

A failure tells its story from it, the figures are computed from it, and the picture is drawn from it. Kept as
JSON lines, one event a line, so that a history that was cut short can still be read.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO


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
    _began: float = field(default_factory=time.monotonic)
    _open: TextIO | None = None

    def add(self, who: str, what: str, kind: str = "note", **facts: Any) -> Event:
        event = Event(self.now(), who, what, kind, facts)
        self.events.append(event)
        if self.file is not None:
            if self._open is None:
                self._open = self.file.open("a", buffering=1)
            self._open.write(event.as_json() + "\n")
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
