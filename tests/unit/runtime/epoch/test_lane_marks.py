"""What marks of lanes mean at a start, over real commit chains."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import CommitRecord, Extent, StagedFile
from holdfast.clock import SystemClock
from holdfast.connectors.contract import Mark
from holdfast.connectors.lanes import LANES, LaneMark
from holdfast.errors import RestoreError, SinkWentBack
from holdfast.runtime.epoch.lane_marks import LaneQuestion, LaneStanding, standing
from holdfast.runtime.leader_context import AdoptedOther
from holdfast.storage.local_directory import LocalStorage


class Commits:
    """A chain whose epochs have rows for one sink, `out`."""

    def __init__(self, root: Path, retain: int = 99) -> None:
        self.checkpoint = open_checkpoint(
            LocalStorage(root), "job", 4, SystemClock(), identity="id", retain=retain
        )
        self.view = CheckpointView()
        self.shown = self.rows_shown = 0
        self.lanes: dict[str, tuple[int, int]] = {}

    def epoch(self, *parts: tuple[int, int]) -> None:
        """Commit the next epoch with these parts: number and rows."""
        epoch = self.view.last_epoch + 1
        self._commit(
            CommitRecord(
                term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=1,
                parallelism=1, fingerprint="f", positions={}, published_through={"out": self.shown},
                lanes_through={"out": self.lanes}, rows_through={"out": self.rows_shown},
                staged=tuple(staged(epoch, part, rows) for part, rows in parts),
            )
        )  # fmt: skip

    def published(self, through: int, **lanes: tuple[int, int]) -> None:
        """The next commits know that so much is shown."""
        self.shown = through
        self.lanes |= {lane[1:]: mark for lane, mark in lanes.items()}

    def told(self) -> None:
        lanes, shown = {"out": self.lanes}, {"out": self.shown}
        self._commit(news(self.view, term=1, run="r", published_through=shown, lanes_through=lanes))

    def _commit(self, record: CommitRecord) -> None:
        done = self.checkpoint.chain.commit(self.view, record)
        assert isinstance(done, Committed)
        self.view = done.view

    def stands(self, replaces: bool = True, **marks: LaneMark) -> LaneStanding:
        """`marks`: those of lanes that are not at 0."""
        found = {lane: LaneMark(0) for lane in range(LANES)}
        found |= {int(lane[1:]): mark for lane, mark in marks.items()}
        return self.asked(found, replaces)

    def asked(self, marks: dict[int, LaneMark], replaces: bool = True) -> LaneStanding:
        question = LaneQuestion("out", marks, self.view, self.checkpoint.chain, replaces)
        return standing(question, lambda: None)


def staged(epoch: int, part: int, rows: int) -> StagedFile:
    extent = Extent(object=f"{epoch}-{part}", offset=0, length=0, checksum="")
    return StagedFile(
        stream="s", epoch=epoch, part=part, extent=extent, rows=rows, sinks=("out",), input=f"i{epoch}"
    )


def at(epoch: int, rows: int) -> LaneMark:
    return LaneMark(epoch, rows, f"i{epoch}")


def test_an_epoch_counts_as_shown_when_all_of_its_lanes_are(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.epoch((0, 5), (1, 6), (16, 2))
    commits.epoch((1, 3))
    assert commits.stands(l0=at(1, 7)).through == 0, "lane 1 lacks it"
    half = commits.stands(l0=at(1, 5), l1=at(1, 6))
    assert (half.through, half.newest.epoch) == (0, 1)
    one = commits.stands(l0=at(1, 7), l1=at(1, 6))
    assert (one.through, one.shown, one.newest) == (1, {0: at(1, 7), 1: at(1, 6)}, Mark(1, "i1"))
    both = commits.stands(l0=at(1, 7), l1=at(2, 3))
    assert (both.through, both.shown) == (2, {0: at(1, 7), 1: at(2, 3)})
    assert not both.again


def test_a_new_sink_begins_with_the_next_epoch(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.epoch()
    question = LaneQuestion("other", {}, commits.view, commits.checkpoint.chain)
    found = standing(question, lambda: None)
    assert (found.through, found.begins, found.shown) == (1, 1, {})


def test_rows_that_wait_for_a_sink_of_another_kind_may_be_shown_already(tmp_path: Path) -> None:
    """A FileSink of one file per epoch became a sink with lanes, after a kill."""
    commits = Commits(tmp_path)
    commits.epoch((0, 5))
    assert commits.asked({}).through == 0, "nothing was shown anywhere"
    commits.shown = commits.rows_shown = 1
    commits.epoch((0, 4), (1, 2))
    with pytest.raises(RestoreError, match=r"no trace of it .*: whether epochs 2 to 2 \(6 rows, committed\)"):
        commits.asked({})
    commits.shown = commits.rows_shown = 2
    commits.epoch()
    assert commits.asked({}).through == 2, "nothing waits"


def test_a_checkpoint_that_lost_its_newest_commit_is_refused_with_the_lanes_shown(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.epoch((0, 5))
    with pytest.raises(RestoreError, match=r"epochs up to 2 in lanes 3, 7, and this checkpoint ends with e"):
        commits.stands(l0=at(1, 5), l3=at(2, 1), l7=at(2, 2))


def test_a_leader_that_committed_meanwhile_is_followed_instead(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.epoch((0, 5))
    question = LaneQuestion("out", {0: at(2, 5)}, commits.view, commits.checkpoint.chain)
    with pytest.raises(AdoptedOther):
        standing(question, lambda: AdoptedOther("commit 2 came first"))


def test_a_copy_of_the_checkpoint_that_the_job_has_left_is_refused(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.epoch((0, 5))
    with pytest.raises(RestoreError, match="made of other rows"):
        commits.stands(l0=LaneMark(1, 5, "other"))


@pytest.mark.parametrize("lost", ["lower", "absent", "half"])
def test_a_sink_that_went_back_is_shown_again_what_is_still_staged(tmp_path: Path, lost: str) -> None:
    commits = Commits(tmp_path)
    commits.epoch((0, 5), (1, 6))
    commits.epoch((0, 3), (16, 4))
    commits.published(2, l0=(2, 7), l1=(1, 6))
    commits.told()
    marks = {lane: LaneMark(2) for lane in range(LANES)} | {1: at(1, 6)}
    marks[0] = at(2, 3) if lost == "half" else at(1, 5)
    if lost == "absent":
        del marks[0]
    found = commits.asked(marks)
    epochs = {"lower": [(2, 0), (2, 16)], "half": [(2, 0), (2, 16)], "absent": [(1, 0), (2, 0), (2, 16)]}
    assert [(file.epoch, file.part) for file in found.again] == epochs[lost]
    assert found.through == 2
    assert found.begins == epochs[lost][0][0] - 1
    assert found.shown[0] == marks.get(0, LaneMark(0))
    assert found.shown[1] == at(1, 6)
    assert "SINK WENT BACK: 'out' shows less than it had shown, in lane 0" in found.news


def test_a_sink_that_went_back_further_than_rows_are_staged_is_refused_with_the_range(
    tmp_path: Path,
) -> None:
    commits = Commits(tmp_path, retain=2)
    for epoch in range(1, 7):
        commits.epoch((0, 5))
        commits.published(epoch, l0=(epoch, 5))
    commits.told()
    assert [file.epoch for file in commits.stands(l0=at(5, 5)).again] == [6]
    with pytest.raises(SinkWentBack, match=r"up to epoch 6, and in lane 0 .* rows of epochs 3 to 6 are no l"):
        commits.stands(l0=at(2, 5))
    with pytest.raises(SinkWentBack, match="rows of epochs 1 to 6"):
        commits.asked({})


def test_at_most_once_shows_nothing_again(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.epoch((0, 5), (1, 5))
    commits.published(1, l0=(1, 5), l1=(1, 5))
    commits.told()
    found = commits.stands(replaces=False, l0=at(1, 2))
    assert (found.through, found.again, found.shown[0]) == (1, (), at(1, 2))


def test_damaged_rows_of_an_epoch_that_is_shown_by_half_are_refused(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.epoch((0, 5), (1, 5))
    commits.epoch((0, 1))
    damaged = [file for file in commits.view.staged if file.epoch == 1 and file.part == 1]
    done = commits.checkpoint.chain.rewind(commits.view.head, 1, term=1, run="r", damaged=damaged)
    assert isinstance(done, Committed)
    commits.view = done.view
    assert commits.view.settled.lost == {"out": (1,)}
    assert commits.stands().through == 0, "nothing of it is shown: it may be computed again"
    whole = commits.stands(l0=at(1, 5), l1=at(1, 5))
    assert whole.through == 1, "all of it is shown: it need not be"
    with pytest.raises(RestoreError, match=r"rows of epoch 1 for sink 'out' are damaged, .* \(in lane 0\)"):
        commits.stands(l0=at(1, 5))
