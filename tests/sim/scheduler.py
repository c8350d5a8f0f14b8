"""Simulated processes of which exactly one runs at a time, switched only at the calls that they make to the
world outside, by a seed.

The same seed gives the same run, whatever the machine does. An actor is a thread of a process, with a real
thread below it, so that the code under test runs as it is; a switch hands over one lock. On one core
(`on_one_core`) that costs about 3 microseconds, ten times less than when threads wander between cores.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.epoch.sink_thread import LeftBehind


class Crashed(BaseException):
    """The simulated process ends here, with no chance to clean up."""


class Deadlock(AssertionError):
    """Every actor waits for another."""


class Process:
    """What crashes, and what is paused, as one. `dead` for ever; a new life is a new process."""

    def __init__(self, name: str, paused_until: int = 0) -> None:
        self.name = name
        self.dead = False
        self.paused_until = paused_until


class _Worker:
    """A thread that plays one actor after another: starting threads costs more than a whole run."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.play: Callable[[], None] | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.turn.acquire()
            play, self.play = self.play, None
            assert play is not None
            play()


_idle: list[_Worker] = []


class Actor:
    """One thread of a simulated process."""

    def __init__(self, process: Process, body: Callable[[], None], worker: _Worker) -> None:
        self.process, self.body, self.worker = process, body, worker
        self.turn = worker.turn
        self.blocked = False
        self.wakes: int | None = None
        """When one that is blocked, or naps, goes on whatever happens; None: not by itself."""

    def ready_at(self) -> int | None:
        """From which step on it may have a turn; None: not before another frees it."""
        if self.blocked and self.wakes is None:
            return None
        return max(self.process.paused_until, (self.wakes or 0) if self.blocked else 0)


class Scheduler:
    """Runs actors to their end; every `step` may crash, pause or switch.

    `crash_chance`, `pause_chance` and `stay_chance` (the actor keeps its turn) are per step. After
    `steps_max` steps every process crashes.
    """

    def __init__(
        self,
        chance: random.Random,
        *,
        crash_chance: float = 0.0,
        pause_chance: float = 0.0,
        stay_chance: float = 0.6,
        steps_max: int = 10_000,
    ) -> None:
        self.random = chance
        self.steps = 0
        self._steps_max = steps_max
        self.crashes = self.pauses = 0
        self._crash_below = crash_chance
        self._pause_below = crash_chance + pause_chance
        self._stay_below = self._pause_below + stay_chance
        self._alive: list[Actor] = []
        self._current: Actor | None = None
        self._over = threading.Lock()
        self._over.acquire()
        self._failure: BaseException | None = None

    def spawn(self, process: Process, body: Callable[[], None]) -> Actor:
        """A new thread of `process`; it gets its first turn some time later."""
        worker = _idle.pop() if _idle else _Worker()
        actor = Actor(process, body, worker)
        worker.play = lambda: self._play(actor)
        self._alive.append(actor)
        return actor

    def run(self) -> None:
        """Let all actors come to their end. Raises what one failed with, and ends the others then."""
        if self._alive:
            self._hand_over()
            self._over.acquire()
        if self._failure is not None:
            raise self._failure

    @property
    def over(self) -> bool:
        """Whether the simulation is being ended: no new life begins."""
        return self._failure is not None or self.steps > self._steps_max

    @property
    def process(self) -> Process:
        """Whose turn it is."""
        assert self._current is not None
        return self._current.process

    def reborn(self, process: Process) -> None:
        """The running actor goes on as the first thread of another process."""
        assert self._current is not None
        self._current.process = process

    def step(self) -> Process:
        """Called by the running actor before each thing that others can see, or that can fail.

        Returns whose turn it is.
        """
        self._end_if_found()
        actor = self._current
        assert actor is not None
        if actor.process.dead:
            raise Crashed
        self.steps += 1
        if self.steps > self._steps_max:
            self.kill(actor.process)
            raise Crashed
        roll = self.random.random()
        if roll >= self._stay_below:
            self._switch(actor)
        elif roll < self._crash_below:
            self.crashes += 1
            self.kill(actor.process)
            raise Crashed
        elif roll < self._pause_below:
            self.pauses += 1
            actor.process.paused_until = self.steps + self.random.choice((5, 40, 120))
            self._switch(actor)
        return actor.process

    def sleep(self, steps: int) -> None:
        """Pause the running process at an instant where that hurts."""
        self._end_if_found()
        actor = self._current
        assert actor is not None
        self.pauses += 1
        actor.process.paused_until = self.steps + steps
        self._switch(actor)

    def nap(self, steps: int) -> None:
        """Let time pass for the running actor alone."""
        self.wait_until(lambda: False, [], steps)

    def kill(self, process: Process) -> None:
        process.dead = True
        process.paused_until = 0
        for actor in self._alive:
            if actor.process is process:
                actor.blocked = False

    def wait_until(self, done: Callable[[], bool], waiting: list[Actor], steps: int | None = None) -> None:
        """Block the running actor until `done`; whoever makes it so frees the actors in `waiting`. `steps`:
        for no longer than this."""
        self._end_if_found()
        actor = self._current
        assert actor is not None
        wakes = None if steps is None else self.steps + max(1, steps)
        while not done() and (wakes is None or self.steps < wakes):
            if actor.process.dead:
                raise Crashed
            actor.blocked, actor.wakes = True, wakes
            waiting.append(actor)
            self._switch(actor)
            actor.blocked, actor.wakes = False, None
        if wakes is not None and self.steps > self._steps_max:
            self.kill(actor.process)
            raise Crashed

    def _end_if_found(self) -> None:
        """End all, if what a checker has found is on its way out of the running actor. Code that cleans up on
        that way could be killed there, or another checker be faster, and the finding would be lost."""
        finding = sys.exception()
        if isinstance(finding, AssertionError):
            self._fail(finding)
            raise Crashed

    def _switch(self, actor: Actor) -> None:
        following = self._choice()
        if following is not actor:
            self._current = following
            following.turn.release()
            actor.turn.acquire()
        if actor.process.dead:
            raise Crashed

    def _play(self, actor: Actor) -> None:
        try:
            if not actor.process.dead:
                actor.body()
        except Crashed:
            pass
        except BaseException as failure:
            self._fail(failure)
        self._alive.remove(actor)
        _idle.append(actor.worker)
        self._hand_over()

    def _fail(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
        for other in list(self._alive):
            self.kill(other.process)

    def _hand_over(self) -> None:
        if not self._alive:
            self._over.release()
            return
        self._current = self._choice()
        self._current.turn.release()

    def _choice(self) -> Actor:
        times = [(actor.ready_at(), actor) for actor in self._alive]
        ready = [actor for at, actor in times if at is not None and at <= self.steps]
        if not ready:
            # Everyone sleeps: time passes until the first wakes.
            asleep = [(at, actor) for at, actor in times if at is not None]
            if not asleep:
                self._fail(Deadlock("every actor waits for another"))
                return self._alive[0]
            self.steps, first = min(asleep, key=lambda each: each[0])
            ready = [first]
        if len(ready) == 1:
            return ready[0]
        return ready[int(self.random.random() * len(ready))]


class Future:
    """The part of `concurrent.futures.Future` that the engine uses.

    Keeps errors that Holdfast raises on purpose; any other ends the simulation at once.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Actor] = []
        self._done = False
        self._failure: BaseException | None = None
        self._value: Any = None

    def done(self) -> bool:
        return self._done

    def result(self) -> Any:
        self._scheduler.wait_until(self.done, self._waiting)
        if self._failure is not None:
            raise self._failure
        return self._value

    def run(self, work: Callable[[], Any]) -> None:
        try:
            self._value = work()
        except HoldfastError as failure:
            self._failure = failure
        self._done = True
        for actor in self._waiting:
            actor.blocked = False


class Executor:
    """One simulated thread that works off what is submitted, as a ThreadPoolExecutor of size one does."""

    def __init__(self, scheduler: Scheduler, workers: int, thread_name_prefix: str = "") -> None:
        assert workers == 1
        self._scheduler = scheduler
        self._queue: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._waiting: list[Actor] = []
        self._busy = False

    def submit(self, work: Callable[..., Any], *args: Any, **named: Any) -> Future:
        future = Future(self._scheduler)
        self._queue.append((future, lambda: work(*args, **named)))
        if not self._busy:
            self._busy = True
            self._scheduler.spawn(self._scheduler.process, self._work)
        return future

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        assert wait
        assert cancel_futures
        self._queue.clear()
        self._scheduler.wait_until(lambda: not self._busy, self._waiting)

    def _work(self) -> None:
        while self._queue:
            future, work = self._queue.popleft()
            future.run(work)
        self._busy = False
        for actor in self._waiting:
            actor.blocked = False


class SinkThread:
    """Stands in for the engine's own: one simulated thread, which may be left behind."""

    def __init__(self, scheduler: Scheduler, steps_per_second: int, name: str) -> None:
        self._scheduler, self._steps_per_second = scheduler, steps_per_second
        self._queue: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._waiting: list[Actor] = []
        self._busy = self._ended = False

    def submit(self, do: Callable[[], Any]) -> Future:
        future = Future(self._scheduler)
        if self._ended:
            future.run(_refused)
            return future
        self._queue.append((future, do))
        if not self._busy:
            self._busy = True
            self._scheduler.spawn(self._scheduler.process, self._work)
        return future

    def await_done(self, seconds: float) -> bool:
        steps = round(seconds * self._steps_per_second)
        self._scheduler.wait_until(lambda: not self._busy, self._waiting, steps)
        return not self._busy

    def end(self, seconds: float, left_behind: Callable[[], None]) -> bool:
        self._ended = True
        while self._queue:
            self._queue.popleft()[0].run(_refused)
        return self.await_done(seconds)

    def _work(self) -> None:
        while self._queue:
            future, work = self._queue.popleft()
            future.run(work)
        self._busy = False
        for actor in self._waiting:
            actor.blocked = False


def _refused() -> None:
    raise LeftBehind("the run has ended meanwhile")


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one core: a switch then wakes nobody elsewhere."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[os.getpid() % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
