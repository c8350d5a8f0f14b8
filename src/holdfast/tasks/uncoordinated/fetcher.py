"""Fetches states of keys for the thread that processes rows, which waits for them.

Always true: it waits while answers come, and no longer than the time-out for the next one; a storage that
failed too often in a row is left alone for a while (see bypass). No answer is never "nothing".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.clock import Clock, SystemClock, duration_ms
from holdfast.graph.uncoordinated import Uncoordinated
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.saved_key import state_id
from holdfast.storage.key_saves.contract import StateId
from holdfast.tasks.uncoordinated.circuit_breaker import Bypass, Standing
from holdfast.tasks.uncoordinated.thread_pool import pool_of


class Unanswered:
    """It is not known whether a save exists."""


UNANSWERED = Unanswered()
Answer = bytes | None | Unanswered


class Count(Protocol):
    """Adds to the counts of an operator."""

    def __call__(self, error: str = "", **more: int) -> None: ...


class Fetcher:
    """The fetches of one operator in this process. One thread at a time."""

    def __init__(self, settings: Uncoordinated, layout: StateLayout, count: Count) -> None:
        self._storage, self._batch, self._layout = settings.storage, settings.batch, layout
        self._count = count
        self.clock: Clock = SystemClock()
        self._pool = pool_of("fetch", settings, settings.fetching)
        self._bypass = Bypass(settings.failures_max, duration_ms(settings.bypass_for))
        self._timeout = duration_ms(settings.fetch_timeout) / 1_000
        self._heard, self._silent = 0.0, False

    @property
    def standing(self) -> Standing:
        return self._bypass.standing(self._now_ms())

    def fetch(self, bases: Sequence[bytes]) -> list[Answer]:
        """What is saved of some keys: bytes, None (nothing), or UNANSWERED. Waits while answers come, and no
        longer than the time-out for the next one."""
        answers: list[Answer] = [UNANSWERED] * len(bases)
        running: deque[_Fetch] = deque()
        self._heard, self._silent = self.clock.monotonic(), False
        for start in range(0, len(bases), self._batch):
            ids = [state_id(self._layout, base) for base in bases[start : start + self._batch]]
            if not self._bypass.may_ask(self._now_ms()):
                self._count(bypassed=len(ids))
                continue
            request = _Fetch(start, ids, self._storage.fetch_many)
            taken = self._pool.submit(request)
            while not taken and running:
                self._finish(running.popleft(), answers)
                taken = self._pool.submit(request)
            if not taken:
                self._count(unanswered=len(ids), error="no room for more fetches")
                continue
            self._bypass = self._bypass.asked(self._now_ms())
            running.append(request)
            if self._bypass.probing:
                self._finish(running.popleft(), answers)
        while running:
            self._finish(running.popleft(), answers)
        return answers

    def _finish(self, request: _Fetch, answers: list[Answer]) -> None:
        done = request.done.wait(max(0.0, self._heard + self._timeout - self.clock.monotonic()))
        if done and request.error is None:
            answers[request.start : request.start + len(request.ids)] = request.found
            self._heard, self._silent = self.clock.monotonic(), False
            self._bypass = self._bypass.answered()
            return
        self._pool.cancel(request)
        self._count(unanswered=len(request.ids), error=request.error or "a fetch was not answered in time")
        # However many requests wait for it, a silence is one failure.
        if done or not self._silent:
            self._bypass = self._bypass.failed(self._now_ms())
        self._silent = self._silent or not done

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1_000)


class _Fetch:
    """One request for some states."""

    def __init__(
        self,
        start: int,
        ids: Sequence[StateId],
        fetch: Callable[[Sequence[StateId]], list[bytes | None]],
    ) -> None:
        self.start, self.ids, self._fetch = start, ids, fetch
        self.done = threading.Event()
        self.found: list[bytes | None] = []
        self.error: str | None = None

    def __call__(self) -> None:
        try:
            found = self._fetch(self.ids)
            assert len(found) == len(self.ids), f"{len(found)} answers to {len(self.ids)} questions"
            self.found = found
        except Exception as error:  # whatever a storage raises: it did not answer
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.done.set()
