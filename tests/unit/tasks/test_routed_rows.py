"""Rows that tasks read and route by themselves: every one comes to its shard, once, however it goes there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from holdfast.connectors.contract import Pieces
from holdfast.ids import shard_ranges
from holdfast.state.encoding.keys import GROUP_COLUMN, key_groups_of, routing_hash
from holdfast.tasks import routed_rows
from holdfast.tasks.routed_rows import PACKED, SHARD_COLUMN, RoutedRows, unpacked
from tests.unit.state.encoding.routing_cases import CASES


@dataclass(frozen=True)
class Read:
    """Pieces of a table, in batches of three rows."""

    pieces: tuple[pa.Table, ...]

    def __call__(self, number: int) -> Iterator[pa.RecordBatch]:
        yield from self.pieces[number].to_batches(max_chunksize=3)


def routed(table: pa.Table, shards: int, key_groups: int, cuts: int = 2) -> tuple[RoutedRows, pa.Table]:
    """The rows in pieces; and all of them, numbered, as they were."""
    key = tuple(table.column_names)
    rows = table.append_column("row", pa.array(range(table.num_rows)))
    size = -(-rows.num_rows // cuts)
    pieces = tuple(rows.slice(start, size) for start in range(0, rows.num_rows, size))
    read = Read(pieces)
    return RoutedRows(Pieces(len(pieces), rows.num_rows, read), key, key_groups, shards), rows


def wanted(table: pa.Table, shard: int, shards: int, key_groups: int) -> dict[int, int]:
    """Row -> key group, of the rows of a shard."""
    columns = [column.combine_chunks() for column in table.columns]
    groups = key_groups_of(routing_hash(columns), key_groups).tolist()
    mine = shard_ranges(key_groups, shards)[shard]
    return {row: group for row, group in enumerate(groups) if mine.first <= group < mine.end}


def found(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        pair
        for batch in batches
        for pair in zip(batch.column("row").to_pylist(), batch.column(GROUP_COLUMN).to_pylist(), strict=True)
    ]


@pytest.mark.parametrize(("shards", "key_groups"), [(1, 1), (2, 128), (3, 128), (5, 7), (7, 7)])
@pytest.mark.parametrize("name", CASES)
def test_every_row_comes_to_its_shard_once(name: str, shards: int, key_groups: int) -> None:
    table = CASES[name]
    rows, _ = routed(table, shards, key_groups)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(rows.pieces.count))], names=["id"])
    packed = list(rows.pack([numbers]))
    for shard in range(shards):
        mine = [
            batch.filter(pa.array([each == shard for each in batch.column(SHARD_COLUMN).to_pylist()]))
            for batch in packed
        ]
        expected = wanted(table, shard, shards, key_groups)
        assert sorted(found(unpacked(mine))) == sorted(expected.items())
        assert sorted(found(rows.of_shard(shard))) == sorted(expected.items())


def test_a_long_piece_is_handed_on_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is what one task has in hand, not what its piece has."""
    monkeypatch.setattr(routed_rows, "PACKED_BYTES", 1)
    rows, _ = routed(pa.table({"k": list(range(30))}), shards=2, key_groups=16, cuts=1)
    packed = list(rows.pack([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])]))
    assert len(packed) == 30
    assert all(batch.num_rows == 1 for batch in packed)
    assert sorted(row for row, _ in found(unpacked(packed))) == list(range(30))


def test_rows_that_are_large_are_packed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them one batch has."""
    table = pa.table({"k": [str(n) * 1_000 for n in range(64)]}).combine_chunks()
    monkeypatch.setattr(routed_rows, "PACKED_BYTES", table.nbytes // 8)
    whole = RoutedRows(Pieces(1, 64, lambda number: table.to_batches()), ("k",), 16, 1)
    packed = list(whole.pack([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])]))
    assert max(batch.nbytes for batch in packed) < table.nbytes // 4
    assert sum(rows.num_rows for rows in unpacked(packed)) == 64


def test_rows_of_a_key_keep_the_order_of_their_piece() -> None:
    rows, _ = routed(pa.table({"k": [n % 2 for n in range(40)]}), shards=4, key_groups=16, cuts=1)
    (packed,) = rows.pack([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])])
    assert packed.schema.names == [SHARD_COLUMN, PACKED]
    for shard in range(4):
        one = packed.filter(pa.array([each == shard for each in packed.column(SHARD_COLUMN).to_pylist()]))
        for batch in unpacked([one]):
            numbers = batch.column("row").to_pylist()
            assert numbers == sorted(numbers)


def test_no_rows_are_no_rows() -> None:
    empty = RoutedRows(Pieces(0, 0, Read(())), ("k",), 16, 2)
    assert empty.of_shard(1) == []
    nothing = RoutedRows(Pieces(1, 0, Read((pa.table({"k": pa.array([], pa.int64())}),))), ("k",), 16, 2)
    assert list(nothing.pack([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])])) == []
