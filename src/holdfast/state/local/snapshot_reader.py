"""Reading snapshots of any backend: for another backend, for converted state, for inspection.

Always true: entries come in key order, each key once; `read_snapshot` gives none before every chunk of the
file was checked.
Never here: working state; what keys and values mean (see layout).
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from typing import cast

from holdfast.errors import CorruptionError, ObjectMissing, RestoreError, StorageError
from holdfast.state.contract import Convert, Entries, SnapshotSource
from holdfast.state.local import snapshot_file
from holdfast.state.local.lmdb_store import Store, release_readonly, share_readonly
from holdfast.state.local.sst_reader import Table, UnreadableTable
from holdfast.state.local.tables import DATA, Tx, UnusableStore

PAGE = 4096
"""Entries that are read, and converted, at a time."""

Item = tuple[bytes, bytes]
Runs = Iterator[list[Item]]


def read_snapshot(source: SnapshotSource, first_group: int, end_group: int) -> Iterator[Item]:
    """The entries of a snapshot whose key group is in the range and in the source's, converted.

    Checks every chunk first, at once: CorruptionError names the damaged one. Then reads as the caller asks
    for more, in bounded memory.
    """
    first, end = max(first_group, source.first_group), min(end_group, source.end_group)
    if first >= end:
        return iter(())
    reader = _reader(source)
    with _explained(source):
        snapshot_file.verify(source)
        runs = reader(source, _group_key(first), _group_key(end) if end < 1 << 16 else None)
    if source.convert is not None:
        runs = _converted(runs, source.convert, source)
    return chain.from_iterable(runs)


def look_up(source: SnapshotSource, keys: Sequence[bytes]) -> list[bytes | None]:
    """The stored values of `keys`, aligned, without reading the whole file; nothing is converted.

    Of a RocksDB file every chunk that is touched is checked. An LMDB file is mapped and only its length and
    first chunk are: damage elsewhere may give a wrong value, or crash LMDB. Where that matters, call
    `snapshot_file.verify` first.
    """
    _reader(source)
    with _explained(source):
        if source.backend == "rocksdb":
            with snapshot_file.opened(source) as file:
                table = Table(_checked_read(source, file), source.length)
                return [table.get(key) for key in keys]
        with snapshot_file.opened(source), _mapped(source) as base:
            return base.read(lambda tx: tx.get_many(DATA, keys))


class OpenSnapshot:
    """A snapshot open for reading one key's entries after another. Every chunk is checked when it is opened.

    The file may be unlinked meanwhile, not changed. For one thread at a time.
    """

    def __init__(self, source: SnapshotSource) -> None:
        _reader(source)
        self._source = source
        self._resources = contextlib.ExitStack()
        with _explained(source):
            snapshot_file.verify(source)
            if source.backend == "rocksdb":
                file = self._resources.enter_context(snapshot_file.opened(source))
                self._table = Table(lambda offset, length: os.pread(file, length, offset), source.length)
            else:
                self._lmdb = self._resources.enter_context(_mapped(source))

    def entries_of(self, base: bytes) -> list[Item]:
        """All entries whose key begins with `base`, converted, in key order."""
        with _explained(self._source):
            if self._source.backend == "rocksdb":
                items = chain.from_iterable(self._table.runs(base))
                found = list(takewhile(lambda item: item[0].startswith(base), items))
            else:
                found = self._lmdb.read(lambda tx: _beginning_with(tx, base))
        convert = self._source.convert
        if convert is None or not found:
            return found
        return [(key, value) for key, value in convert(cast(Entries, found)) if value is not None]

    def close(self) -> None:
        self._resources.close()


def _beginning_with(tx: Tx, base: bytes) -> list[Item]:
    return list(takewhile(lambda item: item[0].startswith(base), tx.items(DATA, base)))


def _lmdb_runs(source: SnapshotSource, first: bytes, end: bytes | None) -> Runs:
    with _explained(source), _mapped(source) as base:
        start: bytes | None = first
        while start is not None:
            page = base.read(lambda tx, start=start: tx.page(DATA, start, PAGE, end))  # type: ignore[misc]
            yield page
            start = page[-1][0] + b"\x00" if len(page) == PAGE else None


def _rocksdb_runs(source: SnapshotSource, first: bytes, end: bytes | None) -> Runs:
    with _explained(source), snapshot_file.opened(source) as file:
        table = Table(lambda offset, length: os.pread(file, length, offset), source.length)
        yield from table.runs(first, end)


_READERS: dict[str, Callable[[SnapshotSource, bytes, bytes | None], Runs]] = {
    "lmdb": _lmdb_runs,
    "rocksdb": _rocksdb_runs,
}


def _reader(source: SnapshotSource) -> Callable[[SnapshotSource, bytes, bytes | None], Runs]:
    try:
        return _READERS[source.backend]
    except KeyError:
        raise RestoreError(
            f"snapshot {source.path} is in the format of backend {source.backend!r}, which this version does "
            "not know; restore with the version that wrote it"
        ) from None


def _converted(runs: Runs, convert: Convert, source: SnapshotSource) -> Runs:
    last, held = b"", list[Item]()
    for run in chain(runs, [list[Item]()]):
        bound = run[-1][0] if run else None
        ready: dict[bytes, bytes] = {}
        for key, value in convert(cast(Entries, run)):
            if value is None:
                continue
            if bound is None or key <= bound:
                ready[key] = value
            else:
                heapq.heappush(held, (key, value))
        while held and (bound is None or held[0][0] <= bound):
            key, value = heapq.heappop(held)
            ready[key] = value
        keys = sorted(ready)
        if keys:
            assert keys[0] > last, f"converting {source.path} changed the order of keys"
            last = keys[-1]
        yield [(key, ready[key]) for key in keys]


@contextlib.contextmanager
def _mapped(source: SnapshotSource) -> Iterator[Store]:
    base = share_readonly(source.path)
    try:
        yield base
    finally:
        release_readonly(base)


@contextlib.contextmanager
def _explained(source: SnapshotSource) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as cause:
        raise ObjectMissing(f"snapshot {source.path} is gone; use a newer checkpoint") from cause
    except OSError as cause:
        raise StorageError(f"cannot read snapshot {source.path}: {cause}; try again") from cause
    except (UnusableStore, UnreadableTable) as cause:
        raise CorruptionError(
            f"snapshot {source.path} is no readable {source.backend} file: {cause}; "
            "restore from another checkpoint"
        ) from cause


def _checked_read(source: SnapshotSource, file: int) -> Callable[[int, int], bytes]:
    """Reads that check each chunk when it is first touched."""
    checked: set[int] = set()

    def read(offset: int, length: int) -> bytes:
        size = source.chunk_bytes
        for index in range(offset // size, (offset + length - 1) // size + 1):
            if index not in checked:
                snapshot_file.check_chunk(source, index, os.pread(file, size, index * size))
                checked.add(index)
        return os.pread(file, length, offset)

    return read


def _group_key(group: int) -> bytes:
    return group.to_bytes(2, "big")
