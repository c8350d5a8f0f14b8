"""A running job, or a part of one: what its starter and others may ask of it."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError, SinkRefused, Unpublished
from holdfast.graph.job_graph import Graph
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.control.tried_again import await_shown
from holdfast.runtime.driver import NOTHING, Driver, Prepared
from holdfast.runtime.progress import Listener, Message, Monitor, Progress
from holdfast.runtime.savepoints.run_savepoints import TakenSavepoint, await_commit, taken_beside
from holdfast.runtime.settings import RunSettings, check_shards
from holdfast.runtime.spark_session import missing_settings, open_session
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def launch(
    graph: Graph,
    settings: RunSettings,
    wishes: Wishes,
    spark: SparkSession | None,
    on_progress: Listener | None,
    on_message: Message,
    prepared: Prepared = NOTHING,
) -> JobHandle:
    """Run a checked graph in a thread."""
    storage = open_storage(settings.checkpoint)
    session = spark or prepared.spark or open_session(graph.name)
    clock = SystemClock()
    monitor = Monitor(graph.name, clock, [on_progress] if on_progress else [], [on_message])
    if missing := missing_settings(session):
        monitor.say(f"this Spark session runs epochs slower than it could; consider: {', '.join(missing)}")
    driver = Driver(
        graph, settings, storage, session, own_session=spark is None, run=uuid.uuid4().hex[:12],
        clock=clock, monitor=monitor, wishes=wishes, prepared=prepared,
    )  # fmt: skip
    return JobHandle(driver)


class JobHandle:
    """A running job."""

    def __init__(self, driver: Driver) -> None:
        self.storage = driver.storage
        """Where the checkpoint is kept."""
        self._driver, self._monitor, self._wishes = driver, driver.monitor, driver.wishes
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-driver", daemon=True)
        self._thread.start()

    def status(self) -> Progress:
        """Where the run stands now."""
        return self._monitor.progress

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on."""
        self._monitor.listen(listener)

    def stop(self, savepoint: str | Path | None = None, drain: bool = False) -> None:
        """End the run after the epoch in hand is committed; returns at once, `wait` waits. Sinks have as long
        as `stop_within` says to show what is committed: `wait` raises Unpublished if they have not.

        `drain`: first read all that the sources have at hand now. `savepoint`: leave one there, an empty
        place, after everything is committed and published; the job that claims it goes on as this one.
        """
        if savepoint is not None:
            self._driver.refuse_savepoint(str(savepoint))
            self._wishes.leave_savepoint(str(savepoint))
        (self._wishes.draining if drain else self._wishes.stopping).set()

    def savepoint(self, url: str | Path, format: str = "native") -> TakenSavepoint:
        """Take a savepoint of all that was run before now, while the job goes on; returns when it is
        complete. `format`: native (a copy of the checkpoint's files), or canonical (Parquet that other tools
        read, made by Spark). Its `waiting` says what sinks have still to show, which is in no savepoint.
        """
        self._driver.refuse_savepoint(str(url))
        epoch = self.status().epoch
        self._wishes.barrier.set()
        await_commit(self._monitor, epoch, SystemClock())
        return taken_beside(self._driver.save(str(url), format), self.status().sinks)

    def rescale(self, parallelism: int) -> None:
        """Go on with this many shards from the next epoch on; returns at once."""
        self._wishes.parallelism = check_shards(parallelism, self._driver.settings.key_groups)

    def retry(self, sink: str) -> int:
        """Try a sink again, now, that refuses an epoch or whose server is waited for. Returns when it has
        shown what waits for it, or some of that: the newest epoch that it shows by then.

        DefinitionError: it does not wait, or there is no such sink. RetryableError: it was tried, and refuses
        again or its server is not there; or the run ended meanwhile.
        """
        known = self.status().sinks
        if sink not in known:
            raise DefinitionError(
                f"there is no sink {sink!r} here; the sinks are {', '.join(known) or 'none'}"
            )
        if not (known[sink]["refused"] or known[sink]["unavailable"]):
            raise DefinitionError(
                f"sink {sink!r} waits neither for a person nor for its server; look at status"
            )
        self._wishes.retry(sink)
        return await_shown(self._monitor, self._wishes, sink, known[sink], SystemClock())

    def wait(self, timeout: float | None = None) -> Progress:
        """Wait for the end of the run and give its last progress. Raises what the run failed with.

        TimeoutError: it still runs after `timeout` seconds; nothing was done about it, wait again or `stop`.
        """
        # Joined in short turns, so that a signal handler of the main thread gets to run.
        waited = 0.0
        while self._thread.is_alive() and (timeout is None or waited < timeout):
            turn = 0.2 if timeout is None else min(0.2, timeout - waited)
            self._thread.join(turn)
            waited += turn
        still = self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        now = self.status()
        if still:
            raise TimeoutError(
                f"job {now.job!r} still runs after {timeout:g} s (phase {now.phase}, epoch {now.epoch}); "
                "wait again, or end it with stop()"
            )
        return now

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def told_to_stop(self) -> bool:
        """Whether the run was asked to end, at once or after what the sources have at hand."""
        return self._wishes.stopping.is_set() or self._wishes.draining.is_set()

    def _run(self) -> None:
        try:
            self._driver.run(self)
        except (SinkRefused, Unpublished) as unshown:
            self._failure = unshown
            self._monitor.update(error=str(unshown))
        except BaseException as failure:
            self._failure = failure
            self._monitor.update(phase="failed", error=str(failure))
