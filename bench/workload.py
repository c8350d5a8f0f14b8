"""The workload that everyone runs: a keyed running sum over slices of rows.

A slice is one Parquet file with columns `k long, value long`. Its rows are a function of their row number
alone, so every contender reads the very same bytes, today and in a year.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "k long, value long"
VALUE_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`rows` per slice over `keys` keys: with 2.5 rows a key, a slice touches about 92 % of all keys.

    `zipf`: the exponent by which the n-th key is rarer than the first; 0: all are equally frequent.
    """

    keys: int
    rows: int
    zipf: float = 0.0

    def __str__(self) -> str:
        skew = f", Zipf({self.zipf})" if self.zipf else ""
        return f"{self.rows:,} rows a slice over {self.keys:,} keys{skew}"


FULL = Workload(keys=100_000, rows=250_000)

SMALL = Workload(keys=20_000, rows=50_000)
"""For the slow ones: a fifth of everything, so that a slice has as many rows for each key as in FULL."""

SLIGHT = Workload(keys=8_000, rows=20_000)
"""For the slowest, in the same proportion."""

TINY = Workload(keys=100_000, rows=10)
"""Next to no data: what is left is the fixed cost of a micro-batch."""


def slice_table(workload: Workload, number: int) -> pa.Table:
    """The rows of one slice; slices are numbered from 0."""
    ids = np.arange(number * workload.rows, (number + 1) * workload.rows, dtype=np.uint64)
    keys = _skewed(mixed(ids), workload) if workload.zipf else mixed(ids) % np.uint64(workload.keys)
    values = (mixed(ids + np.uint64(1 << 40)) % np.uint64(VALUE_MAX)).astype(np.int64)
    return pa.table({"k": keys.astype(np.int64), "value": values})


def write_slices(directory: Path, workload: Workload, slices: int) -> list[Path]:
    """Write the first slices, one file each, in an order that file sources keep (name and time of change)."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(slices):
        path = directory / f"slice-{number:06d}.parquet"
        # Two row groups: a reader with two cores can use both on one file.
        pq.write_table(slice_table(workload, number), path, row_group_size=max(1, workload.rows // 2))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        paths.append(path)
    return paths


def expected_sums(workload: Workload, slices: int) -> dict[int, int]:
    """The right answer after the first slices: key -> sum."""
    sums = np.zeros(workload.keys, dtype=np.int64)
    seen = np.zeros(workload.keys, dtype=bool)
    for number in range(slices):
        table = slice_table(workload, number)
        keys = table["k"].to_numpy()
        np.add.at(sums, keys, table["value"].to_numpy())
        seen[keys] = True
    return {int(key): int(sums[key]) for key in np.flatnonzero(seen)}


def _skewed(numbers: np.typing.NDArray[np.uint64], workload: Workload) -> np.typing.NDArray[np.int64]:
    """The key of each row: the place of its number among the shares of the keys, added up."""
    shares = np.cumsum(np.arange(1, workload.keys + 1, dtype=np.float64) ** -workload.zipf)
    keys: np.typing.NDArray[np.int64] = np.searchsorted(shares, numbers / 2.0**64 * shares[-1])
    return np.minimum(keys, workload.keys - 1)


def mixed(ids: np.typing.NDArray[np.uint64]) -> np.typing.NDArray[np.uint64]:
    """The finalizer of splitmix64: neighbouring numbers come out unrelated. Wraps around on purpose."""
    mixed = ids + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
