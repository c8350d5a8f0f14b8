"""Working state: a shard's state on the local disk of the machine that runs it.

Working state is disposable. What counts is in checkpoint storage; this copy only saves reading it again.
It knows bytes alone: entries are (key, value) pairs sorted by key, a value of None is a deletion.

Always true: the marker (whose state, at which version) changes in the same transaction as the entries, so it
never lies, whichever process is killed, stopped or wakes up late. What is not exactly what a task needs is
undone, caught up by deltas, or thrown away and rebuilt, never trusted.
Never here: layouts of keys and values (see encoding.layout), opening and databases (see local.backends).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.errors import RetryableError

Entries = list[tuple[bytes, bytes | None]]
"""Changes, sorted by key, each key once; None deletes. An empty value is a value."""

Convert = Callable[[Entries], Entries]
"""From the entries of a snapshot, a run of them in key order, to those that the state is to have, also in key
order. Runs follow one another and may end anywhere, so each entry is converted by itself. What follows from
an entry (in an index) comes with it, though it may belong behind what later runs hold."""


class Version(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """After which epoch, by which plan attempt and which task result. Equal versions, equal state.

    Stored records hold it as it is: its fields are part of their format.
    """

    epoch: int
    attempt: int
    result: str

    def __str__(self) -> str:
        return f"{self.epoch}/{self.attempt}/{self.result or '-'}"


EMPTY_VERSION = Version(0, 0, "")
"""The state before the first epoch: no entries."""


class NextDue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a shard has something to do next without rows, by each clock, in µs since 1970. None: nothing.

    Stored records hold it as it is: its fields are part of their format.
    """

    event_us: int | None = None
    processing_us: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """One epoch's changes to this shard's groups. `load` may be called any number of times, or never."""

    version: Version
    parent: Version
    load: Callable[[], Entries]


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A snapshot file, of which the key groups from `first_group` (in) to `end_group` (out) are meant.

    `backend` names the format of the file. A backend opens a file of its own format as it is, unless there is
    something to `convert`; from any other the state is rebuilt, entry by entry. Never written to.
    """

    version: Version
    first_group: int
    end_group: int
    path: Path
    length: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    backend: str = "lmdb"
    convert: Convert | None = None


@dataclass(frozen=True, slots=True)
class StateTarget:
    """The version that a task needs, and how to get there from nothing.

    `snapshots` together cover the shard's groups, or are empty: from EMPTY_VERSION on. `deltas` follow them
    in epoch order, each the parent of the next, and end at `version`. Where the snapshots are of different
    epochs, a delta older than one of them lacks the groups which that one covers: only epochs from the
    newest snapshot on are whole. Epochs up to `committed` can never be undone.
    """

    version: Version
    first_group: int
    end_group: int
    snapshots: tuple[SnapshotSource, ...] = ()
    deltas: tuple[DeltaStep, ...] = ()
    committed: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What a snapshot file is: `chunks` holds one checksum per `chunk_bytes` of its `length` bytes."""

    version: Version
    length: int
    chunk_bytes: int
    chunks: tuple[str, ...]


class StaleWorkingState(RetryableError):
    """The working state is not at the version that the task holds. `open_state` brings it there again."""


class Arrival(StrEnum):
    """How working state came to its version when it was opened."""

    THERE = "there"
    """It was there already: nothing was read from storage."""
    MOVED = "moved"
    """By undo, by deltas, or both."""
    REBUILT = "rebuilt"
    """From snapshots and all deltas since."""


class StateReads(Protocol):
    """What user code needs of a shard's state, by way of cells."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, aligned, in one read transaction. Any order; sorted is fastest."""

    def get(self, key: bytes) -> bytes | None:
        """One value. For many keys use `get_many`."""

    def scan(
        self, prefix: bytes, end: bytes | None = None, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """All entries whose key begins with `prefix`, is not below `prefix + start` and below `end` (None:
        all), in key order. Nothing stays pinned between items."""


class ShardState(StateReads, Protocol):
    """A shard's entries at `version`. One thread at a time; other processes may use the directory meanwhile,
    or begin the next one when they cannot.

    Every read checks the marker in its own read transaction and raises StaleWorkingState when a twin of
    this task or a zombie has moved the state away from `version`: no read ever mixes two versions.
    """

    arrival: Arrival

    @property
    def version(self) -> Version:
        """The version that reads see."""

    def apply(
        self, parent: Version, version: Version, entries: Entries, committed: int, undo: bool = True
    ) -> None:
        """Move the state from `parent` to `version`: entries and marker in one transaction.

        A state that is at `version` already is left alone; one at another child of `parent` (the result of a
        twin or of a dead attempt) is undone first, in the same transaction; at any other version:
        StaleWorkingState, nothing changed. `undo=False` keeps nothing to go back with: only for epochs that
        are committed. Undo of epochs up to `committed` is dropped. StorageError when the disk is full.
        """

    def size_bytes(self) -> int:
        """Bytes on disk in use, those of a base not copied yet included."""

    def snapshot(self, to: Path) -> SnapshotInfo:
        """Write the whole state to the new file `to`, from one view; epochs may be applied meanwhile.

        The result says which version that view was of: not this handle's, if the state has moved on.
        The caller makes it durable. A lazy restore is finished first, which blocks for a copy of the base.
        """

    def verify_base(self) -> None:
        """Block until every chunk of a lazily opened snapshot was checked. Results from it count only then.

        CorruptionError names file and chunk; the working state over it is given up and never used again.
        """

    def close(self) -> None:
        """Stop using this handle. Until then no other process may be able to use the directory (RocksDB)."""


@dataclass(frozen=True, slots=True)
class Route:
    """How to get from a marker to the target: undo back to `back_to`, then apply `deltas`."""

    back_to: Version
    deltas: tuple[DeltaStep, ...]


def route(ancestry: Sequence[Version], target: StateTarget) -> Route | None:
    """Decide how existing state gets to the target. Touches nothing.

    `ancestry`: the marker's version, then those that undo can reach, newest first. None: it has to be
    rebuilt.
    """
    whole_from = max((source.version.epoch for source in target.snapshots), default=0)
    starts = {target.version: len(target.deltas)}
    for index, step in enumerate(target.deltas):
        if step.parent.epoch >= whole_from:
            starts[step.parent] = index
    for version in ancestry:
        if version in starts:
            return Route(version, target.deltas[starts[version] :])
    return None


def check_target(target: StateTarget) -> None:
    """Refuse a target that leads nowhere: a hole in the chain would go unnoticed until results are wrong."""
    parents = [step.parent for step in target.deltas[1:]]
    versions = [step.version for step in target.deltas]
    assert versions[:-1] == parents, f"the deltas to {target.version} are not a chain: {versions}"
    assert versions[-1:] in ([], [target.version]), f"the deltas end at {versions[-1]}, not {target.version}"
    if not target.snapshots:
        start = target.deltas[0].parent if target.deltas else target.version
        assert start == EMPTY_VERSION, f"nothing leads from the empty state to {start}"
