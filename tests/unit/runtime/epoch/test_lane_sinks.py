"""Lane sinks among the sinks of a run: an SQLite file, asked, begun and published to, with no Spark."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.admin.set_aside_rows import set_aside, standings
from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.terms import claim
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import CommitRecord, Extent, StagedFile
from holdfast.clock import SystemClock
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result, continues
from holdfast.errors import DefinitionError, RestoreError, SinkFailed, Unavailable
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.leader_context import LeaderContext
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import pack_rows
from holdfast.testing import sqlite_lanes
from holdfast.testing.sqlite_lanes import OpenSqliteLanes, SqliteLaneSink, SqliteLaneWriter
from tests.unit.runtime.leader_kit import leader_of, show_in_all

JOB = "job (id)"


class World:
    """A checkpoint on disk with rows for one sink, and that sink."""

    def __init__(self, root: Path, chunk_rows: int | None = None) -> None:
        self.storage = LocalStorage(root / "ck")
        self.sink = SqliteLaneSink(str(root / "out.db"), chunk_rows)
        self.said: list[str] = []
        self.view = CheckpointView()
        self.context: LeaderContext = self.leader()

    def leader(self, sink: Any = None) -> LeaderContext:
        sinks = {"out": (sink or self.sink, "s")}
        return leader_of(self.storage, sinks=sinks, say=self.said.append)

    def commit(
        self, *parts: tuple[int, list[int]], publishing: Publishing | None = None, term: int = 1
    ) -> None:
        """Commit an epoch with these parts: number and rows."""
        epoch = self.view.last_epoch + 1
        staged = tuple(self._staged(epoch, part, rows) for part, rows in parts)
        self._append(
            CommitRecord(
                term=term, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=1,
                parallelism=1, fingerprint="f", positions={}, staged=staged,
                published_through=publishing.through if publishing else {"out": 0},
                lanes_through=publishing.lanes_through if publishing else {},
            )
        )  # fmt: skip

    def tell(self, publishing: Publishing, term: int = 1) -> None:
        """Commit what is published."""
        told = {"published_through": publishing.through, "lanes_through": publishing.lanes_through}
        self._append(news(self.view, term=term, run="r", rows_through=publishing.rows_through, **told))

    def _append(self, record: CommitRecord) -> None:
        done = self.context.checkpoint.chain.commit(self.view, record)
        assert isinstance(done, Committed)
        self.view = done.view

    def _staged(self, epoch: int, part: int, rows: list[int]) -> StagedFile:
        data, name = pack_rows(pa.table({"n": rows})), f"data/{epoch}-{part}"
        self.storage.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
        return StagedFile(
            stream="s",
            epoch=epoch,
            part=part,
            extent=extent,
            rows=len(rows),
            sinks=("out",),
            input=f"i{epoch}",
        )

    def start(self, sink: Any = None) -> Publishing:
        """A run that begins, and publishes what waits."""
        publishing = Publishing(self.leader(sink), self.view)
        publishing.begin()
        first = publishing.through["out"] + 1
        show_in_all(publishing, first, self.view.last_epoch, self.view.staged)
        return publishing

    def shown(self) -> list[int]:
        return [row["n"] for row in self.sink.rows("out")]

    def marks(self) -> dict[int, LaneMark]:
        with closing(self.sink.lane_writer(JOB, "out").open(1)) as lanes:
            return dict(lanes.marks())

    def alter(self, statement: str) -> None:
        with closing(sqlite3.connect(self.sink.path)) as file, file:
            file.execute(statement)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_committed_rows_are_shown_once_and_the_commits_know_of_which_lanes(world: World) -> None:
    world.commit((0, [1, 2]), (1, [3]), (16, [4]))
    publishing = world.start()
    assert world.shown() == [1, 2, 4, 3]
    assert publishing.through == {"out": 1}
    assert publishing.lanes_through == {"out": {"0": (1, 3), "1": (1, 1)}}
    world.tell(publishing)
    world.commit((1, [5]), publishing=publishing)
    world.start()
    assert world.shown() == [1, 2, 4, 3, 5]
    assert world.view.lanes_through == {"out": {"0": (1, 3), "1": (1, 1)}}


def test_a_run_that_begins_makes_all_marks_before_the_first_epoch(world: World) -> None:
    world.commit()
    world.start()
    assert set(world.marks().values()) == {LaneMark(0)}
    assert len(world.marks()) == LANES


def test_an_epoch_of_which_half_is_shown_is_finished_from_the_same_rows(tmp_path: Path) -> None:
    world = World(tmp_path, chunk_rows=1)
    world.commit((0, [1, 2, 3]), (1, [4]))
    with closing(world.sink.lane_writer(JOB, "out").open(1)) as lanes:
        lanes.begin(0)
    world.alter("update marks set epoch = 1, rows = 2, input = 'i1' where lane = 0")
    publishing = Publishing(world.leader(), world.view)
    assert publishing.through == {"out": 0}
    assert publishing.shown["out"].epoch == 1, "the plan of an epoch that is shown by half is followed"
    world.start()
    assert world.shown() == [3, 4], "the two rows that the mark says are shown are not written"


def test_rows_that_a_sink_has_lost_are_shown_again_before_anything_else(world: World) -> None:
    world.commit((0, [1]), (1, [2]))
    first = world.start()
    world.commit((0, [3]), publishing=first)
    second = world.start()
    world.tell(second)
    world.alter("delete from shown where epoch = 2")
    world.alter("update marks set epoch = 1, rows = 1, input = 'i1' where lane = 0")
    publishing = Publishing(world.leader(), world.view)
    assert publishing.through == {"out": 2}
    publishing.begin()
    assert world.shown() == [1, 3, 2]
    assert [text for text in world.said if text.startswith("SINK WENT BACK")]


def test_a_sink_that_lost_everything_is_filled_again_where_all_is_staged(world: World) -> None:
    world.commit((0, [1]))
    first = world.start()
    world.commit((0, [3]), publishing=first)
    world.tell(world.start())
    world.alter("delete from shown")
    world.alter("delete from marks")
    world.start()
    assert world.shown() == [1, 3]


def test_a_sink_that_goes_back_while_the_run_publishes_ends_it_and_the_next_start_mends_it(
    world: World,
) -> None:
    world.commit((0, [1]))
    publishing = world.start()
    world.tell(publishing)
    world.alter("delete from shown")
    world.alter("update marks set epoch = 0, rows = 0 where lane = 0")
    world.commit((0, [2]), publishing=publishing)
    with pytest.raises(SinkFailed, match="went back: in lane 0"):
        show_in_all(publishing, 2, 2, world.view.staged)
    assert world.shown() == [], "nothing was written after what is missing"
    world.start()
    assert world.shown() == [1, 2]


def test_a_refused_start_leaves_no_mark(world: World) -> None:
    world.commit((0, [1]))
    publishing = Publishing(world.leader(), world.view)
    publishing.close()
    assert world.marks() == {}


def test_an_epoch_that_this_checkpoint_lacks_is_refused(world: World) -> None:
    world.commit((0, [1]))
    world.start()
    world.alter("update marks set epoch = 9, rows = 1 where lane = 5")
    with pytest.raises(RestoreError, match="epochs up to 9 in lane 5"):
        world.start()


def test_a_sink_that_is_busy_for_good_is_unavailable_and_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_lanes, "BUSY_SECONDS", 0.01)
    world.commit((0, [1]))
    publishing = Publishing(world.leader(), world.view)
    publishing.begin()
    with closing(sqlite3.connect(world.sink.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(Unavailable, match="sink 'out' did not take epoch 1 in lane 0: busy"):
            show_in_all(publishing, 1, 1, world.view.staged)
        other.execute("rollback")
    show_in_all(publishing, 1, 1, world.view.staged)
    assert world.shown() == [1]


class Refusing(SqliteLaneSink):
    """Takes no 13."""

    def lane_writer(self, job: str, uid: str) -> SqliteLaneWriter:
        return RefusingWriter(self.path, job, uid, self.chunk_rows)


class RefusingWriter(SqliteLaneWriter):
    def open(self, term: int) -> OpenSqliteLanes:
        return RefusingLanes(self, super().open(term)._file)


class RefusingLanes(OpenSqliteLanes):
    def _write(self, rows: LaneRows, encoded: list[str]) -> Result | None:
        start = continues(self._mark(rows.lane), rows)
        if isinstance(start, int) and '{"n": 13}' in encoded[start : start + 1]:
            return Result(Outcome.REFUSED, reason=f"row {start} is unlucky")
        return super()._write(rows, encoded)


class Closed(SqliteLaneSink):
    def lane_writer(self, job: str, uid: str) -> SqliteLaneWriter:
        return ClosedWriter(self.path, job, uid, self.chunk_rows)


class ClosedWriter(SqliteLaneWriter):
    def open(self, term: int) -> OpenSqliteLanes:
        return ClosedLanes(self, super().open(term)._file)


class ClosedLanes(OpenSqliteLanes):
    def begin(self, through: int) -> None:
        raise DefinitionError("the table of marks cannot be made; grant it")


def test_a_sink_that_cannot_begin_has_nothing_to_be_put_aside(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(DefinitionError, match=r"^sink 'out' cannot begin: .* cannot be made; grant it$"):
        world.start(Closed(world.sink.path))


@pytest.mark.parametrize("told", [False, True], ids=["commits-know-nothing", "commits-know-a-lane"])
def test_rows_that_are_refused_stop_the_sink_and_are_set_aside_by_lane(tmp_path: Path, told: bool) -> None:
    world = World(tmp_path, chunk_rows=1)
    world.commit((0, [1]))
    publishing = world.start(Refusing(world.sink.path, 1))
    world.commit((0, [2, 3]), (1, [4, 13, 5]), publishing=publishing)
    world.commit((1, [6]), publishing=publishing)
    stopped = (
        r"sink 'out' cannot show epoch 2, which is committed: in lane 1 rows are refused for good \(row 1 is "
        r"unlucky\); .* put its rows aside with `holdfast sinks set-aside out "
    )
    with pytest.raises(DefinitionError, match=stopped):
        show_in_all(publishing, 2, 3, world.view.staged)
    assert world.shown() == [1, 2, 3, 4], "lane 0 is whole, lane 1 is half written, and nothing is after it"
    if told:
        world.tell(publishing)
    waiting = standings(world.view)[0]
    assert (waiting.waiting_epochs, waiting.rows, waiting.by_lane) == ((2, 3), 4 if told else 6, True)

    claim(world.storage, "r", "here", 1, 0)
    aside = tmp_path / "aside"
    done = set_aside(world.storage, "out", LocalStorage(aside), SystemClock(), through=2, not_running=True)
    lanes = {name: pq.read_table(aside / name)["n"].to_pylist() for name in done.files}
    # What the mark of a lane says is shown are the first rows of its file.
    of_lane_0 = {} if told else {"out-000000000002-00.parquet": [2, 3]}
    assert lanes == {**of_lane_0, "out-000000000002-01.parquet": [4, 13, 5]}
    assert world.marks()[1] == LaneMark(2, 1, "i2")
    world.view = world.context.checkpoint.chain.load()
    world.start(Refusing(world.sink.path, 1))
    assert world.shown() == [1, 2, 3, 4, 6], "the job goes on after them, and shows nothing again"


def test_rows_that_were_set_aside_stay_aside_when_the_sink_goes_back(tmp_path: Path) -> None:
    """It would refuse them again, and nobody could set them aside a second time: no rows wait."""
    world = World(tmp_path, chunk_rows=1)
    world.commit((0, [1]))
    publishing = world.start(Refusing(world.sink.path, 1))
    world.commit((0, [2]), (1, [13]), publishing=publishing)
    with pytest.raises(DefinitionError, match="refused for good"):
        show_in_all(publishing, 2, 2, world.view.staged)
    world.tell(publishing)
    claim(world.storage, "r", "here", 1, 0)
    set_aside(world.storage, "out", LocalStorage(tmp_path / "aside"), SystemClock(), not_running=True)
    world.view = world.context.checkpoint.chain.load()
    world.commit((1, [3]), publishing=world.start(), term=3)
    world.tell(world.start(), term=3)
    assert world.shown() == [1, 2, 3]
    world.alter("delete from shown where epoch > 1")
    world.alter("update marks set epoch = 1, rows = 1, input = 'i1' where lane = 0")
    world.alter("update marks set epoch = 0, rows = 0, input = '' where lane = 1")
    world.start(Refusing(world.sink.path, 1))
    assert world.shown() == [1, 2, 3]


def lost_and_refused(world: World) -> Publishing:
    """The sink has lost the 13 of epoch 2, and a job that goes on finds that it takes no 13 any more."""
    world.commit((0, [1]), (1, [2]))
    first = world.start()
    world.commit((0, [13]), publishing=first)
    world.tell(world.start())
    world.alter("delete from shown where epoch = 2")
    world.alter("update marks set epoch = 1, rows = 1, input = 'i1' where lane = 0")
    goes_on = replace(world.leader(Refusing(world.sink.path, 1)), goes_on=True)
    publishing = Publishing(goes_on, world.view)
    publishing.begin()
    return publishing


def test_where_a_job_goes_on_rows_that_a_sink_lost_and_refuses_stop_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, chunk_rows=1)
    publishing = lost_and_refused(world)
    assert world.shown() == [1, 2], "its own thread shows it what it has lost"
    assert (publishing.lost("out"), publishing.keep_from) == (1, 1)
    for _ in range(2):
        with pytest.raises(DefinitionError, match="sink 'out' cannot show epoch 2, which is committed: in"):
            publishing.show("out", 3, 2, [])
    assert not publishing.has_shown("out", 2)
    world.commit((0, [3]), publishing=publishing)
    with monkeypatch.context() as mended:
        mended.setattr(RefusingLanes, "_write", OpenSqliteLanes._write)
        publishing.show("out", 3, 3, world.view.staged)
    assert world.shown() == [1, 13, 3, 2]
    assert (publishing.lost("out"), publishing.keep_from, publishing.through) == (0, None, {"out": 3})
    world.tell(publishing)
    assert world.view.lanes_through == {"out": {"0": (3, 1), "1": (1, 1)}}


def test_what_a_sink_has_lost_is_known_to_who_comes_after_one_that_could_not_show_it(tmp_path: Path) -> None:
    world = World(tmp_path, chunk_rows=1)
    publishing = lost_and_refused(world)
    world.commit((1, [4]), publishing=publishing)
    world.start()
    assert world.shown() == [1, 13, 2, 4]


def test_a_start_on_which_rows_that_a_sink_lost_are_refused_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, chunk_rows=1)
    lost_and_refused(world).close()
    with pytest.raises(DefinitionError, match="sink 'out' cannot show epoch 2, which is committed: in lane"):
        world.start(Refusing(world.sink.path, 1))


def test_where_a_job_goes_on_the_marks_are_read_again_before_what_was_lost_is_shown(tmp_path: Path) -> None:
    """A newer copy of the sink may have come back meanwhile."""
    world = World(tmp_path, chunk_rows=1)
    publishing = lost_and_refused(world)
    with pytest.raises(DefinitionError):
        publishing.show("out", 3, 2, [])
    world.alter("insert into shown values ('out', 0, 2, 0, '{\"n\": 13}')")
    world.alter("update marks set epoch = 2, rows = 1, input = 'i2' where lane = 0")
    publishing.show("out", 3, 2, [])
    assert publishing.lost("out") == 0
    assert publishing.has_shown("out", 2)


def test_a_sink_that_goes_back_while_it_refuses_loses_nothing(tmp_path: Path) -> None:
    """That it had shown epoch 2 was its own word, which no commit has written down."""
    world = World(tmp_path)
    world.commit((0, [1]))
    world.commit((0, [2]), publishing=world.start())
    world.start()
    closed = replace(world.leader(Closed(world.sink.path)), goes_on=True)
    publishing = Publishing(closed, world.view)
    assert publishing.through == {"out": 2}
    with pytest.raises(
        DefinitionError, match=r"^sink 'out' cannot begin: .* cannot be made; grant it; once that"
    ):
        publishing.show("out", 3, 2, [])
    world.alter("delete from shown where epoch = 2")
    world.alter("update marks set epoch = 1, rows = 1, input = 'i1' where lane = 0")
    with pytest.raises(SinkFailed, match="went back while it refused the job, from epoch 2 to 1"):
        publishing.show("out", 3, 2, [])
    world.start()
    assert world.shown() == [1, 2]
