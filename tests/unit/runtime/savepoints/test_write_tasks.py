"""What the tasks that write state do with their input, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.runtime.savepoints import write_tasks
from holdfast.runtime.savepoints.write_tasks import WriteTask, regrouped
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.files.delta import read_delta, to_entries
from holdfast.state.files.rows import Item, row_schema, rows_of
from holdfast.storage.urls import open_storage

LAYOUT = StateLayout(
    "op", pa.schema([("k", pa.string())]), (StateField(0, "n", StateKind.VALUE, pa.int64()),)
)
GROUPS = 16
LONG = "x" * 900


def rows(keys: list[str]) -> pa.Table:
    """State of some keys, sorted by key group, as Spark hands it to a task."""
    users = pa.array(keys)
    groups = pa.array(key_groups_of(routing_hash([users]), GROUPS), pa.int32())
    numbers = pa.array(range(len(keys)), pa.int64())
    return pa.table([users, numbers, groups], schema=row_schema(LAYOUT)).sort_by("key_group")


def task(place: Path, groups: KeyGroupRange, form: str = "rows") -> WriteTask:
    return WriteTask(str(place), LAYOUT, form, "key_group", (groups,), 1)  # type: ignore[arg-type]


def batches(table: pa.Table, size: int) -> Iterator[pa.RecordBatch]:
    return iter(table.to_batches(max_chunksize=size))


@pytest.mark.parametrize("size", [7, 60, 10_000])
def test_files_are_cut_between_key_groups_and_cover_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(write_tasks, "FILE_ROWS", 50)
    whole = KeyGroupRange(KeyGroup(0), KeyGroup(GROUPS))
    table = rows([f"u{i}" for i in range(400)])
    written = list(task(tmp_path, whole).written(batches(table, size), whole))
    edges = [(file.first_group, file.end_group) for file in written]
    assert edges[0][0] == 0
    assert edges[-1][1] == GROUPS
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    assert len(written) > 1 or size > 400
    found: list[Item] = []
    for file in written:
        assert file.extent is not None
        data = open_storage(str(tmp_path)).get(file.extent.object)
        entries = to_entries(LAYOUT, read_delta(LAYOUT, data, "d"))
        assert len(entries) == file.entries
        assert all(file.first_group <= int.from_bytes(e[0][:2], "big") < file.end_group for e in entries)
        found += entries  # type: ignore[arg-type]
    assert rows_of(LAYOUT, found).sort_by("n").column("k").to_pylist() == [f"u{i}" for i in range(400)]


def test_a_shard_without_rows_has_no_file(tmp_path: Path) -> None:
    whole = KeyGroupRange(KeyGroup(0), KeyGroup(GROUPS))
    assert list(task(tmp_path, whole).written(iter([]), whole)) == []


def test_a_key_twice_is_found_also_when_it_comes_in_another_batch(tmp_path: Path) -> None:
    whole = KeyGroupRange(KeyGroup(0), KeyGroup(GROUPS))
    table = rows([*(f"u{i}" for i in range(50)), "u7"])
    with pytest.raises(DefinitionError, match="k='u7' more than once"):
        list(task(tmp_path, whole).written(batches(table, 1), whole))


def test_entries_go_to_the_key_group_of_another_number_of_them(tmp_path: Path) -> None:
    table = rows([*(f"u{i}" for i in range(40)), LONG])
    whole = KeyGroupRange(KeyGroup(0), KeyGroup(GROUPS))
    (file,) = task(tmp_path, whole).written(batches(table, 100), whole)
    assert file.extent is not None
    storage = open_storage(str(tmp_path))
    entries = to_entries(LAYOUT, read_delta(LAYOUT, storage.get(file.extent.object), "d"))
    moved = regrouped(LAYOUT, entries, 5)  # type: ignore[arg-type]
    ordered = pa.Table.from_batches([moved]).sort_by([("key_group", "ascending"), ("key", "ascending")])
    five = KeyGroupRange(KeyGroup(0), KeyGroup(5))
    (again,) = task(tmp_path / "b", five, "entries").written(batches(ordered, 9), five)
    assert again.extent is not None
    data = open_storage(str(tmp_path / "b")).get(again.extent.object)
    read = rows_of(LAYOUT, to_entries(LAYOUT, read_delta(LAYOUT, data, "d")))  # type: ignore[arg-type]
    assert read.num_rows == 41
    expected = key_groups_of(routing_hash([read.column("k").combine_chunks()]), 5)
    assert read.column("key_group").to_pylist() == expected.tolist()
