"""What a caller of `Job.start` is told by its handle. The run itself is played."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import RestoreError
from holdfast.runtime.job_handle import JobHandle
from holdfast.runtime.progress import Monitor
from holdfast.testing.clocks import ManualClock


class PlayedDriver:
    """Runs until it is let go; then it ends well, or with `failure`."""

    storage = wishes = settings = None

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.gate = failure, threading.Event()
        self.monitor = Monitor("orders", ManualClock(), [], [])
        self.monitor.update(phase="running", epoch=12)

    def run(self, controls: Any) -> None:
        self.gate.wait()
        if self.failure is not None:
            raise self.failure


def started(driver: Any) -> JobHandle:
    return JobHandle(driver)


def test_waiting_in_vain_is_told() -> None:
    driver = PlayedDriver()
    handle = started(driver)
    with pytest.raises(
        TimeoutError, match=r"job 'orders' still runs after 0\.01 s \(phase running, epoch 12\)"
    ):
        handle.wait(0.01)
    driver.gate.set()
    assert handle.wait(60).epoch == 12
    assert handle.wait(0).epoch == 12


def test_a_failure_is_told_rather_than_the_time() -> None:
    driver = PlayedDriver(RestoreError("it is gone"))
    handle = started(driver)
    driver.gate.set()
    with pytest.raises(RestoreError):
        handle.wait(60)
