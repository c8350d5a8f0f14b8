"""Numbers that could be mixed up, as types.

Each says which mix-up it prevents. Ranges are half-open: `first` is in, `end` is out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NewType

EpochId = NewType("EpochId", int)
"""Numbers epochs from 1. Not a commit number: one commit may cover several epochs."""

CommitNumber = NewType("CommitNumber", int)
"""Numbers commit records densely from 1. Never derived from an epoch: a barrier may move."""

Term = NewType("Term", int)
"""The fencing number of a leader. Not a restart count: it grows only when the leader's seat is claimed."""

PlanAttempt = NewType("PlanAttempt", int)
"""Numbers the plans written for one epoch from 1. Not Spark's task attempt: results belong to (epoch,
attempt).
"""

KeyGroup = NewType("KeyGroup", int)
"""One fixed slice of the key space. Not a shard: a key never changes its key group, shards come and go."""

ShardId = NewType("ShardId", int)
"""The Spark partition that owns some key groups in an epoch. Not a key group."""

NO_EPOCH = EpochId(0)


def epochs_told(first: int, last: int) -> str:
    """`epoch 15`, `epochs 15 to 17`: both are in."""
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Half-open range of key groups: `first` is in, `end` is out."""

    first: KeyGroup
    end: KeyGroup

    def __contains__(self, group: object) -> bool:
        return isinstance(group, int) and self.first <= group < self.end

    def __str__(self) -> str:
        return f"{self.first}-{self.end - 1}"


def shard_ranges(key_groups: int, parallelism: int) -> tuple[KeyGroupRange, ...]:
    """Cut the key groups into contiguous shards whose sizes differ by at most one."""
    assert 1 <= parallelism <= key_groups, f"{parallelism} shards cannot share {key_groups} key groups"
    bounds = [shard * key_groups // parallelism for shard in range(parallelism + 1)]
    return tuple(KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in pairwise(bounds))
