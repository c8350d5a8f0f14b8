"""Time, as something passed in.

Clocks are for speed and for the user's processing time; correctness never depends on them.
"""

from __future__ import annotations

import re
import time
from typing import Protocol

from holdfast.errors import DefinitionError


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch of Unix. May jump either way."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


DURATION_MAX_MS = (1 << 61) // 1_000
"""About 73,000 years, in µs: a time and several durations together fit a long."""
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Read a duration such as `500ms`, `5s`, `2m`, `1h` or `7d`. DefinitionError: it is none, negative, or
    longer than `DURATION_MAX_MS`."""
    if text.lstrip().startswith("-"):
        raise DefinitionError(f"{text!r} is negative; give a duration such as '10s'")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if match is None:
        raise DefinitionError(
            f"{text!r} is not a duration; write a number and a unit, such as '500ms', '5s' or '2m'"
        )
    ms = float(match[1]) * _UNITS_MS[match[2]]
    if ms > DURATION_MAX_MS:
        raise DefinitionError(f"{text!r} is longer than 73,000 years; give a shorter duration such as '365d'")
    return int(ms)
