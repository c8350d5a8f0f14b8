"""State written into a savepoint by Spark: rows of a DataFrame, or the entries of another savepoint.

Always true: every key is put into the key group in which its operator will look for it; what is written are
deltas from nothing, one or a few per shard, so that any backend, any parallelism and any reader of Parquet
can start from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast import errors
from holdfast.checkpoint.store.records import DeltaFile
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.errors import DefinitionError
from holdfast.ids import shard_ranges
from holdfast.inspect.stored_state import StoredState, pieces
from holdfast.runtime.epoch.program import frame_schema
from holdfast.runtime.placement import shard_expression
from holdfast.runtime.savepoints.write_tasks import ENTRY_SCHEMA, RegroupTask, WriteTask, decode_written
from holdfast.state.contract import EMPTY_VERSION, Version
from holdfast.state.encoding.keys import group_expression
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.routing import quoted
from holdfast.state.encoding.types import frame_ddl, type_ddl
from holdfast.state.files.rows import column_names, row_schema, schema_problems
from holdfast.storage.contract import Storage
from holdfast.tasks.messages import RESULT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def refuse_columns(frames: Mapping[str, tuple[StateLayout, DataFrame]]) -> None:
    """Every mistake in every frame's columns, at once."""
    problems = []
    for uid, (layout, frame) in frames.items():
        problems += [
            f"the rows for operator {uid!r}: {p}" for p in schema_problems(layout, frame_schema(frame))
        ]
    if problems:
        wanted = [f"{uid!r} has {frame_ddl(row_schema(layout))}" for uid, (layout, _) in frames.items()]
        raise DefinitionError("\n".join([*problems, f"columns wanted: {'; '.join(wanted)}"]))


@dataclass(frozen=True)
class StateWriter:
    """Writes state where a draft is made, in tasks for `shards` shards."""

    target: Storage
    draft: SavepointRecord
    shards: int

    def write_rows(self, layout: StateLayout, frame: DataFrame) -> list[DeltaFile]:
        """Put every row into its key group, as the operators do, and write the groups of each shard."""
        states, group = column_names(layout)
        wanted = row_schema(layout)
        columns = [
            f"cast({quoted(name)} as {type_ddl(wanted.field(name).type)}) as {quoted(name)}"
            for name in (*layout.key.names, *states)
        ]
        key_group = group_expression(layout.key, layout.key.names, self.draft.key_groups)
        routed = frame.selectExpr(*columns).selectExpr("*", f"{key_group} as {quoted(group)}")
        return self._written(layout, routed, "rows", group)

    def regroup(self, spark: SparkSession, stored: StoredState, uid: str) -> list[DeltaFile]:
        """Put an operator's stored entries into the key groups of the draft."""
        cuts = tuple((int(cut.first), int(cut.end)) for cut in pieces(stored.view, uid, stored.whole))
        task = RegroupTask(stored.storage.url, uid, cuts, self.draft.key_groups)
        entries = spark.range(0, len(cuts), 1, len(cuts)).mapInArrow(task, ENTRY_SCHEMA)
        return self._written(stored.layout(uid), entries, "entries", "key_group")

    def _written(
        self, layout: StateLayout, frame: DataFrame, form: Literal["rows", "entries"], group: str
    ) -> list[DeltaFile]:
        from pyspark.sql.functions import expr

        epoch, key_groups = self.draft.manifest.last_epoch, self.draft.key_groups
        ranges = shard_ranges(key_groups, self.shards)
        task = WriteTask(self.target.url, layout, form, group, ranges, epoch)
        shard = shard_expression(quoted(group), self.shards, key_groups)
        order = [quoted(group), "`key`"] if form == "entries" else [quoted(group)]
        placed = frame.repartitionById(self.shards, expr(shard)).sortWithinPartitions(*order)
        results = [decode_written(bytes(row[0])) for row in placed.mapInArrow(task, RESULT_SCHEMA).collect()]
        version = Version(epoch=epoch, attempt=0, result=self.draft.id)
        deltas = []
        for result in sorted(results, key=lambda result: result.first_group):
            if result.failure is not None:
                raise getattr(errors, result.failure.kind)(*result.failure.args)
            assert result.extent is not None
            deltas.append(
                DeltaFile(
                    operator=layout.operator,
                    first_group=result.first_group,
                    end_group=result.end_group,
                    version=version,
                    parent=EMPTY_VERSION,
                    extent=result.extent,
                    entries=result.entries,
                )
            )
        return deltas
