"""Checkpoints made without Spark: real deltas, snapshots and commits, and a model of what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.terms import claim
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import (
    CommitRecord,
    DeltaFile,
    Extent,
    ListFile,
    OperatorSchema,
    SnapshotFile,
    StateSchema,
)
from holdfast.checkpoint.store.schemas import file_schema, record_of
from holdfast.clock import SystemClock
from holdfast.ids import KeyGroupRange, shard_ranges
from holdfast.state.cells.shard_list import pack_list
from holdfast.state.contract import EMPTY_VERSION, DeltaStep, StateTarget, Version
from holdfast.state.encoding.arrow_values import column_of
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.encoding.ttl import Instants
from holdfast.state.encoding.types import parse_type
from holdfast.state.files.delta import Changes, EntryChange, ValueChange, to_entries, write_delta
from holdfast.state.files.schema_conversion import Lineage
from holdfast.state.local.backends import open_state
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.operators.expiry import stamp

Values = dict[str, Any]
Keys = dict[tuple[Any, ...], Values]

LAYOUT = StateLayout(
    "totals",
    pa.schema([("user", pa.string()), ("day", pa.int64())]),
    (
        StateField(0, "total", StateKind.VALUE, pa.int64()),
        StateField(1, "tags", StateKind.LIST, pa.string()),
        StateField(2, "seen", StateKind.MAP, parse_type("map<string,long>")),
        StateField(3, "user", StateKind.VALUE, parse_type("struct<name:string,age:int>")),
    ),
)


BUFFER = StateField(0, "pending", StateKind.LIST, pa.int64())


class MadeCheckpoint:
    """One operator's state, epoch after epoch; `model` is what it holds."""

    def __init__(
        self,
        root: Path,
        layout: StateLayout = LAYOUT,
        *,
        key_groups: int = 8,
        parallelism: int = 2,
        retain: int = 100,
        backend: str = "lmdb",
    ) -> None:
        self.storage = LocalStorage(root / "checkpoint", fsync=False)
        self.layout, self.key_groups, self.backend = layout, key_groups, backend
        self.lineage, self.declared = Lineage.begin(layout), True
        self.chain = Chain(self.storage, retain=retain)
        open_checkpoint(self.storage, "job", key_groups, SystemClock(), identity="i")
        claim(self.storage, "r", "here", 1, 0)
        self.view: CheckpointView = self.chain.load()
        self.working = root / "working"
        self.lists: list[ListFile] = []
        self.model: Keys = {}
        self.rescale(parallelism)

    @property
    def url(self) -> str:
        return self.storage.url

    def rescale(self, parallelism: int) -> None:
        self.shards = shard_ranges(self.key_groups, parallelism)
        self.versions = dict.fromkeys(self.shards, EMPTY_VERSION)
        self.steps: dict[KeyGroupRange, list[DeltaStep]] = {groups: [] for groups in self.shards}
        if self.model:
            whole = changes_between(self.layout, {}, self.model, self.key_groups)
            for groups in self.shards:
                self._step(groups, whole, Version(epoch=self.view.last_epoch, attempt=0, result="again"))

    def declare(self, lineage: Lineage) -> None:
        """Go on with other code, whose schema is in force from the next commit on. Snapshots end here."""
        self.layout, self.lineage, self.declared = lineage.layout, lineage, True

    def commit(self, changed: Keys, *, snapshots: bool = False) -> CheckpointView:
        """One epoch that leaves these keys with these states (an empty dict: with none), committed."""
        changes = changes_between(self.layout, self.model, changed, self.key_groups)
        epoch = self.view.last_epoch + 1
        stamp(self.layout, changes, Instants(epoch * 1_000))
        deltas = []
        for groups in self.shards:
            version = Version(epoch=epoch, attempt=1, result=f"r{epoch}-{groups}")
            parent = self.versions[groups]
            own = self._step(groups, changes, version)
            data = write_delta(self.layout, own)
            name = f"data/{epoch:012d}/{groups}.delta.parquet"
            self.storage.put(name, data)
            extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
            deltas.append(
                DeltaFile(
                    operator=self.layout.operator, first_group=groups.first, end_group=groups.end,
                    version=version, parent=parent, extent=extent, entries=1,
                )
            )  # fmt: skip
        self.model.update(changed)
        self.model = {key: values for key, values in self.model.items() if values}
        files = [self.snapshot(groups, epoch) for groups in self.shards] if snapshots else []
        declared, self.declared = self.declared, False
        return self._commit(deltas, files, (record_of(self.lineage),) if declared else None)

    def commit_lists(self, *shards: list[int]) -> CheckpointView:
        """An epoch of an operator without keys, which leaves its shards with these lists."""
        epoch = self.view.last_epoch + 1
        for shard, items in enumerate(shards):
            data = pack_list("buffer", BUFFER, items)
            name = f"data/{epoch:012d}/buffer-{shard}"
            self.storage.put(name, data)
            extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
            file = ListFile(
                operator="buffer", shards=len(shards), shard=shard, state="pending", extent=extent,
                items=len(items),
            )  # fmt: skip
            self.lists.append(file)
        pending = StateSchema(id=0, name="pending", kind="list", type="long")
        buffer = OperatorSchema(uid="buffer", key=(), states=(pending,))
        return self._commit([], [], (record_of(self.lineage), buffer))

    def _commit(
        self,
        deltas: list[DeltaFile],
        snapshots: list[SnapshotFile],
        operators: tuple[OperatorSchema, ...] | None,
    ) -> CheckpointView:
        epoch = self.view.last_epoch + 1
        record = CommitRecord(
            term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=epoch,
            parallelism=len(self.shards), fingerprint="f", positions={"in": epoch}, rows=10,
            deltas=tuple(deltas), snapshots=tuple(snapshots), operators=operators, lists=tuple(self.lists),
        )  # fmt: skip
        self.lists = []
        done = self.chain.commit(self.view, record)
        assert isinstance(done, Committed)
        self.view = done.view
        return self.view

    def _step(self, groups: KeyGroupRange, changes: Changes, version: Version) -> Changes:
        own = _cut(changes, groups)
        entries = to_entries(self.layout, own)
        step = DeltaStep(version, self.versions[groups], lambda: entries)
        self.steps[groups].append(step)
        self.versions[groups] = version
        return own

    def snapshot(self, groups: KeyGroupRange, epoch: int) -> SnapshotFile:
        """A snapshot of the state as it is, named by `epoch`; no commit names it yet."""
        target = StateTarget(
            self.versions[groups], groups.first, groups.end, deltas=tuple(self.steps[groups])
        )
        directory = self.working / f"{self.view.number}-{groups}"
        state = open_state(directory, "i", target, backend=self.backend)
        info = state.snapshot(directory / "snapshot")
        state.close()
        name = f"snapshots/{epoch:012d}/{groups}"
        self.storage.put_file(name, directory / "snapshot")
        return SnapshotFile(
            operator=self.layout.operator, first_group=groups.first, end_group=groups.end,
            version=self.versions[groups], object=name, length=info.length, chunk_bytes=info.chunk_bytes,
            chunks=info.chunks, backend=self.backend, schema=file_schema(record_of(self.lineage)),
        )  # fmt: skip


def _cut(changes: Changes, groups: KeyGroupRange) -> Changes:
    """The changes of some key groups."""
    kept = np.flatnonzero((changes.groups >= groups.first) & (changes.groups < groups.end))
    place = np.full(len(changes.bases), -1)
    place[kept] = np.arange(len(kept))
    take = pa.array(kept)
    own = Changes(
        [column.take(take) for column in changes.keys],
        changes.groups[kept],
        [changes.bases[row] for row in kept],
    )
    for name in ("values", "headers", "entries"):
        for state, change in getattr(changes, name).items():
            inside = np.flatnonzero(place[change.rows] >= 0)
            parts = {"values": change.values.take(pa.array(inside)), "deleted": change.deleted[inside]}
            if change.times is not None:
                parts["times"] = change.times[inside]
            if isinstance(change, EntryChange):
                parts["entry"] = change.entry.take(pa.array(inside))
            getattr(own, name)[state] = type(change)(rows=place[change.rows[inside]], **parts)
    return own


def changes_between(layout: StateLayout, before: Keys, after: Keys, key_groups: int) -> Changes:
    """What makes the keys of `after` what it says, as an operator would hand it over."""
    keys = [column_of([key[index] for key in after], field.type) for index, field in enumerate(layout.key)]
    groups = key_groups_of(routing_hash(keys), key_groups)
    changes = Changes(keys, groups, layout.keys.encode(keys, groups))
    for field in layout.fields:
        log: list[tuple[int, Any, Any, bool]] = []
        heads: list[tuple[int, int]] = []
        for row, (key, values) in enumerate(after.items()):
            old, new = before.get(key, {}).get(field.name), values.get(field.name)
            if field.kind is StateKind.VALUE:
                log.append((row, None, new, new is None))
            elif field.kind is StateKind.LIST:
                log += [(row, index, item, False) for index, item in enumerate(new or ())]
                log += [(row, index, None, True) for index in range(len(new or ()), len(old or ()))]
                heads.append((row, len(new or ())))
            else:
                log += [(row, name, item, False) for name, item in (new or {}).items()]
                log += [(row, name, None, True) for name in (old or {}).keys() - (new or {}).keys()]
        _put(changes, field, log, heads)
    return changes


def _put(
    changes: Changes, field: StateField, log: list[tuple[int, Any, Any, bool]], heads: list[tuple[int, int]]
) -> None:
    rows = np.array([entry[0] for entry in log], np.int64)
    values = column_of([entry[2] for entry in log], field.value_type)
    deleted = np.array([entry[3] for entry in log], np.bool_)
    if field.kind is StateKind.VALUE:
        changes.values[field.name] = ValueChange(rows, values, deleted)
        return
    type = pa.int64() if field.kind is StateKind.LIST else field.type.key_type
    changes.entries[field.name] = EntryChange(rows, column_of([e[1] for e in log], type), values, deleted)
    if heads:
        lengths = np.array([length for _, length in heads], np.int64)
        at = np.array([row for row, _ in heads], np.int64)
        changes.headers[field.name] = ValueChange(at, pa.array(lengths), lengths == 0)
