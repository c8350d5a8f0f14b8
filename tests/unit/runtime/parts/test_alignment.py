"""A part reads each of its channels up to a barrier and no further, until all of them show it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.checkpoint.chain.barriers import (
    LIST_SECONDS,
    begin_barrier,
    end_barrier,
    ending_of_barrier,
)
from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.terms import claim
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import BarrierPlace, Json
from holdfast.errors import StorageError, StorageRefused
from holdfast.runtime.parts import alignment as alignment_module
from holdfast.runtime.parts.alignment import Alignment
from holdfast.runtime.parts.channel_source import ChannelReader
from holdfast.runtime.parts.coordinator import Coordinator
from holdfast.runtime.parts.edges import Edges
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.settings import check_settings
from holdfast.storage.contract import Entry, Storage
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.parts.channel_kit import CHANNEL, COLUMNS, Producer, lead, outlet


class Part:
    """A part that reads two channels, epoch after epoch."""

    def __init__(
        self, root: Path, *, waits: bool = True, keeps: int = 0, view: CheckpointView = EMPTY
    ) -> None:
        self.clock = ManualClock()
        self.root = LocalStorage(root / "root")
        self.producers = {
            name: Producer(LocalStorage(root / name), outlet(str(root / "reader")))
            for name in ("fast", "slow")
        }
        self.readers = {
            name: ChannelReader(CHANNEL, name, str(root / name), COLUMNS) for name in self.producers
        }
        self.positions: dict[str, Json] = dict.fromkeys(self.readers)
        self.alignment = Alignment(self.root, view, self.readers, self.clock, waits=waits, keeps=keeps)

    def reads(self, name: str) -> Json:
        """Read what is to be had; gives the position."""
        while (part := self.readers[name].next(self.positions[name], None, 0)) is not None:
            self.positions[name] = part.end
        return self.positions[name]

    def meets(self) -> int:
        looks = (alignment_module.IDLE_SECONDS, alignment_module.LOOK_SECONDS)
        self.clock.advance(timedelta(seconds=looks[self.alignment._standing.under_way] + 0.01))
        return self.alignment.next(self.positions, 0)


def carry(producer: Producer, barrier: int) -> None:
    """The newest commit of a part carries a barrier."""
    producer.say(barrier=barrier)


@pytest.fixture
def part(tmp_path: Path) -> Part:
    return Part(tmp_path)


def test_nothing_behind_a_barrier_is_read_before_all_channels_show_it(part: Part) -> None:
    begin_barrier(part.root, "test", 0, 1_000)
    fast, slow = part.producers["fast"], part.producers["slow"]
    fast.commit([b"aa"], [b"b"])
    carry(fast, 1)
    fast.commit([b"behind"])
    slow.commit([b"s"])
    assert part.reads("fast") == [2, 0]
    assert part.reads("slow") == [1, 0]
    assert part.meets() == 0, "the slow one has not come to its barrier"
    slow.commit([b"t"])
    carry(slow, 1)
    assert part.reads("slow") == [2, 0]
    assert part.meets() == 1
    part.alignment.carry(1)
    assert part.meets() == 0, "it is carried once"
    assert part.reads("fast") == [3, 0]


def test_without_waiting_what_is_behind_a_barrier_is_read_and_the_barrier_still_waits_for_all(
    tmp_path: Path,
) -> None:
    part = Part(tmp_path, waits=False)
    begin_barrier(part.root, "test", 0, 1_000)
    fast, slow = part.producers["fast"], part.producers["slow"]
    fast.commit([b"aa"])
    carry(fast, 1)
    fast.commit([b"behind"])
    assert part.reads("fast") == [2, 0]
    assert part.meets() == 0, "rows of the slow one that come before its barrier would be lost"
    slow.commit([b"s"])
    carry(slow, 1)
    assert part.reads("slow") == [1, 0]
    assert part.meets() == 1


def test_a_barrier_that_has_ended_holds_nothing(part: Part) -> None:
    begin_barrier(part.root, "test", 0, 1_000)
    fast = part.producers["fast"]
    fast.commit([b"aa"])
    carry(fast, 1)
    fast.commit([b"behind"])
    assert part.reads("fast") == [1, 0]
    end_barrier(part.root, 1, "aborted", 0)
    part.meets()
    assert part.reads("fast") == [2, 0]
    assert part.meets() == 0


def test_a_barrier_whose_process_has_died_holds_a_part_no_longer_than_it_was_to_take(part: Part) -> None:
    """By the part's own clock since it saw it: by the date, this one was over before it began."""
    fast = part.producers["fast"]
    fast.commit([b"aa"])
    part.clock.advance(timedelta(days=1))
    begin_barrier(part.root, "a process that died", 0, 10_000)
    carry(fast, 1)
    fast.commit([b"behind"])
    assert part.meets() == 0
    part.clock.advance(timedelta(seconds=9.5))
    assert part.meets() == 0
    assert part.reads("fast") == [1, 0], "it may still come through"
    assert ending_of_barrier(part.root, 1) is None
    part.clock.advance(timedelta(seconds=0.5))
    assert part.meets() == 0
    assert part.reads("fast") == [2, 0]
    ended = ending_of_barrier(part.root, 1)
    assert ended is not None
    assert (ended.outcome, ended.reason) == ("aborted", "it was left behind by a process that died")


def test_a_barrier_is_given_its_whole_time_though_another_was_left_behind_before_it(part: Part) -> None:
    for number in (1, 2):
        begin_barrier(part.root, "test", 0, 10_000)
        part.meets()
        part.clock.advance(timedelta(seconds=9))
        part.meets()
        assert ending_of_barrier(part.root, number) is None
        part.clock.advance(timedelta(seconds=1))
        part.meets()
        assert ending_of_barrier(part.root, number) is not None


def test_a_barrier_whose_beginning_cannot_be_read_is_given_up(part: Part) -> None:
    part.root.put(names.barrier(1), b"not a record")
    assert part.meets() == 0
    ended = ending_of_barrier(part.root, 1)
    assert ended is not None
    assert ended.outcome == "aborted"
    assert "its beginning cannot be read: barriers/000000000001/begun" in ended.reason


def test_a_run_ends_with_a_barrier_that_says_so_and_with_no_other(part: Part) -> None:
    for ends in (True, False):
        barrier = begin_barrier(part.root, "test", 0, 1_000, ends=ends)
        part.meets()
        assert not part.alignment.last, "it is not carried yet"
        part.alignment.carry(barrier)
        assert part.alignment.last == (barrier if ends else 0)
        end_barrier(part.root, barrier, "complete", 0)


def takes_over(root: Storage, clock: ManualClock) -> Alignment:
    """A leader begins after the one before it has carried barrier 1, and has a first look."""
    view = CheckpointView(number=4, barriers=(BarrierPlace(number=1, commit=4, epoch=3),))
    alignment = Alignment(root, view, {}, clock, waits=True, keeps=0)
    assert alignment.next({}, 3) == 0
    return alignment


@pytest.mark.parametrize("ends", [True, False])
def test_a_leader_that_takes_over_at_the_barrier_that_stops_the_job_ends_there(
    tmp_path: Path, ends: bool
) -> None:
    root, clock = LocalStorage(tmp_path), ManualClock()
    begin_barrier(root, "holdfast stop", 0, 10_000, ends=ends)
    clock.advance(timedelta(seconds=9))
    assert takes_over(root, clock).last == (1 if ends else 0)
    end_barrier(root, 1, "complete", 0)
    assert takes_over(root, clock).last == 0, "the job was started again"


def test_a_job_whose_stop_has_died_goes_on_when_its_time_is_over(tmp_path: Path) -> None:
    """By the date: each run that ends there sees the barrier once."""
    root, clock = LocalStorage(tmp_path), ManualClock()
    begin_barrier(root, "holdfast stop", 0, 10_000, ends=True)
    clock.advance(timedelta(seconds=10))
    assert takes_over(root, clock).last == 0
    ended = ending_of_barrier(root, 1)
    assert ended is not None
    assert (ended.outcome, ended.reason) == ("aborted", "it was left behind by holdfast stop")


def test_a_part_that_is_started_again_goes_on_though_the_clock_of_the_stop_was_ahead(tmp_path: Path) -> None:
    """By the clocks of its own nodes, since it was first started again."""
    root, clock = LocalStorage(tmp_path / "root"), ManualClock()
    part = Producer(LocalStorage(tmp_path / "part"), outlet(str(tmp_path / "reader")))
    lead(part.storage)
    begin_barrier(root, "holdfast stop", clock.now_ms() + 7_200_000, 10_000, ends=True)
    part.commit([b"a"])
    carry(part, 1)

    def is_last() -> int:
        claim(part.storage, "again", "host", 1, clock.now_ms())
        context = part.context
        context.root, context.clock, context.settings = root, clock, check_settings(part.storage.url, {})
        context.program = SimpleNamespace(graph=SimpleNamespace(name="main", whole=None))
        edges = Edges(context, part.view, Outlets((), clock), {}, 0)
        assert edges.barrier({}, 9) == 0
        return edges.last_barrier

    clock.advance(timedelta(hours=1))
    assert is_last() == 1, "it has just been started"
    clock.advance(timedelta(seconds=9))
    assert is_last() == 1
    clock.advance(timedelta(seconds=1))
    assert is_last() == 0
    ended = ending_of_barrier(root, 1)
    assert ended is not None
    assert ended.reason == "it was left behind by holdfast stop"


def test_a_part_has_no_room_before_it_knows_whether_the_job_stops_where_it_is(tmp_path: Path) -> None:
    class Away(LocalStorage):
        away = True

        def list(self, prefix: str) -> list[Entry]:
            if self.away:
                raise StorageError("injected; try again")
            return super().list(prefix)

    root, clock = Away(tmp_path), ManualClock()
    begin_barrier(LocalStorage(tmp_path), "holdfast stop", 0, 10_000, ends=True)
    alignment = takes_over(root, clock)
    said: list[str] = []
    edges: Any = SimpleNamespace(
        _alignment=alignment, _outlets=SimpleNamespace(nodes=()), _coordinator=None, _says_unseen=False,
        _monitor=SimpleNamespace(say=said.append),
    )  # fmt: skip
    assert (Edges.barrier(edges, {}, 3), Edges.barrier(edges, {}, 3)) == (0, 0)
    assert len(said) == 1, "it is said once"
    assert said[0].startswith("WAITING for the storage of the whole job: injected")
    assert (Edges.room(edges, {}, 3), alignment.last) == (0.0, 0)
    root.away = False
    assert Edges.barrier(edges, {}, 3) == 0
    assert (Edges.room(edges, {}, 3), alignment.last) == (1.0, 1)
    edges._alignment = Alignment(None, EMPTY, {}, clock, waits=True, keeps=0)
    assert Edges.room(edges, {}, 3) == 1.0, "a job without parts has no barriers"


def test_storage_that_refuses_the_barriers_of_the_job_fails_the_part(tmp_path: Path) -> None:
    class Refusing(LocalStorage):
        refuses = True

        def list(self, prefix: str) -> list[Entry]:
            if self.refuses and prefix.startswith("barriers"):
                raise StorageRefused(f"cannot list {self.url}/{prefix}: 403; check the credentials")
            return super().list(prefix)

    root, clock = Refusing(tmp_path), ManualClock()
    with pytest.raises(StorageRefused, match=f"403.*list, read and write below barriers/ in {root.url}"):
        takes_over(root, clock)
    root.refuses = False
    begun = Alignment(root, EMPTY, {}, clock, waits=True, keeps=0)
    assert begun.next({}, 0) == 0
    root.refuses = True
    clock.advance(timedelta(seconds=LIST_SECONDS))
    with pytest.raises(StorageRefused):
        begun.next({}, 0)


def test_a_barrier_that_a_channel_shows_first_is_waited_at_though_its_beginning_was_not_seen(
    part: Part,
) -> None:
    assert part.meets() == 0
    begin_barrier(part.root, "test", 0, 1_000)
    fast = part.producers["fast"]
    fast.commit([b"aa"])
    carry(fast, 1)
    fast.commit([b"behind"])
    # No time has passed since the part looked last.
    assert part.reads("fast") == [1, 0]


def test_barriers_whose_records_are_lost_hold_a_part_for_a_while_and_no_longer(part: Part) -> None:
    """As where the place of the job was restored from a copy that is older than those of its parts."""
    fast = part.producers["fast"]
    for barrier in (1, 2):
        fast.commit([b"aa"])
        carry(fast, barrier)
    fast.commit([b"behind"])
    assert part.reads("fast") == [1, 0]
    part.clock.advance(timedelta(seconds=alignment_module.LOST_SECONDS - 1))
    assert part.reads("fast") == [1, 0]
    part.clock.advance(timedelta(seconds=1))
    assert part.reads("fast") == [3, 0]
    assert part.meets() == 0


def test_a_barrier_falls_after_epochs_without_rows_too(part: Part) -> None:
    begin_barrier(part.root, "test", 0, 1_000)
    for producer in part.producers.values():
        producer.commit([], [])
        carry(producer, 1)
    assert part.meets() == 0
    assert [part.reads(name) for name in part.readers] == [[2, 0], [2, 0]]
    assert part.meets() == 1


def test_a_channel_that_has_ended_shows_every_barrier(part: Part) -> None:
    fast, slow = part.producers["fast"], part.producers["slow"]
    slow.commit([b"s"], [])
    slow.end()
    begin_barrier(part.root, "test", 0, 1_000)
    fast.commit([b"aa"])
    carry(fast, 1)
    part.reads("fast")
    assert part.readers["slow"].lag(None) == 1
    assert part.meets() == 0, "the rest of the ended one is read first"
    part.reads("slow")
    assert part.meets() == 1


def test_a_part_without_channels_meets_a_barrier_at_once(tmp_path: Path) -> None:
    root = LocalStorage(tmp_path)
    begin_barrier(root, "test", 0, 1_000)
    assert Alignment(root, EMPTY, {}, ManualClock(), waits=True, keeps=0).next({}, 0) == 1
    carried = CheckpointView(number=4, barriers=(BarrierPlace(number=1, commit=4, epoch=3),))
    assert Alignment(root, carried, {}, ManualClock(), waits=True, keeps=0).next({}, 0) == 0


def test_commits_of_the_barrier_under_way_and_of_the_newest_complete_ones_are_kept(tmp_path: Path) -> None:
    view = CheckpointView(
        number=40,
        barriers=tuple(BarrierPlace(number=n, commit=10 * n, epoch=n) for n in (1, 2, 3, 4)),
    )
    for keeps, kept in ((0, 40), (2, 20)):
        root = LocalStorage(tmp_path / str(keeps))
        for number in (1, 2, 3):
            begin_barrier(root, "test", 0, 1_000)
            end_barrier(root, number, "complete", 0, {"main": 10 * number, "scoring": 7})
        begin_barrier(root, "test", 0, 1_000)
        alignment = Alignment(root, view, {}, ManualClock(), waits=True, keeps=keeps, part="main")
        alignment.next({}, 0)
        assert alignment.keep_from(view) == kept
    no_parts = Alignment(None, EMPTY, {}, ManualClock(), waits=True, keeps=2)
    assert (no_parts.next({}, 0), no_parts.keep_from(EMPTY)) == (0, None)


def test_the_commit_of_a_barrier_that_a_fellow_carried_is_kept_before_the_barrier_was_seen_here(
    tmp_path: Path,
) -> None:
    root = LocalStorage(tmp_path)
    view = CheckpointView(number=9, barriers=(BarrierPlace(number=1, commit=7, epoch=5),))
    alignment = Alignment(root, view, {}, ManualClock(), waits=True, keeps=2, part="main")
    alignment.next({}, 0)
    assert alignment.keep_from(view) == 7
    begin_barrier(root, "test", 0, 1_000)
    assert alignment.keep_from(view) == 7, "it has not looked since"


def test_a_part_that_computes_again_what_is_in_its_channels_meets_no_barrier_before_it_is_past_that(
    tmp_path: Path,
) -> None:
    """A part that has read on in such a channel would never come to the barrier."""
    root = LocalStorage(tmp_path)
    begin_barrier(root, "test", 0, 1_000)
    view = CheckpointView(number=9, last_epoch=3, channels={CHANNEL: Channel(through=5)})
    alignment = Alignment(root, view, {}, ManualClock(), waits=True, keeps=0)
    assert [alignment.next({}, epoch) for epoch in (3, 4, 5)] == [0, 0, 1]


def test_a_part_that_reads_again_what_its_sinks_show_meets_no_barrier_before_it_is_past_that(
    tmp_path: Path,
) -> None:
    """Also where no channel leaves it: a savepoint has no plans, and the rows would come again with it."""
    root = LocalStorage(tmp_path)
    begin_barrier(root, "test", 0, 1_000)
    view = CheckpointView(number=9, last_epoch=3)
    alignment = Alignment(root, view, {}, ManualClock(), waits=True, keeps=0, replayed_through=5)
    assert [alignment.next({}, epoch) for epoch in (3, 4, 5)] == [0, 0, 1]


def test_nothing_is_given_up_before_it_is_known_which_barriers_are_complete(tmp_path: Path) -> None:
    class Failing(LocalStorage):
        fails = True

        def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            if self.fails:
                raise StorageError("injected; try again")
            return super().get(name, offset, length)

    root = Failing(tmp_path)
    begin_barrier(root, "test", 0, 1_000)
    end_barrier(root, 1, "complete", 0, {"main": 4})
    view, clock = CheckpointView(number=9, retained_from=3), ManualClock()
    alignment = Alignment(root, view, {}, clock, waits=True, keeps=2, part="main")
    assert alignment.keep_from(view) == 3, "it has not looked yet"
    alignment.next({}, 0)
    assert alignment.keep_from(view) == 3, "it could not see"
    root.fails = False
    clock.advance(timedelta(seconds=alignment_module.IDLE_SECONDS))
    alignment.next({}, 0)
    assert alignment.keep_from(view) == 4, "also the commit of a part that had ended, which does not carry it"


class Asked(LocalStorage):
    """Counts what it is asked."""

    lists = sizes = 0

    def list(self, prefix: str) -> list[Entry]:
        self.lists += 1
        return super().list(prefix)

    def size(self, name: str) -> int | None:
        self.sizes += 1
        return super().size(name)


@pytest.mark.parametrize("under_way", [False, True])
def test_to_look_for_barriers_costs_few_requests(tmp_path: Path, under_way: bool) -> None:
    """In a minute of turns: a listing costs twelve times as much as a look at one name, and both are paid."""
    root, clock = Asked(tmp_path), ManualClock()
    if under_way:
        begin_barrier(root, "test", 0, 100_000)
        root.lists = root.sizes = 0
    alignment = Alignment(root, EMPTY, {}, clock, waits=True, keeps=2, part="main")
    coordinator = Coordinator(root, {"main": LocalStorage(tmp_path / "none")}, {}, "test", 1e6, clock)
    for look in (lambda: alignment.next({}, 0), coordinator.step):
        lists, sizes = root.lists, root.sizes
        for _ in range(1_200):
            clock.advance(timedelta(seconds=0.05))
            look()
        assert root.lists - lists <= 4
        assert root.sizes - sizes <= (300 if under_way else 120)


def test_a_barrier_is_soon_seen_by_the_name_it_is_to_have(tmp_path: Path) -> None:
    root, clock = Asked(tmp_path), ManualClock()
    alignment = Alignment(root, EMPTY, {}, clock, waits=True, keeps=0)
    for number in (1, 2, 3):
        assert alignment.next({}, 0) == 0
        begin_barrier(root, "test", 0, 100_000)
        clock.advance(timedelta(seconds=alignment_module.IDLE_SECONDS))
        assert alignment.next({}, 0) == number
        alignment.carry(number)
        end_barrier(root, number, "complete", 0)
        clock.advance(timedelta(seconds=alignment_module.LOOK_SECONDS))
        alignment.next({}, 0)


def test_a_barrier_that_has_passed_numbers_over_is_seen_all_the_same(tmp_path: Path) -> None:
    """As where a part carries one whose record was lost."""
    root, clock = Asked(tmp_path), ManualClock()
    alignment = Alignment(root, EMPTY, {}, clock, waits=True, keeps=0)
    assert alignment.next({}, 0) == 0
    begin_barrier(root, "test", 0, 100_000, above=6)
    clock.advance(timedelta(seconds=LIST_SECONDS))
    assert alignment.next({}, 0) == 7


def test_a_barrier_passes_a_channel_that_began_after_the_newest_epoch(tmp_path: Path) -> None:
    """A channel that was added while its sender has nothing new to read."""
    job = Part(tmp_path)
    for producer in job.producers.values():
        before, producer.outlets = producer.outlets, Outlets((), producer.clock)
        producer.commit([], [])
        producer.outlets = before
    begin_barrier(job.root, "s", 0, 60_000)
    for name, producer in job.producers.items():
        carry(producer, 1)
        job.reads(name)
    assert job.meets() == 1
