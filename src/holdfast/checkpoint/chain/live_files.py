"""Which of a checkpoint's files are live; everything else may be retired.

- snapshots: the newest two that cover some key group;
- deltas: unless every key group of theirs is covered by two kept snapshots, the older at or after the
  delta's epoch, so that a damaged newest snapshot never costs state;
- staged output: epochs above what every sink named in the record has published;
- copies of tables: of each lookup the one in use, and those that plans which may be followed name;
- lists of operators without keys: of each operator, shard and state the newest. All of an operator's are of
  one number of shards: those of another one are replaced as a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

from msgspec.structs import replace

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    DeltaFile,
    ListFile,
    OperatorSchema,
    SnapshotFile,
    StagedFile,
    UncoordinatedShard,
)

T = TypeVar("T")

SNAPSHOTS_KEPT = 2


class SharedList(Sequence[T], Generic[T]):
    """An immutable sequence to which appending costs only what is appended.

    Many versions share one list, each seeing its own stretch of it. Appending to the newest version extends
    the list; appending to an older one (history forked there) copies first.
    """

    __slots__ = ("_end", "_items", "_start")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._start, self._end = 0, len(self._items)

    def appended(self, more: Iterable[T]) -> SharedList[T]:
        more = list(more)
        if not more:
            return self
        # Copied as well when most of the list is dropped items, so that they can be freed.
        if self._end != len(self._items) or self._start > len(self):
            return SharedList([*self, *more])
        self._items.extend(more)
        return self._window(self._start, self._end + len(more))

    def without_first(self, count: int) -> SharedList[T]:
        assert 0 <= count <= len(self)
        return self._window(self._start + count, self._end) if count else self

    def _window(self, start: int, end: int) -> SharedList[T]:
        window: SharedList[T] = SharedList.__new__(SharedList)
        window._items, window._start, window._end = self._items, start, end
        return window

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._items[(self._start if index >= 0 else self._end) + index]

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[T]:
        return (self._items[i] for i in range(self._start, self._end))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedList) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return f"SharedList({list(self)!r})"


Range = tuple[int, int]
DeltasByRange = dict[Range, SharedList[DeltaFile]]


def with_deltas(deltas: dict[str, DeltasByRange], more: tuple[DeltaFile, ...]) -> dict[str, DeltasByRange]:
    """The deltas with `more` added; neither is changed."""
    if not more:
        return deltas
    deltas = dict(deltas)
    copied: set[str] = set()
    for delta in sorted(more, key=lambda delta: delta.version.epoch):
        if delta.operator not in copied:
            deltas[delta.operator] = dict(deltas.get(delta.operator, {}))
            copied.add(delta.operator)
        ranges, key = deltas[delta.operator], (delta.first_group, delta.end_group)
        ranges[key] = ranges.get(key, SharedList()).appended([delta])
    return deltas


def kept_snapshots(
    files: list[SnapshotFile], per_group: int = SNAPSHOTS_KEPT
) -> tuple[tuple[SnapshotFile, ...], dict[int, int]]:
    """The newest `per_group` of each key group, oldest first; and the epoch of the oldest kept, for each key
    group that has so many."""
    newest_first = sorted(files, key=lambda file: file.version.epoch, reverse=True)
    count: dict[int, int] = {}
    covered: dict[int, int] = {}
    kept: list[SnapshotFile] = []
    for file in newest_first:
        groups = [g for g in range(file.first_group, file.end_group) if count.get(g, 0) < per_group]
        for group in groups:
            count[group] = count.get(group, 0) + 1
            if count[group] == per_group:
                covered[group] = file.version.epoch
        if groups:
            kept.append(file)
    return tuple(reversed(kept)), covered


def is_outdated(snapshot: str, files: Sequence[SnapshotFile]) -> bool:
    """Whether newer snapshots of an operator, `files`, have every key group of the one of this name: then it
    is of no use any more, and no commit after theirs is to be the first to name it."""
    shard, epoch = names.shard_of_snapshot(snapshot), names.number_of(snapshot)
    if shard is None or epoch is None:
        return False
    newest = [file for file in files if file.version.epoch >= epoch and file.object != snapshot]
    return all(
        any(file.first_group <= group < file.end_group for file in newest)
        for group in range(shard[1], shard[2])
    )


def uncovered(ranges: DeltasByRange, covered: dict[int, int]) -> DeltasByRange:
    """Drop the deltas that two snapshots have made needless."""
    live: DeltasByRange = {}
    for (first, end), deltas in ranges.items():
        through = min(covered.get(group, 0) for group in range(first, end))
        count = 0
        while count < len(deltas) and deltas[count].version.epoch <= through:
            count += 1
        if count < len(deltas):
            live[first, end] = deltas.without_first(count)
    return live


def with_lists(
    lists: dict[str, tuple[ListFile, ...]], more: Sequence[ListFile]
) -> dict[str, tuple[ListFile, ...]]:
    """The newest lists after `more`, which are in the order of their epochs."""
    lists = dict(lists)
    for operator in dict.fromkeys(file.operator for file in more):
        newest = {(file.shards, file.shard, file.state): file for file in lists.get(operator, ())}
        shards = 0
        for file in more:
            if file.operator == operator:
                shards = file.shards
                newest[file.shards, file.shard, file.state] = file
        of_one = [file for file in newest.values() if file.shards == shards]
        lists[operator] = tuple(sorted(of_one, key=lambda file: (file.shard, file.state)))
    return lists


def with_uncoordinated(
    shards: dict[str, tuple[UncoordinatedShard, ...]], more: Sequence[UncoordinatedShard]
) -> dict[str, tuple[UncoordinatedShard, ...]]:
    """The newest of each shard; those of another number of shards go when one of the new number comes."""
    shards = dict(shards)
    for one in more:
        others = [
            each
            for each in shards.get(one.operator, ())
            if each.shards == one.shards and each.first_group != one.first_group
        ]
        shards[one.operator] = tuple(sorted([*others, one], key=lambda each: each.first_group))
    return shards


def stamped(
    snapshots: dict[str, tuple[SnapshotFile, ...]],
    before: tuple[OperatorSchema, ...],
    now: tuple[OperatorSchema, ...],
) -> dict[str, tuple[SnapshotFile, ...]]:
    """Snapshots that do not say their schema, marked with the one in force until now where that changes."""
    ending = {schema.uid: replace(schema, before=None) for schema in before if schema not in now}
    return {
        uid: tuple(
            replace(file, schema=ending[uid]) if uid in ending and file.schema is None else file
            for file in files
        )
        for uid, files in snapshots.items()
    }


def unpublished(staged: SharedList[StagedFile], published: dict[str, int]) -> SharedList[StagedFile]:
    """Without the epochs that every sink has shown."""
    through = min(published.values(), default=0)
    count = 0
    while count < len(staged) and staged[count].epoch <= through:
        count += 1
    return staged.without_first(count)
