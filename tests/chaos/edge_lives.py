"""The walk of `edge_walk` with real processes: lives end by SIGKILL at a step or at none, or by SIGTERM, and
a consumer takes files away while they run."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import holdfast as hf
from tests.chaos.edge_kills import Killed
from tests.chaos.edge_walk import REWIND, Walk
from tests.chaos.edges import Layout
from tests.chaos.harness import KILLED, POLL_SECONDS, Driver, Scenario, wait_until
from tests.chaos.nemesis import DRIVER_STEPS, Fault


class LivesWalk(Walk):
    """Each life is a process."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario.place.root, seed)
        self._scenario = scenario

    def _live(self, layout: Layout, kind: str, at: int, robbed: list[int]) -> BaseException | None:
        chance = self.chance
        size, interval = chance.choice((1, 3, 7, 20)), chance.choice(([], [], ["--interval", "1h"]))
        step, count, commits = chance.choice(DRIVER_STEPS), chance.randrange(1, 5), chance.randrange(1, 5)
        fault = Fault(step, count) if kind == "kill" and at % 2 else None
        self._tell(f"run {layout} to {self.limit} by {size}, {kind}, {fault or f'after {commits} commits'}")
        arguments = ["--layout", layout.to_json(), "--limit", str(self.limit), "--size", str(size)]
        with self._consumer() if robbed else nullcontext():
            driver = self._scenario.start(fault, [*arguments, *interval])
            if kind != "end" and fault is None:
                self._disturb(driver, kind, commits)
            code = driver.wait()
            for line in driver.said().splitlines():
                if REWIND in line:
                    self._said(line)
            driver.close()
        if code == KILLED:
            return Killed(f"at {fault}" if driver.hit else "at no step")
        if code == 0:
            return None
        if code == -signal.SIGTERM:
            return Killed("by a signal to stop that came after its end")
        kind_of = hf.RestoreError if code == hf.RestoreError.exit_code else hf.HoldfastError
        return kind_of(driver.last_words().removeprefix("error: "))

    def _disturb(self, driver: Driver, kind: str, commits: int) -> None:
        """After some commits of its own, wherever it is then."""
        target = max(self._scenario.commits(), default=0) + commits
        wait_until(
            lambda: max(self._scenario.commits(), default=0) >= target or not driver.running,
            f"commit {target}", self._scenario.history,
        )  # fmt: skip
        if kind == "kill":
            driver.kill()
        elif driver.running:
            os.kill(driver.pid, signal.SIGTERM)

    @contextmanager
    def _consumer(self) -> Iterator[None]:
        """Takes some of what there is, again and again."""
        ended, chance = threading.Event(), random.Random(self.chance.random())

        def take() -> None:
            while not ended.wait(POLL_SECONDS):
                self.books.consume(chance)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
