"""Each shard's line of state: from which files its state can be had, and at which version it stands.

The line runs ahead of the commits: an epoch's chosen results are added at once, so that the next epoch can
start while the first is being committed. When a commit fails, the last committed view gives the lines again.
Always true: a line's deltas are a chain that ends at its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec.structs import replace as replace_record

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import CommitRecord, DeltaFile, SnapshotFile
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import EMPTY_VERSION, NextDue, Version
from holdfast.storage.checksums import checksum


@dataclass(frozen=True)
class Line:
    """One shard of one operator: its key groups, its version, and the files that its state comes from."""

    groups: KeyGroupRange
    version: Version
    snapshots: tuple[SnapshotFile, ...] = ()
    deltas: tuple[DeltaFile, ...] = ()
    next_due: NextDue | None = None
    """When the shard has something to do next without rows. None: not known."""

    def extended(self, delta: DeltaFile) -> Line:
        """The line after an epoch that changed this shard."""
        assert delta.parent == self.version, f"{delta.version} does not follow {self.version}"
        return replace(self, version=delta.version, deltas=(*self.deltas, delta), next_due=delta.next_due)

    def advanced(self, version: Version, next_due: NextDue | None) -> Line:
        """The line after an epoch whose state is not saved."""
        return replace(self, version=version, next_due=next_due)

    def went_through(self, version: Version) -> bool:
        """Whether the state was at `version` after an epoch, with all that the epoch changed.

        Between deltas that were numbered as one chain (see `_relabelled`) it was not: working state may be
        caught there, and what names a version's epoch is taken to have all of it.
        """
        passed = [delta.version for delta in self.deltas]
        if version not in passed:
            return False
        return all(later.epoch > version.epoch for later in passed[passed.index(version) + 1 :])

    def rebased(self, snapshot: SnapshotFile) -> Line:
        """The same state, from a newer snapshot, of a version that the line went through."""
        rest = tuple(delta for delta in self.deltas if delta.version.epoch > snapshot.version.epoch)
        return replace(self, snapshots=(snapshot,), deltas=rest)


Lines = dict[tuple[str, int], Line]
"""(operator uid, shard) -> its line of state."""


def lines_of(
    view: CheckpointView,
    operators: Iterable[str],
    ranges: Sequence[KeyGroupRange],
    without: frozenset[str] = frozenset(),
) -> Lines:
    """The lines of some operators, cut into shards of these ranges. `without`: see `line_of`."""
    return {
        (uid, shard): line_of(view, uid, groups, without)
        for uid in operators
        for shard, groups in enumerate(ranges)
    }


def extended(lines: Lines, deltas: Iterable[DeltaFile]) -> Lines | None:
    """The lines with these deltas at their ends. None: one does not follow."""
    lines, shards = dict(lines), _by_range(lines)
    for delta in deltas:
        key = shards.get((delta.operator, *_range(delta)))
        if key is None or lines[key].version != delta.parent:
            return None
        lines[key] = lines[key].extended(delta)
    return lines


def rebased(lines: Lines, snapshots: Iterable[SnapshotFile]) -> tuple[Lines, list[SnapshotFile]]:
    """The lines from these snapshots on, and those that were of use: of a shard's own range and of a version
    that its line went through."""
    lines, shards, used = dict(lines), _by_range(lines), []
    for file in snapshots:
        key = shards.get((file.operator, *_range(file)))
        if key is not None and lines[key].went_through(file.version):
            lines[key] = lines[key].rebased(file)
            used.append(file)
    return lines, used


def as_committed(lines: Lines, record: CommitRecord) -> Lines:
    """The lines with the files that a record names in place of others of the same versions: of what several
    replicas wrote, these are kept."""
    lines, shards = dict(lines), _by_range(lines)
    for delta in record.deltas:
        key = shards.get((delta.operator, *_range(delta)))
        if key is not None:
            kept = tuple(delta if own.version == delta.version else own for own in lines[key].deltas)
            lines[key] = replace(lines[key], deltas=kept)
    return rebased(lines, record.snapshots)[0]


def _by_range(lines: Lines) -> dict[tuple[str, int, int], tuple[str, int]]:
    return {(key[0], line.groups.first, line.groups.end): key for key, line in lines.items()}


def line_of(
    view: CheckpointView, operator: str, groups: KeyGroupRange, without: frozenset[str] = frozenset()
) -> Line:
    """A shard's line as the committed view has it. Files of other ranges (the job was rescaled) are cut to
    this one's.

    `without`: snapshots that are known to be damaged; the one before, and the deltas since, take their place.
    """
    snapshots = _newest(
        [file for file in view.snapshots.get(operator, ()) if file.object not in without], groups
    )
    own_range = (groups.first, groups.end)
    pieces = [
        _Piece(
            replace_record(delta, first_group=low, end_group=high), (low, high) == _range(delta) == own_range
        )
        for delta in view.live_deltas(operator)
        for low, high in _uncovered(delta, snapshots, groups)
    ]
    pieces.sort(key=lambda piece: (piece.delta.version.epoch, piece.delta.first_group))
    foreign = max((index + 1 for index, piece in enumerate(pieces) if not piece.own), default=0)
    merged, own = [piece.delta for piece in pieces[:foreign]], [piece.delta for piece in pieces[foreign:]]
    if not merged and all(_range(file) == own_range for file in snapshots):
        start = snapshots[0].version if snapshots else EMPTY_VERSION
        version, chain = own[-1].version if own else start, own
    else:
        version = own[0].parent if own else _name_of(view.last_epoch, snapshots, merged)
        chain = [*_relabelled(merged, version, from_nothing=not snapshots), *own]
        version = own[-1].version if own else version
    next_due = own[-1].next_due if own else NextDue() if version == EMPTY_VERSION else None
    return Line(groups, version, tuple(snapshots), tuple(chain), next_due)


@dataclass(frozen=True)
class _Piece:
    """Of a delta, the key groups that a shard needs. `own`: all of it, written by a shard of the same range.

    A delta of which a newer snapshot has a part is not: its version does not name the state that it leads to.
    """

    delta: DeltaFile
    own: bool


def _name_of(epoch: int, snapshots: list[SnapshotFile], deltas: list[DeltaFile]) -> Version:
    """A version for state after an epoch that is put together from files of other ranges: the same wherever
    it is made of the same files. Not that of a commit: one that covers no epoch changes nothing of the state,
    and replicas that began before and after it have to come to the same."""
    made_of = (
        [(*_range(file), file.version, file.chunks) for file in snapshots],
        [(*_range(delta), delta.version, delta.extent.checksum) for delta in deltas],
    )
    name = f"merged-{checksum(msgspec.json.encode(made_of))}"
    return Version(epoch=epoch, attempt=0, result=name)


def _relabelled(deltas: list[DeltaFile], end: Version, from_nothing: bool) -> list[DeltaFile]:
    """Deltas that were written under other parallelisms form no chain of their own: number them as one."""
    parent = EMPTY_VERSION if from_nothing else _renamed(end, f"{end.result}-base")
    chain: list[DeltaFile] = []
    for index, delta in enumerate(deltas):
        version = end if index == len(deltas) - 1 else _renamed(end, f"{end.result}-{index}")
        chain.append(replace_record(delta, version=version, parent=parent))
        parent = version
    return chain


def _renamed(version: Version, result: str) -> Version:
    return replace_record(version, result=result)


def _newest(files: Sequence[SnapshotFile], groups: KeyGroupRange) -> list[SnapshotFile]:
    """For each key group its newest snapshot; one that a newer file partly replaces is cut."""
    newest: dict[int, SnapshotFile] = {}
    for file in sorted(files, key=lambda file: file.version.epoch):
        for group in range(max(file.first_group, groups.first), min(file.end_group, groups.end)):
            newest[group] = file
    chosen: list[SnapshotFile] = []
    for file in {id(file): file for file in newest.values()}.values():
        left = [group for group in newest if newest[group] is file]
        wanted = min(file.end_group, groups.end) - max(file.first_group, groups.first)
        if len(left) == wanted:
            chosen.append(file)
        else:
            chosen += [replace_record(file, first_group=low, end_group=high) for low, high in ranges_of(left)]
    return sorted(chosen, key=lambda file: file.first_group)


def _uncovered(
    delta: DeltaFile, snapshots: Sequence[SnapshotFile], groups: KeyGroupRange
) -> list[tuple[int, int]]:
    """The key groups of a delta, as ranges, that a shard needs and no snapshot has at its epoch or later."""
    needed = [
        group
        for group in range(max(delta.first_group, groups.first), min(delta.end_group, groups.end))
        if not any(
            s.first_group <= group < s.end_group and s.version.epoch >= delta.version.epoch for s in snapshots
        )
    ]
    return ranges_of(needed)


def ranges_of(groups: Iterable[int]) -> list[tuple[int, int]]:
    """Key groups as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for group in sorted(groups):
        if ranges and ranges[-1][1] == group:
            ranges[-1] = (ranges[-1][0], group + 1)
        else:
            ranges.append((group, group + 1))
    return ranges


def _range(file: DeltaFile | SnapshotFile) -> tuple[int, int]:
    return file.first_group, file.end_group
