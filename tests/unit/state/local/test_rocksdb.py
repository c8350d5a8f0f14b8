"""What is particular to RocksDB: who has it open when, damage in its directory, and its table files."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path

import pytest
import rocksdict

from holdfast.errors import CorruptionError, DefinitionError, StorageError
from holdfast.state.contract import (
    EMPTY_VERSION,
    DeltaStep,
    Entries,
    ShardState,
    SnapshotSource,
    StaleWorkingState,
    StateTarget,
    Version,
)
from holdfast.state.local import directories, rocksdb_store
from holdfast.state.local.backends import backend_named, open_state
from holdfast.state.local.rocksdb_backend import RocksDbShard
from holdfast.state.local.snapshot_reader import look_up, read_snapshot
from holdfast.state.local.sst_reader import Table, UnreadableTable
from holdfast.state.local.tables import Tx
from holdfast.storage.file_lock import FileLock

START = StateTarget(EMPTY_VERSION, 0, 2)
ENTRIES: Entries = [(b"\x00\x00" + number.to_bytes(8, "big"), b"v" * 50) for number in range(20_000)]


def v(epoch: int, result: str = "a") -> Version:
    return Version(epoch, 1, result)


START_AT_1 = StateTarget(v(1), 0, 2, (), (DeltaStep(v(1), EMPTY_VERSION, lambda: ENTRIES),), 1)


def opened(directory: Path, target: StateTarget = START) -> ShardState:
    return open_state(directory, "job", target, backend="rocksdb")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "LOCK_TIMEOUT_S", 0.1)


def filled(directory: Path) -> ShardState:
    state = opened(directory)
    state.apply(EMPTY_VERSION, v(1), ENTRIES, 1)
    return state


def locked(directory: Path) -> bool:
    lock = FileLock(directory / "g00000001/lock")
    taken = lock.try_take()
    lock.release()
    return not taken


# Who has it open


def test_the_directory_is_open_as_long_as_a_handle_is(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert locked(tmp_path)
    first.close()
    assert locked(tmp_path)
    second.close()
    assert not locked(tmp_path)


def test_a_snapshot_lets_go_of_the_directory_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = filled(tmp_path / "shard")
    seen = []
    write_table = rocksdb_store.write_table
    monkeypatch.setattr(
        "holdfast.state.local.rocksdb_backend.write_table",
        lambda to, items: (seen.append(locked(tmp_path / "shard")), write_table(to, items)),
    )
    state.snapshot(tmp_path / "snapshot")
    assert seen == [False]
    assert state.get(ENTRIES[0][0]) == b"v" * 50, "and is opened again by whoever needs it"
    assert sorted(os.listdir(tmp_path / "shard")) == ["g00000001"], "the links are gone"


def test_a_handle_that_let_go_sees_that_the_state_moved(tmp_path: Path) -> None:
    state = filled(tmp_path / "shard")
    state.snapshot(tmp_path / "snapshot")
    other = opened(tmp_path / "shard", START_AT_1)
    other.apply(v(1), v(2), [], 1)
    other.close()
    with pytest.raises(StaleWorkingState):
        state.get(ENTRIES[0][0])


def test_a_read_never_shows_the_write_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = filled(tmp_path), opened(tmp_path, START_AT_1)
    change = threading.Thread(target=lambda: writer.apply(v(1), v(2), [(ENTRIES[0][0], b"new")], 1))
    check = RocksDbShard._check

    def check_then_let_others_try(self: RocksDbShard, tx: Tx) -> None:
        check(self, tx)
        change.start()
        change.join(0.3)

    monkeypatch.setattr(RocksDbShard, "_check", check_then_let_others_try)
    assert reader.get(ENTRIES[0][0]) == b"v" * 50, "of the version that was checked"
    monkeypatch.undo()
    change.join(30)
    assert writer.get(ENTRIES[0][0]) == b"new"


def test_files_that_tasks_leave_are_merged_although_each_task_closes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmerged(directory: Path) -> int:
        """The most files that a read had to look into, over many short tasks."""
        filled(directory).close()
        most = 0
        for epoch in range(2, 2 + 3 * rocksdb_store.UNMERGED_FILES):
            steps = (DeltaStep(v(epoch - 1), EMPTY_VERSION, list),)
            state = opened(directory, StateTarget(v(epoch - 1), 0, 2, (), steps, epoch - 1))
            assert isinstance(state, RocksDbShard)
            with state._database.awake() as store:
                most = max(most, store._db.property_int_value("rocksdb.num-files-at-level0"))
            state.apply(v(epoch - 1), v(epoch), ENTRIES, epoch - 1)
            state.close()
        return most

    assert unmerged(tmp_path / "settled") < rocksdb_store.UNMERGED_FILES
    monkeypatch.setattr(rocksdb_store.Store, "settle", lambda self: None)
    assert unmerged(tmp_path / "hasty") >= rocksdb_store.UNMERGED_FILES


# Damage in the directory


def damaged(directory: Path) -> StateTarget:
    """Working state with a damaged block in the middle, and how to get to its version from nothing."""
    filled(directory).close()
    path = next((directory / "g00000001/rocksdb").glob("*.sst"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    rocksdb_store._cache.cache_clear()
    return START_AT_1


@pytest.mark.parametrize("how", ["scan", "get", "snapshot"])
def test_a_damaged_block_is_never_taken_for_the_end(tmp_path: Path, how: str) -> None:
    target = damaged(tmp_path / "shard")
    state = opened(tmp_path / "shard", target)
    ways = {
        "scan": lambda: list(state.scan(b"")),
        "get": lambda: state.get_many([key for key, _ in ENTRIES]),
        "snapshot": lambda: state.snapshot(tmp_path / "snapshot"),
    }
    with pytest.raises(StaleWorkingState, match="Corruption: block checksum mismatch"):
        ways[how]()
    assert not (tmp_path / "snapshot").exists()
    state.close()
    rebuilt = opened(tmp_path / "shard", target)
    assert list(rebuilt.scan(b"")) == ENTRIES
    assert os.listdir(tmp_path / "shard") == ["g00000002"]


def test_a_directory_that_rocksdb_cannot_open_is_rebuilt(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / "g00000001/rocksdb/CURRENT").write_bytes(b"garbage")
    state = opened(tmp_path, START_AT_1)
    assert list(state.scan(b"")) == ENTRIES


def test_a_write_that_finds_the_disk_full_is_a_storage_error_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = filled(tmp_path)

    class Full:
        def __init__(self, raw_mode: bool) -> None: ...

        def put(self, key: bytes, value: bytes) -> None:
            raise Exception("IO error: No space left on device: While appending to file")

    monkeypatch.setattr(rocksdict, "WriteBatch", Full)
    with pytest.raises(StorageError, match=r"disk full: .*; free space there and try again"):
        state.apply(v(1), v(2), [(ENTRIES[0][0], b"new")], 1)
    monkeypatch.undo()
    assert state.get(ENTRIES[0][0]) == b"v" * 50
    state.apply(v(1), v(2), [(ENTRIES[0][0], b"new")], 1)
    assert state.get(ENTRIES[0][0]) == b"new"


# Table files


def test_a_table_reads_as_rocksdb_reads_it(tmp_path: Path) -> None:
    """Keys that share prefixes or nothing, and lengths on both sides of where their encoding changes."""
    sizes = [0, 1, 126, 127, 128, 129, 300, 5_000, 70_000]
    items = sorted(
        (b"\x00" + bytes([n % 256]) + b"k" * size + b"%d" % n, b"v" * size)
        for n, size in enumerate(sizes * 40)
    )
    rocksdb_store.write_table(tmp_path / "table", items)
    data = (tmp_path / "table").read_bytes()
    table = Table(lambda offset, length: data[offset : offset + length], len(data))
    assert [item for run in table.runs(b"") for item in run] == items
    assert [table.get(key) for key, _ in items] == [value for _, value in items]
    assert [table.get(key + b"\x00") for key, _ in items] == [None] * len(items)
    store = rocksdb_store.Store(tmp_path / "db")
    store.ingest(tmp_path / "table")
    assert store.read(lambda tx: list(tx.items(b"data"))) == items
    store.close()


def test_any_range_of_a_table_is_exactly_that(tmp_path: Path) -> None:
    items = [(b"\x00" + n.to_bytes(3, "big"), b"%d" % n) for n in range(0, 6_000, 2)]
    rocksdb_store.write_table(tmp_path / "table", items)
    data = (tmp_path / "table").read_bytes()
    table = Table(lambda offset, length: data[offset : offset + length], len(data))
    bounds = [b"\x00" + n.to_bytes(3, "big") for n in (0, 1, 2, 777, 778, 5_998, 5_999, 9_999)]
    for first in bounds:
        for end in [*bounds, None]:
            found = [item for run in table.runs(first, end) for item in run]
            assert found == [item for item in items if first <= item[0] and (end is None or item[0] < end)]


def test_a_compressed_table_is_refused(tmp_path: Path) -> None:
    options = rocksdict.Options(raw_mode=True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_block_based_table_factory(rocksdb_store._table_format())
    writer = rocksdict.SstFileWriter(options)
    writer.open(str(tmp_path / "table"))
    for key, value in ENTRIES:
        writer[key] = value
    writer.finish()
    data = (tmp_path / "table").read_bytes()
    with pytest.raises(UnreadableTable, match="compressed"):
        list(Table(lambda offset, length: data[offset : offset + length], len(data)).runs(b""))


def test_looking_up_checks_the_chunks_that_it_touches(tmp_path: Path) -> None:
    state = opened(tmp_path / "shard")
    entries: Entries = [(key, b"v" * 1_500) for key, _ in ENTRIES]
    state.apply(EMPTY_VERSION, v(1), entries, 1)
    path = tmp_path / "snapshot"
    info = state.snapshot(path)
    source = SnapshotSource(v(1), 0, 2, path, info.length, info.chunk_bytes, info.chunks, "rocksdb")
    data = bytearray(path.read_bytes())
    data[info.chunk_bytes + 2_000] ^= 1
    path.write_bytes(data)
    assert look_up(source, [entries[0][0], entries[-1][0]]) == [b"v" * 1_500] * 2, "elsewhere in the file"
    with pytest.raises(CorruptionError, match="damaged in chunk 1 "):
        look_up(source, [entries[len(entries) * info.chunk_bytes * 5 // 4 // info.length][0]])
    with pytest.raises(CorruptionError, match="damaged in chunk 1 "):
        read_snapshot(source, 0, 2)


# Settings


def test_what_is_not_installed_is_named_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DefinitionError, match=r"pip install 'holdfast\[rocksdb\]'"):
        backend_named("rocksdb")
    assert backend_named("lmdb").snapshots == "lmdb"


def test_memory_is_where_it_is_said_to_be_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = backend_named("memory")
    monkeypatch.setenv("HOLDFAST_MEMORY_DIR", str(tmp_path))
    assert memory.root(Path("/disk")) == tmp_path / f"holdfast-{os.getuid()}"
    assert backend_named("lmdb").root(Path("/disk")) == Path("/disk")
    monkeypatch.setenv("HOLDFAST_MEMORY_DIR", str(tmp_path / "none"))
    with pytest.raises(DefinitionError, match=r"no memory file system at .* or use backend='lmdb'"):
        memory.root(Path("/disk"))
