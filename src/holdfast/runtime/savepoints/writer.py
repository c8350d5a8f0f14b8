"""State written into a savepoint by Spark: rows of a DataFrame, or the entries of another savepoint.

Always true: every key is put into the key group in which its operator will look for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from holdfast import errors
from holdfast.checkpoint.savepoints.canonical import WholeState, whole_state_delta
from holdfast.checkpoint.store.records import DeltaFile, SavepointRecord
from holdfast.errors import DefinitionError
from holdfast.ids import shard_ranges
from holdfast.inspect.stored_state import StoredState, pieces
from holdfast.runtime.epoch.program import frame_schema
from holdfast.runtime.placement import shard_expression
from holdfast.runtime.savepoints.tasks import ENTRY_SCHEMA, RegroupTask, WriteTask, decode_written
from holdfast.state.encoding.keys import group_expression
from holdfast.state.encoding.layout import StateLayout
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


def write_rows(
    target: Storage, draft: SavepointRecord, layout: StateLayout, frame: DataFrame, shards: int
) -> list[DeltaFile]:
    """Put every row into its key group, as the operators do, and write the groups of each shard."""
    states, group = column_names(layout)
    wanted = row_schema(layout)
    columns = [
        f"cast({_quoted(name)} as {type_ddl(wanted.field(name).type)}) as {_quoted(name)}"
        for name in (*layout.key.names, *states)
    ]
    routed = frame.selectExpr(*columns).selectExpr(
        "*", f"{group_expression(layout.key, layout.key.names, draft.key_groups)} as {_quoted(group)}"
    )
    return _written(target, draft, layout, routed, "rows", group, shards)


def regroup(
    target: Storage,
    draft: SavepointRecord,
    stored: StoredState,
    uid: str,
    spark: SparkSession,
    shards: int,
) -> list[DeltaFile]:
    """Put an operator's stored entries into the key groups of the draft."""
    cuts = tuple((int(cut.first), int(cut.end)) for cut in pieces(stored.view, uid, stored.whole))
    task = RegroupTask(stored.storage.url, uid, cuts, draft.key_groups)
    entries = spark.range(0, len(cuts), 1, len(cuts)).mapInArrow(task, ENTRY_SCHEMA)
    return _written(target, draft, stored.layout(uid), entries, "entries", "key_group", shards)


def _written(
    target: Storage,
    draft: SavepointRecord,
    layout: StateLayout,
    frame: DataFrame,
    form: Literal["rows", "entries"],
    group: str,
    shards: int,
) -> list[DeltaFile]:
    from pyspark.sql.functions import expr

    epoch = draft.manifest.last_epoch
    ranges = shard_ranges(draft.key_groups, shards)
    task = WriteTask(target.url, layout, form, group, ranges, epoch)
    shard = shard_expression(_quoted(group), shards, draft.key_groups)
    order = [_quoted(group), "`key`"] if form == "entries" else [_quoted(group)]
    placed = frame.repartitionById(shards, expr(shard)).sortWithinPartitions(*order)
    results = [decode_written(bytes(row[0])) for row in placed.mapInArrow(task, RESULT_SCHEMA).collect()]
    deltas = []
    for result in sorted(results, key=lambda result: result.first_group):
        if result.failure is not None:
            raise getattr(errors, result.failure.kind)(*result.failure.args)
        assert result.extent is not None
        state = WholeState(layout.operator, result.first_group, result.end_group, result.entries)
        deltas.append(whole_state_delta(draft, state, result.extent))
    return deltas


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
