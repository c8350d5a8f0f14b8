"""Point queries: the committed state of one key, read from storage, whether or not the job runs.

Always true: every answer is of the newest commit in storage when it was asked for, and says of which; it
never mixes two commits. The leader takes no part in it.
A reader keeps what it has read of deltas, up to `cache_bytes`, and has snapshots open; a snapshot is verified
whole when it is first opened. So the first query costs that, and the next ones a look at each delta.
"""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from holdfast.checkpoint.chain.history import History, NewestCommit
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import DeltaFile, SnapshotFile
from holdfast.clock import Clock, SystemClock
from holdfast.errors import DefinitionError, ObjectMissing
from holdfast.inspect.stored_state import StoredState, local_snapshot, open_stored
from holdfast.state.encoding.arrow_values import column_of
from holdfast.state.encoding.coercion import Misfit
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import StateKind, StateLayout
from holdfast.state.encoding.types import type_ddl
from holdfast.state.files.delta import Entry, OpenDelta, open_delta, to_entries
from holdfast.state.files.rows import column_names, live_items, rows_of
from holdfast.state.files.schema_conversion import Lineage
from holdfast.state.local.snapshot_reader import OpenSnapshot
from holdfast.storage.checksums import read_extent
from holdfast.storage.contract import Storage

CACHE_BYTES = 256 << 20
LIST_SECONDS = 1.0
"""How long names of commits may be probed one by one before they are listed again."""
TRIES_MAX = 5
"""How often a query starts over because the job deleted, meanwhile, what the commit before last needed."""
ENTRY_BYTES = 150
"""About what a key or an entry takes as Python objects."""

Files = tuple[SnapshotFile | None, list[DeltaFile]]
"""Where the state of a key group is: a snapshot, and the deltas since, newest first."""


@dataclass(frozen=True)
class KeyState:
    """What one key's state was after `commit`. `values`: state name -> value; None: nothing is stored."""

    key: dict[str, Any]
    values: dict[str, Any]
    found: bool
    """Whether the key has any state."""
    commit: int
    epoch: int


class StateReader:
    """Reads single keys of one checkpoint or savepoint. Safe to use from several threads, one at a time."""

    def __init__(self, url: str, *, cache_bytes: int = CACHE_BYTES, clock: Clock | None = None) -> None:
        """Open what is at `url`. RestoreError: there is neither checkpoint nor savepoint."""
        self._clock = clock or SystemClock()
        self._stored = open_stored(url)
        self._history = History(self._stored.storage)
        self._newest = NewestCommit(self._history, self._clock, LIST_SECONDS)
        self._lock = threading.Lock()
        self._lookup = KeyLookup(cache_bytes)

    def get(self, uid: str, key: Mapping[str, Any] | Any) -> KeyState:
        """The state of one key after the newest commit: under 50 ms once the reader is warm.

        `key`: column -> value, or the bare value where the key is one column. RestoreError: there is no such
        operator. DefinitionError: the key is not of the operator's key type.
        """
        with self._lock:
            for tries_left in reversed(range(TRIES_MAX)):
                self._follow()
                try:
                    return self._read(uid, key)
                except (ObjectMissing, FileNotFoundError):
                    # Given up and deleted since: there must be a newer commit. If not, it is a loss.
                    before = self._stored.view.number
                    if self._stored.savepoint or not tries_left:
                        raise
                    self._reload()
                    if self._stored.view.number == before:
                        raise
        raise AssertionError("every try returns or raises")

    def layout(self, uid: str) -> StateLayout:
        """How an operator's state looks. RestoreError: there is no such operator."""
        with self._lock:
            return self._stored.layout(uid)

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            self._lookup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self) -> None:
        """Go to the newest commit."""
        stored = self._stored
        if stored.savepoint:
            return
        if not self._newest.is_still(stored.view):
            self._reload()

    def _reload(self) -> None:
        view = self._newest.load()
        if (view.number, view.checksum) == (self._stored.view.number, self._stored.view.checksum):
            return
        self._history.forget_below(view.number)
        old = self._stored
        self._stored = StoredState(old.storage, view, old.key_groups, old.job, "")
        self._lookup.forget_all_but(view)

    def _read(self, uid: str, key: Mapping[str, Any] | Any) -> KeyState:
        lineage, view = self._stored.lineage(uid), self._stored.view
        layout = lineage.layout
        columns = key_columns(layout, key)
        groups = key_groups_of(routing_hash(columns), self._stored.key_groups)
        base = layout.keys.encode(columns, groups)[0]
        entries = self._lookup.entries(self._stored, lineage, base)
        live = live_items(layout, sorted(entries.items()), self._stored.instants(uid))
        row = rows_of(layout, live)
        states, _ = column_names(layout)
        given = dict(zip(layout.key.names, (column[0].as_py() for column in columns), strict=True))
        values = {
            state.name: _object(row.column(name)) if row.num_rows else None
            for state, name in zip(layout.fields, states, strict=True)
        }
        return KeyState(given, values, row.num_rows > 0, view.number, view.last_epoch)


class KeyLookup:
    """Finds the entries of single keys in the files of one storage, and remembers what it has read of them.

    For one thread at a time.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._cache = _Cache(cache_bytes)
        self._files: dict[tuple[int, str, str, int], Files] = {}
        self._snapshots: dict[tuple[str, str], OpenSnapshot] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-query-")

    def forget_all_but(self, view: CheckpointView) -> None:
        """Let go of the snapshots that a view does not have. Deltas go when others need the room."""
        self._files.clear()
        live = {file.object for files in view.snapshots.values() for file in files}
        for name in [name for name in self._snapshots if name[0] not in live]:
            self._snapshots.pop(name).close()

    def close(self) -> None:
        """Let go of all files."""
        for opened in self._snapshots.values():
            opened.close()
        self._snapshots.clear()
        self._scratch.cleanup()

    def entries(self, stored: StoredState, lineage: Lineage, base: bytes) -> dict[bytes, bytes]:
        """All entries of a key: what the deltas say, newest first, and below that the snapshot."""
        layout = lineage.layout
        snapshot, deltas = self._files_of(stored.view, layout.operator, int.from_bytes(base[:2], "big"))
        found: dict[bytes, bytes | None] = {}
        only_values = all(state.kind is StateKind.VALUE for state in layout.fields)
        wanted = {base + state.suffix for state in layout.fields}
        for delta in deltas:
            for entry, value in self._changed(stored.storage, lineage, delta, base):
                found.setdefault(entry, value)
            if only_values and wanted <= found.keys():
                break
        else:
            if snapshot is not None:
                for entry, value in self._snapshot(stored.storage, lineage, snapshot).entries_of(base):
                    found.setdefault(entry, value)
        return {entry: value for entry, value in found.items() if value is not None}

    def _files_of(self, view: CheckpointView, uid: str, group: int) -> Files:
        name = (view.number, view.checksum, uid, group)
        if name not in self._files:
            self._files[name] = _files(view, uid, group)
        return self._files[name]

    def _changed(self, storage: Storage, lineage: Lineage, file: DeltaFile, base: bytes) -> list[Entry]:
        """What one delta says of a key."""
        at = (file.extent.object, file.extent.offset)
        known = self._cache.get((*at, base))
        if isinstance(known, list):
            return known
        delta = self._cache.get(at)
        if not isinstance(delta, _IndexedDelta):
            opened = open_delta(read_extent(storage, file.extent), file.extent.object)
            delta = _IndexedDelta(opened, lineage.at(opened.generation, f"delta {opened.name}"))
            self._cache.put(at, delta, delta.size_bytes)
        entries = delta.entries_of(base)
        if not entries:
            return []
        convert = lineage.converter(delta.generation, f"delta {file.extent.object}")
        entries = entries if convert is None else convert(entries)
        self._cache.put((*at, base), entries, ENTRY_BYTES * len(entries))
        return entries

    def _snapshot(self, storage: Storage, lineage: Lineage, file: SnapshotFile) -> OpenSnapshot:
        # By schema too: the same file is converted otherwise after the operator's schema has changed.
        name = (file.object, lineage.fingerprint)
        if name not in self._snapshots:
            scratch = Path(self._scratch.name)
            source = local_snapshot(storage, lineage, file, scratch)
            try:
                self._snapshots[name] = OpenSnapshot(source)
            finally:
                if source.path.parent == scratch:
                    # It stays open, and its room is free again as soon as it is closed.
                    source.path.unlink()
        return self._snapshots[name]


def _files(view: CheckpointView, uid: str, group: int) -> Files:
    """The newest snapshot that has a key group, and the deltas since that may have changed it, newest first.

    What `line_of` says of that key group, without what only a whole shard needs.
    """
    snapshots = [file for file in view.snapshots.get(uid, ()) if file.first_group <= group < file.end_group]
    newest = max(snapshots, key=lambda file: file.version.epoch, default=None)
    since = newest.version.epoch if newest else 0
    deltas = [
        delta
        for (first, end), of_range in view.deltas.get(uid, {}).items()
        if first <= group < end
        for delta in of_range
        if delta.version.epoch > since
    ]
    return newest, sorted(deltas, key=lambda delta: delta.version.epoch, reverse=True)


class _IndexedDelta:
    """A delta in memory in which a key's rows are found by hash."""

    def __init__(self, delta: OpenDelta, layout: StateLayout) -> None:
        self._delta, self._layout, self.generation = delta, layout, delta.generation
        bases = delta.bases(layout)
        hashes = np.fromiter(map(xxh3_64_intdigest, bases), np.uint64, len(bases))
        # Stable: rows of a key are neighbours, and stay in their order.
        self._rows = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes = hashes[self._rows]

    @property
    def size_bytes(self) -> int:
        return self._delta.size_bytes + self._hashes.nbytes + self._rows.nbytes

    def entries_of(self, base: bytes) -> list[Entry]:
        hash = np.uint64(xxh3_64_intdigest(base))
        low = int(self._hashes.searchsorted(hash))
        if low == len(self._hashes) or self._hashes[low] != hash:
            return []
        rows = self._rows[low : int(self._hashes.searchsorted(hash, "right"))]
        # Different keys of one hash may lie apart: look at all between, and keep what is this key's.
        part = self._delta.part(int(rows[0]), int(rows[-1]) + 1)
        return [e for e in to_entries(self._layout, part.changes(self._layout)) if e[0].startswith(base)]


class _Cache:
    """The things used last, as many as fit in `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._things: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()

    def get(self, name: Hashable) -> object:
        known = self._things.get(name)
        if known is None:
            return None
        self._things.move_to_end(name)
        return known[0]

    def put(self, name: Hashable, thing: object, size: int) -> None:
        self._used += size - self._things.pop(name, (None, 0))[1]
        self._things[name] = (thing, size)
        while self._used > self._limit and len(self._things) > 1:
            _, (_, freed) = self._things.popitem(last=False)
            self._used -= freed


def key_columns(layout: StateLayout, key: Mapping[str, Any] | Any) -> list[pa.Array]:
    """One row of key columns. DefinitionError says what does not fit."""
    names_wanted = layout.key.names
    if not isinstance(key, Mapping) and len(names_wanted) == 1:
        key = {names_wanted[0]: key}
    if not isinstance(key, Mapping) or set(key) != set(names_wanted):
        declared = ", ".join(f"{field.name} {type_ddl(field.type)}" for field in layout.key)
        raise DefinitionError(
            f"{key!r} is no key of operator {layout.operator!r}; give a value for each of: {declared}"
        )
    columns = []
    for field in layout.key:
        try:
            columns.append(column_of([key[field.name]], field.type))
        except Misfit as misfit:
            raise DefinitionError(
                f"key column {field.name!r} of operator {layout.operator!r} is {type_ddl(field.type)}, "
                f"not {misfit.value!r}; give a value of that type"
            ) from None
    return columns


def _object(column: pa.ChunkedArray) -> Any:
    """The one value in a column. A map is a dict, or pairs where its keys cannot be those of a dict."""
    value = column[0]
    if pa.types.is_map(column.type) and pa.types.is_nested(column.type.key_type):
        return value.as_py()
    return value.as_py(maps_as_pydicts="strict")
