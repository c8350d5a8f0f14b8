"""Two members of a set of replicas over one checkpoint: the first commit of an epoch counts for both."""

from __future__ import annotations

from dataclasses import replace as with_
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.barriers import begin_barrier, end_barrier
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.shard_lines import as_committed, extended, lines_of
from holdfast.checkpoint.chain.view import EMPTY
from holdfast.checkpoint.store.records import DeltaFile, Extent, PlannedSlice, SnapshotFile
from holdfast.errors import RetryableError
from holdfast.graph.protection import ActiveReplicas
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.leader_context import AdoptedOther
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.replica import Replica, join
from holdfast.state.contract import EMPTY_VERSION, Version
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.chain.test_fellows import epoch
from tests.unit.checkpoint.kept import snapshot as kept_snapshot
from tests.unit.runtime.control.control_kit import wait_until
from tests.unit.runtime.epoch.test_committer import Shown, _Sink, outcome
from tests.unit.runtime.leader_kit import leader_of

PROTECTION = ActiveReplicas(k=1)


class Member:
    """A committer in a seat, with the others' sink."""

    def __init__(self, root: Path, seat: int, shown: Shown, protection: ActiveReplicas = PROTECTION) -> None:
        storage = LocalStorage(root / "part")
        self.said: list[str] = []
        context = leader_of(storage, sinks={"sink": (_Sink(shown), "stream")}, say=self.said.append)
        joined = join(storage, protection, seat, f"{protection}-{seat}", "f", 1, context.clock)
        monitor = context.monitor
        replica = Replica(joined, storage, context.clock, monitor, context.wishes.stopping.is_set)
        self.context = with_(
            context, replica=replica, run=joined.set.run, term=joined.set.term, root=LocalStorage(root)
        )
        view = context.checkpoint.chain.load()
        self.work = Committer(
            self.context, Publishing(self.context, view), view, (), Outlets((), context.clock)
        )

    def commit(self, epoch: int, **changes: Any) -> None:
        self.work.submit([self.outcome(epoch, **changes)])
        self.work.check(0)

    def outcome(self, epoch: int, attempt: int = 1, **changes: Any) -> EpochOutcome:
        made = outcome(epoch)
        slices = {"in": PlannedSlice(start=epoch - 1 or None, end=epoch)}
        made.plan = replace(made.plan, slices=slices, attempt=attempt)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def tell(self, barrier: int) -> None:
        self.work.submit([], barrier)
        self.work.check(0)

    def end(self, ended: bool = True) -> None:
        self.work.record_published(ended)
        self.work.close(wait=True)


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def two(tmp_path: Path, shown: Shown) -> tuple[Member, Member]:
    return Member(tmp_path, 1, shown), Member(tmp_path, 2, Shown())


def test_the_first_commit_counts_for_both_and_the_faster_has_the_lead(two: tuple[Member, Member]) -> None:
    first, second = two
    first.commit(1)
    second.commit(1)
    assert second.work.view == first.work.view
    assert (first.work.has_lead, second.work.has_lead) == (True, False)
    second.commit(2)
    first.commit(2)
    assert (first.work.has_lead, second.work.has_lead) == (False, True)
    assert first.context.checkpoint.chain.numbers() == [1, 2]
    assert [record.seat for record in first.work.taken_fellows()] == [2]
    assert first.work.taken_fellows() == []


def test_every_member_shows_what_is_committed(tmp_path: Path) -> None:
    sinks = [Shown(), Shown()]
    members = [Member(tmp_path, seat, sinks[seat - 1]) for seat in (1, 2)]
    for number in (1, 2):
        for member, sink in zip(members, sinks, strict=True):
            member.commit(number)
            # Before it hears that the other one has, in what is the same sink.
            wait_until(partial(sink.shows, number), "it has shown it")
    for member in members:
        member.work.close(wait=True)
    assert [sink.epochs for sink in sinks] == [[1, 2], [1, 2]]


def test_what_another_has_shown_is_learned_from_its_commits(tmp_path: Path, shown: Shown) -> None:
    slow = Shown()
    slow.wait.clear()
    first, second = Member(tmp_path, 1, shown), Member(tmp_path, 2, slow)
    first.commit(1)
    wait_until(lambda: first.work._publishing.through == {"sink": 1}, "the first one has shown it")
    first.commit(2)
    second.work.submit([first.outcome(1)])
    second.work.submit([first.outcome(2)])
    second.work._commits.submit(lambda: None).result()
    assert second.work._publishing.through == {"sink": 1}, "its own sink has shown nothing yet"
    slow.wait.set()
    second.work.close(wait=True)
    assert second.work._publishing.through == {"sink": 2}


def test_other_results_are_adopted_and_the_member_that_came_later_says_so(two: tuple[Member, Member]) -> None:
    first, second = two
    first.commit(1)
    first.commit(2)
    second.commit(1)
    with pytest.raises(AdoptedOther, match=r"DIVERGENCE in epoch 2: member 2.*in rows"):
        second.commit(2, rows=9)
    assert second.context.monitor.progress.divergences == 1
    assert second.context.checkpoint.chain.load().number == 2


def test_an_epoch_that_was_planned_twice_is_no_divergence(two: tuple[Member, Member]) -> None:
    first, second = two
    first.commit(1)
    second.commit(1)
    first.commit(2)
    with pytest.raises(AdoptedOther, match="came first; going on from it"):
        second.commit(2, rows=9, attempt=2)
    assert second.context.monitor.progress.divergences == 0


def test_news_of_another_comes_before_an_epoch_and_the_epoch_follows(two: tuple[Member, Member]) -> None:
    first, second = two
    first.commit(1)
    second.commit(1)
    first.tell(barrier=7)
    second.commit(2)
    assert [(place.number, place.epoch) for place in second.work.view.barriers] == [(7, 1)]
    assert (second.work.view.number, second.work.view.last_epoch) == (3, 2)


def test_the_record_of_a_process_that_had_the_seat_before_is_not_taken_for_our_own(
    tmp_path: Path, shown: Shown
) -> None:
    first, second = Member(tmp_path, 1, shown), Member(tmp_path, 1, shown)
    first.commit(1, deltas=[delta(1, 1)])
    second.commit(1, deltas=[delta(2, 1)])
    assert (first.work.has_lead, second.work.has_lead) == (True, False)
    assert [record.number for record in second.work.taken_fellows()] == [1]


def test_a_barrier_is_carried_by_one_of_them(two: tuple[Member, Member]) -> None:
    first, second = two
    first.commit(1)
    second.commit(1)
    first.tell(barrier=7)
    second.tell(barrier=7)
    assert second.work.view == first.work.view
    assert second.work.view.number == 2


def test_no_epoch_follows_a_barrier_at_which_the_job_stops(two: tuple[Member, Member]) -> None:
    first, second = two
    number = begin_barrier(first.context.root, "holdfast stop", 0, 240_000, ends=True)
    first.tell(barrier=number)
    second.tell(barrier=number)
    with pytest.raises(AdoptedOther, match="has ended the run"):
        second.commit(1)
    assert second.context.wishes.stopping.is_set()


def test_a_set_that_was_killed_at_the_barrier_of_a_stop_goes_on_when_that_was_given_up(
    tmp_path: Path, shown: Shown
) -> None:
    root, killed = LocalStorage(tmp_path), Member(tmp_path, 1, shown)
    killed.commit(1)
    number = begin_barrier(root, "holdfast stop", 0, 240_000, ends=True)
    killed.tell(barrier=number)
    end_barrier(root, number, "aborted", 1, reason="interrupted")
    again = Member(tmp_path, 1, shown)
    assert again.context.run == killed.context.run
    again.commit(2)
    assert again.work.view.last_epoch == 2
    assert not again.context.wishes.stopping.is_set()


def test_an_epoch_that_another_committed_before_our_news_is_compared_and_not_committed_again(
    two: tuple[Member, Member],
) -> None:
    first, second = two
    first.commit(1)
    second.commit(1)
    first.commit(2)
    first.commit(3)
    second.tell(barrier=7)
    assert (second.work.view.number, second.work.view.last_epoch) == (4, 3)
    assert second.work.taken_fellows()[-1].number == 1, "what is not run here yet has no files in lines"
    second.commit(2)
    assert [record.number for record in second.work.taken_fellows()] == [2]
    with pytest.raises(AdoptedOther, match="DIVERGENCE"):
        second.commit(3, rows=9)
    assert second.context.checkpoint.chain.load().number == 4


def test_the_end_that_one_commits_is_the_end_of_all(two: tuple[Member, Member]) -> None:
    first, second = two
    for member in two:
        member.commit(1)
    first.end()
    assert first.work.view.ended
    assert not second.work.has_ended
    second.end(ended=False)
    assert second.work.has_ended
    assert second.context.checkpoint.chain.load() == first.work.view, "nothing takes the end back"


def test_an_end_that_was_seen_before_another_read_on_is_not_committed(two: tuple[Member, Member]) -> None:
    first, second = two
    for member in two:
        member.commit(1)
    first.commit(2)
    with pytest.raises(AdoptedOther, match="commit 2 of another member has read on"):
        second.end()
    assert not second.context.checkpoint.chain.load().ended


def test_no_epoch_follows_the_end_of_the_set(two: tuple[Member, Member]) -> None:
    first, second = two
    for member in two:
        member.commit(1)
    first.end()
    with pytest.raises(AdoptedOther, match="another member has ended the run"):
        second.commit(2)
    assert second.context.checkpoint.chain.load() == first.work.view


def test_another_set_goes_on_after_the_end_of_the_one_before(tmp_path: Path, shown: Shown) -> None:
    first = Member(tmp_path, 1, shown)
    first.commit(1)
    first.end()
    later = Member(tmp_path, 1, Shown(through=1), ActiveReplicas(k=2))
    assert not later.work.has_ended
    later.commit(2)
    assert (later.work.view.number, later.work.view.ended) == (3, False)


def test_votes_are_waited_for_before_anything_is_written(tmp_path: Path, shown: Shown) -> None:
    voting = Member(tmp_path, 1, shown, ActiveReplicas(k=2, vote=True))
    voting.work.submit([outcome(1)])
    voting.work.close(wait=False)
    with pytest.raises(RetryableError, match="no majority"):
        voting.work.check(0)
    assert Chain(LocalStorage(tmp_path / "part")).numbers() == []


def snapshot(epoch: int) -> SnapshotFile:
    return SnapshotFile(
        operator="op", first_group=0, end_group=4, version=version(epoch), object=f"snapshots/{epoch}",
        length=1, chunk_bytes=1, chunks=("",), backend="lmdb",
    )  # fmt: skip


def version(epoch: int) -> Version:
    return Version(epoch=epoch, attempt=1, result="content")


def delta(member: int, epoch: int) -> DeltaFile:
    extent = Extent(object=f"data/{epoch}/{member}", offset=0, length=1, checksum="same")
    return DeltaFile(
        operator="op", first_group=0, end_group=4, version=version(epoch), extent=extent, entries=1,
        parent=version(epoch - 1) if epoch > 1 else EMPTY_VERSION,
    )  # fmt: skip


def test_a_snapshot_waits_for_a_commit_of_the_member_that_took_it(two: tuple[Member, Member]) -> None:
    first, second = two
    second.work.add_snapshots([snapshot(1)])
    first.commit(1)
    second.commit(1)
    second.commit(2)
    chain = second.context.checkpoint.chain
    assert [chain.record(number).snapshots for number in (1, 2)] == [(), (snapshot(1),)]


def test_a_snapshot_that_a_newer_one_of_another_has_outdated_is_not_named(two: tuple[Member, Member]) -> None:
    """Retention removes such ones, whichever member wrote them."""
    first, second = two
    second.work.add_snapshots([kept_snapshot(1, operator="op", by="2")])
    first.commit(1)
    second.commit(1)
    first.work.add_snapshots([kept_snapshot(1, operator="op")])
    first.commit(2)
    second.commit(2)
    second.commit(3)
    chain = second.context.checkpoint.chain
    named = [file.object for number in (1, 2, 3) for file in chain.record(number).snapshots]
    assert named == [kept_snapshot(1, operator="op").object]


def test_lines_rest_on_the_files_that_were_committed_and_go_on_after_them(two: tuple[Member, Member]) -> None:
    """Those that lost are retired."""
    first, second = two
    ours = [delta(2, epoch) for epoch in (1, 2)]
    lines = extended(lines_of(EMPTY, ["op"], shard_ranges(4, 1)), ours)
    assert lines is not None
    first.commit(1, deltas=[delta(1, 1)])
    second.commit(1, deltas=[ours[0]])
    for record in second.work.taken_fellows():
        lines = as_committed(lines, record)
    line = lines["op", 0]
    assert [each.extent.object for each in line.deltas] == ["data/1/1", "data/2/2"]
    assert line.version == version(2)
    rebased = as_committed(lines, replace(first.context.checkpoint.chain.record(1), snapshots=(snapshot(1),)))
    assert [file.object for file in rebased["op", 0].snapshots] == ["snapshots/1"]
    assert [each.extent.object for each in rebased["op", 0].deltas] == ["data/2/2"]


def test_lines_are_not_changed_by_what_they_did_not_go_through() -> None:
    lines = extended(lines_of(EMPTY, ["op"], shard_ranges(4, 1)), [delta(2, 1)])
    assert lines is not None
    other = replace(delta(1, 1), version=Version(epoch=1, attempt=1, result="other"))
    assert as_committed(lines, epoch(1, deltas=(other,))) == lines
