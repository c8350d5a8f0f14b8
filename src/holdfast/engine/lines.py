"""Each shard's line of state: from which files its state can be had, and at which version it stands.

The line runs ahead of the commits: an epoch's chosen results are added at once, so that the next epoch can
start while
the first is being committed. When a commit fails, the lines are made anew from the last committed view.
Always true: a line's deltas are a chain that ends at its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.records import DeltaFile, SnapshotFile, VersionRecord
from holdfast.checkpoint.view import CheckpointView
from holdfast.engine.work import ShardPlan
from holdfast.ids import KeyGroupRange

EMPTY_VERSION = VersionRecord(epoch=0, attempt=0, result="")


@dataclass(frozen=True)
class Line:
    """One shard of one operator."""

    groups: KeyGroupRange
    version: VersionRecord
    snapshots: tuple[SnapshotFile, ...] = ()
    deltas: tuple[DeltaFile, ...] = ()

    def plan(self) -> ShardPlan:
        return ShardPlan(self.groups, self.version, self.snapshots, self.deltas)

    def extended(self, delta: DeltaFile) -> Line:
        """The line after an epoch that changed this shard."""
        assert delta.parent == self.version, f"{delta.version} does not follow {self.version}"
        return replace(self, version=delta.version, deltas=(*self.deltas, delta))

    def advanced(self, version: VersionRecord) -> Line:
        """The line after an epoch whose state is not saved."""
        return replace(self, version=version)

    def rebased(self, snapshot: SnapshotFile) -> Line:
        """The same state, from a newer snapshot."""
        rest = tuple(delta for delta in self.deltas if delta.version.epoch > snapshot.version.epoch)
        return replace(self, snapshots=(snapshot,), deltas=rest)


def line_of(
    view: CheckpointView, operator: str, groups: KeyGroupRange, without: frozenset[str] = frozenset()
) -> Line:
    """A shard's line as the committed view has it. Files of other ranges (the job was rescaled) are cut to
    this one's.

    `without`: snapshots that are known to be damaged; the one before, and the deltas since, take their place.
    """
    snapshots = _newest(
        file
        for file in view.snapshots.get(operator, ())
        if _overlap(file.first_group, file.end_group, groups) and file.object not in without
    )
    exact_base = len(snapshots) == 1 and _same(snapshots[0].first_group, snapshots[0].end_group, groups)
    deltas = [
        delta
        for delta in view.live_deltas(operator)
        if _overlap(delta.first_group, delta.end_group, groups) and not _covered(delta, snapshots, groups)
    ]
    deltas.sort(key=lambda delta: (delta.version.epoch, delta.first_group))
    if (exact_base or not snapshots) and all(_same(d.first_group, d.end_group, groups) for d in deltas):
        start = snapshots[0].version if snapshots else EMPTY_VERSION
        version = deltas[-1].version if deltas else start
        return Line(groups, version, tuple(snapshots), tuple(deltas))
    return _merged(view, groups, tuple(snapshots), deltas)


def _merged(
    view: CheckpointView, groups: KeyGroupRange, snapshots: tuple[SnapshotFile, ...], deltas: list[DeltaFile]
) -> Line:
    """Files written under another parallelism form no chain of their own: number them as one.

    The name of the merged version is taken from the first delta that already follows it, if there is one; it
    is the same
    for everybody, since the state of some key groups after a committed epoch is one thing only.
    """
    own = next((i for i, d in enumerate(deltas) if _same(d.first_group, d.end_group, groups)), len(deltas))
    foreign, following = deltas[:own], deltas[own:]
    if following:
        merged = following[0].parent
    else:
        merged = VersionRecord(epoch=view.last_epoch, attempt=0, result=f"commit-{view.number}")
    chain: list[DeltaFile] = []
    parent = VersionRecord(epoch=merged.epoch, attempt=0, result=f"{merged.result}-base")
    for index, delta in enumerate(foreign):
        last = index == len(foreign) - 1
        version = merged if last else _renamed(merged, f"{merged.result}-{index}")
        chain.append(_relabelled(delta, version, parent))
        parent = version
    return Line(groups, following[-1].version if following else merged, snapshots, (*chain, *following))


def _renamed(version: VersionRecord, result: str) -> VersionRecord:
    return VersionRecord(epoch=version.epoch, attempt=version.attempt, result=result)


def _relabelled(delta: DeltaFile, version: VersionRecord, parent: VersionRecord) -> DeltaFile:
    return DeltaFile(
        operator=delta.operator,
        first_group=delta.first_group,
        end_group=delta.end_group,
        version=version,
        parent=parent,
        extent=delta.extent,
        entries=delta.entries,
    )


def _newest(files: Iterable[SnapshotFile]) -> list[SnapshotFile]:
    """Per range the newest snapshot; of overlapping ranges those of the newest epoch."""
    chosen: list[SnapshotFile] = []
    for file in sorted(files, key=lambda file: file.version.epoch, reverse=True):
        if not any(max(file.first_group, c.first_group) < min(file.end_group, c.end_group) for c in chosen):
            chosen.append(file)
    return sorted(chosen, key=lambda file: file.first_group)


def _covered(delta: DeltaFile, snapshots: Sequence[SnapshotFile], groups: KeyGroupRange) -> bool:
    """Whether the snapshots hold everything that the delta changed in these groups."""
    first, end = max(delta.first_group, groups.first), min(delta.end_group, groups.end)
    return all(
        any(
            s.first_group <= group < s.end_group and s.version.epoch >= delta.version.epoch for s in snapshots
        )
        for group in range(first, end)
    )


def _overlap(first: int, end: int, groups: KeyGroupRange) -> bool:
    return max(first, groups.first) < min(end, groups.end)


def _same(first: int, end: int, groups: KeyGroupRange) -> bool:
    return first == groups.first and end == groups.end
