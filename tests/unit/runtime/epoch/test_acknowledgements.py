"""What readers are told of commits: where the job is, and what it never reads again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.pins import pin, unpin
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.graph.protection import UpstreamBackup
from holdfast.ids import CommitNumber
from holdfast.runtime.epoch.acknowledgements import Acknowledgements
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.leader_kit import leader_of


class Reader:
    """Remembers what it is told, and fails while `broken`."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.let_go: list[Any] = []
        self.broken = ""

    def committed(self, position: Any) -> None:
        self.told.append(position)
        if self.broken:
            raise ConnectionError(self.broken)

    def released(self, position: Any) -> None:
        self.let_go.append(position)


class Job:
    """A chain that keeps three commits, a reader, and what is said of it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        context = leader_of(LocalStorage(root), say=self.say)
        self.chain = Chain(context.checkpoint.storage, retain=3)
        checkpoint = dataclasses.replace(context.checkpoint, chain=self.chain)
        checked = dataclasses.replace(context.settings, **settings)
        self.context = dataclasses.replace(context, checkpoint=checkpoint, settings=checked)
        self.said: list[str] = []
        self.view = self.chain.load()
        self.begin()

    def begin(self) -> None:
        self.reader = Reader()
        readers: Any = {"in": self.reader, "plain": object()}
        self.acknowledged = Acknowledgements(self.context, readers)

    def say(self, text: str) -> None:
        self.said.append(text)

    def commit(self, epoch: int) -> CheckpointView:
        record = CommitRecord(
            term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=1,
            parallelism=1, fingerprint="f", positions={"in": epoch * 10},
        )  # fmt: skip
        done = self.chain.commit(self.view, record)
        assert isinstance(done, Committed)
        self.view = done.view
        return self.view


def test_a_reader_is_told_the_position_of_the_newest_commit(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.acknowledged.step(job.view)
    assert job.reader.told == [], "nothing is committed yet"
    job.acknowledged.step(job.commit(1))
    job.acknowledged.step(job.view)
    job.commit(2)
    job.acknowledged.step(job.commit(3))
    assert job.reader.told == [10, 30]


def test_what_is_released_no_commit_needs_that_can_be_gone_back_to(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for epoch in range(1, 9):
        job.acknowledged.step(job.commit(epoch))
        oldest = max(1, job.view.given_up_below)
        assert job.reader.let_go[-1] <= job.chain.record(oldest).positions["in"]
    assert job.reader.let_go[-1] == 50, "three are retained, and one should the newest be lost"
    assert job.reader.let_go == sorted(set(job.reader.let_go))


def test_what_a_savepoint_is_being_taken_of_is_not_released(tmp_path: Path) -> None:
    """The rows of a log that were not read by then are copied, and that may take long."""
    job = Job(tmp_path)
    job.commit(1)
    job.commit(2)
    pin(job.chain, "savepoint-1", 2, "run", 0)
    for epoch in range(3, 9):
        job.acknowledged.step(job.commit(epoch))
        assert job.reader.let_go[-1] <= 20
    unpin(job.chain.storage, ["savepoint-1"])
    job.acknowledged.step(job.commit(9))
    assert job.reader.let_go[-1] == 60


def test_what_a_rewind_went_back_to_is_not_released(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for epoch in range(1, 5):
        job.commit(epoch)
    done = job.chain.rewind(job.view.head, CommitNumber(2), term=1, run="r")
    assert isinstance(done, Committed)
    job.view = done.view
    for epoch in (3, 4):
        job.commit(epoch)
        job.acknowledged.step(job.view)
        assert job.reader.let_go[-1] == 20, "its rows after epoch 2 may be read again"


def test_another_run_goes_on_by_what_is_stored(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for epoch in range(1, 9):
        job.commit(epoch)
    job.begin()
    job.acknowledged.step(job.view)
    assert (job.reader.told, job.reader.let_go) == ([80], [50])


def test_what_a_reader_raises_is_said_once_and_changes_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.reader.broken = "no broker"
    for epoch in (1, 2, 3):
        job.acknowledged.step(job.commit(epoch))
    assert job.reader.told == [10, 20, 30]
    assert [text.split(" (")[1] for text in job.said] == ["ConnectionError: no broker); the job goes on"]
    job.reader.broken = "no leader"
    job.acknowledged.step(job.commit(4))
    assert len(job.said) == 2


def test_where_state_is_made_of_its_input_nothing_is_released(tmp_path: Path) -> None:
    job = Job(tmp_path, protection=UpstreamBackup())
    for epoch in range(1, 6):
        job.acknowledged.step(job.commit(epoch))
    assert (job.reader.told[-1], job.reader.let_go) == (50, [])
