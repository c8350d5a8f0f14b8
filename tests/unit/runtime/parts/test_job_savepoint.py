"""Savepoints of a whole job: all parts at one barrier, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.checkpoint.chain.barriers import (
    BARRIERS_KEPT,
    Standing,
    begin_barrier,
    begun_barrier,
    end_barrier,
    ending_of_barrier,
    newest_barrier,
)
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.layout import keep_layout, read_layout
from holdfast.checkpoint.chain.pins import read_pins
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.checkpoint.savepoints.copy_logs import take_over
from holdfast.checkpoint.savepoints.stored_savepoint import read_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord, Extent, LayoutRecord, StagedFile
from holdfast.errors import RestoreError, RetryableError
from holdfast.runtime.parts.alignment import Alignment
from holdfast.runtime.parts.coordinator import (
    LASTS_SECONDS,
    LOOK_SECONDS,
    TURN_SECONDS,
    Coordinator,
    coordinator_of,
)
from holdfast.runtime.parts.job_savepoint import take_job_savepoint
from holdfast.runtime.parts.part_jobs import part_jobs
from holdfast.runtime.parts.passage import Passage
from holdfast.storage.contract import Storage
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.urls import open_storage
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.chain.test_replica_sets import joined
from tests.unit.runtime.parts.channel_kit import CHANNEL, Consumer, Producer, lead, leave, outlet


class WorkingClock(ManualClock):
    """While one waits, the others work."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._work()


class TwoParts:
    """A job of two parts, joined by a channel, both at work."""

    def __init__(self, root: Path) -> None:
        self.root = str(root / "ck")
        layout = LayoutRecord(job="job", parts=("main", "scoring"), channels={CHANNEL: ("main", "scoring")})
        keep_layout(open_storage(self.root), layout, False)
        main, scoring = (f"{self.root}/parts/{name}" for name in layout.parts)
        self.producer = Producer(LocalStorage(Path(main)), outlet(scoring))
        self.consumer = Consumer(LocalStorage(Path(scoring)), main)
        self.producer.commit([b"a"], [b"bb"])

    def work(self) -> None:
        """The producer carries a barrier at once and goes on; the consumer reads up to it and carries it."""
        barrier = newest_barrier(open_storage(self.root))
        if barrier.under_way and all(each.number < barrier.number for each in self.producer.view.barriers):
            self.producer.say(barrier=barrier.number)
            return
        for _ in range(2):
            self.producer.commit([b"ccc"])
        self.consumer_works()

    def consumer_works(self) -> None:
        barrier = newest_barrier(open_storage(self.root))
        self.consumer.reader.holds_at = lambda number: number == barrier.number
        if self.consumer.take() is None and not self.consumer.view.barriers:
            self.consumer.say(barrier.number)
        elif self.consumer.planned:
            self.consumer.commit()


def test_all_parts_are_saved_at_one_barrier_while_they_go_on(tmp_path: Path) -> None:
    job = TwoParts(tmp_path)
    taken = take_job_savepoint(job.root, str(tmp_path / "sp"), WorkingClock(job.work), "test")
    assert (taken.job, taken.barrier, set(taken.commits)) == ("job", 1, {"main", "scoring"})
    records = {
        name: read_savepoint(open_storage(str(tmp_path / "sp" / "parts" / name))) for name in taken.commits
    }
    at = records["main"].manifest.last_epoch
    assert job.producer.view.last_epoch > at, "the part went on"
    assert records["scoring"].manifest.positions[CHANNEL] == [at, 0]
    state = records["main"].manifest.channels[CHANNEL]
    assert (state.through, state.released, records["main"].manifest.sent) == (at, at, ())
    assert read_layout(open_storage(str(tmp_path / "sp"))) == read_layout(open_storage(job.root))
    ended = ending_of_barrier(open_storage(job.root), 1)
    assert ended is not None
    assert (ended.outcome, ended.commits) == ("complete", taken.commits)
    assert not read_pins(job.producer.storage).records


def test_a_barrier_that_does_not_come_through_leaves_nothing_behind(tmp_path: Path) -> None:
    job = TwoParts(tmp_path)
    with pytest.raises(RetryableError, match="did not come through part 'main', 'scoring' in 3 s"):
        take_job_savepoint(job.root, str(tmp_path / "sp"), WorkingClock(lambda: None), "test", 3.0)
    ended = ending_of_barrier(open_storage(job.root), 1)
    assert ended is not None
    assert ended.outcome == "aborted"
    assert not open_storage(str(tmp_path / "sp")).list("")
    assert not read_pins(job.producer.storage).records


@pytest.mark.parametrize("comes_through", [True, False])
def test_to_stop_with_a_savepoint_ends_the_runs_at_its_barrier_and_then_the_rest(
    tmp_path: Path, comes_through: bool
) -> None:
    job, story = TwoParts(tmp_path), list[str]()
    root, work = open_storage(job.root), job.work if comes_through else lambda: None
    sp = open_storage(str(tmp_path / "sp"))

    def stop_rest() -> None:
        ended = ending_of_barrier(root, 1)
        outcome = ended.outcome if ended is not None else "under way"
        story.append(f"{outcome}, {'whole' if read_layout(sp) else 'none'}")

    try:
        take_job_savepoint(job.root, sp.url, WorkingClock(work), "test", 3.0, stop_rest)
    except RetryableError:
        assert not comes_through
    assert begun_barrier(root, 1).ends
    assert story == ["under way, none" if comes_through else "aborted, none"]
    assert bool(read_layout(sp)) is comes_through


def end_alone(storage: Storage) -> Callable[[], None]:
    lead(storage)
    return lambda: leave(storage)


def end_as_set(storage: Storage) -> Callable[[], None]:
    """One of two members has ended the run of both."""
    first, second = joined(storage, "a", 1), joined(storage, "b", 2)
    leave(storage)
    first.leave(storage, 1)
    return lambda: second.leave(storage, 2)


@pytest.mark.parametrize("led", [end_alone, end_as_set])
def test_what_a_run_acknowledges_until_it_has_ended_is_in_the_savepoint_that_it_stops_with(
    tmp_path: Path, led: Callable[[Storage], Callable[[], None]]
) -> None:
    job, told = TwoParts(tmp_path), list[str]()
    message, sp = pa.record_batch({"n": [1]}), str(tmp_path / "sp")
    end, log = led(job.producer.storage), ReceivedLog(job.producer.storage, "queue", "receiver")

    def work() -> None:
        if told == ["stop"]:
            log.append(message)
            told.append("acknowledged")
            end()
        job.work()

    take_job_savepoint(job.root, sp, WorkingClock(work), "test", stop_rest=lambda: told.append("stop"))
    work()
    again = LocalStorage(tmp_path / "again")
    take_over(open_storage(f"{sp}/parts/main"), again)
    found = ReceivedLog(again, "queue", "reader")
    found.look()
    assert told == ["stop", "acknowledged"]
    assert [found.loader()(batch.number) for batch in found.after(0)] == [message]


def test_a_run_that_may_go_on_acknowledging_leaves_no_savepoint(tmp_path: Path) -> None:
    job, sp = TwoParts(tmp_path), open_storage(str(tmp_path / "sp"))
    lead(job.consumer.storage)
    with pytest.raises(RetryableError, match=r"no savepoint was left: part 'scoring', .* not known"):
        take_job_savepoint(job.root, sp.url, WorkingClock(job.work), "test", 3.0, lambda: None)
    assert not sp.list("")
    assert not read_pins(job.producer.storage).records


def test_a_part_whose_leader_dies_at_the_barrier_that_stops_the_job_goes_no_further(tmp_path: Path) -> None:
    """Else its sinks would show epochs that are not in the savepoint, and show them again from there."""
    job, sp = TwoParts(tmp_path), open_storage(str(tmp_path / "sp"))
    root, main = open_storage(job.root), job.producer

    def work() -> None:
        # Each time another leader.
        leader = Alignment(root, main.view, {}, clock, waits=True, keeps=0)
        if barrier := leader.next({}, main.view.last_epoch):
            main.say(barrier=barrier)
        elif not leader.last:
            main.commit([b"ccc"])
        elif job.consumer.view.barriers:
            assert newest_barrier(root) == Standing(1, under_way=True)
            for part in (main, job.consumer):
                leave(part.storage)
        if not job.consumer.view.barriers:
            job.consumer_works()

    clock = WorkingClock(work)
    for part in (main, job.consumer):
        lead(part.storage)
    taken = take_job_savepoint(job.root, sp.url, clock, "test", 3.0, lambda: None)
    saved = read_savepoint(open_storage(f"{sp.url}/parts/main")).manifest
    assert main.view.last_epoch == saved.last_epoch
    assert main.view.number == taken.commits["main"]
    assert newest_barrier(root) == Standing(1, under_way=False)


def test_a_stop_that_fails_after_its_barrier_holds_no_part_any_more(tmp_path: Path) -> None:
    job, sp = TwoParts(tmp_path), open_storage(str(tmp_path / "sp"))
    lead(job.producer.storage)
    with pytest.raises(RetryableError, match=r"no savepoint was left: part 'main', .* not known"):
        take_job_savepoint(job.root, sp.url, WorkingClock(job.work), "test", 3.0, lambda: None)
    ended = ending_of_barrier(open_storage(job.root), 1)
    assert ended is not None
    assert ended.outcome == "aborted"


@pytest.mark.parametrize("comes_back", [True, False])
def test_to_stop_with_a_savepoint_needs_sinks_that_have_shown_what_is_before_it(
    tmp_path: Path, comes_back: bool
) -> None:
    """A savepoint holds no output: what waits for a sink would be shown by nobody who goes on from it."""
    job, root, shown = TwoParts(tmp_path), str(tmp_path / "ck"), {"out": 0}

    def work() -> None:
        if comes_back and job.consumer.view.barriers:
            shown["out"] = 1_000
        job.work()

    give_rows_to_a_sink(job.producer, shown)
    sp = open_storage(str(tmp_path / "sp"))
    without = pytest.raises(RetryableError, match="no savepoint was left: sink 'out' of part 'main'")
    with nullcontext() if comes_back else without:
        take_job_savepoint(root, sp.url, WorkingClock(work), "test", 3.0, lambda: None)
    assert bool(read_layout(sp)) is comes_back


@pytest.mark.parametrize("shows", [True, False])
def test_a_savepoint_beside_a_sink_that_is_behind_says_so(tmp_path: Path, shows: bool) -> None:
    job = TwoParts(tmp_path)
    give_rows_to_a_sink(job.producer, {"out": 1_000 if shows else 1})
    taken = take_job_savepoint(job.root, str(tmp_path / "sp"), WorkingClock(job.work), "test")
    main = read_savepoint(open_storage(str(tmp_path / "sp" / "parts" / "main"))).manifest
    assert main.last_epoch > 1
    waiting = f"{main.last_epoch - 1} epochs for sink 'out' are still to be shown and are not in it"
    assert taken.waiting.startswith(waiting) is not shows
    assert bool(taken.waiting) is not shows


def give_rows_to_a_sink(producer: Producer, shown: dict[str, int]) -> None:
    """From now on every epoch has a row for sink `out`, which has `shown` what that says."""
    plain, extent = producer.commit_record, Extent(object="data/rows", offset=0, length=1, checksum="")

    def commit(record: CommitRecord) -> None:
        file = StagedFile(epoch=record.last_epoch, stream="s", sinks=("out",), part=0, rows=1, extent=extent)
        plain(replace(record, staged=(file,) if record.attempts else (), published_through=dict(shown)))

    producer.commit_record = commit  # type: ignore[method-assign]
    producer.commit([b"a"])


def test_a_barrier_whose_records_were_lost_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    """Else the savepoint would be of the time when the parts carried that one."""
    job = TwoParts(tmp_path)
    while job.consumer.take() is not None:
        job.consumer.commit()
    job.producer.say(barrier=1)
    job.consumer.say(1)
    with pytest.raises(RetryableError, match="barrier 2 did not come through part 'main', 'scoring'"):
        take_job_savepoint(job.root, str(tmp_path / "sp"), WorkingClock(lambda: None), "test", 3.0)
    clock, parts = ManualClock(), {"main": job.producer.storage, "scoring": job.consumer.storage}
    root = open_storage(job.root)
    root.delete([entry.name for entry in root.list(names.BARRIERS)])
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 1.0, clock)
    clock.advance(timedelta(seconds=2))
    coordinator.step()
    assert newest_barrier(root).number == 2


def test_what_cannot_begin_stops_nothing(tmp_path: Path) -> None:
    job, story = TwoParts(tmp_path), list[str]()
    begin_barrier(open_storage(job.root), "another", 0, 1 << 60)
    clock = WorkingClock(lambda: None)
    with pytest.raises(RetryableError, match="barrier 1 of another is under way"):
        take_job_savepoint(
            job.root, str(tmp_path / "sp"), clock, "test", stop_rest=lambda: story.append("stopped"),
            say=story.append,
        )  # fmt: skip
    assert story == ["barrier 1 of another is under way; waiting for its end, up to 120 s"]
    assert newest_barrier(open_storage(job.root)) == Standing(1, under_way=True)


def test_a_savepoint_begins_when_the_barrier_that_is_under_way_has_ended(tmp_path: Path) -> None:
    job, said, looks = TwoParts(tmp_path), list[str](), iter(range(1_000))
    root = open_storage(job.root)
    begin_barrier(root, "another", 0, 1 << 60)

    def work() -> None:
        if next(looks) < 3:
            return
        end_barrier(root, 1, "aborted", 0)
        job.work()

    taken = take_job_savepoint(job.root, str(tmp_path / "sp"), WorkingClock(work), "test", say=said.append)
    assert taken.barrier == 2
    assert said == ["barrier 1 of another is under way; waiting for its end, up to 120 s"]


def test_a_part_whose_state_is_in_no_file_is_not_stopped_for_a_savepoint(tmp_path: Path) -> None:
    job, story = TwoParts(tmp_path), list[str]()
    scoring = Chain(LocalStorage(Path(job.root) / "parts" / "scoring"))
    view = scoring.load()
    record = news(view, term=view.term, run=view.run, published_through={})
    scoring.commit(view, replace(record, needs_from=view.last_epoch + 1))
    with pytest.raises(RestoreError, match=r"no savepoint can be taken of .*scoring: .*; start the job"):
        take_job_savepoint(
            job.root, str(tmp_path / "sp"), ManualClock(), "test", stop_rest=lambda: story.append("stopped")
        )
    assert story == []
    assert not newest_barrier(open_storage(job.root)).number
    assert not (tmp_path / "sp").exists()


def test_what_failed_while_it_was_copied_is_removed(tmp_path: Path) -> None:
    job = TwoParts(tmp_path)
    second = open_storage(str(tmp_path / "sp" / "parts" / "scoring"))

    def work() -> None:
        job.work()
        if job.consumer.view.barriers and not second.list(""):
            second.put("in the way", b"")

    with pytest.raises(RestoreError, match="holds something already"):
        take_job_savepoint(job.root, str(tmp_path / "sp"), WorkingClock(work), "test")
    assert [entry.name for entry in open_storage(str(tmp_path / "sp")).list("")] == [
        "parts/scoring/in the way"
    ]
    assert not read_pins(job.producer.storage).records


def test_only_a_job_in_parts_has_such_savepoints(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="there is no checkpoint of a job in parts"):
        take_job_savepoint(str(tmp_path / "ck"), str(tmp_path / "sp"), ManualClock(), "test")


def test_barriers_come_at_an_interval_and_end_when_all_parts_carry_them(tmp_path: Path) -> None:
    job, clock = TwoParts(tmp_path), ManualClock()
    root = open_storage(job.root)
    parts = {"main": job.producer.storage, "scoring": job.consumer.storage}
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 10.0, clock)

    def step() -> None:
        clock.advance(timedelta(seconds=LOOK_SECONDS))
        coordinator.step()

    step()
    assert newest_barrier(root).number == 0, "the interval is not over"
    clock.advance(timedelta(seconds=10))
    step()
    assert newest_barrier(root).under_way
    for _ in range(20):
        job.work()
        # Another leader of the first part goes on with what this one began.
        coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "another", 10.0, clock)
        step()
    ended = ending_of_barrier(root, 1)
    assert ended is not None
    assert (ended.outcome, set(ended.commits)) == ("complete", {"main", "scoring"})


def test_several_that_coordinate_begin_no_more_barriers_than_one(tmp_path: Path) -> None:
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    several = [Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, by, 10.0, clock) for by in ("a", "b")]
    begun = []
    for _ in range(42):
        clock.advance(timedelta(seconds=1))
        for coordinator in several:
            coordinator.step()
            if newest_barrier(root).under_way:
                begun.append(newest_barrier(root).number)
                end_barrier(root, begun[-1], "aborted", clock.now_ms(), reason="enough of it")
    assert begun == [1, 2, 3, 4]


def test_barriers_go_on_coming_when_the_part_that_began_them_has_come_to_its_end(tmp_path: Path) -> None:
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    channels = {CHANNEL: ("main", "scoring")}
    second = Coordinator(root, parts, channels, "the second", 10.0, clock, before=("main",))

    def begun_within(seconds: float) -> bool:
        for _ in range(round(seconds)):
            clock.advance(timedelta(seconds=1))
            second.step()
        return newest_barrier(root).under_way

    assert not begun_within(60), "the first part goes on"
    lead(job.producer.storage)
    leave(job.producer.storage)
    assert not begun_within(60), "it was stopped"
    job.producer.end()
    assert begun_within(TURN_SECONDS + 10 + 2)
    while job.consumer.take() is not None:
        job.consumer.commit()
    job.consumer.say(1)
    clock.advance(timedelta(seconds=1))
    second.step()
    ended = ending_of_barrier(root, 1)
    assert ended is not None
    assert (ended.outcome, set(ended.commits)) == ("complete", {"main", "scoring"})


@pytest.mark.parametrize(("interval", "turns"), [(60.0, [(), ("main",)]), (0.0, [None, None])])
def test_the_leader_of_each_part_has_its_turn_with_barriers(
    tmp_path: Path, interval: float, turns: list[tuple[str, ...] | None]
) -> None:
    job = hf.Job("job")
    clicks = job.source(hf.MemorySource([], schema="n long"), uid="clicks")
    clicks.into(job.part("scoring"), uid=CHANNEL).sink(hf.MemorySink(), uid="out")
    found = []
    for part in part_jobs(job.graph(), str(tmp_path)):
        context: Any = SimpleNamespace(
            program=SimpleNamespace(graph=part.graph()), root=LocalStorage(tmp_path), clock=ManualClock(),
            settings=SimpleNamespace(barrier_interval=interval, root=str(tmp_path)),
        )  # fmt: skip
        coordinator = coordinator_of(context)
        found.append(coordinator and coordinator._before)
    assert found == turns


def test_no_barrier_begins_where_nothing_was_run_since_the_last_one(tmp_path: Path) -> None:
    """Else an idle job would give up every commit but those of its barriers."""
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 1.0, clock)
    begun = []
    for turn in range(30):
        clock.advance(timedelta(seconds=1))
        coordinator.step()
        barrier = newest_barrier(root)
        if barrier.under_way and barrier.number not in begun:
            begun.append(barrier.number)
            job.producer.say(barrier=barrier.number)
            while job.consumer.take() is not None:
                job.consumer.commit()
            job.consumer.say(barrier.number)
        if turn == 15:
            assert begun == [1]
            job.producer.commit([b"ddd"])
    assert begun == [1, 2]


def test_a_barrier_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 1.0, clock)
    clock.advance(timedelta(seconds=2))
    coordinator.step()
    job.producer.say(barrier=1)
    clock.advance(timedelta(seconds=LASTS_SECONDS))
    coordinator.step()
    ended = ending_of_barrier(root, 1)
    assert ended is not None
    assert (ended.outcome, ended.reason) == ("aborted", "it did not come through scoring")


def test_a_barrier_that_stops_the_job_is_complete_when_whoever_stops_it_says_so(tmp_path: Path) -> None:
    """Else a leader that takes over would take it for one that is over, and go on."""
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 1_000.0, clock)
    begin_barrier(root, "holdfast stop", 0, 10_000, ends=True)
    job.producer.say(barrier=1)
    while job.consumer.take() is not None:
        job.consumer.commit()
    job.consumer.say(1)
    for _ in range(10):
        clock.advance(timedelta(seconds=1))
        coordinator.step()
        assert newest_barrier(root).under_way
    clock.advance(timedelta(seconds=1))
    coordinator.step()
    ended = ending_of_barrier(root, 1)
    assert ended is not None
    assert (ended.outcome, ended.reason) == ("aborted", "it was left behind by holdfast stop")


def test_after_a_barrier_that_was_given_up_parts_have_an_interval_to_read_on(tmp_path: Path) -> None:
    """A part with several inputs has waited at it for all of its time."""
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 60.0, clock)
    under_way = []
    for _ in range(600):
        clock.advance(timedelta(seconds=1))
        coordinator.step()
        under_way.append(newest_barrier(root).under_way)
    assert newest_barrier(root).number > 2
    assert under_way.count(False) >= 200


@pytest.mark.parametrize("how", ["stopped", "never begun"])
def test_no_barrier_begins_that_cannot_come_through_all_parts(tmp_path: Path, how: str) -> None:
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    if how == "stopped":
        lead(job.consumer.storage)
        leave(job.consumer.storage)
    else:
        parts["scoring"] = LocalStorage(tmp_path / "ck" / "parts" / "other")
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 1.0, clock)
    for _ in range(10):
        clock.advance(timedelta(seconds=1))
        coordinator.step()
    assert newest_barrier(root).number == 0
    if how == "stopped":
        lead(job.consumer.storage)
        clock.advance(timedelta(seconds=2))
        coordinator.step()
        assert newest_barrier(root).under_way


def test_savepoints_alone_leave_no_more_records_of_barriers_than_are_kept(tmp_path: Path) -> None:
    job = TwoParts(tmp_path)
    root = open_storage(job.root)
    for number in range(1, BARRIERS_KEPT + 8):
        assert begin_barrier(root, "another", 0, 1_000) == number
        end_barrier(root, number, "complete", 0)
    above = newest_barrier(root).number
    taken = take_job_savepoint(job.root, str(tmp_path / "sp"), WorkingClock(job.work), "test")
    assert taken.barrier == above + 1
    assert len(root.list(names.BARRIERS)) == 2 * BARRIERS_KEPT


def test_a_barrier_is_given_its_time_though_the_clock_of_its_machine_is_behind(tmp_path: Path) -> None:
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 1_000.0, clock)
    begin_barrier(root, "another machine", clock.now_ms() - 3_600_000, 10_000)
    for _ in range(10):
        clock.advance(timedelta(seconds=1))
        coordinator.step()
        assert newest_barrier(root).under_way
    clock.advance(timedelta(seconds=1))
    coordinator.step()
    assert not newest_barrier(root).under_way


def test_barriers_that_cannot_be_read_stop_no_part(tmp_path: Path) -> None:
    job, clock = TwoParts(tmp_path), ManualClock()
    root, parts = open_storage(job.root), {"main": job.producer.storage, "scoring": job.consumer.storage}
    coordinator = Coordinator(root, parts, {CHANNEL: ("main", "scoring")}, "test", 1.0, clock)
    begin_barrier(root, "test", clock.now_ms(), 10_000)
    Path(job.root, names.barrier(1)).write_bytes(b"damaged")
    clock.advance(timedelta(seconds=1))
    coordinator.step()
    assert newest_barrier(root).under_way, "the next part that meets it aborts it"


def test_a_part_that_had_ended_and_begun_again_counts_with_what_it_carries(tmp_path: Path) -> None:
    job = TwoParts(tmp_path)
    parts = {"main": job.producer.storage, "scoring": job.consumer.storage}
    passage = Passage(parts, {CHANNEL: ("main", "scoring")}, 1)
    while job.consumer.take() is not None:
        job.consumer.commit()
    job.producer.end()
    job.consumer.say(1)
    assert passage.look() == {
        "main": job.producer.view.number, "scoring": job.consumer.view.number
    }  # fmt: skip
    job.producer.commit([b"more"])
    job.producer.say(barrier=1)
    assert (passage.look(), passage.missing) == (None, ["scoring"]), "it has not read what was sent since"
