"""All parts of a job in one process.

Each runs as a job of its own, in threads of its own, over one Spark session. One that fails for good ends the
others in good order: nothing is lost by that, their channels keep what is not read. One that has come to its
end with a sink that refuses its rows has not failed: the others come to their end, too.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError
from holdfast.graph.job_graph import Graph
from holdfast.graph.parts import parts_before
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import Prepared
from holdfast.runtime.job_handle import JobHandle
from holdfast.runtime.parts.job_savepoint import JobSavepoint, refuse_savepoint, take_job_savepoint
from holdfast.runtime.parts.part_jobs import checked_parts, enter_checkpoint
from holdfast.runtime.progress import Listener, Message, Progress
from holdfast.runtime.settings import RunOptions
from holdfast.runtime.spark_session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.05
_PHASES = ("failed", "restarting", "starting", "restoring", "joining", "running", "stopped")
"""The first of these that some part is in is that of the job."""


def start_parts(
    graph: Graph,
    checkpoint: str,
    spark: SparkSession | None,
    on_progress: Listener | None,
    on_message: Message,
    options: RunOptions,
) -> PartsHandle:
    """Run all parts of a job in this process. Mistakes are raised here."""
    jobs = checked_parts(graph, checkpoint, options)
    for job in jobs:
        if isinstance(job.protection, ActiveReplicas):
            _alone(job.part, job.protection, on_message)
    enter_checkpoint(graph, checkpoint, options, lambda: spark or open_session(graph.name))
    prepared = Prepared(spark=spark or open_session(graph.name))
    handles: dict[str, JobHandle] = {}
    before = parts_before(graph)
    try:
        for job in jobs:
            say, wishes = _named(job.part, on_message), Wishes()
            wishes.parts_before_run = partial(_any_runs, [handles[name] for name in before[job.part]])
            wishes.member_runs = lambda member: False
            handles[job.part] = job.start_as(
                wishes, job.checkpoint, spark, on_progress, say, options, prepared
            )
    except BaseException:
        for handle in handles.values():
            handle.stop()
        raise
    return PartsHandle(graph, handles, checkpoint, on_message)


def _alone(part: str, replicas: ActiveReplicas, say: Message) -> None:
    """Say that a part which several should run together is run by this process alone."""
    if replicas.vote:
        raise DefinitionError(
            f"part {part!r} needs the votes of most of {replicas.members} members, and one process is one "
            "member; run the job on nodes (holdfast node), or leave out vote"
        )
    say(
        f"{part}: ONE OF {replicas.members} REPLICAS: this process runs all parts alone; run the job on "
        "nodes (holdfast node) for the others"
    )


def _any_runs(handles: list[JobHandle]) -> bool:
    return any(handle.running for handle in handles)


def _named(part: str, say: Message) -> Message:
    return lambda text: say(f"{part}: {text}")


class PartsHandle:
    """A running job in parts. `parts`: each of them by name, after those that it reads from."""

    def __init__(
        self,
        graph: Graph,
        parts: dict[str, JobHandle],
        root: str,
        say: Message = lambda text: None,
    ) -> None:
        self.parts = parts
        self._name, self._root, self._say = graph.name, root, say
        self._leaving: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._before = parts_before(graph)
        self._draining, self._told = threading.Event(), threading.Event()
        self._first_failed: JobHandle | None = None
        """The part that has failed before the others were told to stop because of it."""
        self._minder = threading.Thread(target=self._mind, name="holdfast-parts", daemon=True)
        self._minder.start()

    def status(self) -> Progress:
        """Where the job stands: sums over its parts, and the phase of the one that is worst off."""
        each = [handle.status() for handle in self.parts.values()]
        first = [self.parts[name].status() for name, before in self._before.items() if not before]
        phases = {progress.phase for progress in each}
        return Progress(
            job=self._name,
            phase=next((phase for phase in _PHASES if phase in phases), "running"),
            rows=sum(progress.rows for progress in first),
            rows_per_second=sum(progress.rows_per_second for progress in first),
            restarts=sum(progress.restarts for progress in each),
            error=next((progress.error for progress in each if progress.error), None),
            epochs_run=sum(progress.epochs_run for progress in each),
            rows_run=sum(progress.rows_run for progress in first),
        )

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every change of every part from now on."""
        for handle in self.parts.values():
            handle.listen(listener)

    def stop(self, savepoint: str | Path | None = None, drain: bool = False) -> None:
        """End the run after the epochs in hand are committed; returns at once, `wait` waits.

        `drain`: first read all that the sources have at hand now, and let it go through all parts.
        `savepoint`: leave one there, an empty place; all parts end at the barrier that it is taken at.
        """
        if savepoint is not None and drain:
            raise DefinitionError("a job in parts is drained or leaves a savepoint; ask for one of them")
        if savepoint is not None:
            refuse_savepoint(self._root, str(savepoint))
        self._told.set()
        if savepoint is not None:
            self._leaving = threading.Thread(target=self._leave, args=(str(savepoint),), daemon=True)
            self._leaving.start()
        elif drain:
            self._draining.set()
        else:
            self._stop_all()

    @property
    def told_to_stop(self) -> bool:
        """Whether the run was asked to end: all of it, or the part that has failed."""
        return self._told.is_set()

    def _stop_all(self) -> None:
        for handle in self.parts.values():
            handle.stop()

    def savepoint(self, url: str | Path, format: str = "native") -> JobSavepoint:
        """Take a savepoint of the whole job, while it goes on: of all parts, at one barrier."""
        if format != "native":
            raise DefinitionError(
                f"format={format!r}: savepoints of jobs in parts are native; convert those of its parts"
            )
        return take_job_savepoint(self._root, str(url), SystemClock(), self._name, say=self._say)

    def _leave(self, url: str) -> None:
        """Stop with a savepoint: all parts end with the commits that carry its barrier."""
        try:
            clock, stop = SystemClock(), self._stop_all
            take_job_savepoint(self._root, url, clock, self._name, stop_rest=stop, say=self._say)
        except BaseException as failure:
            self._failure = failure
            self._stop_all()

    def rescale(self, parallelism: int) -> None:
        """Go on with this many shards in every part; returns at once."""
        for handle in self.parts.values():
            handle.rescale(parallelism)

    def retry(self, sink: str) -> int:
        """Try a sink again that refuses an epoch or whose server is waited for: see `JobHandle.retry`."""
        owner = next((each for each in self.parts.values() if sink in each.status().sinks), None)
        if owner is None:
            raise DefinitionError(f"no part that runs here has a sink {sink!r}; see holdfast status")
        return owner.retry(sink)

    def wait(self, timeout: float | None = None) -> Progress:
        """Wait for the end of the run and give its last progress. Raises what a part failed with."""
        waited = 0.0
        while self.running and (timeout is None or waited < timeout):
            turn = 0.2 if timeout is None else min(0.2, timeout - waited)
            self._minder.join(turn)
            waited += turn
        if self.running:
            raise TimeoutError(
                f"job {self._name!r} still runs after {timeout:g} s; wait again, or end it with stop()"
            )
        # What the others failed with, which were told to stop because of it, is not why the run has ended.
        for handle in filter(None, (self._first_failed, *self.parts.values())):
            handle.wait(0)
        if self._leaving is not None:
            self._leaving.join()
        if self._failure is not None:
            raise self._failure
        return self.status()

    @property
    def running(self) -> bool:
        return self._minder.is_alive()

    def _mind(self) -> None:
        """Drain part after part; end all when one has failed."""
        while any(handle.running for handle in self.parts.values()):
            for name, handle in self.parts.items():
                over = not any(self.parts[before].running for before in self._before[name])
                if self._draining.is_set() and handle.running and over:
                    handle.stop(drain=True)
                if handle.status().phase == "failed" and not handle.running:
                    self._end_with(handle)
            threading.Event().wait(LOOK_SECONDS)

    def _end_with(self, failed: JobHandle) -> None:
        """End all parts because one has failed."""
        if self._first_failed is None:
            self._first_failed = failed
            if failed.told_to_stop:
                self._told.set()
        self._stop_all()
