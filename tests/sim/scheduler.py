"""Threads of which exactly one runs at a time, switched only at storage calls, by a seed.

The same seed gives the same run, whatever the machine does.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Crashed(BaseException):
    """The simulated process ends here, with no chance to clean up."""


class Actor:
    """One simulated process."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.body = body
        self.turn = threading.Semaphore(0)
        self.paused_until = 0
        self.doomed = False
        self.failure: BaseException | None = None


class Scheduler:
    """Runs actors to their end; every `step` may pause, kill or switch."""

    def __init__(self, seed: int, *, pause_chance: float = 0.02, crash_chance: float = 0.005) -> None:
        self.random = random.Random(seed)
        self.steps = 0
        self._pause_chance, self._crash_chance = pause_chance, crash_chance
        self._alive: list[Actor] = []
        self._done = threading.Semaphore(0)
        self._current: Actor | None = None

    def run(self, bodies: dict[str, Callable[[], None]]) -> None:
        actors = [Actor(name, body) for name, body in bodies.items()]
        self._alive = list(actors)
        threads = [threading.Thread(target=self._live, args=(actor,), daemon=True) for actor in actors]
        for thread in threads:
            thread.start()
        self._hand_over()
        self._done.acquire()
        for thread in threads:
            thread.join()
        for actor in actors:
            if actor.failure is not None:
                raise actor.failure

    def step(self) -> None:
        """Called by the running actor before each storage call."""
        actor = self._current
        assert actor is not None
        self.steps += 1
        if self.random.random() < self._crash_chance:
            raise Crashed
        if self.random.random() < self._pause_chance:
            actor.paused_until = self.steps + self.random.choice([5, 50, 400])
        elif self.random.random() < 0.6:
            return
        self._hand_over()
        actor.turn.acquire()

    def _live(self, actor: Actor) -> None:
        actor.turn.acquire()
        try:
            actor.body()
        except BaseException as failure:
            actor.failure = failure
        self._alive.remove(actor)
        if self._alive:
            self._hand_over()
        else:
            self._done.release()

    def _hand_over(self) -> None:
        ready = [actor for actor in self._alive if actor.paused_until <= self.steps]
        if not ready:
            # Everyone sleeps: time passes until the first wakes.
            ready = [min(self._alive, key=lambda actor: actor.paused_until)]
            self.steps = ready[0].paused_until
        self._current = self.random.choice(ready)
        self._current.turn.release()
