"""Reads stored state, of a commit or of a savepoint: entries in key order, a piece at a time, and lists.

Always true: only storage is read, never working state; every byte that is used was verified; every file is
read by the schema that it was written under and shown in the one in force. In memory are the deltas of one
piece (about a shard) and the entries of a few thousand keys.
Never here: Spark (see datasource) and single keys (see point_query).
"""

from __future__ import annotations

import os
import socket
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.chain.checkpoint import read_job
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.pins import pin, read_pins, unpin
from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.checkpoint.chain.view import CheckpointView, from_manifest
from holdfast.checkpoint.savepoints.stored_savepoint import read_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.open_snapshot import copy_snapshot, snapshot_source
from holdfast.checkpoint.store.records import DeltaFile, SnapshotFile
from holdfast.checkpoint.store.schemas import lineage_of
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptionError, RestoreError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.cells.shard_list import unpack_list
from holdfast.state.contract import SnapshotSource
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout, in_time_index
from holdfast.state.encoding.ttl import Instants
from holdfast.state.encoding.types import parse_type
from holdfast.state.files.delta import Entry, open_delta, to_entries
from holdfast.state.files.rows import Item, live_items, rows_of
from holdfast.state.files.schema_conversion import Lineage
from holdfast.state.local.snapshot_reader import read_snapshot
from holdfast.storage.checksums import read_extent
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

RUN_ENTRIES = 50_000
"""Entries that are handed on together; a few more where a key has many."""
BLOCK_CHANGES = 200_000
"""Changes of deltas that are laid over the snapshots at a time."""
PIN_MS = 3_600_000
"""How long a reader that dies keeps what it was reading from being deleted."""


@dataclass(frozen=True)
class StoredState:
    """The state of every operator after one commit, or in one savepoint."""

    storage: Storage
    view: CheckpointView
    key_groups: int
    job: str
    savepoint: str
    """The id of the savepoint; empty: it is a commit of a checkpoint."""

    @cached_property
    def lineages(self) -> dict[str, Lineage]:
        """Every keyed operator, and how its state looked from the first on."""
        return {schema.uid: lineage_of(schema) for schema in self.view.operators if schema.key}

    def lineage(self, uid: str) -> Lineage:
        """RestoreError: there is no such operator."""
        if uid not in self.lineages:
            known = ", ".join(map(repr, self.lineages)) or "none"
            raise RestoreError(
                f"{self.storage.url} holds no state of an operator {uid!r}; its keyed operators are: {known}"
            )
        return self.lineages[uid]

    def layout(self, uid: str) -> StateLayout:
        """How an operator's state looks. RestoreError: there is no such operator."""
        return self.lineage(uid).layout

    def instants(self, uid: str) -> Instants:
        """The time that it was for an operator in the last epoch: by it values expire."""
        return Instants(self.view.clock_ms * 1_000, self.view.watermarks.get(uid))

    @property
    def unkeyed_operators(self) -> list[str]:
        """The uids of the operators without keys."""
        return [schema.uid for schema in self.view.operators if not schema.key]

    @property
    def whole(self) -> KeyGroupRange:
        return KeyGroupRange(KeyGroup(0), KeyGroup(self.key_groups))

    def __str__(self) -> str:
        what = f"savepoint {self.savepoint}" if self.savepoint else f"commit {self.view.number}"
        return f"{what} (epoch {self.view.last_epoch}) in {self.storage.url}"


@dataclass(frozen=True)
class ShardItems:
    """What one shard holds in one list."""

    state: str
    shard: int
    items: tuple[Any, ...]


def open_stored(url: str, *, commit: int | None = None, epoch: int | None = None) -> StoredState:
    """The state in a savepoint, or in a checkpoint after the commit asked for (the newest if none is).

    RestoreError: there is neither here, the commit or epoch is gone, or the state is in no file.
    """
    storage = open_storage(url)
    if storage.size(names.SAVEPOINT) is not None:
        record = read_savepoint(storage)
        view = from_manifest(record.manifest, names.SAVEPOINT)
        if commit not in (None, record.commit) or epoch not in (None, view.last_epoch):
            raise RestoreError(
                f"the savepoint in {storage.url} is of commit {record.commit}, epoch {view.last_epoch}; "
                "ask for that, or for nothing"
            )
        return StoredState(storage, view, record.key_groups, record.job, record.id)
    job = read_job(storage)
    view = _view(History(storage), commit, epoch)
    if view.needs_from:
        raise RestoreError(
            f"the state of {job.job!r} is in no checkpoint: with hf.UpstreamBackup() it is had again from "
            "its rows; look at what its sinks show, or run it with hf.Rollback()"
        )
    return StoredState(storage, view, job.key_groups, job.job, "")


def _view(history: History, commit: int | None, epoch: int | None) -> CheckpointView:
    newest = history.load()
    if commit is None and epoch is not None:
        commit = _commit_of(history, newest, epoch)
    if commit is None or commit == newest.number:
        return newest
    # A pinned commit outlives its retention, and with it those after it.
    held = read_pins(history.storage).held_at(newest.clock_ms)
    oldest = min([newest.retained_from, *(record.commit for record in held)])
    if not oldest <= commit <= newest.number:
        raise RestoreError(f"commit {commit} is not retained; choose one from {oldest} to {newest.number}")
    return history.view_at(commit)


def _commit_of(history: History, newest: CheckpointView, epoch: int) -> int:
    ends = []
    for number in range(newest.number, max(newest.retained_from, 1) - 1, -1):
        with suppress(CorruptionError):
            ends.append(history.view_at(number).last_epoch)
            if ends[-1] == epoch:
                return number
    raise RestoreError(
        f"no retained commit ends with epoch {epoch}; there are those after epochs "
        f"{', '.join(map(str, sorted(set(ends)))) or 'none'}"
    )


@contextmanager
def pinned(stored: StoredState, what: str, clock: Clock | None = None) -> Iterator[None]:
    """Keep a commit of a job that may be running from being deleted while it is read.

    A reader that dies leaves its pin; it is void after `PIN_MS`.
    """
    if stored.savepoint or not stored.view.number:
        yield
        return
    name = pin_for(stored, what, PIN_MS, clock or SystemClock())
    try:
        yield
    finally:
        unpin(stored.storage, [name])


def pin_for(stored: StoredState, what: str, lease_ms: int, clock: Clock) -> str:
    """Pin the commit for at most `lease_ms`; gives the name for `unpin`."""
    name, now = f"read-{uuid.uuid4().hex}", clock.now_ms()
    holder = f"{what} on {socket.gethostname()}, process {os.getpid()}"
    pin(History(stored.storage), name, stored.view.number, holder, now, expires_ms=now + lease_ms)
    return name


def pieces(view: CheckpointView, uid: str, groups: KeyGroupRange) -> list[KeyGroupRange]:
    """`groups` cut where the operator's files are, so that each file is read for as few pieces as can be."""
    files: list[DeltaFile | SnapshotFile] = [*view.snapshots.get(uid, ()), *view.live_deltas(uid)]
    cuts = {edge for file in files for edge in (file.first_group, file.end_group) if edge in groups}
    edges = sorted({int(groups.first), int(groups.end), *cuts})
    return [KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in pairwise(edges)]


def state_tables(stored: StoredState, uid: str, groups: KeyGroupRange | None = None) -> Iterator[pa.Table]:
    """An operator's state as rows, in key order, some thousand at a time. CorruptionError names the file."""
    layout = stored.layout(uid)
    for run in live_entries(stored, uid, groups):
        yield rows_of(layout, run)


def live_entries(
    stored: StoredState, uid: str, groups: KeyGroupRange | None = None
) -> Iterator[Sequence[Item]]:
    """As `state_entries`, without what has expired by the time of the last epoch."""
    layout, at = stored.layout(uid), stored.instants(uid)
    for run in state_entries(stored, uid, groups):
        yield list(live_items(layout, run, at)) if layout.expiring else run


def state_entries(
    stored: StoredState, uid: str, groups: KeyGroupRange | None = None
) -> Iterator[Sequence[Item]]:
    """An operator's entries in key order, some thousand at a time; those of a key are never parted. The time
    index, which follows from them, is left out."""
    lineage = stored.lineage(uid)
    with tempfile.TemporaryDirectory(prefix="holdfast-reading-") as scratch:
        for piece in pieces(stored.view, uid, groups or stored.whole):
            merged = _merged(stored, lineage, piece, Path(scratch))
            yield from _runs(lineage.layout, (entry for entry in merged if not in_time_index(entry[0])))


def lists_of_operator(stored: StoredState, uid: str) -> Iterator[ShardItems]:
    """All lists of an operator, shard by shard. CorruptionError names a damaged file."""
    types = {
        state.name: parse_type(state.type)
        for schema in stored.view.operators
        if schema.uid == uid
        for state in schema.states
    }
    for file in stored.view.lists.get(uid, ()):
        field = StateField(0, file.state, StateKind.LIST, types[file.state])
        data = read_extent(stored.storage, file.extent)
        items = unpack_list(data, field, file.extent.object)
        yield ShardItems(file.state, file.shard, tuple(items))


def _runs(layout: StateLayout, entries: Iterator[Item]) -> Iterator[Sequence[Item]]:
    run: list[Item] = []
    for entry in entries:
        if len(run) >= RUN_ENTRIES:
            last = run[-1][0]
            if not entry[0].startswith(last[: layout.keys.base_length(last)]):
                yield run
                run = []
        run.append(entry)
    if run:
        yield run


def _merged(stored: StoredState, lineage: Lineage, groups: KeyGroupRange, scratch: Path) -> Iterator[Item]:
    """What is in the snapshots, with the deltas laid over it."""
    line = line_of(stored.view, lineage.layout.operator, groups)
    deltas = [_Delta(stored.storage, lineage, delta) for delta in line.deltas]
    base = _Peekable(_snapshot_items(stored, lineage, line.snapshots, groups, scratch))
    for block in _blocks(groups, sum(delta.count(groups) for delta in deltas)):
        changed: dict[bytes, bytes | None] = {}
        for delta in deltas:
            changed.update(delta.entries(block))
        yield from _overlaid(base, sorted(changed.items()), block.end.to_bytes(2, "big"))


def _blocks(groups: KeyGroupRange, changes: int) -> Iterator[KeyGroupRange]:
    """Key groups whose changes fit in memory as entries, about `BLOCK_CHANGES` of them."""
    span = max(1, (groups.end - groups.first) * BLOCK_CHANGES // max(changes, 1))
    for first in range(groups.first, groups.end, span):
        yield KeyGroupRange(KeyGroup(first), KeyGroup(min(first + span, groups.end)))


class _Delta:
    """A delta in memory, verified, to be read some key groups at a time."""

    def __init__(self, storage: Storage, lineage: Lineage, file: DeltaFile) -> None:
        name = file.extent.object
        self._first, self._end = file.first_group, file.end_group
        self._delta = open_delta(read_extent(storage, file.extent), name)
        self._layout = lineage.at(self._delta.generation, f"delta {name}")
        self._convert = lineage.converter(self._delta.generation, f"delta {name}")

    def count(self, groups: KeyGroupRange) -> int:
        """How many changes to these key groups it holds."""
        first, end = self._delta.rows(groups)
        return end - first

    def entries(self, groups: KeyGroupRange) -> list[Entry]:
        """What it changes in these key groups, in the schema in force."""
        first, end = max(groups.first, self._first), min(groups.end, self._end)
        own = KeyGroupRange(KeyGroup(first), KeyGroup(end))
        if first >= end or not self.count(own):
            return []
        entries = to_entries(self._layout, self._delta.changes(self._layout, own))
        return entries if self._convert is None else self._convert(entries)


class _Peekable:
    """An iterator whose next item can be looked at."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self.next = next(items, None)

    def take(self) -> Item:
        taken = self.next
        assert taken is not None
        self.next = next(self._items, None)
        return taken


def _overlaid(base: _Peekable, changed: list[tuple[bytes, bytes | None]], end: bytes) -> Iterator[Item]:
    """The base's items below `end`, with the changes in their places."""
    for key, value in changed:
        while base.next is not None and base.next[0] < key:
            yield base.take()
        if base.next is not None and base.next[0] == key:
            base.take()
        if value is not None:
            yield key, value
    while base.next is not None and base.next[0] < end:
        yield base.take()


def _snapshot_items(
    stored: StoredState,
    lineage: Lineage,
    files: Sequence[SnapshotFile],
    groups: KeyGroupRange,
    scratch: Path,
) -> Iterator[Item]:
    for file in sorted(files, key=lambda file: file.first_group):
        source = local_snapshot(stored.storage, lineage, file, scratch)
        try:
            low, high = max(file.first_group, groups.first), min(file.end_group, groups.end)
            yield from read_snapshot(source, low, high)
        finally:
            if source.path.parent == scratch:
                source.path.unlink()


def local_snapshot(storage: Storage, lineage: Lineage, file: SnapshotFile, scratch: Path) -> SnapshotSource:
    """A snapshot to be read: where it is, or copied to `scratch` where that is no file system."""
    path = storage.local_path(file.object)
    if path is None:
        path = scratch / uuid.uuid4().hex
        copy_snapshot(storage, file, path)
    return snapshot_source(file, lineage, path)
