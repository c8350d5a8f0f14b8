"""Rows as the bytes of a Parquet file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.parquet_rows import parquet_bytes

ROWS = 20_000


def dictionaries(table: pa.Table) -> list[bool]:
    """Which leaf columns of the file have a dictionary; the rows come back in any case."""
    data = parquet_bytes([table])
    assert pq.read_table(pa.BufferReader(data)).equals(table)
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    return [group.column(leaf).has_dictionary_page for leaf in range(group.num_columns)]


def test_only_columns_whose_values_come_again_have_a_dictionary() -> None:
    table = pa.table(
        {
            "user": pa.array(f"user {n % 100}" for n in range(ROWS)),
            "id": pa.array(range(ROWS)),
            "nothing": pa.nulls(ROWS),
            "seldom": pa.array(n if n % 10 == 0 else None for n in range(ROWS)),
        }
    )
    user, id, _, seldom = dictionaries(table)
    assert (user, id, seldom) == (True, False, True)


def test_parts_of_nested_columns_have_one_as_before() -> None:
    table = pa.table({"tags": pa.array([["a", "b"]] * ROWS), "id": pa.array(range(ROWS))})
    assert dictionaries(table)[0]


def test_a_file_without_rows_has_its_columns() -> None:
    dictionaries(pa.table({"user": pa.array([], pa.string())}))
