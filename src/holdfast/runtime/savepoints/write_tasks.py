"""What runs in Spark tasks when state is written as such: rows or entries become deltas in a savepoint.

Always true: a task's input is sorted by key group, so that it holds about `FILE_ROWS` rows at a time; a key
group is never parted; a file has a name that no other attempt has, and counts only if the driver chooses it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent
from holdfast.errors import HoldfastError, RetryableError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.inspect.stored_state import open_stored, state_entries
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import LONG_KEY_ID, StateLayout
from holdfast.state.files.changes import Changes
from holdfast.state.files.delta import to_entries, write_delta
from holdfast.state.files.rows import Item, changes_from, changes_of
from holdfast.storage.checksums import checksum
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import RESULT_SCHEMA, Failure

FILE_ROWS = 250_000
"""Rows after which a task begins the next file, at the next key group."""

ENTRY_SCHEMA = "key_group int, key binary, value binary"
"""Entries on their way to another key group: the key without the two bytes of its group."""


class Written(msgspec.Struct, frozen=True):
    """One delta that a task wrote, or why it could not."""

    first_group: int = 0
    end_group: int = 0
    entries: int = 0
    extent: Extent | None = None
    failure: Failure | None = None


decode_written = msgspec.msgpack.Decoder(Written).decode


@dataclass(frozen=True)
class WriteTask:
    """Rows (of `row_schema`) or entries (of ENTRY_SCHEMA), sorted by key group -> deltas from nothing."""

    url: str
    layout: StateLayout
    form: Literal["rows", "entries"]
    group_column: str
    shards: tuple[KeyGroupRange, ...]
    epoch: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        groups = self.shards[context.partitionId()]
        try:
            for written in self.written(batches, groups):
                yield _as_batch(written)
        except RetryableError:
            raise
        except HoldfastError as error:
            yield _as_batch(Written(failure=Failure(type(error).__name__, error.args)))

    def written(self, batches: Iterator[pa.RecordBatch], groups: KeyGroupRange) -> Iterator[Written]:
        first = int(groups.first)
        held: list[pa.RecordBatch] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(batch)
            if sum(part.num_rows for part in held) < FILE_ROWS:
                continue
            # The last key group seen may go on in the next batch.
            table = pa.Table.from_batches(held)
            last = table.column(self.group_column)[-1].as_py()
            whole = pc.less(table.column(self.group_column), last)
            if last > first and pc.any(whole).as_py():
                yield self._file(table.filter(whole), first, last)
                first, held = last, table.filter(pc.invert(whole)).to_batches()
        if held:
            yield self._file(pa.Table.from_batches(held), first, groups.end)

    def _file(self, table: pa.Table, first: int, end: int) -> Written:
        changes = self._changes(table)
        data = write_delta(self.layout, changes)
        name = f"{names.data_of(self.epoch)}{self.layout.operator}-{first}-{uuid.uuid4().hex}.delta.parquet"
        open_storage(self.url).put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
        return Written(first, end, len(to_entries(self.layout, changes)), extent)

    def _changes(self, table: pa.Table) -> Changes:
        if self.form == "rows":
            return changes_of(self.layout, table)
        groups = table.column(self.group_column).to_numpy().astype(">u2").tobytes()
        keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
        prefixes = [groups[at : at + 2] for at in range(0, len(groups), 2)]
        return changes_from(self.layout, zip(map(add, prefixes, keys), values, strict=True))


def _as_batch(written: Written) -> pa.RecordBatch:
    column = RESULT_SCHEMA.split()[0]
    return pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(written)], pa.binary())], [column])


@dataclass(frozen=True)
class RegroupTask:
    """Piece numbers -> the entries of these pieces, with the key groups of another number of them."""

    url: str
    uid: str
    pieces: tuple[tuple[int, int], ...]
    key_groups: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stored = open_stored(self.url)
        layout = stored.layout(self.uid)
        for batch in batches:
            for piece in batch.column(0).to_pylist():
                first, end = self.pieces[piece]
                groups = KeyGroupRange(KeyGroup(first), KeyGroup(end))
                for run in state_entries(stored, self.uid, groups):
                    yield regrouped(layout, list(run), self.key_groups)


def regrouped(layout: StateLayout, run: list[Item], key_groups: int) -> pa.RecordBatch:
    """Entries of whole keys, each with the key group that its key has among `key_groups`."""
    bases: list[bytes] = []
    long_keys: dict[bytes, bytes] = {}
    rows = np.empty(len(run), np.int64)
    base = None
    for at, (key, value) in enumerate(run):
        if base is None or not key.startswith(base):
            base = key[: layout.keys.base_length(key)]
            bases.append(base)
        if key[len(base)] == LONG_KEY_ID:
            long_keys[base] = value
        rows[at] = len(bases) - 1
    groups = key_groups_of(routing_hash(layout.keys.decode(bases, long_keys)), key_groups)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(groups[rows].astype(np.int32)),
            pa.array([key[2:] for key, _ in run], pa.binary()),
            pa.array([value for _, value in run], pa.binary()),
        ],
        ["key_group", "key", "value"],
    )
