"""Threads with a limit on everything: how many, how long an idle one stays, how many requests wait.

Always true: a request that is refused is never run; the caller is told at once and never waits.
A request handles its own errors: one that got out would end the thread that runs it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from holdfast.clock import duration_ms
from holdfast.graph.uncoordinated import SavingPool, Uncoordinated

Work = Callable[[], None]

NICENESS = 10


class BoundedPool:
    """Runs requests in the background. `outstanding` counts those that run too.

    One that `steps_back` leaves the processor to others on the machine that want it.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        keep_alive_seconds: float,
        outstanding: int,
        *,
        steps_back: bool = False,
    ) -> None:
        self._name, self._threads_max, self._steps_back = name, threads, steps_back
        self._keep_alive, self._outstanding_max = keep_alive_seconds, outstanding
        self._waiting: deque[Work] = deque()
        self._changed = threading.Condition()
        self._outstanding = self._threads = self._idle = 0

    @property
    def threads(self) -> int:
        """How many threads there are now."""
        with self._changed:
            return self._threads

    @property
    def outstanding(self) -> int:
        with self._changed:
            return self._outstanding

    @property
    def room(self) -> int:
        """How many requests would be taken now."""
        with self._changed:
            return self._outstanding_max - self._outstanding

    def submit(self, work: Work) -> bool:
        """Take a request. False: there is no room, and it will not be run."""
        with self._changed:
            if self._outstanding >= self._outstanding_max:
                return False
            self._outstanding += 1
            self._waiting.append(work)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._serve, name=f"holdfast-{self._name}", daemon=True).start()
            return True

    def cancel(self, work: Work) -> bool:
        """Take a request back. False: it runs already, or has run."""
        with self._changed:
            try:
                self._waiting.remove(work)
            except ValueError:
                return False
            self._outstanding -= 1
            return True

    def _serve(self) -> None:
        if self._steps_back:
            # Linux does this for the one thread.
            with suppress(OSError):
                me = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + NICENESS)
        while (work := self._next()) is not None:
            try:
                work()
            finally:
                with self._changed:
                    self._outstanding -= 1

    def _next(self) -> Work | None:
        with self._changed:
            if not self._waiting:
                self._idle += 1
                self._changed.wait_for(lambda: bool(self._waiting), self._keep_alive)
                self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None


def pool_of(name: str, settings: Uncoordinated, pool: SavingPool, *, steps_back: bool = False) -> BoundedPool:
    """A pool as the user wants it."""
    seconds = duration_ms(pool.keep_alive) / 1_000
    return BoundedPool(name, pool.threads, seconds, settings.requests(pool), steps_back=steps_back)
