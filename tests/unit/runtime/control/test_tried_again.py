"""A sink that is tried again: who asked for it is told what came of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import RetryableError
from holdfast.runtime.control.tried_again import await_shown
from holdfast.runtime.epoch import outages
from tests.unit.runtime.control.control_kit import wait_until
from tests.unit.runtime.epoch.test_committer import outcome
from tests.unit.runtime.epoch.test_refusing_sinks import NO_TABLE, Strict
from tests.unit.runtime.epoch.test_sink_queues import Leading


class Turning(SystemClock):
    """While somebody waits, the run takes its turns, as its loop does."""

    def __init__(self, turn: Callable[[], object]) -> None:
        self._turn = turn

    def sleep(self, seconds: float) -> None:
        self._turn()
        super().sleep(seconds)


class Job:
    """A run with one sink, that waits."""

    def __init__(self, root: Path, sink: Strict) -> None:
        self.sink, self.leading = sink, Leading(root, out=sink)
        self.monitor, self.wishes = self.leading.context.monitor, self.leading.context.wishes

    @property
    def told(self) -> dict[str, Any]:
        return self.leading.sinks["out"]

    def retried(self) -> int:
        before = self.told
        self.wishes.retry("out")
        clock = Turning(lambda: self.leading.work.room)
        return await_shown(self.monitor, self.wishes, "out", before, clock)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Two epochs are committed, and the sink refuses them."""
    monkeypatch.setattr(outages, "FIRST_SECONDS", 3_600.0)
    monkeypatch.setattr(outages, "MOST_SECONDS", 3_600.0)
    made = Job(tmp_path, Strict())
    made.sink.refuses.set()
    for epoch in (1, 2):
        made.leading.work.submit([outcome(epoch)])
    wait_until(lambda: made.told["refused"] is not None, "it is refused")
    yield made
    made.leading.work.close(wait=False)


def test_one_that_refuses_again_is_told_with_the_reason(job: Job) -> None:
    with pytest.raises(RetryableError, match=f"it was tried, and refuses again: sink 'out' .*: {NO_TABLE}"):
        job.retried()
    assert job.told["refused"]["tries"] == 2


def test_one_that_shows_is_told_with_the_epoch(job: Job) -> None:
    job.sink.refuses.clear()
    assert job.retried() in (1, 2)
    wait_until(lambda: job.sink.epochs == [1, 2], "it shows all")


def test_one_whose_server_is_away_by_now_is_told(job: Job) -> None:
    job.sink.away.set()
    with pytest.raises(RetryableError, match=r"its server is not there: .*nobody listens"):
        job.retried()
    with pytest.raises(RetryableError, match="its server is not there"):
        job.retried()
    job.sink.away.clear()
    job.sink.refuses.clear()
    assert job.retried() in (1, 2)


def test_that_nothing_stands_against_it_after_a_restart_is_not_taken_for_shown(job: Job) -> None:
    """A run that begins again knows nothing of what refused it before."""
    before = job.told
    forgotten = {**before, "through": 0, "epochs": 0, "refused": None, "unavailable": None}
    job.monitor.update(sinks={"out": forgotten})
    again = {**before, "refused": {**before["refused"], "since_ms": before["refused"]["since_ms"] + 1}}

    def turn() -> None:
        job.monitor.update(sinks={"out": again})

    with pytest.raises(RetryableError, match="refuses again"):
        await_shown(job.monitor, job.wishes, "out", before, Turning(turn))


@pytest.mark.parametrize("over", ["stopping", "ended"])
def test_nobody_waits_beyond_the_end_of_the_run(job: Job, over: str) -> None:
    before = job.told

    def end() -> None:
        if over == "stopping":
            job.wishes.stopping.set()
        else:
            job.monitor.update(phase="stopped")

    ending = threading.Timer(0.1, end)
    ending.start()
    with pytest.raises(RetryableError, match="the run ends, and what came of it is not known"):
        await_shown(job.monitor, job.wishes, "out", before, SystemClock())
    ending.join()
