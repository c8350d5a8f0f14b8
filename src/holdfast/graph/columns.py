"""The columns of a stream, as far as they can be known with no Spark at hand, and what sinks say to them.

No columns (None) means: only Spark can tell (a transform lies before it), or the declaration is wrong, which
`validate.check` reports.
"""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from holdfast.connectors.contract import SelectiveSink
from holdfast.errors import DefinitionError
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.functions import output_schema, side_schemas
from holdfast.graph.job_graph import (
    DEAD_LETTERS,
    Mistake,
    OperatorNode,
    OutputNode,
    SinkNode,
    SourceNode,
    StreamNode,
    TransformNode,
    UnionNode,
    describe,
)
from holdfast.state.encoding.types import parse_schema

DEAD_LETTER_SCHEMA = pa.schema(
    [("row", pa.string()), ("key", pa.string()), ("error", pa.string()), ("epoch", pa.int64())]
)


def known_schema(node: StreamNode) -> pa.Schema | None:
    """The schema of a stream, or None."""
    try:
        return _schema(node)
    # A declaration may hold anything in place of a source or a function: validate says what.
    except (DefinitionError, AttributeError, TypeError, KeyError):
        return None


def sink_refusals(node: SinkNode, schema: pa.Schema) -> list[Mistake]:
    """Why a sink can never show rows of these columns; nothing if it can, or does not say."""
    if not isinstance(node.sink, SelectiveSink):
        return []
    try:
        node.sink.check_schema(schema)
    except DefinitionError as refusal:
        return [Mistake.of_text(node.place, describe(node), str(refusal))]
    return []


def _schema(node: StreamNode) -> pa.Schema | None:
    if isinstance(node, SourceNode):
        return parse_schema(node.source.schema)
    if isinstance(node, TransformNode):
        return None
    if isinstance(node, UnionNode):
        return next((schema for schema in map(known_schema, node.parents) if schema is not None), None)
    if isinstance(node, OperatorNode):
        return _output(node)
    if isinstance(node, OutputNode):
        if isinstance(node.parent.function, Aggregation):
            return None
        return {**side_schemas(node.parent.function), DEAD_LETTERS: DEAD_LETTER_SCHEMA}.get(node.name)
    assert_never(node)


def _output(node: OperatorNode) -> pa.Schema | None:
    if not isinstance(node.function, Aggregation):
        return output_schema(node.function)
    rows = known_schema(node.parent)
    return None if rows is None else node.function.output_schema(rows, node.key)
