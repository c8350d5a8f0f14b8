"""The DataFrames of one epoch, as far as Spark has to compute them.

Always true: what a stage reads is what its plan names: slices of sources, rows that stages before it staged,
copies of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.checkpoint.store.records import PlannedSlice, PlanRecord
from holdfast.connectors.contract import (
    PartitionedReader,
    PartitionedSource,
    Pieces,
    PiecesReader,
    SiftingReader,
    SiftingSource,
    Slice,
    SourceReader,
)
from holdfast.graph.event_time import source_of, watermark_nodes
from holdfast.graph.job_graph import (
    BroadcastNode,
    CarriedNode,
    ConnectNode,
    LookupNode,
    OperatorNode,
    OutputNode,
    SourceNode,
    StreamNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    parents_of,
)
from holdfast.runtime.epoch.list_state import ShardLists
from holdfast.runtime.epoch.looked_up import looked_up
from holdfast.runtime.epoch.observed_times import NewestTimes, ObservedTimes
from holdfast.runtime.epoch.program import Program, apply_transform, union_frames
from holdfast.runtime.epoch.rows_read import is_transformed
from holdfast.runtime.epoch.set_aside import Counts, counting
from holdfast.runtime.epoch.two_inputs import connected_frame
from holdfast.runtime.parts.channel_source import TimedReader
from holdfast.state.encoding.types import frame_ddl
from holdfast.tasks.messages import Payload, TaskResult
from holdfast.tasks.task_output import StagedReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROADCAST_BYTES = 8 << 20
"""Copies of tables up to this size (compressed) are handed whole to every task that joins with them."""


@dataclass(frozen=True)
class Untold:
    """Sources of which Spark once left out what it was to observe: other ways are used from then on."""

    counts: set[str] = field(default_factory=set)
    """How many rows there are, and how many are malformed: these are looked for in every epoch."""
    times: set[str] = field(default_factory=set)
    """The newest event time: a job of its own finds it."""


@dataclass(frozen=True)
class SparkColumns:
    """How Spark hands columns to Python where its session is in UTC. It is asked once for each DDL."""

    _known: dict[str, pa.Schema] = field(default_factory=dict)

    def of(self, spark: SparkSession, ddl: str) -> pa.Schema:
        if ddl not in self._known:
            self._known[ddl] = spark.createDataFrame([], ddl).toArrow().schema
        return self._known[ddl]


Awaited = Callable[[str, Callable[[], Any]], Any]
"""Asks a source, by its uid, and gives what it answers."""


class EpochFrames:
    """The DataFrames of one epoch: sources read by plan, transforms on top, staged rows where they have been
    computed. Spark computes them when a stage's job runs.
    """

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        readers: Mapping[str, SourceReader],
        storage_url: str,
        plan: PlanRecord,
        untold: Untold,
        spark_columns: SparkColumns,
        awaited: Awaited = lambda uid, ask: ask(),
    ) -> None:
        """`awaited`: asks a source once its server is there."""
        self._awaited = awaited
        self._spark, self._program, self._readers = spark, program, readers
        self._storage_url, self._plan = storage_url, plan
        self._staged: dict[str, list[Payload]] = {}
        self._staged_rows: dict[str, int] = {}
        self._spark_columns = spark_columns
        self._sources: dict[str, DataFrame] = {}
        self.observed = ObservedTimes(untold.times)
        self.counts = Counts(untold.counts)
        self.broadcast: dict[BroadcastNode, ShardLists] = {}
        """What the chosen results of this epoch have made of broadcast states."""

    def add(self, stream: str, payload: Payload, rows: int) -> None:
        """Take staged rows of a stream, to be read by later stages of this epoch."""
        self._staged.setdefault(stream, []).append(payload)
        self._staged_rows[stream] = self._staged_rows.get(stream, 0) + rows

    def input(self, node: OperatorNode) -> DataFrame:
        """The rows that an operator reads."""
        if isinstance(node, ConnectNode):
            return connected_frame(node, self.frame(node.parent), self.frame(node.right))
        return self.frame(node.parent)

    def pieces(self, node: StreamNode) -> Pieces | None:
        """The rows of a stream as tasks read them by themselves; None: Spark has to read them."""
        if node in self._program.streams:
            return self._staged_pieces(self._program.streams[node])
        if isinstance(node, CarriedNode) or (
            isinstance(node, WatermarkNode) and self.time_column(node) is not None
        ):
            return self.pieces(node.parent)
        return self.source_pieces(node) if isinstance(node, SourceNode) else None

    def source_pieces(self, node: SourceNode) -> Pieces | None:
        """The rows that a source reads, in the same way."""
        if node.on_error != "fail":
            return None
        planned, reader = self._plan.slices.get(node.uid), self._readers[node.uid]
        if planned is None or planned.skipped or not isinstance(reader, PiecesReader):
            return None
        found: Pieces | None = self._awaited(node.uid, partial(reader.pieces, self._spark, slice_of(planned)))
        return found

    def time_column(self, node: StreamNode) -> str | None:
        """The column in which those that read the rows of a stream have to find the newest event time, where
        tasks can."""
        if not isinstance(node, WatermarkNode) or isinstance(node, CarriedNode):
            return None
        source = source_of(node)
        return None if source is None or isinstance(source.source, PartitionedSource) else node.column

    def read_by_tasks(self, node: StreamNode, results: Sequence[TaskResult]) -> None:
        """Take the newest event time that tasks have found, if they were to."""
        if self.time_column(node) is None:
            return
        assert isinstance(node, WatermarkNode)
        source = source_of(node)
        assert source is not None
        found = [result.newest_us for result in results if result.newest_us is not None]
        self.observed.told(source.uid, {"": max(found, default=None)})

    def _staged_pieces(self, stream: str) -> Pieces:
        payloads = tuple(self._staged.get(stream, ()))
        columns = self._spark_columns.of(self._spark, frame_ddl(self._program.schemas[stream]))
        reader = StagedReader(self._storage_url, payloads, columns)
        return Pieces(len(payloads), self._staged_rows.get(stream, 0), reader.read)

    def frame(self, node: StreamNode) -> DataFrame:
        """The rows of a stream: staged ones if the stream is staged."""
        if node in self._program.streams:
            return self._staged_frame(self._program.streams[node])
        return self.computed(node)

    def surely_empty(self, node: StreamNode) -> bool:
        """Whether a stream is known to have no rows in this epoch. A transform may make some of none."""
        if node in self._program.streams:
            return not self._staged.get(self._program.streams[node])
        if isinstance(node, SourceNode):
            planned = self._plan.slices.get(node.uid)
            return planned is None or planned.skipped
        return not isinstance(node, TransformNode) and all(map(self.surely_empty, parents_of(node)))

    def computed(self, node: StreamNode) -> DataFrame:
        """The rows of a stream, computed from what it reads."""
        if isinstance(node, SourceNode):
            return self._source(node)
        if isinstance(node, TransformNode):
            return apply_transform(node, self.frame(node.parent))
        if isinstance(node, WatermarkNode):
            return self._watermarked(node)
        if isinstance(node, LookupNode):
            return looked_up(node, self.frame(node.parent), self._table(node.uid))
        if isinstance(node, OutputNode) and isinstance(node.parent, SourceNode):
            return self._malformed(node.parent)
        assert isinstance(node, UnionNode), f"{node} is computed by its operator"
        return union_frames([self.frame(parent) for parent in node.parents])

    def _source(self, node: SourceNode) -> DataFrame:
        if node.uid not in self._sources:
            planned = self._plan.slices.get(node.uid)
            if planned is None or planned.skipped:
                frame = self._spark.createDataFrame([], node.source.schema)
            else:
                frame = self._read(node, slice_of(planned))
            self._sources[node.uid] = frame
        return self._sources[node.uid]

    def _watermarked(self, node: WatermarkNode) -> DataFrame:
        frame, source = self.frame(node.parent), source_of(node)
        if isinstance(node, CarriedNode):
            return frame
        assert source is not None
        part = self._plan.slices.get(source.uid)
        if part is None or part.skipped:
            return frame
        times, _ = self._times(source, node.column)
        return self.observed.watch(source.uid, frame, times) if times.are_any else frame

    def newest_times(self) -> tuple[dict[str, dict[str, int | None]], dict[str, list[str]]]:
        """Source uid -> partition -> the newest event time in its slice; and the partitions without rows."""
        found: dict[str, dict[str, int | None]] = {}
        without: dict[str, list[str]] = {}
        for uid, node in watermark_nodes(self._program.graph).items():
            part, source = self._plan.slices.get(uid), source_of(node)
            if part is None or part.skipped or source is None:
                continue
            if isinstance(node, CarriedNode):
                found[uid] = {"": self._carried(uid)}
            else:
                times, without[uid] = self._times(source, node.column)
                newest = self.observed.newest(uid) if times.are_any else {}
                found[uid] = times.now(self.frame(node.parent)) if newest is None else newest
        return found, without

    def _carried(self, channel: str) -> int | None:
        """The event time that came with the rows of a channel, as the newest that its rows may have had."""
        reader = self._readers[channel]
        assert isinstance(reader, TimedReader)
        time_us = reader.time_after(slice_of(self._plan.slices[channel]))
        # Up to it they are complete: the newest time of a source, less its delay, is the first that is not.
        return None if time_us is None else time_us + 1

    def _times(self, source: SourceNode, column: str) -> tuple[NewestTimes, list[str]]:
        """What to find of a source's slice; and its partitions that have no rows in it."""
        reader = self._readers[source.uid]
        if not isinstance(source.source, PartitionedSource):
            return NewestTimes(column), []
        assert isinstance(reader, PartitionedReader)
        partitions = reader.partitions(slice_of(self._plan.slices[source.uid]))
        with_rows = tuple(name for name, has_rows in partitions.items() if has_rows)
        without = [name for name, has_rows in partitions.items() if not has_rows]
        return NewestTimes(column, source.source.partition_column, with_rows), without

    def _read(self, node: SourceNode, slice: Slice) -> DataFrame:
        reader, spark = self._readers[node.uid], self._spark
        if node.on_error == "fail":
            frame: DataFrame = self._awaited(node.uid, partial(reader.frame, spark, slice))
            return self.counts.watch(node.uid, counting(frame)) if self._counts(node, slice) else frame
        assert isinstance(reader, SiftingReader)
        return self.counts.watch(node.uid, self._awaited(node.uid, partial(reader.sifted, spark, slice)))

    def _counts(self, node: SourceNode, slice: Slice) -> bool:
        """Whether the rows of a source are counted as they are read: where transforms may drop some, and
        every row is looked at anyway. Elsewhere Spark may leave rows unread, and goes on to."""
        looks_at_all = isinstance(node.source, SiftingSource) and node.source.sifts
        return slice.rows is None and looks_at_all and is_transformed(self._program.graph, node)

    def all_fit(self, uid: str) -> bool:
        """Whether it is certain that the epoch sets no row of a source aside."""
        planned = self._plan.slices.get(uid)
        return planned is None or planned.skipped or self.counts.all_fit(uid)

    def _malformed(self, node: SourceNode) -> DataFrame:
        from pyspark.sql.functions import lit

        reader = self._readers[node.uid]
        assert isinstance(reader, SiftingReader)
        found = reader.malformed(self._spark, slice_of(self._plan.slices[node.uid]))
        return found.withColumn("epoch", lit(self._plan.epoch).cast("long"))

    def _table(self, uid: str) -> DataFrame:
        """The copy of a lookup's table that the plan names."""
        from pyspark.sql.functions import broadcast

        extents = self._plan.tables[uid].extents
        payloads = tuple(
            Payload(checksum=extent.checksum, length=extent.length, extent=extent) for extent in extents
        )
        frame = self._stored_frame(payloads, self._program.tables[uid])
        # Spark does not know how small it is, and would sort both sides.
        return broadcast(frame) if sum(each.length for each in extents) <= BROADCAST_BYTES else frame

    def _staged_frame(self, stream: str) -> DataFrame:
        schema = self._program.schemas[stream]
        return self._stored_frame(tuple(self._staged.get(stream, ())), schema)

    def _stored_frame(self, payloads: tuple[Payload, ...], schema: pa.Schema) -> DataFrame:
        ddl = frame_ddl(schema)
        if not payloads:
            return self._spark.createDataFrame([], ddl)
        reader = StagedReader(self._storage_url, payloads, schema)
        return self._spark.range(0, len(payloads), 1, len(payloads)).mapInArrow(reader, ddl)


def slice_of(planned: PlannedSlice) -> Slice:
    """A recorded slice, as its source takes it."""
    return Slice(
        planned.start, planned.end, planned.rows, planned.detail, planned.notes, planned.replaces_notes
    )
