"""Committing and publishing beside the run: what is shown is a prefix of what is committed."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import (
    Extent,
    OperatorSchema,
    PlannedSlice,
    PlanRecord,
    SentFile,
    SnapshotFile,
    StagedFile,
    UncoordinatedShard,
)
from holdfast.clock import SystemClock
from holdfast.connectors.contract import StagedPart
from holdfast.errors import SeatLost, StorageError
from holdfast.runtime.control.commit_permit import Permit
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.publisher import Publishing, Recipients
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.parts.channel_source import ChannelReader
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.progress import Listener, Progress
from holdfast.state.contract import Version
from holdfast.storage.contract import Storage
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.leader_kit import leader_of, show_in_all
from tests.unit.runtime.parts.channel_kit import CHANNEL, COLUMNS, lead, leave, outlet, plan_of


class Shown:
    """A publisher that fails on the epochs in `failing`, after `wait` was set."""

    def __init__(self, through: int = 0, dedupes: bool = True) -> None:
        self.dedupes = dedupes
        self.epochs: list[int] = []
        self.failing: set[int] = set()
        self.wait = threading.Event()
        self.wait.set()
        self.closed = False
        self._through = through

    def published_through(self) -> int:
        return self._through

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        self.wait.wait()
        if epoch in self.failing:
            raise StorageError(f"the sink refused epoch {epoch}; try again")
        self.epochs.append(epoch)

    def shows(self, epoch: int) -> bool:
        return epoch in self.epochs

    def close(self) -> None:
        self.closed = True
        if -1 in self.failing:
            raise StorageError("the sink cannot be closed")


class _Sink:
    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self.exactly_once = shown.dedupes

    def publisher(self, job: str, uid: str) -> Shown:
        return self._shown


def context_of(
    storage: Storage | None, sinks: dict[str, Shown], *listeners: Listener, permit: Permit | None = None
) -> LeaderContext:
    streams = {uid: (_Sink(shown), "stream") for uid, shown in sinks.items()}
    return leader_of(storage, sinks=streams, run="run", wishes=Wishes(permit), listeners=listeners)


def publishing(view: CheckpointView, **sinks: Shown) -> Publishing:
    return Publishing(context_of(None, sinks), view)


def outcome(epoch: int) -> EpochOutcome:
    plan = PlanRecord(
        epoch=epoch,
        attempt=1,
        term=1,
        run="run",
        parent=0,
        fingerprint="f",
        parallelism=1,
        clock_ms=1,
        slices={},
    )
    return EpochOutcome(plan)


def committer(root: Path, shown: Shown, *listeners: Listener, permit: Permit | None = None) -> Committer:
    context = context_of(LocalStorage(root), {"sink": shown}, *listeners, permit=permit)
    view = context.checkpoint.chain.load()
    return Committer(context, Publishing(context, view), view, (), Outlets((), context.clock))


def test_after_an_epoch_that_a_sink_refused_no_later_one_is_shown(tmp_path: Path) -> None:
    shown = Shown()
    shown.failing = {1}
    shown.wait.clear()
    work = committer(tmp_path, shown)
    work.submit([outcome(1)])
    work.submit([outcome(2)])
    work._commits.submit(lambda: None).result()
    assert work.view.last_epoch == 2
    shown.wait.set()
    with pytest.raises(StorageError, match="refused epoch 1"):
        work.close(wait=True)
    assert shown.epochs == []


def test_when_whoever_is_told_of_a_commit_fails_no_later_epoch_is_committed_or_shown(tmp_path: Path) -> None:
    shown = Shown()

    def listener(progress: Progress) -> None:
        raise ValueError("a listener of the user")

    work = committer(tmp_path, shown, listener)
    work.submit([outcome(1)])
    work.submit([outcome(2)])
    with pytest.raises(ValueError, match="listener"):
        work.close(wait=True)
    assert shown.epochs in ([], [1])
    assert work.view.last_epoch == 1


def test_notes_that_replace_in_the_middle_of_a_commit_replace_all_before_them(tmp_path: Path) -> None:
    parts = [
        PlannedSlice(start=None, end=1, notes=("a",)),
        PlannedSlice(start=1, end=2, notes=("b", "c"), replaces_notes=True),
        PlannedSlice(start=2, end=3, notes=("d",)),
    ]
    outcomes = [
        EpochOutcome(replace(outcome(epoch).plan, slices={"in": part})) for epoch, part in enumerate(parts, 1)
    ]
    record = committer(tmp_path, Shown())._record(outcomes)
    assert (record.notes, record.notes_replaced) == ({"in": ("b", "c", "d")}, ("in",))


def test_a_snapshot_is_named_in_one_commit_and_not_before_its_version_is_committed(tmp_path: Path) -> None:
    work = committer(tmp_path, Shown())
    file = SnapshotFile(
        operator="op",
        first_group=0,
        end_group=4,
        version=Version(epoch=2, attempt=1, result="r"),
        object="snapshots/s",
        length=1,
        chunk_bytes=1,
        chunks=("",),
        backend="lmdb",
    )
    work.add_snapshots([file])
    for epoch in (1, 2, 3):
        work.submit([outcome(epoch)])
    work.close(wait=True)
    named = [Chain(LocalStorage(tmp_path)).record(number).snapshots for number in (1, 2, 3)]
    assert named == [(), (file,), ()]


def test_a_clean_end_leaves_nothing_to_publish(tmp_path: Path) -> None:
    work = committer(tmp_path, Shown())
    work.submit([outcome(1)])
    work.record_published()
    work.close(wait=True)
    after = Chain(LocalStorage(tmp_path)).load()
    assert (after.last_epoch, after.published_through, list(after.staged)) == (1, {"sink": 1}, [])
    again = committer(tmp_path, Shown(through=1))
    again.record_published()
    again.close(wait=True)
    assert Chain(LocalStorage(tmp_path)).load().number == after.number, "there was nothing new to say"


def test_what_a_sink_refused_is_not_recorded_as_shown(tmp_path: Path) -> None:
    shown = Shown()
    shown.failing = {1}
    work = committer(tmp_path, shown)
    work.submit([outcome(1)])
    with pytest.raises(StorageError, match="refused epoch 1"):
        work.record_published()
    work.close(wait=False)
    assert Chain(LocalStorage(tmp_path)).load().published_through == {"sink": 0}


def staged(epoch: int) -> StagedFile:
    extent = Extent(object="x", offset=0, length=0, checksum="")
    return StagedFile(stream="stream", epoch=epoch, part=0, extent=extent, rows=0)


def test_a_sink_that_the_job_did_not_have_begins_with_the_next_epoch() -> None:
    view = CheckpointView(
        number=9,
        last_epoch=1_000_000,
        published_through={"old": 999_998},
        staged=(staged(999_999), staged(1_000_000)),  # type: ignore[arg-type]
    )
    old, new = Shown(), Shown()
    assert publishing(view, old=old, new=new).through == {"old": 999_998, "new": 1_000_000}


def rows_of(epoch: int, name: str, *sinks: str) -> StagedFile:
    extent = Extent(object=name, offset=0, length=0, checksum="")
    return StagedFile(stream="stream", epoch=epoch, part=0, extent=extent, rows=1, sinks=sinks)


class Told(Shown):
    """Remembers which files it was given."""

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        super().publish(epoch, parts)
        self.given: dict[int, list[str]] = getattr(self, "given", {})
        self.given[epoch] = [part.load.args[1].object for part in parts]  # type: ignore[attr-defined]


def gone_back(root: Path, settled: Settled, *files: StagedFile) -> tuple[Committer, Told, Told]:
    """After a rewind to epoch 1 of a job that had come to epoch 3: sink `a` shows 3, sink `b` only 1."""
    a, b = Told(), Told()
    context = context_of(LocalStorage(root), {"a": a, "b": b})
    view = CheckpointView(
        last_epoch=1, published_through={"a": 3, "b": 1}, staged=SharedList(files), settled=settled
    )
    return Committer(context, Publishing(context, view), view, (), Outlets((), context.clock)), a, b


def test_after_a_rewind_a_sink_that_is_behind_shows_what_was_committed(tmp_path: Path) -> None:
    kept = [rows_of(epoch, f"first-{epoch}", "a", "b") for epoch in (2, 3)]
    work, a, b = gone_back(tmp_path, Settled({"a": 3, "b": 3}), *kept)
    work.publish_recovered()
    for epoch in (2, 3):
        work.submit([outcome(epoch)])
    work.close(wait=True)
    assert b.given == {2: ["first-2"], 3: ["first-3"]}
    assert (a.epochs, b.epochs) == ([], [2, 3])
    assert work.view.settled.through == {"a": 3, "b": 3}


def test_what_was_lost_is_shown_when_it_is_computed_again_and_what_came_after_it_then(tmp_path: Path) -> None:
    kept = rows_of(3, "first-3", "a", "b")
    work, a, b = gone_back(tmp_path, Settled({"a": 3, "b": 3}, {"b": (2,)}), kept)
    work.publish_recovered()
    assert b.epochs == []
    again = outcome(2)
    again.staged.append(rows_of(2, "again-2", "b"))
    work.submit([again, outcome(3)])
    work.close(wait=True)
    assert (a.epochs, b.given) == ([], {2: ["again-2"], 3: ["first-3"]})
    assert work.view.settled == Settled({"a": 3, "b": 3})


def test_what_an_at_most_once_run_stages_again_is_not_shown_beside_what_was_committed(tmp_path: Path) -> None:
    kept = rows_of(3, "first-3", "a", "b")
    work, a, b = gone_back(tmp_path, Settled({"a": 3, "b": 3}, {"b": (2,)}), kept)
    work.publish_recovered()
    for epoch in (2, 3):
        again = outcome(epoch)
        again.staged.append(rows_of(epoch, f"again-{epoch}", "a", "b"))
        work.publish([again])
    work.close(wait=True)
    assert (a.epochs, b.given) == ([], {2: ["again-2"], 3: ["first-3"]})


def test_an_epoch_out_of_turn_is_refused() -> None:
    sinks = publishing(CheckpointView(), sink=Shown())
    with pytest.raises(AssertionError, match="epoch 2 of sink"):
        show_in_all(sinks, 2, 2)


def test_before_the_commit_only_sinks_that_cannot_dedupe_are_written() -> None:
    deduping, repeating = Shown(), Shown(dedupes=False)
    sinks = publishing(CheckpointView(), deduping=deduping, repeating=repeating)
    show_in_all(sinks, 1, 1, to=Recipients.REPEATING)
    assert (deduping.epochs, repeating.epochs) == ([], [1])
    show_in_all(sinks, 1, 1, to=Recipients.DEDUPING)
    assert (deduping.epochs, repeating.epochs) == ([1], [1])
    assert sinks.through == {"deduping": 1, "repeating": 1}


class Away(Shown):
    """A sink that cannot be asked what it shows."""

    def published_through(self) -> int:
        raise StorageError("the sink is away; try again")


def test_sinks_are_closed_again_when_one_of_them_cannot_be_opened() -> None:
    there, away = Shown(), Away()
    with pytest.raises(StorageError, match="away"):
        publishing(CheckpointView(), there=there, away=away)
    assert there.closed
    assert away.closed


def test_a_sink_that_cannot_be_closed_keeps_no_other_open() -> None:
    first, last = Shown(), Shown()
    first.failing = last.failing = {-1}
    opened = publishing(CheckpointView(), first=first, last=last)
    with pytest.raises(StorageError, match="closed"):
        opened.close()
    assert first.closed
    assert last.closed


def test_news_without_an_epoch_waits_for_the_permit_as_every_commit_does(tmp_path: Path) -> None:
    permit = Permit(SystemClock())
    work = committer(tmp_path, Shown(), permit=permit)
    work.submit([outcome(1)])
    work.check(0)
    permit.revoke("the seat was lost")
    work.submit_uncoordinated([mark()])
    with pytest.raises(SeatLost, match="the seat was lost"):
        work.check(0)
    assert work.view.number == 1
    assert Chain(LocalStorage(tmp_path)).load().number == 1
    work.close(wait=False)


def test_after_news_that_could_not_be_committed_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = committer(tmp_path, Shown())
    work.submit([outcome(1)])
    work.check(0)
    go_on = threading.Event()
    commit = work._checkpoint.chain.commit

    def refused(*args: Any) -> Any:
        go_on.wait()
        monkeypatch.setattr(work._checkpoint.chain, "commit", commit)
        raise StorageError("storage is away; try again")

    monkeypatch.setattr(work._checkpoint.chain, "commit", refused)
    work.submit_uncoordinated([mark()])
    work.submit([outcome(2)])
    go_on.set()
    with pytest.raises(StorageError):
        work.check(0)
    work.close(wait=True)
    assert Chain(LocalStorage(tmp_path)).load().number == 1


def mark() -> UncoordinatedShard:
    return UncoordinatedShard(
        operator="op", shards=1, first_group=0, end_group=4, incarnation="i", unsaved=0, discarded=0, lost=0,
        version=Version(epoch=1, attempt=1, result=""),
    )  # fmt: skip


def test_news_without_an_epoch_does_not_stand_in_for_the_operators_of_the_first_epoch(tmp_path: Path) -> None:
    """A barrier may come before the first epoch of a run whose operators are new."""
    context = context_of(LocalStorage(tmp_path), {})
    operators = (OperatorSchema(uid="op", key=(), states=()),)
    view = context.checkpoint.chain.load()
    work = Committer(context, Publishing(context, view), view, operators, Outlets((), context.clock))
    work.submit([], barrier=1)
    work.submit([outcome(1)])
    work.close(wait=True)
    assert work.view.operators == operators


def test_a_part_whose_state_is_in_no_file_says_so_before_its_first_epoch(tmp_path: Path) -> None:
    context = context_of(LocalStorage(tmp_path), {})
    operators = (OperatorSchema(uid="op", key=(), states=()),)
    view = context.checkpoint.chain.load()
    work = Committer(context, Publishing(context, view), view, operators, Outlets((), context.clock))
    work.begin_upstream()
    assert (work.view.number, work.view.last_epoch, work.view.needs_from) == (1, 0, 1)
    assert work.view.operators == operators
    work.close(wait=True)


def sending(root: Path) -> Committer:
    """Of a part whose rows go into a channel, for a part that has not begun."""
    context = context_of(LocalStorage(root / "main"), {})
    view = context.checkpoint.chain.load()
    outlets = Outlets((outlet(str(root / "scoring")),), context.clock)
    return Committer(context, Publishing(context, view), view, (), outlets, shards=3)


def sent(epoch: int) -> SentFile:
    extent = Extent(object=f"data/{epoch}/bundle", offset=0, length=1, checksum="")
    return SentFile(channel=CHANNEL, epoch=epoch, part=0, extent=extent, rows=1)


def test_a_commit_puts_the_rows_of_its_epochs_into_channels(tmp_path: Path) -> None:
    work = sending(tmp_path)
    outcomes = [EpochOutcome(plan_of(epoch, time_us=10 * epoch), sent=[sent(epoch)]) for epoch in (1, 2, 3)]
    work.submit(outcomes[:2])
    work.submit(outcomes[2:])
    work.close(wait=True)
    channel = work.view.channels[CHANNEL]
    assert ([file.epoch for file in channel.files], channel.through) == ([1, 2, 3], 3)
    assert channel.times == ((1, 10), (2, 20), (3, 30))
    assert not work.view.ended


def test_the_end_of_the_input_is_committed_for_the_readers_of_channels(tmp_path: Path) -> None:
    work = sending(tmp_path)
    work.submit([EpochOutcome(plan_of(1), sent=[sent(1)])])
    work.record_published(ended=True)
    work.close(wait=True)
    loaded = Chain(LocalStorage(tmp_path / "main")).load()
    assert loaded.ended
    assert (loaded.number, loaded.last_epoch, loaded.channels[CHANNEL].through) == (2, 1, 1)


def test_a_part_that_never_had_input_says_that_this_was_all(tmp_path: Path) -> None:
    """Else the parts that read from it would wait for it, with no end."""
    work = sending(tmp_path)
    work.record_published(ended=True)
    work.close(wait=True)
    assert work.view.parallelism == 3
    lead(LocalStorage(tmp_path / "main"))
    leave(LocalStorage(tmp_path / "main"))
    assert ChannelReader(CHANNEL, "main", str(tmp_path / "main"), COLUMNS).exhausted(None)
    later = sending(tmp_path)
    assert (later.view.number, later.view.last_epoch) == (1, 0)
    later.submit([EpochOutcome(plan_of(1), sent=[sent(1)])])
    later.close(wait=True)
    assert (later.view.number, later.view.last_epoch, later.view.ended) == (2, 1, False)


def test_a_job_without_channels_commits_no_end(tmp_path: Path) -> None:
    work = committer(tmp_path, Shown())
    work.record_published(ended=True)
    work.submit([outcome(1)])
    work.record_published(ended=True)
    work.close(wait=True)
    loaded = Chain(LocalStorage(tmp_path)).load()
    assert (loaded.ended, loaded.channels) == (False, {})


def test_a_part_without_channels_of_its_own_says_that_it_has_come_to_its_end(tmp_path: Path) -> None:
    """Else no barrier would ever come through it again."""
    context = context_of(LocalStorage(tmp_path / "last"), {})
    for root, ended in ((None, False), (LocalStorage(tmp_path), True)):
        view = context.checkpoint.chain.load()
        inside = dataclasses.replace(context, root=root)
        work = Committer(inside, Publishing(inside, view), view, (), Outlets((), context.clock))
        work.submit([EpochOutcome(plan_of(view.last_epoch + 1))])
        work.record_published(ended=True)
        work.close(wait=True)
        assert work.view.ended is ended
