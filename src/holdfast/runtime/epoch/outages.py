"""Servers of sources and sinks that are not there now, and sinks that refuse an epoch: how long each is
waited for, and what is shown of it.

Always true: a wait is said when it begins and when it is over, and shown meanwhile: since when, why, and when
it is tried again. Waits for a server grow up to a limit, and chance adds to each or takes away, so that jobs
that lost one server do not all come back together. What refuses is tried again when a person says so, and not
before. Nobody who waits here outlasts a stop.
Never here: what goes on meanwhile (see sink_queues, planner).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.errors import DefinitionError, SinkWentBack, Unavailable, one_line
from holdfast.runtime.leader_context import LeaderContext, ToldToStop

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0
GROWTH = 2.0
JITTER = 0.2
"""The part of a wait that chance adds or takes away."""
LOOK_SECONDS = 0.05
"""How soon a wait notices that it is to end."""
REASON_CHARS_MAX = 1_000
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A server that is waited for, or a sink that refuses. `try_at`: by the clock that never goes back."""

    since_ms: int
    tries: int
    reason: str
    next_try_ms: int | None
    """None: when a person says so."""
    try_at: float

    @property
    def refuses(self) -> bool:
        return self.next_try_ms is None

    @property
    def told(self) -> dict[str, Any]:
        """As progress shows it."""
        told = {"since_ms": self.since_ms, "tries": self.tries, "reason": self.reason}
        return told if self.refuses else {**told, "next_try_ms": self.next_try_ms}


class Outages:
    """Those of one kind (source or sink), by uid. Safe to use from several threads."""

    def __init__(self, context: LeaderContext, kind: str) -> None:
        self._context, self._kind, self._clock = context, kind, context.clock
        self._lock = threading.Lock()
        self._known: dict[str, Outage] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called by whichever thread has learned something."""

    def told(self, uid: str) -> dict[str, Any] | None:
        """What progress shows; None: the server is there, as far as is known."""
        outage = self._known.get(uid)
        return outage.told if outage is not None and not outage.refuses else None

    def refusal(self, uid: str) -> dict[str, Any] | None:
        """What progress shows of a sink that refuses what it was given last; None: it does not."""
        outage = self._known.get(uid)
        return outage.told if outage is not None and outage.refuses else None

    def known(self) -> dict[str, dict[str, Any]]:
        """Uid -> what progress shows, of all servers that are waited for."""
        with self._lock:
            return {uid: outage.told for uid, outage in self._known.items()}

    def is_due(self, uid: str) -> bool:
        """Whether to try now: there is no outage, or its wait is over."""
        outage = self._known.get(uid)
        return outage is None or self._clock.monotonic() >= outage.try_at

    def failed(self, uid: str, failure: Unavailable) -> None:
        """The server was tried, and is not there."""
        with self._lock:
            before = self._known.get(uid)
            before = None if before is None or before.refuses else before
            tries = before.tries + 1 if before is not None else 1
            seconds = min(MOST_SECONDS, FIRST_SECONDS * GROWTH ** min(tries - 1, 16))
            seconds *= 1 + JITTER * (2 * self._context.chance() - 1)
            now_ms = self._clock.now_ms()
            self._known[uid] = Outage(
                since_ms=before.since_ms if before is not None else now_ms,
                tries=tries,
                reason=one_line(failure)[:REASON_CHARS_MAX],
                next_try_ms=now_ms + round(seconds * 1_000),
                try_at=self._clock.monotonic() + seconds,
            )
        if before is None:
            self._context.monitor.say(
                f"WAITING for the server of {self._kind} {uid!r}: {self._known[uid].reason}; it is tried "
                "again until it is there"
            )
        self.on_change()

    def refused(self, uid: str, refusal: DefinitionError | SinkWentBack, meanwhile: str) -> None:
        """A sink was tried, and does not take what it was given: it is tried again when a person says so.
        `meanwhile`: what goes on until then."""
        with self._lock:
            before = self._known.get(uid)
            before = before if before is not None and before.refuses else None
            self._known[uid] = Outage(
                since_ms=before.since_ms if before is not None else self._clock.now_ms(),
                tries=before.tries + 1 if before is not None else 1,
                reason=one_line(refusal)[:REASON_CHARS_MAX],
                next_try_ms=None,
                try_at=math.inf,
            )
        self._context.monitor.say(f"REFUSED: {one_line(refusal)}; {meanwhile}")
        self.on_change()

    def answered(self, uid: str) -> None:
        """The server was tried, and is there."""
        if uid not in self._known:
            return
        with self._lock:
            outage = self._known.pop(uid, None)
        if outage is not None:
            away = (self._clock.now_ms() - outage.since_ms) / 1_000
            self._context.monitor.say(
                f"{self._kind} {uid!r} takes again what it is given, after {away:.0f} s"
                if outage.refuses
                else f"the server of {self._kind} {uid!r} is there again, after {away:.0f} s"
            )
            self.on_change()

    def wait(self, uid: str, is_over: Callable[[], bool]) -> bool:
        """Wait until it is time to try again, or a person says so. False: `is_over` says that nobody waits
        any more."""
        while not (self.is_due(uid) or self._context.wishes.taken_retry(uid)):
            if is_over():
                return False
            left = self._known[uid].try_at - self._clock.monotonic()
            self._clock.sleep(max(0.001, min(LOOK_SECONDS, left)))
        return not is_over()

    def awaited(self, uid: str, ask: Callable[[], T]) -> T:
        """What `ask` gives, once the server is there. Of the leading thread. ToldToStop: it was not when the
        run was told to stop."""
        stopping = self._context.wishes.stopping.is_set
        while True:
            try:
                found = ask()
            except Unavailable as failure:
                self.failed(uid, failure)
                self._context.look_around()
                if not self.wait(uid, stopping):
                    raise ToldToStop(
                        f"told to stop while waiting for the server of {self._kind} {uid!r}: "
                        f"{one_line(failure)}"
                    ) from failure
            else:
                self.answered(uid)
                return found
