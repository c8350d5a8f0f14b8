"""A job to control, without Spark: it does what it is told at once, or when the test lets it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.runtime.progress import Monitor, Progress
from holdfast.storage.contract import Storage
from holdfast.testing.clocks import ManualClock

DEADLINE_SECONDS = 20.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, not for a time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS} s until {what}"
        time.sleep(0.01)


class FakeJob:
    """Controls that write down what they were told, in `calls`.

    `gate`: long verbs wait until it is set. `refusal`: what they raise then.
    """

    def __init__(self, storage: Storage | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.refusal: Exception | None = None
        self.given: Any = None
        self.running = True
        self._storage = storage
        self.monitor = Monitor("orders", ManualClock(), [], [])

    @property
    def storage(self) -> Storage:
        assert self._storage is not None
        return self._storage

    def status(self) -> Progress:
        return self.monitor.progress

    def listen(self, listener: Callable[[Progress], None]) -> None:
        self.monitor.listen(listener)

    def savepoint(self, url: str, format: str = "native") -> Any:
        return self._told("savepoint", url, format)

    def stop(self, savepoint: str | None = None, drain: bool = False) -> Any:
        return self._told("stop", savepoint, drain)

    def rescale(self, parallelism: int) -> Any:
        return self._told("rescale", parallelism)

    def retry(self, sink: str) -> Any:
        return self._told("retry", sink)

    def _told(self, *call: Any) -> Any:
        self.calls.append(call)
        assert self.gate.wait(DEADLINE_SECONDS), "the test never opened the gate"
        if self.refusal is not None:
            raise self.refusal
        return self.given
