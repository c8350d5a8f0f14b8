"""Event time in a graph: which watermarks an operator goes by.

A watermark is declared on what comes from one source and goes by that source's uid. Streams carry it on, also
through operators; where streams come together the smallest counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.clock import duration_ms
from holdfast.connectors.contract import PartitionedSource
from holdfast.errors import DefinitionError
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    ChannelNode,
    Graph,
    LookupNode,
    OperatorNode,
    OutputNode,
    SourceNode,
    StreamNode,
    TransformNode,
    WatermarkNode,
    describe,
    parents_of,
)
from holdfast.state.encoding.types import type_ddl

TIME_MAX_US = 1 << 61
"""Times further from 1970 than this (about 73,000 years) are in no window: rows that have one are late. No
watermark is further either: whatever is reckoned from one fits a long."""


def bounded(watermark_us: int) -> int:
    """A watermark, or the last or first that there is where it is beyond these."""
    return min(max(watermark_us, -TIME_MAX_US), TIME_MAX_US)


def watermarks_of(node: StreamNode) -> tuple[WatermarkNode, ...]:
    """The watermarks that a stream's event time follows from; none: some of its rows have no event time."""
    if isinstance(node, WatermarkNode):
        return (node,)
    if isinstance(node, SourceNode):
        return ()
    if isinstance(node, BroadcastConnectNode):
        # A broadcast stream counts where it says so: without a watermark it does not hold time back.
        own = watermarks_of(node.parent)
        return tuple(dict.fromkeys((*own, *watermarks_of(node.broadcast)))) if own else ()
    found = [watermarks_of(parent) for parent in parents_of(node)]
    if not all(found):
        return ()
    return tuple(dict.fromkeys(each for watermarks in found for each in watermarks))


def source_of(node: WatermarkNode) -> SourceNode | None:
    """The source whose rows a watermark is declared on; None: there is no such single one."""
    origin = _origin(node)
    return origin if isinstance(origin, SourceNode) else None


def _origin(node: WatermarkNode) -> StreamNode:
    """Where the rows of a watermark come from: what is no transform."""
    parent = node.parent
    while isinstance(parent, TransformNode | WatermarkNode):
        parent = parent.parent
    return parent


def watermark_nodes(graph: Graph) -> dict[str, WatermarkNode]:
    """The watermarks of a job, by the uid of their source."""
    found = {}
    for node in graph.nodes:
        if isinstance(node, WatermarkNode) and (source := source_of(node)) is not None:
            found[source.uid] = node
    return found


def watermark_mistakes(node: WatermarkNode, graph: Graph) -> Iterator[tuple[str, str]]:
    """What is wrong with the declaration of a watermark, and what to do."""
    if not isinstance(node.column, str):
        yield f"{node.column!r} is not the name of a column", "give its name, such as 'ts'"
    yield from _durations(node)
    source = source_of(node)
    if source is None:
        origin = _origin(node)
        after = origin.parent if isinstance(origin, OutputNode) else origin
        carries = isinstance(after, OperatorNode | LookupNode | ChannelNode)
        yield (
            f"it is declared after {describe(after) if carries else 'a ' + describe(after)}",
            "declare it on the streams of the sources before: operators carry it on"
            if carries
            else "declare it on each of the streams that come together here",
        )
        return
    first = watermark_nodes(graph)[source.uid]
    others = [other for other in graph.nodes if isinstance(other, WatermarkNode) and other is not node]
    if first is node and any(source_of(other) is source for other in others):
        yield f"{describe(source)} has two watermarks", "declare one, and use its stream for both"


def _durations(node: WatermarkNode) -> Iterator[tuple[str, str]]:
    for name, given, least in (("delay", node.delay, 0), ("idle_after", node.idle_after, 1)):
        if given is None:
            continue
        if not isinstance(given, str):
            yield f"{name}={given!r} is not text", "write a duration such as '10s'"
            continue
        try:
            if duration_ms(given) < least:
                yield f"{name}={given!r} is no time at all", "give at least '1ms', or leave it out"
        except DefinitionError as error:
            problem, _, remedy = str(error).rpartition("; ")
            yield f"{name}: {problem}", remedy


def no_event_time(node: WatermarkNode, schema: pa.Schema) -> tuple[str, str] | None:
    """Why rows of these columns cannot have the watermark, and what to do; None: they can."""
    if (wrong := no_timestamp(node.column, schema)) is not None:
        return wrong
    source = source_of(node)
    if source is None or not isinstance(source.source, PartitionedSource):
        return None
    column = source.source.partition_column
    if column in schema.names:
        return None
    return (
        f"column {column!r}, which names the partition of a row of {describe(source)}, is gone",
        "keep it in the transforms before the watermark: event time waits for the slowest partition",
    )


def micros_sql(time: str, naive: bool) -> str:
    """Spark SQL text of a timestamp in µs since 1970. `naive`: it has no time zone."""
    if not naive:
        return f"unix_micros({time})"
    # By its parts: whatever takes it as a whole goes by the time zone of the session, in which there may be
    # no such time, and gives that of an hour later.
    days = f"datediff(cast({time} as date), date'1970-01-01')"
    minutes = f"(({days} * 24L + hour({time})) * 60L + minute({time}))"
    # In two halves: the first minute that there is begins before the first time that a long can hold.
    seconds = f"cast(extract(second from {time}) * 1000000 as bigint)"
    return f"({minutes} * 30000000L + {seconds} + {minutes} * 30000000L)"


def no_timestamp(column: str, schema: pa.Schema) -> tuple[str, str] | None:
    """Why a column cannot be event time, and what to do; None: it can."""
    if column not in schema.names:
        return f"there is no column {column!r}; there are {', '.join(schema.names)}", "name one of these"
    type = schema.field(column).type
    if pa.types.is_timestamp(type):
        return None
    return f"column {column!r} is {type_ddl(type)}, not timestamp", timestamp_remedy(type)


def timestamp_remedy(type: pa.DataType) -> str:
    """What to do about a column of time that is of another type."""
    if pa.types.is_string(type):
        return "declare it timestamp in the schema, or make one with transform(...): to_timestamp(column)"
    if pa.types.is_integer(type):
        return "make one with transform(...), such as timestamp_millis(column)"
    return "make one with transform(...)"
