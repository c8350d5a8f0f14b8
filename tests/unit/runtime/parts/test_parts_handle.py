"""What a caller is told of a job in parts, and what its parts are told. The parts themselves are played."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError, RestoreError, SessionLost, SinkRefused, StopUnfinished
from holdfast.graph.job_graph import Graph
from holdfast.graph.streams import Declaration
from holdfast.runtime.parts.parts_handle import PartsHandle
from holdfast.runtime.progress import Progress

PATIENCE_SECONDS = 30.0


def chain_of(*parts: str) -> Graph:
    """Each part reads from the one before."""
    job = Declaration("fraud")
    stream: Any = job.source(MemorySource([], schema="user string"), uid="in")
    for name in parts[1:]:
        stream = stream.into(job.part(name), uid=f"to-{name}")
    stream.sink(MemorySink(), uid="out")
    return job.graph()


class Played:
    """A part that runs until it is let go; it does as it is told at once, unless it is `stubborn`."""

    def __init__(self, name: str, log: list[str], stubborn: bool = False, **progress: Any) -> None:
        self.name, self._log, self._stubborn = name, log, stubborn
        self._progress = Progress(job=name, **{"phase": "running", **progress})
        self._running, self._failure = True, None
        self.parallelism = self.looks = 0
        self.tried = list[str]()
        self.told_to_stop = False

    @property
    def running(self) -> bool:
        return self._running

    def status(self) -> Progress:
        self.looks += 1
        return self._progress

    def stop(self, savepoint: str | None = None, drain: bool = False) -> None:
        told = f"{'drain' if drain else 'stop'} {self.name}"
        if told not in self._log:
            self._log.append(told)
        if self._running and not self._stubborn:
            self.end()

    def rescale(self, parallelism: int) -> None:
        self.parallelism = parallelism

    def retry(self, sink: str) -> None:
        self.tried.append(sink)

    def wait(self, timeout: float | None = None) -> Progress:
        if self._failure is not None:
            raise self._failure
        return self._progress

    def end(self, failure: Exception | None = None) -> None:
        self._failure: Any = failure
        phase = "stopped" if failure is None or isinstance(failure, SinkRefused) else "failed"
        self._progress = Progress(job=self.name, phase=phase, error=str(failure) if failure else None)
        self._running = False


class Run:
    """A job of parts that are played, in a chain."""

    def __init__(self, *names: str, stubborn: tuple[str, ...] = (), **progress: dict[str, Any]) -> None:
        self.log: list[str] = []
        self.parts = {
            name: Played(name, self.log, name in stubborn, **progress.get(name, {})) for name in names
        }
        played: Any = self.parts
        self.handle = PartsHandle(chain_of(*names), played, "/nowhere")

    def look_on(self) -> None:
        """Until all parts were looked after a few times more."""
        (last,) = [*self.parts.values()][-1:]
        enough = last.looks + 3
        until(lambda: last.looks >= enough)

    def let_go(self) -> None:
        for part in self.parts.values():
            part.end()
        self.handle.wait(PATIENCE_SECONDS)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(round(PATIENCE_SECONDS / 0.01)):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it never came to that")


def test_the_status_is_what_came_in_and_what_was_done_in_all_parts() -> None:
    run = Run(
        "main", "scoring",
        main={"rows": 7, "rows_run": 9, "rows_per_second": 2.0, "restarts": 1, "epochs_run": 3},
        scoring={"rows": 5, "rows_run": 6, "rows_per_second": 1.0, "restarts": 2, "epochs_run": 4},
    )  # fmt: skip
    now = run.handle.status()
    # A row that goes through a channel is not another row.
    assert (now.job, now.rows, now.rows_run, now.rows_per_second) == ("fraud", 7, 9, 2.0)
    assert (now.restarts, now.epochs_run, now.error) == (3, 7, None)
    run.let_go()


@pytest.mark.parametrize(
    ("phases", "phase"),
    [
        (("running", "running"), "running"),
        (("stopped", "running"), "running"),
        (("running", "restoring"), "restoring"),
        (("running", "joining"), "joining"),
        (("restarting", "starting"), "restarting"),
        (("stopped", "failed"), "failed"),
        (("stopped", "stopped"), "stopped"),
    ],
)
def test_the_phase_is_that_of_the_part_that_is_worst_off(phases: tuple[str, str], phase: str) -> None:
    run = Run("main", "scoring", main={"phase": phases[0]}, scoring={"phase": phases[1]})
    assert run.handle.status().phase == phase
    run.let_go()


def test_a_part_is_drained_after_those_that_it_reads_from() -> None:
    run = Run("main", "scoring", "alerts", stubborn=("main", "scoring", "alerts"))
    run.handle.stop(drain=True)
    for n, name in enumerate(("main", "scoring", "alerts"), 1):
        until(lambda n=n: len(run.log) == n)
        run.look_on()
        assert run.log[-1] == f"drain {name}"
        assert len(run.log) == n
        run.parts[name].end()
    assert run.handle.wait(PATIENCE_SECONDS).phase == "stopped"
    assert run.log == ["drain main", "drain scoring", "drain alerts"]


def test_a_job_is_stopped_with_all_its_parts() -> None:
    run = Run("main", "scoring")
    run.handle.stop()
    assert run.handle.wait(PATIENCE_SECONDS).phase == "stopped"
    assert run.log == ["stop main", "stop scoring"]
    assert not run.handle.running


def test_a_part_that_fails_for_good_ends_the_others_and_is_told() -> None:
    run = Run("main", "scoring", "alerts")
    run.parts["scoring"].end(RestoreError("it is gone"))
    with pytest.raises(RestoreError, match="it is gone"):
        run.handle.wait(PATIENCE_SECONDS)
    assert {"stop main", "stop alerts"} <= {*run.log}


def test_a_part_that_has_ended_well_ends_no_other() -> None:
    run = Run("main", "scoring", stubborn=("scoring",))
    run.parts["main"].end()
    run.look_on()
    assert run.log == []
    assert run.handle.running
    assert run.handle.status().phase == "running"
    run.let_go()


def test_a_part_that_has_come_to_its_end_with_a_refusal_ends_no_other_and_is_told() -> None:
    run = Run("main", "scoring", "alerts", stubborn=("scoring",))
    run.parts["main"].end(SinkRefused("sink 'raw' refuses"))
    run.look_on()
    assert (run.log, run.handle.running) == ([], True)
    assert (run.handle.status().phase, run.handle.status().error) == ("running", "sink 'raw' refuses")
    for name in ("scoring", "alerts"):
        run.parts[name].end()
    with pytest.raises(SinkRefused, match="sink 'raw' refuses"):
        run.handle.wait(PATIENCE_SECONDS)


def test_waiting_in_vain_is_told() -> None:
    run = Run("main", "scoring")
    with pytest.raises(TimeoutError, match=r"job 'fraud' still runs after 0\.01 s; wait again, or end it"):
        run.handle.wait(0.01)
    run.let_go()


def test_a_sink_is_tried_again_by_the_part_that_has_it() -> None:
    run = Run("main", "scoring", main={"sinks": {"raw": {}}}, scoring={"sinks": {"out": {}}})
    run.handle.retry("out")
    assert [part.tried for part in run.parts.values()] == [[], ["out"]]
    with pytest.raises(DefinitionError, match="no part that runs here has a sink 'outt'"):
        run.handle.retry("outt")
    run.let_go()


def test_all_parts_are_rescaled() -> None:
    run = Run("main", "scoring")
    run.handle.rescale(3)
    assert [part.parallelism for part in run.parts.values()] == [3, 3]
    run.let_go()


def test_what_cannot_be_asked_of_a_job_in_parts_is_refused() -> None:
    run = Run("main", "scoring")
    with pytest.raises(DefinitionError, match="drained or leaves a savepoint; ask for one"):
        run.handle.stop(savepoint="/sp", drain=True)
    with pytest.raises(DefinitionError, match="savepoints of jobs in parts are native"):
        run.handle.savepoint("/sp", format="canonical")
    assert run.log == []
    run.let_go()


def test_the_run_has_ended_with_what_failed_first_and_not_with_what_followed_from_it() -> None:
    run = Run("main", "scoring", stubborn=("main",))
    run.parts["scoring"].end(SessionLost("Spark is gone"))
    until(lambda: "stop main" in run.log)
    run.parts["main"].end(StopUnfinished("Spark is gone"))
    with pytest.raises(SessionLost):
        run.handle.wait(PATIENCE_SECONDS)
    assert not run.handle.told_to_stop, "the process may start again: the stop was not asked for"


@pytest.mark.parametrize("ask", [{}, {"drain": True}])
def test_a_stop_that_was_asked_for_is_known_when_a_part_fails(ask: dict[str, Any]) -> None:
    run = Run("main", "scoring", stubborn=("main", "scoring"))
    run.handle.stop(**ask)
    run.parts["scoring"].end(SessionLost("Spark is gone"))
    run.parts["main"].end(SessionLost("Spark is gone"))
    with pytest.raises(SessionLost):
        run.handle.wait(PATIENCE_SECONDS)
    assert run.handle.told_to_stop


def test_a_stop_that_was_asked_of_the_part_that_failed_is_known() -> None:
    """`holdfast stop` asks each part through its own storage."""
    run = Run("main", "scoring", stubborn=("main",))
    run.parts["scoring"].told_to_stop = True
    run.parts["scoring"].end(SessionLost("Spark is gone"))
    until(lambda: "stop main" in run.log)
    run.parts["main"].end()
    with pytest.raises(SessionLost):
        run.handle.wait(PATIENCE_SECONDS)
    assert run.handle.told_to_stop
