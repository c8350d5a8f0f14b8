"""A process that dies, is stopped, or whose output is taken, at any of its steps and writes: by exception.

Always true: after its death nothing of it writes any more, whichever of its threads tries; the same seed
gives the same order of everything, because commits and publishing take their turns in the driver's thread.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.checkpoint.chain import commits, retention
from holdfast.errors import StorageError
from holdfast.runtime import driver, epoch_loop
from holdfast.runtime.epoch import committer, publisher, runner, sink_queues
from holdfast.storage import urls
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks import unkeyed

WRITES = ("put", "put_new", "move", "delete")
STEPPING = (commits, driver, publisher, retention, runner, epoch_loop, unkeyed)


class Killed(BaseException):
    """The end of a process."""


class Moments:
    """Counts the moments of one life, and does at some of them what was asked for."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.passed = 0
        self.dead = False
        self.last = "nothing"
        self._asked: dict[int, Callable[[], None]] = {}

    def at(self, moment: int, do: Callable[[], None]) -> None:
        self._asked[moment] = do

    def die(self) -> None:
        self.dead = True
        raise Killed(f"at moment {self.passed}, {self.last}")

    def passing(self, what: str) -> None:
        if not in_driver():
            if self.dead:
                raise StorageError("the process is dead; start another one")
            return
        if self.dead:
            raise Killed("long dead")
        self.passed += 1
        self.last = what
        if do := self._asked.get(self.passed):
            do()


def in_driver() -> bool:
    return threading.current_thread().name == "holdfast-driver"


class Turns:
    """An executor whose work is done at once, or not before it is waited for: by chance."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._waiting: deque[Turn] = deque()
        self._busy = False

    def submit(self, do: Callable[..., None], *given: Any) -> Turn:
        turn = Turn(self, lambda: do(*given))
        self._waiting.append(turn)
        if self._moments.chance.random() < 0.5:
            self.through(turn)
        return turn

    def through(self, turn: Turn) -> None:
        """Do all that was submitted up to `turn`."""
        while turn in self._waiting and not self._busy:
            self._busy = True
            try:
                self._waiting.popleft().do()
            finally:
                self._busy = False

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        self._waiting.clear()

    def await_done(self, seconds: float) -> bool:
        """As a thread of a sink: it is waited for, so all of it is done."""
        while self._waiting and not self._busy:
            self.through(self._waiting[-1])
        return True

    def end(self, seconds: float, left_behind: Callable[[], None]) -> bool:
        self._waiting.clear()
        return True


class Turn:
    def __init__(self, turns: Turns, work: Callable[[], None]) -> None:
        self._turns, self._work = turns, work
        self._done = False
        self._failure: BaseException | None = None

    def do(self) -> None:
        try:
            self._work()
        except BaseException as failure:
            self._failure = failure
        self._done = True

    def done(self) -> bool:
        return self._done

    def result(self) -> None:
        self._turns.through(self)
        if self._failure is not None:
            raise self._failure


def install(patch: pytest.MonkeyPatch, moments: Moments) -> None:
    """Let the process that is about to run pass through `moments`. It has opened no storage yet."""
    urls._opened.clear()
    for module in STEPPING:
        patch.setattr(module, "reached", lambda step: moments.passing(str(step)))
    for name in WRITES:
        patch.setattr(LocalStorage, name, _watched(getattr(LocalStorage, name), name, moments))
    patch.setattr(committer, "ThreadPoolExecutor", lambda *_, **__: Turns(moments))
    patch.setattr(sink_queues, "SinkThread", lambda *_: Turns(moments))


def _watched(write: Callable[..., Any], name: str, moments: Moments) -> Callable[..., Any]:
    def watched(self: LocalStorage, *given: Any) -> Any:
        about = given[0] if isinstance(given[0], str) else "files"
        moments.passing(f"before {name} of {about}")
        done = write(self, *given)
        moments.passing(f"after {name} of {about}")
        return done

    return watched
