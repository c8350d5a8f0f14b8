"""A thread of a sink's own: it does what it is given, in order, and can be left to itself.

Always true: the thread is started with the first piece of work, and whoever ends it waits no longer than they
are told to. One that does not come back is left behind: it keeps no process alive, does nothing more, and
lets go of what it holds should it come back after all.
Never here: what is shown, and in which order (see sink_queues).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from holdfast.errors import RetryableError


class LeftBehind(RetryableError):
    """Work that was not done, or not waited for, because its thread was ended."""


class SinkThread:
    """Safe to use from several threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._work: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._doing: Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._ended = self._over = False
        self._finally: Callable[[], None] = lambda: None

    def submit(self, do: Callable[[], None]) -> Future[None]:
        """Do this after what was given before. Once the thread was ended nothing more is done."""
        future: Future[None] = Future()
        with self._changed:
            if self._ended:
                future.set_exception(LeftBehind("the run has ended meanwhile; start it again"))
                return future
            self._work.append((future, do))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return future

    def await_done(self, seconds: float) -> bool:
        """Whether everything given is done; waits for that up to so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._work and self._doing is None, seconds)

    def end(self, seconds: float, left_behind: Callable[[], None]) -> bool:
        """Begin nothing more, and wait for what is being done. False: it was not done in so many seconds; the
        thread calls `left_behind` if it ever is."""
        with self._changed:
            self._ended = True
            for future, _ in self._work:
                future.set_exception(LeftBehind("the run has ended meanwhile; start it again"))
            self._work.clear()
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._thread is None or self._over, seconds)
            if not done:
                self._finally = left_behind
                if self._doing is not None:
                    _settle(self._doing, LeftBehind("it did not come back in time, and was left behind"))
        return done

    def _run(self) -> None:
        while (work := self._next()) is not None:
            future, do = work
            failure: BaseException | None = None
            try:
                do()
            except BaseException as raised:
                failure = raised
            with self._changed:
                self._doing = None
                _settle(future, failure)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            last = self._finally
            self._changed.notify_all()
        # Nobody is left to be told.
        with suppress(Exception):
            last()

    def _next(self) -> tuple[Future[None], Callable[[], None]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._ended)
            if self._ended:
                return None
            work = self._work.popleft()
            self._doing = work[0]
            return work


def _settle(future: Future[None], failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
