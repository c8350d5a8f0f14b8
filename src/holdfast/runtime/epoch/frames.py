"""The DataFrames of one epoch: sources read by plan, transforms on top, staged rows where they have been
computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.checkpoint.store.records import PlannedSlice, PlanRecord
from holdfast.connectors.contract import Slice, SourceReader
from holdfast.graph.job_graph import SourceNode, StreamNode, TransformNode, UnionNode
from holdfast.runtime.epoch.program import Program, apply_transform, union_frames
from holdfast.state.encoding.types import frame_ddl
from holdfast.tasks.messages import Payload
from holdfast.tasks.payloads import StagedReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class EpochFrames:
    """Builds frames for one epoch; nothing is computed here, Spark does that when a stage's job runs."""

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        readers: Mapping[str, SourceReader],
        plan: PlanRecord,
        storage_url: str,
    ) -> None:
        self._spark, self._program, self._readers = spark, program, readers
        self._plan, self._storage_url = plan, storage_url
        self._staged: dict[str, list[Payload]] = {}
        self._sources: dict[str, DataFrame] = {}

    def add(self, stream: str, payload: Payload) -> None:
        """Take staged rows of a stream, to be read by later stages of this epoch."""
        self._staged.setdefault(stream, []).append(payload)

    def frame(self, node: StreamNode) -> DataFrame:
        """The rows of a stream: staged ones if the stream is staged."""
        if node in self._program.streams:
            return self._staged_frame(self._program.streams[node])
        return self.computed(node)

    def computed(self, node: StreamNode) -> DataFrame:
        """The rows of a stream, computed from what it reads."""
        if isinstance(node, SourceNode):
            return self._source(node)
        if isinstance(node, TransformNode):
            return apply_transform(node, self.frame(node.parent))
        assert isinstance(node, UnionNode), f"{node} is computed by its operator"
        return union_frames([self.frame(parent) for parent in node.parents])

    def _source(self, node: SourceNode) -> DataFrame:
        if node.uid not in self._sources:
            planned = self._plan.slices.get(node.uid)
            if planned is None or planned.skipped:
                frame = self._spark.createDataFrame([], node.source.schema)
            else:
                frame = self._readers[node.uid].frame(self._spark, slice_of(planned))
            self._sources[node.uid] = frame
        return self._sources[node.uid]

    def _staged_frame(self, stream: str) -> DataFrame:
        schema = self._program.schemas[stream]
        payloads = tuple(self._staged.get(stream, ()))
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
