"""The only door to RocksDB (rocksdict): one directory of tables, open in one process at a time.

Always true: a write happens whole or not at all, also when its process is killed in it: it is one batch, and
goes to the log before anything else. Nothing is synced after a write, so this does not hold for a crash of
the machine: the marker's boot id covers that.
Never here: who may open it when. RocksDB refuses a second process at once, so the process that opens this
directory holds the lock of the one around it as long as it is open (see rocksdb_backend).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import rocksdict

from holdfast.clock import SystemClock
from holdfast.errors import StorageError
from holdfast.state.local.directories import check_room
from holdfast.state.local.sst_reader import FORMAT_VERSION
from holdfast.state.local.tables import DATA, META, RESERVED, TABLES, UnusableStore

CACHE_BYTES = 64 << 20
"""Blocks kept in memory, for all shards of a process together: they outlive the closing of a directory."""
WRITE_BUFFER_BYTES = 64 << 20
LEVEL_BYTES, FILE_BYTES = 64 << 20, 16 << 20
"""Of the first level below the files that tasks leave: bounds what one merging of those reads and writes."""
UNMERGED_FILES = 6
"""Each task leaves a file of what it wrote; this many are merged into the levels below."""
SETTLE_MAX_S = 5.0
"""Shorter than others wait for the lock. What takes longer is done when a write has to wait for it."""
_POLL_S = 0.005
FILTER_BITS = 10
"""Per key. Without the filter every new key is looked for in every level."""

Item = tuple[bytes, bytes]
T = TypeVar("T")
_opened_in: int | None = None
"""The process that first opened something: RocksDB's threads live there, and in no child forked from it."""


class RocksDbTx:
    """See tables.Tx. Tables follow one another: entries under their own keys, others from RESERVED on."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.changes: dict[bytes, bytes | None] = {}

    def get(self, table: bytes, key: bytes) -> bytes | None:
        return self.get_many(table, [key])[0]

    def get_many(self, table: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = _PREFIXES[table]
        wanted = [prefix + key for key in keys] if prefix else list(keys)
        values: list[bytes | None] = self._db.get(wanted)
        if self.changes:
            values = [self.changes.get(key, value) for key, value in zip(wanted, values, strict=True)]
        return values

    def put(self, table: bytes, key: bytes, value: bytes) -> None:
        self.changes[_PREFIXES[table] + key] = value

    def put_many(self, table: bytes, items: Iterable[Item]) -> None:
        prefix = _PREFIXES[table]
        self.changes.update(((prefix + key, value) for key, value in items) if prefix else items)

    def delete_many(self, table: bytes, keys: Iterable[bytes]) -> None:
        prefix = _PREFIXES[table]
        self.changes.update((prefix + key, None) for key in keys)

    def items(self, table: bytes, first: bytes = b"", end: bytes | None = None) -> Iterator[Item]:
        prefix = _PREFIXES[table]
        start, stop = prefix + first, prefix + end if end is not None else _ENDS[table]
        items = _scan(self._db, start, stop)
        if self.changes:
            merged = {**dict(items), **{key: v for key, v in self.changes.items() if start <= key < stop}}
            items = ((key, value) for key, value in sorted(merged.items()) if value is not None)
        return ((key.removeprefix(prefix), value) for key, value in items) if prefix else items

    def page(self, table: bytes, first: bytes, limit: int, end: bytes | None = None) -> list[Item]:
        return list(islice(self.items(table, first, end), limit))


class Store:
    """A directory of tables, open here until `close`. One transaction at a time."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        _refuse_after_fork()
        self.path = path
        access = rocksdict.AccessType.read_only() if readonly else rocksdict.AccessType.read_write()
        with _translated(path):
            self._db: Any = rocksdict.Rdict(str(path), _options(), access_type=access)

    def read(self, work: Callable[[RocksDbTx], T]) -> T:
        """Run `work`. The view is consistent because the caller lets nothing write meanwhile."""
        with _translated(self.path):
            return work(RocksDbTx(self._db))

    def write(self, work: Callable[[RocksDbTx], T], bytes_needed: int = 0) -> T:
        """Run `work`, then write all that it changed in one batch; an exception undoes all of it."""
        check_room(self.path, bytes_needed)
        with _translated(self.path):
            tx = RocksDbTx(self._db)
            result = work(tx)
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in tx.changes.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            self._db.write(batch)
            return result

    def ingest(self, table: Path) -> None:
        """Make the entries of a table file part of an empty directory. The file is taken, not copied."""
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        with _translated(self.path):
            self._db.ingest_external_file([str(table)], options)

    def cut(self, first: bytes, end: bytes) -> None:
        """Remove the entries below `first` and those from `end` on. Costs nothing if there are none."""
        with _translated(self.path):
            for low, high in ((b"", first), (end, RESERVED)):
                if low < high and next(_scan(self._db, low, high), None) is not None:
                    self._db.delete_range(low, high)

    def link_to(self, directory: Path) -> None:
        """Make a directory that shows what this one shows now: of hard links, so at once."""
        with _translated(self.path):
            rocksdict.Checkpoint(self._db).create_checkpoint(str(directory))

    def size_bytes(self) -> int:
        """Bytes in use, those not yet flushed included."""
        names = ("rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        with _translated(self.path):
            return sum(int(self._db.property_int_value(name) or 0) for name in names)

    def settle(self) -> None:
        """Write out what is in memory, and wait while files are being merged, within reason.

        Closing throws away a merging that is under way, and the next opening begins it again.
        """
        with contextlib.suppress(UnusableStore, StorageError), _translated(self.path):
            self._db.flush()
            clock = SystemClock()
            give_up = clock.monotonic() + SETTLE_MAX_S
            while self._is_merging() and clock.monotonic() < give_up:
                clock.sleep(_POLL_S)

    def _is_merging(self) -> bool:
        names = ("rocksdb.compaction-pending", "rocksdb.num-running-compactions")
        return any(self._db.property_int_value(name) for name in names)

    def close(self) -> None:
        # What cannot be flushed now is in the log, and comes from there at the next opening.
        with contextlib.suppress(UnusableStore, StorageError), _translated(self.path):
            self._db.close()
        self._db = None

    def abandon(self) -> None:
        """In a forked child: never touch this again. Closing would wait for threads that are not here."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))


def write_table(path: Path, items: Iterable[Item]) -> None:
    """Write sorted items, at least one, to a new table file that `sst_reader` and RocksDB read."""
    with _translated(path):
        writer = rocksdict.SstFileWriter(_table_options())
        writer.open(str(path))
        for key, value in items:
            writer[key] = value
        writer.finish()


def marker_item(key: bytes, marker: bytes) -> Item:
    """The marker as an item of a table file: above all entries."""
    return _PREFIXES[META] + key, marker


def _scan(db: Any, first: bytes, end: bytes) -> Iterator[Item]:
    bounds = rocksdict.ReadOptions()
    bounds.set_iterate_upper_bound(end)
    key = None
    for key, value in db.items(from_key=first, read_opt=bounds):
        yield key, value
    # rocksdict ends an iteration at a block that cannot be read as if it were the last one.
    after = db.iter(bounds)
    after.seek(first if key is None else key + b"\x00")
    if after.valid():
        raise UnusableStore(f"an iteration ended at {key!r}, before the last entry")
    after.status()


def _options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_level_zero_file_num_compaction_trigger(UNMERGED_FILES)
    options.set_max_bytes_for_level_base(LEVEL_BYTES)
    options.set_target_file_size_base(FILE_BYTES)
    options.set_target_file_size_multiplier(2)
    # Opened and closed with every task: no work that only pays for itself later.
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    table = _table_format()
    table.set_block_cache(_cache())
    options.set_block_based_table_factory(table)
    return options


def _table_options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_block_based_table_factory(_table_format())
    return options


def _table_format() -> rocksdict.BlockBasedOptions:
    table = rocksdict.BlockBasedOptions()
    table.set_format_version(FORMAT_VERSION)
    table.set_index_type(rocksdict.BlockBasedIndexType.binary_search())
    table.set_index_block_restart_interval(1)
    table.set_bloom_filter(FILTER_BITS, False)
    return table


@functools.cache
def _cache() -> rocksdict.Cache:
    return rocksdict.Cache(CACHE_BYTES)


def _refuse_after_fork() -> None:
    global _opened_in
    _opened_in = _opened_in or os.getpid()
    if _opened_in != os.getpid():
        raise StorageError(
            f"process {os.getpid()} was forked from {_opened_in}, which had RocksDB in use, and RocksDB does "
            "not survive a fork; start a new process, or use backend='lmdb'"
        )


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as cause:
        # rocksdict raises bare Exceptions, with RocksDB's own words.
        if type(cause) not in (Exception, rocksdict.DbClosedError):
            raise
        if "No space left" in str(cause):
            raise StorageError(f"disk full: {path}: {cause}; free space there and try again") from cause
        raise UnusableStore(f"{path}: {cause}") from cause


_PREFIXES = {table: b"" if table == DATA else RESERVED + table for table in TABLES}
_ENDS = {table: prefix + b"\xff" if prefix else RESERVED for table, prefix in _PREFIXES.items()}
