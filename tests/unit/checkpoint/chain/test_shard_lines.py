"""Where a shard's state comes from, whatever the parallelism was when its files were written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.chain.shard_lines import Line, line_of, rebased
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, fold
from holdfast.checkpoint.store.records import (
    CommitRecord,
    DeltaFile,
    Extent,
    Parent,
    SnapshotFile,
)
from holdfast.ids import KeyGroupRange, shard_ranges
from holdfast.state.contract import EMPTY_VERSION, Version

GROUPS = 12


def version(epoch: int, name: str) -> Version:
    return Version(epoch=epoch, attempt=1, result=name)


def committed(
    view: CheckpointView, deltas: list[DeltaFile], snapshots: list[SnapshotFile], parallelism: int
) -> CheckpointView:
    number, epoch = view.number + 1, view.last_epoch + 1
    record = CommitRecord(
        number=number,
        parent=Parent(number=view.number, checksum=view.checksum),
        term=1,
        run="r",
        first_epoch=epoch,
        last_epoch=epoch,
        attempts={},
        clock_ms=0,
        parallelism=parallelism,
        fingerprint="",
        positions={},
        deltas=tuple(deltas),
        snapshots=tuple(snapshots),
    )
    return fold(view, record, f"sum-{number}")


class Model:
    """Runs epochs on lines alone: per key group, which epochs its state has been through."""

    def __init__(self) -> None:
        self.view = EMPTY
        self.history: dict[int, list[int]] = {group: [] for group in range(GROUPS)}

    def run(self, parallelism: int, epochs: int, snapshots: int) -> None:
        """A leader starts with this parallelism, runs some epochs, and takes snapshots of the first
        `snapshots` shards at its end.
        """
        lines = {groups: line_of(self.view, "op", groups) for groups in shard_ranges(GROUPS, parallelism)}
        for turn in range(epochs):
            epoch = self.view.last_epoch + 1
            deltas = []
            for groups, line in lines.items():
                self.check(line)
                delta = delta_of(groups, version(epoch, f"{epoch}-{groups}"), line.version)
                lines[groups] = line.extended(delta)
                deltas.append(delta)
            files = []
            if turn == epochs - 1:
                files = [snapshot_of(groups, line.version) for groups, line in lines.items()][:snapshots]
            for group in self.history:
                self.history[group].append(epoch)
            self.view = committed(self.view, deltas, files, parallelism)

    def check(self, line: Line) -> None:
        """The line's files give each of its key groups every epoch, once, in order."""
        previous = line.deltas[0].parent if line.deltas else line.version
        if not line.snapshots:
            assert previous == EMPTY_VERSION
        for before, after in pairwise(line.deltas):
            assert after.parent == before.version
        assert not line.deltas or line.deltas[-1].version == line.version
        for group in range(line.groups.first, line.groups.end):
            assert list(epochs_of(line, group)) == self.history[group], f"group {group} of {line}"


def epochs_of(line: Line, group: int) -> Iterator[int]:
    base = [s for s in line.snapshots if s.first_group <= group < s.end_group]
    assert len(base) <= 1
    for snapshot in base:
        yield from range(1, snapshot.version.epoch + 1)
    for delta in line.deltas:
        if delta.first_group <= group < delta.end_group:
            yield int(delta.extent.object)


def delta_of(groups: KeyGroupRange, at: Version, parent: Version) -> DeltaFile:
    extent = Extent(object=str(at.epoch), offset=0, length=1, checksum="")
    return DeltaFile(
        operator="op",
        first_group=groups.first,
        end_group=groups.end,
        version=at,
        parent=parent,
        extent=extent,
        entries=1,
    )


def snapshot_of(groups: KeyGroupRange, at: Version) -> SnapshotFile:
    return SnapshotFile(
        operator="op",
        first_group=groups.first,
        end_group=groups.end,
        version=at,
        object=f"snapshot-{at.epoch}-{groups}",
        length=1,
        chunk_bytes=1,
        chunks=("",),
        backend="lmdb",
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=8))
def test_lines_give_every_epoch_once_through_any_rescaling(runs: list[tuple[int, int, int]]) -> None:
    model = Model()
    for parallelism, epochs, snapshots in runs:
        model.run(parallelism, epochs, snapshots)
    for groups in shard_ranges(GROUPS, 5):
        model.check(line_of(model.view, "op", groups))


def test_a_damaged_snapshot_is_replaced_by_the_one_before() -> None:
    model = Model()
    for _ in range(3):
        model.run(2, 3, snapshots=2)
    groups = shard_ranges(GROUPS, 2)[0]
    newest = line_of(model.view, "op", groups).snapshots[0]
    line = line_of(model.view, "op", groups, frozenset([newest.object]))
    assert line.snapshots[0].version.epoch == 6
    model.check(line)


def test_a_snapshot_of_another_range_is_not_taken_for_that_of_a_shard_with_the_same_first_group() -> None:
    """The job was rescaled while it was written: it lacks, or has too much of, what the shard holds."""
    one, two = shard_ranges(GROUPS, 1)[0], shard_ranges(GROUPS, 2)[0]
    at = version(1, "1")
    line = Line(two, EMPTY_VERSION).extended(delta_of(two, at, EMPTY_VERSION))
    assert rebased({("op", 0): line}, [snapshot_of(one, at)]) == ({("op", 0): line}, [])
    own = snapshot_of(two, at)
    assert rebased({("op", 0): line}, [own]) == ({("op", 0): line.rebased(own)}, [own])


def test_a_snapshot_of_an_attempt_that_the_line_did_not_take_is_of_no_use() -> None:
    """It was written by a task whose result was not chosen: of the same epoch, with other changes."""
    groups = shard_ranges(GROUPS, 1)[0]
    chosen, other = version(1, "1"), version(1, "2")
    line = Line(groups, EMPTY_VERSION).extended(delta_of(groups, chosen, EMPTY_VERSION))
    assert rebased({("op", 0): line}, [snapshot_of(groups, other)]) == ({("op", 0): line}, [])
