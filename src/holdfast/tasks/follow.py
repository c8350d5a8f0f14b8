"""What runs inside a Spark task of a hot standby: bring shards to a committed version, and nothing else.

It goes the way of a takeover (working_state.open_shard), so that a takeover finds nothing left to do.
Always true: nothing is written to storage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.errors import HoldfastError
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import Arrival
from holdfast.state.files.schema_conversion import Lineage
from holdfast.tasks.messages import Failure, TaskResult, Workspace, as_batch, result_here
from holdfast.tasks.working_state import Kept, leave_former_shards, open_shard


@dataclass(frozen=True)
class FollowedOperator:
    """One operator's shards that are to be brought along, by shard number."""

    uid: str
    lineage: Lineage
    shards: dict[int, Line]


@dataclass(frozen=True)
class FollowTask:
    """`committed`: the epoch that the lines end with; nothing up to it is ever undone. `ranges`: of all
    shards, also of those that are not brought along."""

    workspace: Workspace
    operators: tuple[FollowedOperator, ...]
    committed: int
    ranges: tuple[KeyGroupRange, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                yield as_batch(self.follow(shard))

    def follow(self, shard: int) -> TaskResult:
        """One shard of each operator. An error comes back as a result: the driver says so and tries again."""
        result = result_here(shard)
        found = [Arrival.THERE]
        try:
            for operator in self.operators:
                if shard in operator.shards:
                    found.append(self._bring(operator, operator.shards[shard]))
        except HoldfastError as error:
            return replace(result, failure=Failure(type(error).__name__, (str(error),)))
        return replace(result, arrival=max(found, key=list(Arrival).index))

    def _bring(self, operator: FollowedOperator, line: Line) -> Arrival:
        opened = open_shard(
            self.workspace, operator.uid, operator.lineage, line, self.committed, Kept.IN_CHECKPOINT
        )
        leave_former_shards(self.workspace, operator.uid, self.ranges)
        with contextlib.closing(opened) as state:
            # Now, while there is time: otherwise the first epoch after a takeover would wait for it.
            state.verify_base()
            return state.arrival
