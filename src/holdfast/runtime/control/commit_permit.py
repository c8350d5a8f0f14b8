"""Whether a run may commit now: always when it runs by itself, as long as its seat is safe in a cluster.

A permit ends by itself when it is not extended, also while the whole process is stopped. A commit that is
about to begin waits until it is extended again, or is refused when it is revoked.
Always true: nothing depends on it but peace; a commit that slips through is judged by the chain.
Never here: why it is extended (see cluster.seat_lease).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.clock import Clock
from holdfast.errors import SeatLost

TURN_SECONDS = 0.1


class Permit:
    """Shared by the node, which extends it, and the thread that commits."""

    def __init__(self, clock: Clock, until: float = math.inf) -> None:
        self._clock, self._until = clock, until
        self._why: str | None = None
        self._wanted_since: float | None = None
        self._reaching: dict[int, float] = {}
        """Thread -> since when it has waited for storage."""
        self._changed = threading.Condition()

    @property
    def wanted_since(self) -> float | None:
        """Since when no wanted commit has succeeded, or storage has not answered; None: all is well."""
        wanted = [self._wanted_since] if self._wanted_since is not None else []
        return min([*wanted, *self._reaching.copy().values()], default=None)

    @contextmanager
    def reaching_storage(self) -> Iterator[None]:
        """Meanwhile this thread waits for storage: a run that is kept waiting comes to no commit either."""
        self._reaching[threading.get_ident()] = self._clock.monotonic()
        try:
            yield
        finally:
            del self._reaching[threading.get_ident()]

    def extend(self, until: float) -> None:
        """Commits may begin before `until`, in monotonic seconds."""
        with self._changed:
            self._until = until
            self._changed.notify_all()

    def revoke(self, why: str) -> None:
        """No commit begins any more, ever."""
        with self._changed:
            self._why = self._why or why
            self._changed.notify_all()

    def refuse_if_revoked(self) -> None:
        """SeatLost: it was revoked."""
        if self._why is not None:
            raise SeatLost(f"{self._why}; this run ends and its node stands by")

    def want(self) -> None:
        """A commit is wanted, or the run failed before it came to that."""
        if self._wanted_since is None:
            self._wanted_since = self._clock.monotonic()

    def await_commit(self) -> None:
        """Return when a commit may begin. SeatLost: it never may again."""
        self.want()
        self.await_valid()

    def await_valid(self) -> None:
        """Return when the permit is valid. SeatLost: it never will be again."""
        with self._changed:
            while self._why is None and self._clock.monotonic() >= self._until:
                self._changed.wait(TURN_SECONDS)
        self.refuse_if_revoked()

    def satisfied(self) -> None:
        """A commit has succeeded, or there is nothing to commit."""
        self._wanted_since = None
