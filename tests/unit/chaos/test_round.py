"""Rounds and the nemesis, with real processes that are no Spark: every fault takes effect, and is seen to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.chaos import nemesis, processes
from holdfast.chaos.faults import Fault, Kind
from holdfast.chaos.history import History
from holdfast.chaos.inside.child import LifeSettings
from holdfast.chaos.nemesis import Nemesis
from holdfast.chaos.round import Round, Stage
from holdfast.steps import Step

ACTOR = Path(__file__).with_name("actor.py")
DEADLINE = 60.0


def stage(**options: Any) -> Stage:
    settings = LifeSettings(options={"commits": 60, **options})
    return Stage(command=(sys.executable, str(ACTOR)), settings=settings, master="none")


def fault(kind: Kind, **details: Any) -> Fault:
    return Fault(number=1, kind=kind, **{"commits": 1, "delay": 0.0, "seconds": 0.2, **details})


def suffer(directory: Path, *faults: Fault, **options: Any) -> Round:
    """A round with these faults, to its end."""
    with Round(stage(**options), directory / "round", 7, 1, History()) as round:
        Nemesis(round).torment(faults, lambda: False)
        assert round.wait(lambda: round.over, DEADLINE), round.history.story()
    for life in round.lives:
        assert not processes.members(life.pid), "a process was left behind"
    return round


def told(round: Round, kind: str) -> list[str]:
    return [event.what for event in round.history.of(kind)]


def in_detail(round: Round) -> str:
    assert round.finished, round.failed + round.history.story()
    (what,) = told(round, "fault")
    return what


def test_a_round_without_faults_ends_with_its_job(tmp_path: Path) -> None:
    round = suffer(tmp_path, commits=5)
    assert (round.finished, round.newest, round.restarts) == (True, 5, 0)


def test_a_killed_driver_is_replaced_and_its_recovery_is_measured(tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(Kind.KILL_DRIVER))
    assert "is killed" in in_detail(round)
    assert round.restarts == 1
    assert len(told(round, "recovered")) == 1
    assert [event.facts["code"] for event in round.history.of("end")] == [-9, 0]


@pytest.mark.parametrize("step", [Step.COMMIT_WRITTEN, Step.TERM_CLAIMED])
def test_a_driver_is_killed_at_a_step(step: Step, tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(Kind.KILL_DRIVER_AT_STEP, step=step))
    assert str(step) in in_detail(round)
    assert [event.facts["code"] for event in round.history.of("end")][:-1] == (
        [-9, -9] if step is Step.TERM_CLAIMED else [-9]
    )


def test_a_step_that_is_never_reached_is_not_counted_and_kills_no_later_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nemesis, "STEP_SECONDS", 0.5)
    round = suffer(tmp_path, fault(Kind.KILL_DRIVER_AT_STEP, step=Step.RETIRED))
    assert told(round, "fault") == []
    assert "found nothing to strike" in told(round, "missed")[0]
    assert round.restarts == 0


def test_workers_that_are_not_there_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(nemesis, "STEP_SECONDS", 0.2)
    round = suffer(tmp_path, fault(Kind.KILL_WORKER), fault(Kind.KILL_WORKER_AT_STEP))
    assert (len(told(round, "missed")), told(round, "fault")) == (2, [])


@pytest.mark.parametrize("draw", [0, 1])
def test_a_driver_is_paused_and_goes_on(draw: int, tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(Kind.PAUSE_DRIVER, draw=draw))
    assert ("JVM" in in_detail(round)) is (draw == 0)
    assert round.restarts == 0


def test_another_driver_takes_over_and_the_first_finds_out(tmp_path: Path) -> None:
    # Long enough that the first is still at work when it is struck, however busy the machine is.
    round = suffer(tmp_path, fault(Kind.TAKE_OVER), commits=240)
    assert "driver-2 took over, driver-1 woke up and ended with 77" in in_detail(round)


@pytest.mark.parametrize(
    ("kind", "restarts"), [(Kind.STORAGE_ERROR, 1), (Kind.STORAGE_LATENCY, 0), (Kind.STORAGE_TIMEOUT, 0)]
)
def test_a_call_of_storage_is_disturbed(kind: Kind, restarts: int, tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(kind, operation="put_new", name="commits/*"))
    assert "put_new commits/*" in in_detail(round)
    assert round.restarts == restarts


def test_tasks_that_call_nothing_are_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "TASK_CALL_SECONDS", 0.2)
    round = suffer(tmp_path, fault(Kind.STORAGE_LATENCY, where="task"))
    assert "no task called" in in_detail(round)


def test_the_clock_jumps_and_comes_back(tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(Kind.CLOCK_JUMP, shift_ms=3_600_000))
    assert "+1.0 h" in in_detail(round)
    assert round.orders.clock_shift_ms() == 0


def test_a_job_is_stopped_and_started_with_another_parallelism(tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(Kind.RESTART), fault(Kind.RESCALE, parallelism=3))
    assert round.finished
    assert [event.facts["code"] for event in round.history.of("end")] == [0, 0, 0]
    last = max((tmp_path / "round" / "ck" / "commits").iterdir())
    assert (last.read_text(), round.parallelism) == ("3", 3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"ends_with": 4}, "ended with 4: error: as I was told"), ({"ends_with": 77}, "nobody else led")],
)
def test_an_error_that_no_restart_cures_breaks_the_round(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    round = suffer(tmp_path, **options)
    assert not round.finished
    assert reason in round.failed


def test_lives_that_commit_nothing_are_not_repeated_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.chaos.round.FRUITLESS_LIVES_MAX", 2)
    round = suffer(tmp_path, refuses=True)
    assert "2 lives in a row committed nothing" in round.failed
    assert len(round.lives) == 3


def test_a_fault_that_strikes_after_the_end_is_none(tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(Kind.KILL_DRIVER, commits=100), commits=3)
    assert (round.finished, told(round, "fault")) == (True, [])


def test_the_history_says_all_in_lines_that_programs_read(tmp_path: Path) -> None:
    round = suffer(tmp_path, fault(Kind.KILL_DRIVER), commits=30)
    kinds = [json.loads(event.as_json())["kind"] for event in round.history.events]
    expected = ["round", "start", "commit", "fault", "end", "recovered", "round-end"]
    found: Callable[[str], int] = kinds.index
    assert all(kind in kinds for kind in expected)
    assert found("round") < found("start") < found("commit") < found("fault") < found("recovered")
