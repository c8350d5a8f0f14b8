"""A diamond whose two ways differ in speed by any measure is killed while a barrier is on its way through it,
and goes on from that barrier, under kills again.

Aligned, it ends as a run without faults. At-least-once, rows that the fast way had brought behind the barrier
are counted twice, exactly those, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.admin.rewind_job import rewind_job
from holdfast.checkpoint.chain.barriers import newest_barrier
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import newest_ending, newest_term
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.clock import SystemClock
from holdfast.runtime.parts.channel_source import Position, unread_files
from holdfast.runtime.parts.job_savepoint import JobSavepoint, take_job_savepoint
from holdfast.steps import Step
from holdfast.storage.urls import open_storage
from tests.chaos.apps import Place, Shape
from tests.chaos.harness import DEADLINE_SECONDS, Driver, Scenario, wait_until
from tests.chaos.nemesis import Fault
from tests.chaos.parts_app import gates_of
from tests.chaos.parts_checker import PARTS, gather, judge, judge_repeated, storage_of

pytestmark = pytest.mark.timeout(3_600)

SHAPE = Shape(epochs=12, rows=60, keys=20)
HALF = SHAPE.epochs // 2
WAYS = {"short": ("main", "short-way"), "long": ("numbered", "number-to-joined")}
"""The part that sends the rows of each way to the last part, and the channel."""


def view_of(place: Place, part: str) -> CheckpointView:
    return History(storage_of(place, part)).load()


def read_short(place: Place) -> Position:
    """How far the last part has read the short way."""
    return Position.of(view_of(place, "joined").positions.get("short-way"))


def barrier_epoch(place: Place) -> int:
    """After which epoch the barrier falls in the first part; 0: it has not come there."""
    return next((each.epoch for each in view_of(place, "main").barriers), 0)


def has_begun(place: Place) -> bool:
    return all(newest_term(storage_of(place, part)) is not None for part in PARTS)


class Diamond:
    """One run after another of the diamond, whose long way stands still until the barrier has been on its way
    for so long that a life has ended with it."""

    def __init__(self, scenario: Scenario, aligned: bool) -> None:
        self.scenario, self.place, self.aligned = scenario, scenario.place, aligned
        self.main_gate, self.long_gate = gates_of(self.place, SHAPE)

    def wait(self, condition: Callable[[], bool], what: str, driver: Driver) -> None:
        wait_until(lambda: condition() or not driver.running, what, self.scenario.history)
        assert driver.running, f"{driver.name} ended: {driver.last_words()}{self.scenario.history.story()}"

    def cut(self, saving: ThreadPoolExecutor, url: Path) -> JobSavepoint:
        """A savepoint, taken while two lives end by kills: one in the middle of its barrier, one at once when
        it is there."""
        first = self.scenario.start()
        self.wait(
            lambda: has_begun(self.place) and read_short(self.place) == Position(HALF),
            "the short way to be read to the gate of the first part", first,
        )  # fmt: skip
        assert view_of(self.place, "numbered").last_epoch <= SHAPE.epochs // 8
        taken = saving.submit(
            take_job_savepoint, str(self.place.checkpoint), str(url), SystemClock(), "test", DEADLINE_SECONDS
        )
        root = open_storage(str(self.place.checkpoint))
        self.wait(lambda: newest_barrier(root).under_way, "a barrier to begin", first)
        self.main_gate.open()
        self.wait(lambda: view_of(self.place, "main").ended, "the first part to read all", first)
        fallen = barrier_epoch(self.place)
        assert HALF < fallen < SHAPE.epochs, "there are rows before the barrier, and behind it"
        self.wait(lambda: self.is_at_the_barrier(fallen), "the short way to be read as far as may be", first)
        first.kill()
        first.close()
        second = self.scenario.start()
        self.wait(lambda: self.is_led_again(second), "all parts to be led again", second)
        assert self.is_at_the_barrier(fallen), "and nothing has changed"
        return self.finished(taken, second)

    def is_at_the_barrier(self, fallen: int) -> bool:
        """Whether the last part has come to the barrier on the short way, or, unaligned, to its end."""
        return read_short(self.place) == Position(fallen if self.aligned else SHAPE.epochs)

    def is_led_again(self, driver: Driver) -> bool:
        """Whether the first part has seen that there is no more, and the other two are led."""
        terms = [newest_term(storage_of(self.place, part)) for part in PARTS]
        led = all(term is not None and term.pid == driver.pid for term in terms)
        return led and newest_ending(storage_of(self.place, "main")) is not None

    def finished(self, taken: Future[JobSavepoint], driver: Driver) -> JobSavepoint:
        self.long_gate.open()
        wait_until(taken.done, "the savepoint", self.scenario.history)
        driver.kill()
        driver.close()
        return taken.result()


@contextmanager
def diamond(root: Path, *more: str, aligned: bool = True) -> Iterator[Diamond]:
    root.mkdir()
    guarantee = "exactly-once" if aligned else "at-least-once"
    arguments = ("--gated", "--retain", "100", "--guarantee", guarantee, *more)
    with Scenario(Place(root), SHAPE, arguments, app="tests.chaos.parts_app") as scenario:
        yield Diamond(scenario, aligned)


def cut_of(root: Path, url: Path, aligned: bool) -> tuple[int, dict[str, int]]:
    """Leave a savepoint; gives how many events it knows, and how many rows each way had brought behind it."""
    with diamond(root, aligned=aligned) as job, ThreadPoolExecutor(1) as saving:
        taken = job.cut(saving, url)
        views = {
            part: History(storage_of(job.place, part)).view_at(commit)
            for part, commit in taken.commits.items()
        }
        behind = {}
        for way, (part, uid) in WAYS.items():
            channel = view_of(job.place, part).channels[uid]
            places = Position(views[part].last_epoch), Position.of(views["joined"].positions[uid])
            unread = [sum(file.rows for file in unread_files(channel, each)) for each in places]
            behind[way] = unread[0] - unread[1]
        return views["main"].rows, behind


def begin_and_finish(job: Diamond, *steps: Step) -> None:
    """Lives that end by faults, and one that comes to the end of the input."""
    for gate in (job.main_gate, job.long_gate):
        gate.open()
    for step in steps:
        job.scenario.suffer(Fault(step, 4))
    driver, history = job.scenario.start(), job.scenario.history
    code = driver.wait()
    assert code == 0, f"the last life failed with {code}: {driver.last_words()}{history.story()}"


def test_a_diamond_of_unequal_ways_goes_on_from_an_aligned_savepoint_as_if_nothing_had_been(
    tmp_path: Path,
) -> None:
    url = tmp_path / "savepoint"
    known, behind = cut_of(tmp_path / "first", url, aligned=True)
    assert behind == {"short": 0, "long": 0}
    with diamond(tmp_path / "second", "--from-savepoint", str(url)) as job:
        begin_and_finish(job, Step.COMMIT_WRITTEN)
        wrong = judge(gather(job.place), SHAPE, SHAPE.events, after=known)
        assert not wrong, f"{wrong}{job.scenario.history.story()}"


@pytest.mark.heavy
def test_a_diamond_of_unequal_ways_goes_on_from_an_unaligned_savepoint_with_rows_repeated_and_none_lost(
    tmp_path: Path,
) -> None:
    url = tmp_path / "savepoint"
    known, behind = cut_of(tmp_path / "first", url, aligned=False)
    assert behind["short"] > 0
    with diamond(tmp_path / "second", "--from-savepoint", str(url), aligned=False) as job:
        begin_and_finish(job, Step.COMMIT_WRITTEN, Step.BEFORE_COMMIT)
        wrong = judge_repeated(gather(job.place), SHAPE, SHAPE.events, known, behind)
        assert not wrong, f"{wrong}{job.scenario.history.story()}"


@pytest.mark.heavy
def test_a_diamond_of_unequal_ways_goes_back_to_its_barrier_and_on_as_if_nothing_had_been(
    tmp_path: Path,
) -> None:
    with diamond(tmp_path / "job") as job, ThreadPoolExecutor(1) as saving:
        taken = job.cut(saving, tmp_path / "savepoint")
        rewind_job(str(job.place.checkpoint), taken.barrier, SystemClock(), not_running=True)
        assert all(view_of(job.place, part).barriers for part in PARTS)
        begin_and_finish(job, Step.COMMIT_WRITTEN, Step.PLAN_WRITTEN)
        wrong = judge(gather(job.place), SHAPE, SHAPE.events)
        assert not wrong, f"{wrong}{job.scenario.history.story()}"
