"""The columns of streams and of state, and what sinks say to them.

Columns that are not known (None) without Spark: a transform lies before them, or the declaration is wrong,
which `validate.check` reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from holdfast.connectors.contract import SelectiveSink
from holdfast.errors import DefinitionError
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.functions import DeclaringFunction, has_timers, output_schema, side_schemas
from holdfast.graph.job_graph import (
    DEAD_LETTERS,
    LATE_ROWS,
    MAIN_OUTPUT,
    ChannelNode,
    ConnectNode,
    InletNode,
    LookupNode,
    Mistake,
    OperatorNode,
    OutputNode,
    SinkNode,
    SourceNode,
    StreamNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    describe,
)
from holdfast.graph.time_joins import TimeJoin
from holdfast.graph.two_inputs import connected_schema
from holdfast.graph.windows import Windowed
from holdfast.state.cells.declarations import state_fields
from holdfast.state.cells.timers import timer_fields
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.types import parse_schema

if TYPE_CHECKING:
    from holdfast.graph.job_graph import StatefulFunction

DEAD_LETTER_SCHEMA = pa.schema(
    [("row", pa.string()), ("key", pa.string()), ("error", pa.string()), ("epoch", pa.int64())]
)

SOURCE_DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("line", pa.int64()),
        ("row", pa.string()),
        ("reason", pa.string()),
        ("epoch", pa.int64()),
    ]
)
"""Rows that a source could not parse. `line` is null where a row is not a line of its own."""


def known_schema(node: StreamNode) -> pa.Schema | None:
    """The schema of a stream, as far as it can be known without Spark."""
    try:
        return _schema(node)
    # A declaration may hold anything in place of a source or a function: validate says what.
    except (DefinitionError, AttributeError, TypeError, KeyError):
        return None


def known_input(node: OperatorNode) -> pa.Schema | None:
    """The columns of the rows that an operator reads, as far as they can be known without Spark."""
    rows = known_schema(node.parent)
    if not isinstance(node, ConnectNode) or rows is None:
        return rows
    right = known_schema(node.right)
    if right is None or not set(node.key) <= set(rows.names):
        return None
    return connected_schema(rows, right, node.key)


def sink_refusals(node: SinkNode, schema: pa.Schema) -> list[Mistake]:
    """Why a sink can never show rows of these columns; nothing if it can, or does not say."""
    if not isinstance(node.sink, SelectiveSink):
        return []
    try:
        node.sink.check_schema(schema)
    except DefinitionError as refusal:
        return [Mistake.of_text(node.place, describe(node), str(refusal))]
    return []


def state_layout(uid: str, function: StatefulFunction, rows: pa.Schema, key: tuple[str, ...]) -> StateLayout:
    """The state that a function declares, over rows of this schema."""
    if isinstance(function, Aggregation | Windowed):
        fields = function.state_fields(rows)
    elif isinstance(function, TimeJoin):
        fields = function.state_fields(rows, key)
    elif isinstance(function, BroadcastSide):
        fields = function.state_fields()
    else:
        fields = state_fields(type(function))
        if has_timers(function):
            fields += timer_fields(len(fields) + 1)
    return StateLayout(uid, pa.schema([rows.field(name) for name in key]), fields)


def output_schemas(function: StatefulFunction, rows: pa.Schema, key: tuple[str, ...]) -> dict[str, pa.Schema]:
    """The columns of everything that a function gives out, by output name."""
    if isinstance(function, Aggregation):
        return {MAIN_OUTPUT: function.output_schema(rows, key)}
    if isinstance(function, Windowed | TimeJoin):
        outputs = {MAIN_OUTPUT: function.output_schema(rows, key)}
        # Windows that are counted go by no time: nothing is late.
        return outputs if function.on is None else {**outputs, LATE_ROWS: function.late_schema(rows)}
    own = _declaring(function)
    return {MAIN_OUTPUT: output_schema(own), **side_schemas(own), DEAD_LETTERS: DEAD_LETTER_SCHEMA}


def _schema(node: StreamNode) -> pa.Schema | None:
    if isinstance(node, InletNode):
        return known_schema(node.channel)
    if isinstance(node, SourceNode):
        return parse_schema(node.source.schema)
    if isinstance(node, TransformNode | LookupNode):
        return None
    if isinstance(node, WatermarkNode | ChannelNode):
        return known_schema(node.parent)
    if isinstance(node, UnionNode):
        return next((schema for schema in map(known_schema, node.parents) if schema is not None), None)
    if isinstance(node, OperatorNode):
        return _output(node)
    if isinstance(node, OutputNode):
        if isinstance(node.parent, SourceNode):
            return SOURCE_DEAD_LETTER_SCHEMA
        return _outputs(node.parent).get(node.name)
    assert_never(node)


def _output(node: OperatorNode) -> pa.Schema | None:
    if isinstance(node.function, Aggregation | Windowed | TimeJoin):
        return _outputs(node).get(MAIN_OUTPUT)
    return output_schema(_declaring(node.function))


def _outputs(node: OperatorNode) -> dict[str, pa.Schema]:
    """All that is known of an operator's outputs; a function says the most without its rows."""
    if not isinstance(node.function, Aggregation | Windowed | TimeJoin):
        return {**side_schemas(_declaring(node.function)), DEAD_LETTERS: DEAD_LETTER_SCHEMA}
    rows = known_input(node)
    return {} if rows is None else output_schemas(node.function, rows, node.key)


def _declaring(function: DeclaringFunction | BroadcastSide) -> DeclaringFunction:
    """What declares the outputs of an operator, or of its broadcast half."""
    return function.function if isinstance(function, BroadcastSide) else function
