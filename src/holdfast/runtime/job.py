"""A job: the declaration, and the calls that run it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from holdfast.errors import DefinitionError, SessionLost, StopUnfinished
from holdfast.graph.guarantees import check_guarantee
from holdfast.graph.parts import is_in_parts
from holdfast.graph.streams import Declaration
from holdfast.graph.survive import check_survival, nodes_for
from holdfast.graph.validate import check, check_places
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import NOTHING, Prepared, takes_over
from holdfast.runtime.job_handle import JobHandle, launch
from holdfast.runtime.parts.parts_handle import PartsHandle, start_parts
from holdfast.runtime.progress import Listener, Message
from holdfast.runtime.settings import RunOptions, check_settings
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Job(Declaration):
    """A declared job. `run` runs it here and now; `start` runs it beside whatever else this process does."""

    def run(
        self,
        checkpoint: str | Path,
        *,
        spark: SparkSession | None = None,
        on_progress: Listener | None = None,
        on_message: Message | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        """Run until stopped (SIGTERM, SIGINT), or until the sources are exhausted. Killed at any moment and
        started again, it goes on exactly where it was. Options: see `RunOptions`.
        """
        handle = self.start(
            checkpoint, spark=spark, on_progress=on_progress, on_message=on_message, **options
        )
        with stopping_on_signals(handle.stop, lambda: handle.told_to_stop):
            handle.wait()

    def start(
        self,
        checkpoint: str | Path,
        *,
        spark: SparkSession | None = None,
        on_progress: Listener | None = None,
        on_message: Message | None = None,
        **options: Unpack[RunOptions],
    ) -> JobHandle | PartsHandle:
        """Start running in threads and give back a handle. Options are those of `run`. Mistakes are raised
        here. A job in parts runs all of them in this process.
        """
        say = on_message or _to_standard_error
        graph = self.graph()
        settings = check_settings(checkpoint, options)
        if settings.survive:
            check(graph)
            check_survival(graph, settings.survive, str(checkpoint))
            raise DefinitionError(
                "one process does not survive its own end; run the job on "
                f"{nodes_for(graph, settings.survive)} nodes or more: holdfast node APP --survive ... on "
                "each machine"
            )
        if is_in_parts(graph):
            return start_parts(graph, str(checkpoint), spark, on_progress, say, options)
        check(graph)
        check_guarantee(graph, settings.guarantee)
        return self.start_as(Wishes(), checkpoint, spark, on_progress, say, options)

    def start_as(
        self,
        wishes: Wishes,
        checkpoint: str | Path,
        spark: SparkSession | None,
        on_progress: Listener | None,
        on_message: Message,
        options: RunOptions,
        prepared: Prepared = NOTHING,
    ) -> JobHandle:
        """Start running under wishes that the caller holds too, with what a standby had ready: how a node of
        a cluster runs a job. Assumes a job that was checked.
        """
        graph = self.graph()
        settings = check_settings(checkpoint, options)
        check_places(graph, lambda: takes_over(prepared, graph, open_storage(settings.checkpoint), settings))
        return launch(graph, settings, wishes, spark, on_progress, on_message, prepared)


def _to_standard_error(text: str) -> None:
    sys.stderr.write(f"holdfast: {text}\n")


@contextmanager
def stopping_on_signals(stop: Callable[[], None], is_told: Callable[[], bool]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, which ends the run cleanly, when this is the main thread. `is_told`:
    whether the run was asked to end, by a signal or otherwise.

    StopUnfinished: it was, and Spark is gone: a signal to all processes of a group, or of a service, ends
    Spark's as well. Asked after the signals are handled as before, so that none is lost in between.
    """
    try:
        with _handled(stop):
            yield
    except SessionLost as lost:
        if is_told():
            raise StopUnfinished(str(lost).partition(";")[0]) from lost
        raise


@contextmanager
def _handled(stop: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
