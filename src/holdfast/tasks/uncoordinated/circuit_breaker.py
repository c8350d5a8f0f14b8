"""When a storage that does not answer is left alone. Pure: time comes in.

    answering --(`failures_max` failures in a row)--> bypassed
    bypassed  --(`window_ms` over)--> probing
    probing   --(an answer)--> answering
    probing   --(a failure)--> bypassed

While it is bypassed it is not asked. When the window is over it is asked one request at a time, until it has
answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Standing(Enum):
    ANSWERING = "answering"
    BYPASSED = "bypassed"
    PROBING = "probing"


@dataclass(frozen=True, slots=True)
class Bypass:
    """How a storage stands. `asked` before a request, `answered` or `failed` after it."""

    failures_max: int = 10
    window_ms: int = 600_000
    failures: int = 0
    since_ms: int | None = None
    probing: bool = False

    def standing(self, now_ms: int) -> Standing:
        if self.since_ms is None:
            return Standing.ANSWERING
        if now_ms - self.since_ms < self.window_ms:
            return Standing.BYPASSED
        return Standing.PROBING

    def may_ask(self, now_ms: int) -> bool:
        """Whether to ask at all."""
        standing = self.standing(now_ms)
        return standing is Standing.ANSWERING or (standing is Standing.PROBING and not self.probing)

    def asked(self, now_ms: int) -> Bypass:
        return replace(self, probing=self.standing(now_ms) is Standing.PROBING)

    def answered(self) -> Bypass:
        return replace(self, failures=0, since_ms=None, probing=False)

    def failed(self, now_ms: int) -> Bypass:
        failures = self.failures + 1
        opens = self.probing or failures >= self.failures_max
        return replace(self, failures=failures, since_ms=now_ms if opens else self.since_ms, probing=False)
