"""What a caller of `Job.start` is told by its handle. The run itself is played."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.errors import RestoreError, SessionLost, StopUnfinished
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.job import stopping_on_signals
from holdfast.runtime.job_handle import JobHandle
from holdfast.runtime.progress import Monitor
from holdfast.testing.clocks import ManualClock


class PlayedDriver:
    """Runs until it is let go; then it ends well, or with `failure`."""

    storage = settings = None
    wishes: Wishes | None = None

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


LOST = SessionLost("the Spark session ended and cannot be had again in this process; start the job again")


@pytest.mark.parametrize("ask", [JobHandle.stop, partial(JobHandle.stop, drain=True)])
def test_a_run_that_was_told_to_stop_and_lost_spark_is_not_to_be_started_again(
    ask: Callable[[JobHandle], None],
) -> None:
    driver = PlayedDriver(LOST)
    driver.wishes = Wishes()
    handle = started(driver)

    def play() -> None:
        with stopping_on_signals(handle.stop, lambda: handle.told_to_stop):
            handle.wait(60)

    assert not handle.told_to_stop
    driver.gate.set()
    with pytest.raises(SessionLost):
        play()
    ask(handle)
    told = r"told to stop, and could not finish .*: the Spark session ended and .* process; nothing is lost"
    with pytest.raises(StopUnfinished, match=told):
        play()


def test_a_signal_that_comes_when_the_run_has_ended_already_counts() -> None:
    """Handlers are put back first: what comes after that is handled as before, and ends the process."""
    asked: list[str] = []

    def play() -> None:
        with stopping_on_signals(partial(asked.append, "stop"), lambda: bool(asked)):
            signal.raise_signal(signal.SIGTERM)
            raise LOST

    with pytest.raises(StopUnfinished):
        play()
    assert asked == ["stop"]
