"""A job: the declaration, and the calls that run it."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.clock import SystemClock
from holdfast.engine.driver import Driver
from holdfast.engine.progress import Listener, Message, Monitor, Progress
from holdfast.engine.session import missing_settings, open_session
from holdfast.engine.settings import RunSettings, check_settings
from holdfast.errors import DefinitionError
from holdfast.graph.guarantees import check_guarantee
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check
from holdfast.storage.places import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Job(Declaration):
    """A declared job. `run` runs it here and now; `start` runs it beside whatever else this process does."""

    def run(
        self,
        checkpoint: str | Path,
        *,
        spark: SparkSession | None = None,
        guarantee: str = "exactly-once",
        checkpoint_interval: str | None = None,
        until: str = "stopped",
        parallelism: int | None = None,
        key_groups: int = 128,
        backend: str = "lmdb",
        max_rows_per_epoch: int | None = None,
        epoch_interval: str | None = None,
        retain: int = 10,
        working_dir: str | Path | None = None,
        on_progress: Listener | None = None,
        on_message: Message | None = None,
    ) -> None:
        """Run until stopped (SIGTERM, SIGINT), or until the sources are exhausted. Killed at any moment and
        started again,
        it goes on exactly where it was."""
        handle = self.start(
            checkpoint,
            spark=spark,
            guarantee=guarantee,
            checkpoint_interval=checkpoint_interval,
            until=until,
            parallelism=parallelism,
            key_groups=key_groups,
            backend=backend,
            max_rows_per_epoch=max_rows_per_epoch,
            epoch_interval=epoch_interval,
            retain=retain,
            working_dir=working_dir,
            on_progress=on_progress,
            on_message=on_message,
        )
        with _stopping_on_signals(handle):
            handle.wait()

    def start(
        self,
        checkpoint: str | Path,
        *,
        spark: SparkSession | None = None,
        on_progress: Listener | None = None,
        on_message: Message | None = None,
        **options: Any,
    ) -> JobHandle:
        """Start running in a thread and give back a handle. Options are those of `run`. Mistakes are raised
        here.
        """
        graph = self.graph()
        check(graph)
        settings = _settings(checkpoint, options)
        check_guarantee(graph, settings.guarantee)
        storage = open_storage(settings.checkpoint)
        session = spark or open_session(graph.name)
        clock = SystemClock()
        monitor = Monitor(
            graph.name, clock, [on_progress] if on_progress else [], [on_message or _to_standard_error]
        )
        if spark is not None and (missing := missing_settings(spark)):
            monitor.say(
                f"this Spark session runs epochs slower than it could; consider: {', '.join(missing)}"
            )
        driver = Driver(graph, settings, session, storage, uuid.uuid4().hex[:12], clock, monitor)
        return JobHandle(driver, monitor)


class JobHandle:
    """A running job."""

    def __init__(self, driver: Driver, monitor: Monitor) -> None:
        self._driver, self._monitor = driver, monitor
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-driver", daemon=True)
        self._thread.start()

    def status(self) -> Progress:
        """Where the run stands now."""
        return self._monitor.progress

    def stop(self) -> None:
        """End the run after the epoch in hand is committed; returns at once, `wait` waits."""
        self._driver.stop()

    def wait(self, timeout: float | None = None) -> Progress:
        """Wait for the end of the run, or for `timeout` seconds. Raises what the run failed with."""
        # Joined in short turns, so that a signal handler of the main thread gets to run.
        waited = 0.0
        while self._thread.is_alive() and (timeout is None or waited < timeout):
            self._thread.join(0.2)
            waited += 0.2
        if self._failure is not None:
            raise self._failure
        return self.status()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._driver.run()
        except BaseException as failure:
            self._failure = failure
            self._monitor.update(phase="failed", error=str(failure))


def _settings(checkpoint: str | Path, options: dict[str, Any]) -> RunSettings:
    known: dict[str, Any] = {
        "guarantee": "exactly-once",
        "checkpoint_interval": None,
        "until": "stopped",
        "parallelism": None,
        "key_groups": 128,
        "backend": "lmdb",
        "max_rows_per_epoch": None,
        "epoch_interval": None,
        "retain": 10,
        "working_dir": None,
    }
    if unknown := sorted(options.keys() - known.keys()):
        raise DefinitionError(f"unknown option {unknown[0]!r}; the options are {', '.join(sorted(known))}")
    return check_settings(checkpoint=checkpoint, **(known | options))


def _to_standard_error(text: str) -> None:
    import sys

    sys.stderr.write(f"holdfast: {text}\n")


@contextmanager
def _stopping_on_signals(handle: JobHandle) -> Iterator[None]:
    """SIGTERM and SIGINT end the run cleanly, when this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: handle.stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
