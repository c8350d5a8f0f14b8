"""What is varied: a point says how large a job is, an axis is the points that differ in one thing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

CPUS = os.cpu_count() or 1
STATE_BYTES_PER_KEY = 500
"""On the disk at the highest: working state, two snapshots, deltas that are retained."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """`executors`: of one core each, one shard on each unless `shards` says otherwise. Of the `rows` of an
    epoch each `touched` key has the same share."""

    keys: int = 100_000
    executors: int = 2
    groups: int = 128
    operators: int = 1
    """One after the other."""
    sinks: int = 1
    rows: int = 100_000
    touched: int = 50_000
    shards: int = 0

    @property
    def tasks(self) -> int:
        """Of an epoch, those that have an operator's state."""
        return self.operators * (self.shards or self.executors)

    @property
    def cores(self) -> int:
        """How many tasks this machine runs at the same time."""
        return min(self.executors, CPUS)

    @property
    def rows_of_operators(self) -> int:
        """The first has the rows, each other one the keys that the one before it touched."""
        return self.rows + (self.operators - 1) * self.touched

    @property
    def keys_of_operators(self) -> int:
        return self.operators * self.touched

    @property
    def disk_bytes(self) -> int:
        return self.keys * self.operators * STATE_BYTES_PER_KEY


FULL: Mapping[str, tuple[int, ...]] = {
    "keys": (100_000, 1_000_000, 10_000_000, 100_000_000),
    "executors": (1, 2, 3, 4),
    "groups": (128, 256, 512, 1_024, 2_048, 4_096),
    "operators": (1, 2, 5, 10, 25, 50),
    "sinks": (1, 2, 5, 10, 20),
    "shards": (2, 4, 8, 16, 32, 64),
    "rows": (50_000, 100_000, 250_000, 500_000),
    "touched": (1_000, 10_000, 50_000, 100_000),
}
"""The first five are what a user chooses; the others tell the model what a task, a row and a key cost."""
QUICK: Mapping[str, tuple[int, ...]] = {
    "keys": (2_000, 20_000),
    "executors": (1, 2),
    "groups": (128, 256),
    "operators": (1, 3),
    "sinks": (1, 3),
    "shards": (2, 4),
    "rows": (2_000, 8_000),
    "touched": (500, 1_000),
}
FULL_DEFAULT = Point()
QUICK_DEFAULT = Point(keys=2_000, rows=2_000, touched=1_000)


def axis(name: str, values: tuple[int, ...], usual: Point) -> list[Point]:
    return [replace(usual, **{name: value}) for value in values]
