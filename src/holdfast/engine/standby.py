"""Making a standby warm: what a takeover would otherwise wait for is done beforehand.

Always true: nothing of the job's data is read or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.engine.program import compile_graph
from holdfast.engine.progress import Message
from holdfast.engine.session import open_session
from holdfast.graph.nodes import Graph
from holdfast.graph.validate import check

if TYPE_CHECKING:
    import pyarrow as pa


def prepare(graphs: Sequence[Graph], say: Message) -> None:
    """Start Spark, compile the jobs, and let Spark start a Python worker."""
    say("WARMING UP: starting Spark and compiling the jobs")
    spark = open_session(graphs[0].name)
    for graph in graphs:
        check(graph)
        compile_graph(graph, spark)
    spark.range(1).mapInArrow(_same, "id long").collect()
    say("WARM: Spark is started and the jobs are compiled")


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
